"""Plans as data: what they say about themselves, and the files that others load by them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic.errors import Rejected
from pyarctic.optimizing import KindChoice, Options
from pyarctic.optimizing.api import plan_table
from pyarctic.optimizing.plan.commit_plan import CommitPlan
from pyarctic.optimizing.plan.plan import KeyedPlan, NativePlan
from pyarctic.optimizing.plan.start_files import load_start
from pyarctic.tables import Table
from tests.support.commit_plans import assert_same_plan
from tests.support.fragmented_table import fragmented_table
from tests.support.keyed_tables import made as keyed_table
from tests.support.keyed_tables import many, opened, rows
from tests.support.metadata_files import cleaned, edited
from tests.support.optimizing import optimize

MEMORY_BYTES = 64 << 20


def planned(table: Table, options: Options | None = None) -> NativePlan | KeyedPlan:
    plan = plan_table(table.refresh(), options or Options(kind="full"))
    assert plan is not None
    return plan


def committed(table: Table) -> CommitPlan:
    return planned(table).to_commit_plan(memory_bytes=MEMORY_BYTES)


def assert_same_start(table: Table, plan: NativePlan | KeyedPlan) -> None:
    expected = plan.observation.matches
    loaded = load_start(table, plan.to_commit_plan(memory_bytes=MEMORY_BYTES)).matches
    for ours, theirs in [(loaded.data, expected.data), (loaded.vectors, expected.vectors)]:
        assert_frame_equal(ours, theirs, check_row_order=False)
    assert loaded.by_kind.keys() == expected.by_kind.keys()
    for kind, deletes in expected.by_kind.items():
        assert_frame_equal(loaded.by_kind[kind], deletes, check_row_order=False)


def merged_keyed_table() -> Table:
    table = keyed_table(target_size="1KB")
    table.write(many(range(200), "a"), "upsert")
    optimize(opened(), "full")
    table.refresh().write(many(range(0, 200, 3), "b"), "upsert")
    return opened()


@pytest.mark.parametrize("version", [2, 3])
def test_the_start_of_a_native_table_is_loaded_whatever_it_has_now(lake: Catalog, version: int) -> None:
    fragmented_table(lake, "db.t", version)
    plan = planned(pyarctic.table("lake.db.t"))
    optimize(pyarctic.table("lake.db.t"), "full")
    assert_same_start(pyarctic.table("lake.db.t"), plan)


def test_the_start_of_a_keyed_table_is_that_of_base(lake: Catalog) -> None:
    plan = planned(merged_keyed_table())
    optimize(opened(), "full")
    assert_same_start(opened(), plan)


def test_a_keyed_table_without_base_starts_with_nothing(lake: Catalog) -> None:
    table = keyed_table()
    table.write(rows(_1="a", _2="b"))
    plan = planned(opened())
    optimize(opened(), "full")
    assert plan.to_json()["snapshot_id"] is None
    assert plan.to_commit_plan(memory_bytes=MEMORY_BYTES).job.snapshot_id is None
    assert_same_start(opened(), plan)


def test_a_handle_that_is_older_than_the_plan_is_refreshed(lake: Catalog) -> None:
    fragmented_table(lake, "db.t")
    old = pyarctic.table("lake.db.t")
    pyarctic.table("lake.db.t").write(pa.table({"id": [1], "part": pa.array([1], pa.int32())}))
    plan = planned(pyarctic.table("lake.db.t"))
    assert_same_start(old, plan)


def test_an_expired_start_is_told(lake: Catalog) -> None:
    fragmented_table(lake, "db.t")
    plan = committed(pyarctic.table("lake.db.t"))
    pyarctic.table("lake.db.t").write(pa.table({"id": [1], "part": pa.array([1], pa.int32())}))
    edited(lake.load_table("db.t"), cleaned)
    with pytest.raises(Rejected, match=r"the start snapshot [0-9]+ of the plan was expired by others") as caught:
        load_start(pyarctic.table("lake.db.t"), plan)
    assert caught.value.facts["reason"] == "history-lost"
    assert "Plan it again" in (caught.value.hint or "")


def test_a_table_that_was_made_again_is_another(lake: Catalog) -> None:
    fragmented_table(lake, "db.t")
    plan = committed(pyarctic.table("lake.db.t"))
    lake.drop_table("db.t")
    fragmented_table(lake, "db.t")
    with pytest.raises(Rejected, match="another table") as caught:
        load_start(pyarctic.table("lake.db.t"), plan)
    assert caught.value.facts["reason"] == "replaced-table"


def test_ids_are_made_once(lake: Catalog) -> None:
    fragmented_table(lake, "db.t")
    table = pyarctic.table("lake.db.t")
    first, second = planned(table), planned(table)
    assert len({first.process_id, first.job_id, second.process_id, second.job_id}) == 4
    assert first.make_job(memory_bytes=1).id == first.make_job(memory_bytes=2).id == first.job_id
    assert first.to_commit_plan(memory_bytes=1).process_id == first.process_id


def test_what_a_native_plan_says_of_writers(lake: Catalog) -> None:
    fragmented_table(lake, "db.t")
    table = pyarctic.table("lake.db.t")
    plan = committed(table)
    assert (plan.ignores_writers, plan.marks_rollback, plan.keyed) == (True, False, None)
    table.set({"self-optimizing.writers-first": "true"})
    plan = committed(table)
    assert (plan.ignores_writers, plan.marks_rollback) == (False, True)
    asked = planned(table, Options(kind="full", ignore_writers=True)).to_commit_plan(memory_bytes=MEMORY_BYTES)
    assert (asked.ignores_writers, asked.marks_rollback) == (True, True)


def test_what_a_keyed_plan_merges(lake: Catalog) -> None:
    table = merged_keyed_table()
    plan = committed(table)
    change = opened().change_store.view.metadata.current_snapshot()
    assert change is not None
    assert plan.keyed is not None
    assert (plan.keyed.change_snapshot_id, plan.keyed.change_sequence_number) == (change.snapshot_id, change.sequence_number)
    [(partition, merge)] = plan.keyed.merges.items()
    assert partition == (0, "[]")
    assert 0 < merge.merged < merge.sequence == change.sequence_number
    assert (plan.ignores_writers, plan.marks_rollback) == (True, False)
    assert int(plan.job.id) > 0


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("kind", ["minor", "full"])
def test_a_stored_plan_of_a_native_table_is_the_same(lake: Catalog, version: int, kind: KindChoice) -> None:
    fragmented_table(lake, "db.t", version)
    plan = planned(pyarctic.table("lake.db.t"), Options(kind=kind)).to_commit_plan(memory_bytes=MEMORY_BYTES, verify=True)
    assert plan.tasks
    assert_same_plan(CommitPlan.from_bytes(plan.to_bytes()), plan)


def test_a_stored_plan_of_a_keyed_table_is_the_same(lake: Catalog) -> None:
    plan = committed(merged_keyed_table())
    assert plan.tasks
    assert_same_plan(CommitPlan.from_bytes(plan.to_bytes()), plan)


LOAD = """
import sys
from pathlib import Path
import pyarctic
from pyarctic.optimizing.plan.commit_plan import CommitPlan
from pyarctic.optimizing.plan.start_files import load_start

stored = Path(sys.argv[1]).read_bytes()
plan = CommitPlan.from_bytes(stored)
assert plan.to_bytes() == stored
pyarctic.catalog("lake", type="sql", uri=sys.argv[2], warehouse=sys.argv[3])
matches = load_start(pyarctic.table("lake.db.t"), plan).matches
deletes = sum(frame.height for frame in matches.by_kind.values()) + matches.vectors.height
print(plan.process_id, plan.job.id, len(plan.tasks), matches.data.height, deletes)
"""


@pytest.mark.parametrize("version", [2, 3, None], ids=["native, version 2", "native, version 3", "keyed"])
def test_another_process_loads_a_plan_and_its_start(lake: Catalog, tmp_path: Path, version: int | None) -> None:
    if version is not None:
        fragmented_table(lake, "db.t", version)
    else:
        merged_keyed_table()
    plan = planned(pyarctic.table("lake.db.t"))
    stored = plan.to_commit_plan(memory_bytes=MEMORY_BYTES).to_bytes()
    (tmp_path / "plan").write_bytes(stored)
    optimize(pyarctic.table("lake.db.t"), "full")
    arguments = [str(tmp_path / "plan"), str(lake.properties["uri"]), str(lake.properties["warehouse"])]
    told = subprocess.run([sys.executable, "-c", LOAD, *arguments], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    matches = plan.observation.matches
    deletes = sum(frame.height for frame in matches.by_kind.values()) + matches.vectors.height
    expected = (plan.process_id, plan.job_id, len(plan.tasks), matches.data.height, deletes)
    assert told.stdout.split() == [str(value) for value in expected]
