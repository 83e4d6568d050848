"""A plan, its bytes and the plan again: the same in everything, whatever files its tasks share."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from pyarctic.iceberg.catalog import apply_patches
from pyarctic.iceberg.manifest import FILE_SCHEMA
from pyarctic.optimizing.plan.commit_plan import CommitPlan, KeyedPart, Merge
from pyarctic.optimizing.protocol import Job, Task
from pyarctic.optimizing.protocol.job import job_metadata
from pyarctic.optimizing.protocol.task import KeyedTask
from tests.support.commit_plans import assert_same_plan
from tests.support.observations import table_metadata

apply_patches()  # as whoever opens a catalog does
METADATA = {version: job_metadata(table_metadata(version=version)) for version in (2, 3)}
COUNTS = st.integers(0, 2**53)
IDS = st.integers(0, 2**63 - 1)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
ROWS = st.fixed_dictionaries(
    {
        "content": st.integers(0, 2),
        "file_path": st.sampled_from(["a.parquet", "b.parquet", "c.puffin"]) | NAMES,
        "file_format": st.sampled_from(["PARQUET", "PUFFIN", "AVRO"]),
        "spec_id": st.integers(0, 3),
        "partition": st.sampled_from(["[]", '["a"]', '[null, "b"]']),
        "record_count": COUNTS,
        "file_size_bytes": COUNTS,
        "data_sequence_number": COUNTS,
        "file_sequence_number": st.none() | COUNTS,
        "snapshot_id": st.none() | IDS,
        "equality_ids": st.none() | st.lists(st.integers(1, 9), max_size=3),
        "sort_order_id": st.none() | st.integers(0, 3),
        "first_row_id": st.none() | COUNTS,
        "referenced_data_file": st.none() | NAMES,
        "content_offset": st.none() | st.integers(0, 3),
        "content_size_bytes": st.none() | st.integers(0, 3),
        "key_metadata_bytes": st.none() | st.integers(0, 100),
        "manifest_path": st.none() | st.sampled_from(["m0.avro", "m1.avro"]),
    }
)


@st.composite
def frames(draw: st.DrawFn, pool: list[dict[str, Any]]) -> pl.DataFrame:
    chosen = draw(st.lists(st.sampled_from(pool), max_size=6)) if pool else []
    return pl.DataFrame(chosen, schema=FILE_SCHEMA, orient="row")


@st.composite
def tasks(draw: st.DrawFn, number: int, pool: list[dict[str, Any]], *, keyed: bool) -> Task:
    files = draw(frames(pool))
    values: dict[str, Any] = {
        "id": number,
        "action": "merge" if keyed else draw(st.sampled_from(["merge", "convert"])),
        "kind": draw(st.sampled_from(["minor", "major", "full"])),
        "partition": draw(NAMES),
        "files": files,
        "spec_id": draw(st.integers(0, 3)),
        "partition_key": draw(NAMES if keyed else st.none() | NAMES),
        "target_bytes": draw(COUNTS),
        "expected_rows": draw(COUNTS),
        "expected_bytes": draw(COUNTS),
        "sort": draw(st.booleans()),
        "z_order": tuple(draw(st.lists(st.integers(1, 9), max_size=2))),
        "ranges": draw(st.integers(1, 9)),
        "copy_least_rows": draw(st.none() | COUNTS),
        "files_out": draw(st.none() | st.tuples(COUNTS, COUNTS, COUNTS)),
        "reasons": tuple(draw(st.lists(NAMES, max_size=2))),
    }
    if not keyed:
        return Task(**values)
    changes = draw(frames(pool))
    some = st.lists(st.sampled_from([*files["file_path"], *changes["file_path"]] or [None]), max_size=3)
    paths = [tuple(path for path in draw(some) if path is not None) for _ in range(3)]
    return KeyedTask(
        **values,
        node_id=draw(IDS),
        changes=changes,
        transaction_id=draw(IDS),
        kept=paths[0],
        shareable=paths[1],
        foreign=paths[2],
    )


@st.composite
def plans(draw: st.DrawFn) -> CommitPlan:
    keyed, pool = draw(st.booleans()), draw(st.lists(ROWS, max_size=8))
    merges = st.builds(Merge, path=NAMES, merged=st.integers(-1, 9), sequence=COUNTS)
    part = st.builds(
        KeyedPart,
        change_snapshot_id=st.none() | IDS,
        change_sequence_number=COUNTS,
        merges=st.dictionaries(st.tuples(st.integers(0, 3), NAMES), merges, max_size=3),
    )
    job = st.builds(
        Job,
        id=NAMES,
        table=NAMES,
        metadata=st.sampled_from([METADATA[2]] if keyed else [*METADATA.values()]),
        snapshot_id=st.none() | IDS,
        sequence_number=st.none() | COUNTS,
        memory_bytes=COUNTS,
        verify=st.booleans(),
    )
    return CommitPlan(
        process_id=draw(NAMES),
        job=draw(job),
        tasks=tuple(draw(tasks(number, pool, keyed=keyed)) for number in range(draw(st.integers(0, 4)))),
        dangling_deletes=draw(frames(pool)),
        ignores_writers=draw(st.booleans()),
        marks_rollback=draw(st.booleans()),
        quiet_time=draw(st.timedeltas(timedelta(0), timedelta(days=100))),
        keyed=draw(part) if keyed else None,
        figures=draw(st.dictionaries(NAMES, COUNTS, max_size=3)),
    )


@given(plans())
def test_a_plan_is_the_same_after_it_was_stored(plan: CommitPlan) -> None:
    stored = plan.to_bytes()
    assert_same_plan(CommitPlan.from_bytes(stored), plan)
    assert CommitPlan.from_bytes(stored).to_bytes() == stored


@given(plans())
def test_a_file_is_stored_once(plan: CommitPlan) -> None:
    shared = [*plan.tasks, *plan.tasks]
    once, twice = (CommitPlan(**vars(plan) | {"tasks": tuple(listed)}).to_json() for listed in (plan.tasks, shared))
    assert once["files"] == twice["files"]
