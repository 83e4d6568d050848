"""Places where Iceberg Java 1.12.0 brings deleted rows back or breaks a rule, and PyArctic must not follow it.

Each test shows both. When one fails after an upgrade of Iceberg because Java got it right, say so there and in the docs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import pytest
from py4j.protocol import Py4JJavaError
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from pyarctic.iceberg.commit import Change, Committed, commit
from pyarctic.iceberg.delete import match_deletes
from pyarctic.iceberg.manifest import PartitionDecoder
from pyarctic.iceberg.manifest.file_list import IS_DATA, IS_VECTOR
from pyarctic.iceberg.write import write_equality_deletes, write_position_deletes, write_vectors
from tests.oracle.javacommits import java_data_file, java_position_deletes, planned_by_java
from tests.oracle.ourturns import converted
from tests.oracle.session import Oracle
from tests.oracle.sharedtable import Layout, SharedTable, arrow
from tests.support import changes

pytestmark = pytest.mark.jvm


@pytest.fixture
def table(oracle: Oracle) -> SharedTable:
    return SharedTable(oracle, oracle.catalog, oracle.name, f"{oracle.namespace()}.t")


def begin(shared: SharedTable, version: int = 2, layout: Layout = "whole") -> Table:
    """One data file with the rows 1, 2 and 3."""
    shared.create(layout, version, by_java=False, properties={})
    add(shared, changes.append(shared.load(), arrow((key, 0, "v") for key in (1, 2, 3))))
    return shared.load()


def add(shared: SharedTable, change: Change) -> Committed:
    outcome = commit(shared.load(), change)
    assert isinstance(outcome, Committed), outcome
    return outcome


def equality_delete(shared: SharedTable, *keys: int, spec_id: int | None = None) -> None:
    now = shared.load()
    field = now.schema().find_field("id")
    file = write_equality_deletes(
        changes.target(now, (), spec_id), arrow((key, 0, "v") for key in keys).select(["id"]), [field]
    )
    add(shared, Change(start=changes.head(now), add=(file,)))


def java_ids(shared: SharedTable) -> list[int]:
    return sorted(row["id"] for row in shared.sql("select id from {t}"))


def our_ids(shared: SharedTable) -> list[int]:
    return sorted(changes.rows(shared.load(), ["id"])["id"].to_pylist())


def delete_files(shared: SharedTable) -> pl.DataFrame:
    return changes.files(shared.load()).filter(~IS_DATA)


# D1: Java drops delete files older than the oldest data file, and forgets that the files it adds are old.


def begin_d1(shared: SharedTable) -> Table:
    planned_on = begin(shared)
    equality_delete(shared, 1)
    equality_delete(shared, 2)
    assert java_ids(shared) == [3]
    return planned_on


def test_d1_iceberg_1_12_0_drops_a_live_equality_delete(table: SharedTable) -> None:
    planned_on = begin_d1(table)
    start = planned_on.metadata.current_snapshot_id
    (old,) = planned_by_java(table, start)
    (new,) = changes.write_data(planned_on, changes.rows(planned_on))
    rewrite = table.oracle.java_table(table.name).newRewrite().validateFromSnapshot(start).dataSequenceNumber(1)
    rewrite.deleteFile(old.file()).addFile(java_data_file(table, new)).commit()
    assert delete_files(table).height == 1
    assert java_ids(table) == our_ids(table) == [1, 3]  # row 1 came back


def test_d1_our_rewrite_keeps_every_equality_delete_that_arrived(table: SharedTable) -> None:
    change = changes.rewrite(begin(table))
    equality_delete(table, 1)
    equality_delete(table, 2)
    add(table, change)
    assert delete_files(table).height == 2
    assert java_ids(table) == our_ids(table) == [3]


# D2: Java's validation of a rewrite overlooks delete files that a `replace` added.


def java_converts(shared: SharedTable) -> None:
    """Row 1's equality delete becomes a position delete, in one `replace` of Java's."""
    now = shared.load()
    (task,) = planned_by_java(shared)
    position = write_position_deletes if now.format_version < 3 else write_vectors
    written = position(changes.target(now), {str(task.file().location()): np.array([0])})
    (file,) = written if isinstance(written, list) else [written]
    rewrite = shared.oracle.java_table(shared.name).newRewrite()
    (old,) = task.deletes()
    rewrite.deleteFile(old).addFile(java_position_deletes(shared, file)).commit()
    snapshot = shared.load().metadata.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation is Operation.REPLACE
    assert java_ids(shared) == [2, 3]


@pytest.mark.parametrize("version", [2, 3])
def test_d2_iceberg_1_12_0_overlooks_deletes_that_a_replace_added(table: SharedTable, version: int) -> None:
    planned_on = begin(table, version)
    start = planned_on.metadata.current_snapshot_id
    (old,) = planned_by_java(table, start)
    (new,) = changes.write_data(planned_on, changes.rows(planned_on))
    equality_delete(table, 1)
    java_converts(table)
    rewrite = table.oracle.java_table(table.name).newRewrite().validateFromSnapshot(start).dataSequenceNumber(1)
    rewrite.deleteFile(old.file()).addFile(java_data_file(table, new)).commit()
    assert java_ids(table) == our_ids(table) == [1, 2, 3]  # row 1 came back


@pytest.mark.parametrize("version", [2, 3])
def test_d2_our_rewrite_moves_deletes_that_a_replace_added(table: SharedTable, version: int) -> None:
    change = changes.rewrite(begin(table, version))
    equality_delete(table, 1)
    java_converts(table)
    assert add(table, change).rebased_rows == 1
    assert java_ids(table) == our_ids(table) == [2, 3]


@pytest.mark.parametrize("version", [2, 3])
def test_d2_our_conversion_is_noticed_by_java(table: SharedTable, version: int) -> None:
    planned_on = begin(table, version)
    start = planned_on.metadata.current_snapshot_id
    (old,) = planned_by_java(table, start)
    (new,) = changes.write_data(planned_on, changes.rows(planned_on))
    equality_delete(table, 1)
    now = table.load()
    listed = changes.files(now)
    leaving = listed.filter(~IS_DATA)
    add(
        table,
        Change(
            start=changes.head(now),
            add=tuple(converted(now, listed, leaving)),
            remove=leaving,
            rewrites=True,
            converts=True,
        ),
    )
    rewrite = table.oracle.java_table(table.name).newRewrite().validateFromSnapshot(start).dataSequenceNumber(1)
    with pytest.raises(Py4JJavaError, match="found new position delete for replaced data file"):
        rewrite.deleteFile(old.file()).addFile(java_data_file(table, new)).commit()
    assert java_ids(table) == our_ids(table) == [2, 3]


# D3: told to remove one deletion vector, Java does not look for those of other data files it removes.


def begin_d3(shared: SharedTable) -> tuple[Table, pl.DataFrame]:
    """Two partitions with a data file and a deletion vector each, the vectors in manifests of their own."""
    shared.create("identity", 3, by_java=False, properties={})
    shared.partition(by_java=False)
    add(shared, changes.append(shared.load(), arrow([(1, 0, "v"), (2, 0, "v"), (3, 1, "v"), (4, 1, "v")])))
    for key in (1, 3):
        change = changes.position_delete(shared.load(), f"id = {key}")
        assert change is not None
        add(shared, change)
    now = shared.load()
    return now, changes.files(now)


def vectors_without_file(shared: SharedTable) -> Sequence[str]:
    listed = changes.files(shared.load())
    vectors = listed.filter(IS_VECTOR)
    return vectors.join(listed, left_on="referenced_data_file", right_on="file_path", how="anti")["file_path"].to_list()


def test_d3_iceberg_1_12_0_leaves_deletion_vectors_of_removed_files(table: SharedTable) -> None:
    now, _ = begin_d3(table)
    new = changes.write_data(now, changes.rows(now))
    tasks = planned_by_java(table)
    rewrite = table.oracle.java_table(table.name).newRewrite().validateFromSnapshot(changes.head(now))
    for task in tasks:
        rewrite.deleteFile(task.file())
    (vector,) = tasks[0].deletes()
    rewrite.deleteFile(vector)
    for file in new:
        rewrite.addFile(java_data_file(table, file, f"p={file.partition[0]}"))
    rewrite.commit()
    assert java_ids(table) == our_ids(table) == [2, 4]
    # No row is harmed yet. But the specification wants a vector to leave with its data file.
    assert len(vectors_without_file(table)) == 1


def test_d3_our_rewrite_takes_every_deletion_vector_along(table: SharedTable) -> None:
    now, listed = begin_d3(table)
    change = changes.rewrite(now)
    told = listed.filter(IS_VECTOR).head(1)
    add(
        table,
        Change(
            start=change.start,
            add=change.add,
            remove=pl.concat([change.remove, told]),
            rewrites=True,
            proof=change.proof,
            row_map=change.row_map,
        ),
    )
    assert vectors_without_file(table) == []
    assert java_ids(table) == our_ids(table) == [2, 4]


# D4: Java used to compare a delete with the data of its own spec and partition only, also one that is for the whole table.
# Since it asks its own scan which deletes are in use (apache/iceberg#15727) it is right.


def begin_d4(shared: SharedTable) -> None:
    """Partitioned data, and an equality delete of the unpartitioned spec, which reaches it."""
    shared.create("identity", 2, by_java=False, properties={})
    shared.partition(by_java=False)
    add(shared, changes.append(shared.load(), arrow([(1, 0, "v"), (2, 0, "v"), (3, 1, "v")])))
    equality_delete(shared, 1, spec_id=0)
    assert java_ids(shared) == [2, 3]


def test_d4_iceberg_1_12_0_keeps_a_global_equality_delete_that_is_in_use(table: SharedTable) -> None:
    begin_d4(table)
    actions = table.oracle.java.org.apache.iceberg.spark.actions.SparkActions.get()
    actions.removeDanglingDeleteFiles(table.oracle.java_table(table.name)).execute()
    options = "map('rewrite-all', 'true', 'remove-dangling-deletes', 'true')"
    table.call("rewrite_data_files", options=options, where="'p = 1'")
    assert delete_files(table).height == 1
    assert java_ids(table) == our_ids(table) == [2, 3]


def test_d4_our_unused_deletes_are_unused_in_the_whole_table(table: SharedTable) -> None:
    begin_d4(table)
    now = table.load()
    specs = PartitionDecoder(now.metadata).unpartitioned_specs()
    assert match_deletes(changes.files(now), specs).unused().is_empty()
    add(table, changes.rewrite(now))
    now = table.load()
    unused = match_deletes(changes.files(now), specs).unused()
    # The rewritten files have the sequence number of the delete, which reaches only older ones.
    assert unused.height == 1
    add(table, Change(start=changes.head(now), remove=unused, rewrites=True))
    assert delete_files(table).is_empty()
    assert java_ids(table) == our_ids(table) == [2, 3]
