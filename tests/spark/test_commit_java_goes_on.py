"""Tables that PyArctic's commits made: Iceberg Java understands all of their metadata and goes on working with them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

import polars as pl
import pytest
from pyiceberg.table import Table

from pyarctic.iceberg.commit import Change, Committed, ManifestRewrite, Rejected, commit
from pyarctic.iceberg.manifest.file_list import IS_DATA, IS_VECTOR, ManifestReader
from pyarctic.iceberg.manifest.reader import DELETES_MANIFEST, ManifestRef
from pyarctic.iceberg.write import write_equality_deletes
from tests.oracle.javaturns import JavaTurns
from tests.oracle.session import Oracle
from tests.oracle.sharedtable import MERGE_ON_READ, Row, SharedTable, arrow, has_row_ids
from tests.support import changes

pytestmark = pytest.mark.jvm

VERSIONS = pytest.mark.parametrize("version", [2, 3])


@pytest.fixture
def shared(oracle: Oracle) -> SharedTable:
    return SharedTable(oracle, oracle.catalog, oracle.name, f"{oracle.namespace()}.t")


def add(shared: SharedTable, change: Change | ManifestRewrite) -> Committed:
    outcome = commit(shared.load(), change)
    assert isinstance(outcome, Committed), outcome
    shared.check_summary()
    return outcome


def append(shared: SharedTable, first: int, last: int) -> None:
    rows: list[Row] = [(key, key % 3 or None, f"v{key}") for key in range(first, last)]
    add(shared, changes.append(shared.load(), arrow(rows)))
    shared.rows["main"].update({row[0]: row for row in rows})


def delete_by_position(shared: SharedTable, *keys: int) -> set[str]:
    """The answer names files of the change that the commit did not use, because it wrote larger vectors itself."""
    change = changes.position_delete(shared.load(), f"id in ({', '.join(map(str, keys))})")
    assert change is not None
    add(shared, change)
    forget(shared, *keys)
    return {file.path for file in change.add} - set(changes.files(shared.load())["file_path"])


def delete_by_key(shared: SharedTable, *keys: int) -> None:
    """With the unpartitioned spec: it reaches every partition."""
    table = shared.load()
    ids = arrow((key, None, "") for key in keys).select(["id"])
    file = write_equality_deletes(changes.target(table, (), 0), ids, [table.schema().find_field("id")])
    add(shared, Change(start=changes.head(table), add=(file,)))
    forget(shared, *keys)


def forget(shared: SharedTable, *keys: int) -> None:
    for key in keys:
        del shared.rows["main"][key]


def made_by_us(shared: SharedTable, version: int) -> set[str]:
    """Two specs, rebased deletes, equality deletes, rewritten manifests, and deletes on top of it.

    Gives the files of our changes that no snapshot uses.
    """
    shared.create("identity", version, by_java=False, properties=MERGE_ON_READ)
    append(shared, 1, 10)
    shared.partition(by_java=False)
    append(shared, 10, 30)
    planned = changes.rewrite(shared.load(), hashed=True)
    delete_by_position(shared, 2, 15)
    delete_by_key(shared, 3)
    assert add(shared, planned).rebased_rows == 2
    add(shared, ManifestRewrite())
    unused = delete_by_position(shared, 20)
    append(shared, 30, 36)
    unused |= delete_by_position(shared, 21, 32)
    shared.check()
    return unused


def java_turns(shared: SharedTable) -> JavaTurns:
    ids = count(1000)

    def fresh(number: int) -> list[Row]:
        return [(key, key % 3 or None, f"a{key}") for key in (next(ids) for _ in range(number))]

    return JavaTurns(shared=shared, random=Random(1), fresh=fresh)


@VERSIONS
def test_java_goes_on_and_then_we(shared: SharedTable, version: int) -> None:
    made_by_us(shared, version)
    java = java_turns(shared)
    for statement in (java.insert, java.merge, java.delete, java.update):
        statement("main")
        shared.check()
    delete_by_position(shared, min(shared.rows["main"]))
    delete_by_key(shared, max(shared.rows["main"]))
    for procedure in (java.rewrite_manifests, java.rewrite_data_files, java.expire_snapshots):
        procedure()
        shared.check()
    append(shared, 100, 110)
    delete_by_position(shared, 101)
    add(shared, changes.rewrite(shared.load()))
    shared.check()
    java.merge("main")
    shared.check()


@VERSIONS
def test_our_commits_leave_no_orphan_and_none_of_their_files_is_taken_for_one(shared: SharedTable, version: int) -> None:
    unused = made_by_us(shared, version)
    assert orphans(shared) == names(unused)
    java_turns(shared).merge("main")
    unused |= delete_by_position(shared, min(shared.rows["main"]))
    add(shared, changes.rewrite(shared.load()))
    assert orphans(shared) == names(unused)


def names(paths: Iterable[str]) -> list[str]:
    return sorted(path.rpartition("/")[2] for path in paths)


def orphans(shared: SharedTable) -> list[str]:
    """The names of what Java would remove. It spares files of the last day, so all are made older."""
    folder = Path(url2pathname(urlparse(shared.load().location()).path))
    now = datetime.now(UTC)
    then = (now - timedelta(days=3)).timestamp()
    for path in folder.rglob("*"):
        os.utime(path, (then, then))
    limit = f"timestamp '{now - timedelta(days=2):%Y-%m-%d %H:%M:%S}'"
    found = shared.call("remove_orphan_files", older_than=limit, dry_run="true")
    return names(row["orphan_file_location"] for row in found)


@VERSIONS
def test_metadata_tables(shared: SharedTable, version: int) -> None:
    made_by_us(shared, version)
    table = shared.load()
    listed = changes.files(table)
    columns = "content, file_path, spec_id, record_count, file_size_in_bytes"
    ours = listed.select("content", "file_path", "spec_id", "record_count", "file_size_bytes").rows()
    assert sorted(tuples(shared, f"select {columns} from {{t}}.files")) == sorted(ours)
    entries = "select data_file.file_path, sequence_number, snapshot_id from {t}.entries where status < 2"
    ours = listed.select("file_path", "data_sequence_number", "snapshot_id").rows()
    assert sorted(tuples(shared, entries)) == sorted(ours)
    check_manifests(shared, table)
    check_partitions(shared, listed)
    snapshots = tuples(shared, "select snapshot_id, parent_id, operation from {t}.snapshots")
    told = [
        (snapshot.snapshot_id, snapshot.parent_snapshot_id, snapshot.summary and snapshot.summary.operation.value)
        for snapshot in table.metadata.snapshots
    ]
    assert sorted(snapshots) == sorted(told)
    # Entries of all snapshots, those of removed files too.
    every = tuples(shared, "select distinct data_file.file_path, status from {t}.all_entries")
    assert set(listed["file_path"]) <= {path for path, _ in every}
    assert 2 in {status for _, status in every}


def check_manifests(shared: SharedTable, table: Table) -> None:
    counts = (
        "added_data_files_count",
        "existing_data_files_count",
        "added_delete_files_count",
        "existing_delete_files_count",
    )
    java = tuples(shared, f"select path, length, partition_spec_id, content, {', '.join(counts)} from {{t}}.manifests")
    refs = ManifestReader(table.io).manifests(table.metadata.current_snapshot())
    assert sorted(java) == sorted((ref.path, ref.length, ref.spec_id, ref.content, *_counts(ref)) for ref in refs)


def _counts(ref: ManifestRef) -> tuple[int | None, ...]:
    files = (ref.added_files, ref.existing_files)
    return (0, 0, *files) if ref.content == DELETES_MANIFEST else (*files, 0, 0)


def check_partitions(shared: SharedTable, listed: pl.DataFrame) -> None:
    rows = pl.col("record_count")
    ours = listed.group_by("spec_id", "partition").agg(
        IS_DATA.sum().alias("files"),
        rows.filter(IS_DATA).sum().alias("rows"),
        rows.filter(pl.col("content") == 1).sum().alias("positions"),
        rows.filter(pl.col("content") == 2).sum().alias("keys"),
    )
    columns = "spec_id, file_count, record_count, position_delete_record_count, equality_delete_record_count"
    java = tuples(shared, f"select {columns} from {{t}}.partitions")
    assert sorted(java) == sorted(ours.drop("partition").rows())


def tuples(shared: SharedTable, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in shared.sql(query)]


def lineage(shared: SharedTable) -> list[tuple[Any, ...]]:
    return sorted(tuples(shared, "select id, _row_id, _last_updated_sequence_number from {t}"))


def test_row_lineage_survives_our_rewrite_and_javas_on_top(shared: SharedTable) -> None:
    made_by_us(shared, 3)
    java = java_turns(shared)
    java.merge("main")
    before = lineage(shared)
    assert None not in {row_id for _, row_id, _ in before}
    add(shared, changes.rewrite(shared.load()))
    assert lineage(shared) == before
    java.rewrite_data_files()
    assert lineage(shared) == before
    add(shared, ManifestRewrite())
    java.rewrite_manifests()
    assert lineage(shared) == before
    add(shared, changes.rewrite(shared.load()))
    assert lineage(shared) == before
    shared.check()


def test_a_table_that_java_upgraded(shared: SharedTable) -> None:
    """The first commit of version 3 gives all rows their ids; vectors take in what position delete files said."""
    made_by_us(shared, 2)
    shared.sql("alter table {t} set tblproperties ('format-version' = '3')")
    shared.check()
    assert not has_row_ids(shared.load())
    append(shared, 40, 43)
    assert has_row_ids(shared.load())
    shared.check()
    before = lineage(shared)
    delete_by_position(shared, 22, 33)
    shared.check()
    assert changes.files(shared.load()).filter(IS_VECTOR).height
    add(shared, changes.rewrite(shared.load()))
    shared.check()
    assert lineage(shared) == [row for row in before if row[0] not in (22, 33)]
    java = java_turns(shared)
    java.merge("main")
    shared.check()
    java.rewrite_data_files()
    shared.check()


def test_a_rewrite_that_began_before_the_rows_got_ids_is_rejected(shared: SharedTable) -> None:
    made_by_us(shared, 2)
    planned = changes.rewrite(shared.load())
    shared.sql("alter table {t} set tblproperties ('format-version' = '3')")
    append(shared, 40, 43)
    before = lineage(shared)
    outcome = commit(shared.load(), planned)
    assert isinstance(outcome, Rejected)
    assert outcome.code == "format"
    add(shared, changes.rewrite(shared.load()))
    assert lineage(shared) == before


@pytest.mark.parametrize("first", ["rewrite", "manifests", "delete", "convert"])
def test_any_first_commit_after_an_upgrade_gives_row_ids(shared: SharedTable, first: str) -> None:
    made_by_us(shared, 2)
    shared.sql("alter table {t} set tblproperties ('format-version' = '3')")
    match first:
        case "rewrite":
            add(shared, changes.rewrite(shared.load()))
        case "manifests":
            add(shared, ManifestRewrite())
        case "delete":
            delete_by_position(shared, 22, 33)
        case "convert":
            delete_by_key(shared, 24)
    shared.check()
    before = lineage(shared)
    assert {None} & {row_id for _, row_id, _ in before} == set()
    java_turns(shared).rewrite_data_files()
    assert lineage(shared) == before
