"""Rows that were lost, doubled or brought back by some sequence of events once, or could have been: never again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.exceptions import BadRequestError, CommitFailedException, ForbiddenError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField, UUIDType

from pyarctic.errors import Unavailable, Unsupported
from pyarctic.iceberg.commit import Change, Committed, Outcome, Rejected, commit
from pyarctic.iceberg.write import NewFile, write_position_deletes, write_vectors
from pyarctic.iceberg.write.parquet import DataFileWriter
from tests.integration.iceberg.commit.conftest import QUICK, Lab, ids, some_rows
from tests.integration.iceberg.commit.test_commit import committed, keys
from tests.support import changes


def rejected(outcome: Outcome) -> str:
    assert isinstance(outcome, Rejected), outcome
    return outcome.code


def data_of(table: Table) -> pl.DataFrame:
    return changes.files(table).filter(pl.col("content") == 0)


def deleted(table: Table, where: str) -> Change:
    change = changes.position_delete(table, where)
    assert change is not None
    return change


def listed_again(row: dict[str, Any]) -> NewFile:
    """A file of the list, to be added once more."""
    return NewFile(
        content=0,
        path=row["file_path"],
        file_format="PARQUET",
        spec_id=row["spec_id"],
        partition=(),
        record_count=row["record_count"],
        file_size_bytes=row["file_size_bytes"],
    )


def test_a_puffin_file_of_the_caller_stays(lab: Lab) -> None:
    """The vectors of one file are used on a branch; on main they are merged into others."""
    table = lab.filled(3, batches=1)
    first, second = deleted(table, "id < 2"), deleted(table, "id > 7")
    table = committed(table, replace(second, branch="audit"))
    table = committed(table, first)
    outcome = commit(table, replace(second, snapshot_id=second.snapshot_id + 1))
    assert isinstance(outcome, Committed)
    assert outcome.unused_files == (second.add[0].path,)
    assert ids(table) == [2, 3, 4, 5, 6, 7]
    assert ids(table, "audit") == [0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("version", [2, 3])
def test_a_delete_of_the_new_partition_spares_rows_of_the_old_spec(lab: Lab, version: int) -> None:
    """A rewrite moves rows to the current spec, where a delete came that was not meant for them."""
    table = lab.filled(version, batches=1)
    with table.update_spec() as update:
        update.add_identity("p")
    table = table.catalog.load_table(table.name())
    change = changes.rewrite(table)
    table = committed(table, changes.equality_delete(table, keys(4), ("a",)))
    assert ids(table) == list(range(10))  # it hits only files of its partition
    assert rejected(commit(table, change)) == "deletes-arrived"
    assert ids(table) == list(range(10))


def test_an_append_whose_snapshot_was_expired_is_not_applied_again(lab: Lab) -> None:
    table = lab.filled(batches=1)
    change = changes.append(table, some_rows([100]))
    table = committed(table, change)
    table = committed(table, changes.rewrite(table))
    table.maintenance.expire_snapshots().by_id(change.snapshot_id).commit()
    assert rejected(commit(table.catalog.load_table(table.name()), change)) == "history-lost"
    assert ids(table).count(100) == 1


@pytest.mark.parametrize("version", [1, 2])
def test_an_append_planned_on_the_empty_table_is_not_applied_again(lab: Lab, version: int) -> None:
    table = lab.table(version)
    change = changes.append(table, some_rows([100]))
    assert change.start is None
    table = committed(table, change)
    table = committed(table, changes.rewrite(table))
    table.maintenance.expire_snapshots().by_id(change.snapshot_id).commit()
    assert rejected(commit(table.catalog.load_table(table.name()), change)) == "history-lost"


def test_a_committed_change_is_not_called_rolled_back_after_expiry(lab: Lab) -> None:
    """In version 1 a history that was cut looks like a whole one; planned anew the change would be applied twice."""
    table = lab.filled(1, batches=1)
    change = changes.append(table, some_rows([100]))
    table = committed(table, change)
    for number in (200, 300):
        table = changes.apply(table, lambda current, number=number: changes.append(current, some_rows([number])))  # type: ignore[misc]
    middle = table.metadata.snapshots[2].snapshot_id
    table.maintenance.expire_snapshots().by_id(middle).commit()
    assert isinstance(commit(table.catalog.load_table(table.name()), change), Committed)
    assert ids(table).count(100) == 1


def test_an_old_table_object_still_finds_a_committed_append(lab: Lab) -> None:
    """Its head was expired with its manifest list; the table as it is now tells all the same."""
    table = lab.filled(batches=1)
    change = changes.append(table, some_rows([100]))
    committed(table, change)
    now = changes.apply(table, lambda current: changes.append(current, some_rows([200])))
    now.maintenance.expire_snapshots().by_id(change.start or 0).commit()
    lists = [snapshot.manifest_list for snapshot in table.metadata.snapshots]
    Path(lists[-1].removeprefix("file://")).unlink()
    assert isinstance(commit(table, change), Committed)


@pytest.mark.parametrize("version", [2, 3])
def test_a_sequence_number_that_was_taken_is_no_lack_of_rights(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """Some REST servers answer it as a bad request. A commit to another branch must not waste the rewrite."""
    table = lab.filled(version)
    change = changes.rewrite(table)
    take = table.catalog.commit_table
    side = [replace(changes.append(table, some_rows([100])), branch="audit")]

    def strict(*args: Any) -> Any:
        if side:
            committed(lab.catalog.load_table(table.name()), side.pop())
        try:
            return take(*args)
        except ValueError as error:
            raise BadRequestError(str(error)) from error

    monkeypatch.setattr(table.catalog, "commit_table", strict)
    assert isinstance(commit(table, change), Committed)
    assert ids(table) == list(range(30))


def test_without_a_row_map_rows_that_can_stay_in_their_partition_do(lab: Lab) -> None:
    table = lab.filled(partitioned=True)
    change = replace(changes.rewrite(table), row_map=None)
    table = committed(table, changes.equality_delete(table, keys(4), ("a",)))
    table = committed(table, change)
    assert ids(table) == [i for i in range(30) if i != 4]


def test_a_file_that_came_back_is_not_the_one_that_was_rewritten(lab: Lab) -> None:
    """Taken out and added again it is newer than the delete, so its row is alive again; the rewrite does not have it."""
    table = lab.filled(batches=1)
    table = committed(table, changes.equality_delete(table, keys(5)))
    change = changes.rewrite(table)
    row = data_of(table).row(0, named=True)
    table = committed(table, Change(start=changes.head(table), remove=data_of(table)))
    table = committed(table, Change(start=changes.head(table), add=(listed_again(row),)))
    assert ids(table) == list(range(10))
    assert rejected(commit(table, change)) == "files-gone"
    assert ids(table) == list(range(10))


def test_a_rewrite_with_too_old_a_sequence_number_is_refused(lab: Lab) -> None:
    """An upsert deleted and wrote a row; under an older number the new file would be hit by that delete."""
    table = lab.filled(batches=1)
    upsert = changes.equality_delete(table, keys(5))
    table = committed(table, replace(upsert, add=(*upsert.add, *changes.write_data(table, some_rows([5])))))
    change = changes.rewrite(table)
    wrong = replace(change, add=tuple(replace(file, data_sequence_number=1) for file in change.add))
    assert rejected(commit(table, wrong)) == "deletes-arrived"
    table = committed(table, change)
    assert ids(table) == list(range(10))


def test_new_rows_do_not_hide_behind_an_old_sequence_number(lab: Lab) -> None:
    table = lab.filled(batches=1)
    table = committed(table, changes.equality_delete(table, keys(5)))
    new = changes.write_data(table, some_rows([5]), sequence_number=1)
    assert rejected(commit(table, Change(start=changes.head(table), add=tuple(new)))) == "deletes-arrived"


@pytest.mark.parametrize("version", [2, 3])
def test_needed_position_deletes_do_not_leave_by_a_rewrite(lab: Lab, version: int) -> None:
    table = lab.filled(version)
    for where in ("id = 3", "id = 14 or id = 5"):
        table = committed(table, deleted(table, where))
    dead = changes.files(table).filter(pl.col("content") == 1)
    assert rejected(commit(table, Change(start=changes.head(table), remove=dead, rewrites=True))) == "still-needed"
    # Taken together into others they may go.
    merged = changes.position_delete_of(table, _origins(table, [3, 5, 14]))
    assert merged is not None
    change = Change(start=changes.head(table), add=merged.add, remove=dead, rewrites=True)
    table = committed(table, change)
    assert ids(table) == [i for i in range(30) if i not in (3, 5, 14)]


def _origins(table: Table, gone: list[int]) -> pa.Table:
    """Where rows lie that are deleted already: ids count the rows of three files, in the order they were written."""
    paths = data_of(table).sort("data_sequence_number")["file_path"].to_list()
    return pa.table({"_file": [paths[i // 10] for i in gone], "_pos": [i % 10 for i in gone]})


@pytest.mark.parametrize("version", [2, 3])
def test_rows_brought_back_meanwhile_are_not_lost(lab: Lab, version: int) -> None:
    """All rows of a file were dead, so a rewrite drops it; then somebody takes the deletes back."""
    table = lab.filled(version, batches=1)
    table = committed(table, deleted(table, "id >= 0"))
    change = changes.rewrite(table)
    assert change.add == ()
    dead = changes.files(table).filter(pl.col("content") == 1)
    table = committed(table, Change(start=changes.head(table), remove=dead))
    assert ids(table) == list(range(10))
    assert rejected(commit(table, change)) == "deletes-arrived"


def test_vectors_are_not_merged_when_one_brings_rows_back(lab: Lab) -> None:
    table = lab.filled(3, batches=1)
    table = committed(table, deleted(table, "id < 4"))
    (old,) = changes.files(table).filter(pl.col("content") == 1).iter_rows(named=True)
    path = old["referenced_data_file"]
    before = changes.files(table).filter(pl.col("content") == 1)

    def vector(*positions: int) -> Change:
        add = tuple(write_vectors(changes.target(table), {path: np.array(positions)}))
        return Change(start=changes.head(table), add=add, remove=before)

    smaller, larger = vector(0, 1), vector(0, 1, 2, 3, 4)
    table = committed(table, larger)
    assert rejected(commit(table, smaller)) == "deletes-arrived"
    assert ids(table) == [5, 6, 7, 8, 9]


def test_every_delete_is_held_against_its_data_file(lab: Lab) -> None:
    table = lab.filled(partitioned=True, batches=1)
    path = data_of(table).filter(pl.col("partition") == '["a"]')["file_path"][0]
    first = write_position_deletes(changes.target(table, ("b",)), {path: np.array([0])})
    second = write_position_deletes(changes.target(table, ("a",)), {path: np.array([1])})
    assert rejected(commit(table, Change(start=changes.head(table), add=(first, second)))) == "mismatch"


def test_deletes_of_several_files_do_not_name_one_that_leaves(lab: Lab) -> None:
    table = lab.filled()
    paths = data_of(table).sort("data_sequence_number")["file_path"].to_list()
    both = write_position_deletes(changes.target(table), {paths[0]: np.array([0]), paths[1]: np.array([0])})
    first = data_of(table).filter(pl.col("file_path") == paths[0])
    new = changes.write_data(table, some_rows(range(10)))
    change = Change(start=changes.head(table), add=(both, *new), remove=first)
    assert rejected(commit(table, change)) == "not-live"


@pytest.mark.parametrize("kind", ["nan", "uuid"])
def test_partitions_that_do_not_compare(lab: Lab, kind: str) -> None:
    """NaN is not equal to itself, a UUID not to its bytes; deletes find their partition all the same."""
    type_: Any = DoubleType() if kind == "nan" else UUIDType()
    value = float("nan") if kind == "nan" else bytes(range(16))
    table = lab.catalog.create_table(
        "db.odd",
        Schema(NestedField(1, "id", LongType(), required=False), NestedField(2, "p", type_, required=False)),
        partition_spec=PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p")),
        properties={"format-version": "3", **QUICK},
    )
    data = pa.table({"id": pa.array([1, 2]), "p": pa.array([value] * 2, pa.float64() if kind == "nan" else pa.binary(16))})
    with DataFileWriter(changes.target(table, (value,))) as writer:
        writer.write(data.to_batches()[0])
    table = committed(table, Change(start=None, add=tuple(writer.files)))
    vectors = write_vectors(changes.target(table, (value,)), {writer.files[0].path: np.array([0])})
    table = committed(table, Change(start=changes.head(table), add=tuple(vectors)))
    assert ids(table) == [2]


def test_a_rewrite_may_name_the_vectors_of_its_files(lab: Lab) -> None:
    """They leave with their data files whatever has become of them meanwhile."""
    table = lab.filled(3, batches=1)
    table = committed(table, deleted(table, "id = 1"))
    change = changes.rewrite(table)
    vectors = changes.files(table).filter(pl.col("content") == 1)
    named = replace(change, remove=pl.concat([change.remove, vectors]))
    table = committed(table, deleted(table, "id = 2"))
    table = committed(table, named)
    assert ids(table) == [0, 3, 4, 5, 6, 7, 8, 9]


def test_a_change_that_was_rolled_back_is_not_called_committed(lab: Lab) -> None:
    table = lab.filled()
    before = changes.head(table)
    change = changes.append(table, some_rows([100]))
    table = committed(table, change)
    table.manage_snapshots().rollback_to_snapshot(before or 0).commit()
    assert rejected(commit(table, change)) == "history-lost"
    assert 100 not in ids(table)


def test_a_refusal_for_lack_of_rights_is_told_at_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lab.filled()
    change = changes.rewrite(table)
    before = lab.metadata_files()
    asked = []

    def forbid(*_: Any) -> Any:
        asked.append(1)
        raise ForbiddenError("not you")

    monkeypatch.setattr(table.catalog, "commit_table", forbid)
    with pytest.raises(Unavailable, match="not you"):
        commit(table, change)
    assert len(asked) == 1
    assert lab.metadata_files() == before


def test_files_are_written_as_the_table_is_reached_now(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials of the time of planning may have expired."""
    table = lab.filled()
    change = changes.append(table, some_rows([100]))

    def expired(*_: Any) -> Any:
        raise PermissionError("expired token")

    for name in ("new_input", "new_output", "delete"):
        monkeypatch.setattr(table.io, name, expired)
    assert isinstance(commit(table, change), Committed)


def test_what_cannot_be_written_is_refused(lab: Lab) -> None:
    encrypted = lab.filled()
    with encrypted.transaction() as transaction:
        transaction.set_properties({"encryption.key-id": "k"})
    with pytest.raises(Unsupported, match="encrypted"):
        commit(encrypted, changes.append(encrypted, some_rows([1])))
    empty = lab.table()
    assert rejected(commit(empty, replace(changes.append(empty, some_rows([1])), branch="side"))) == "mismatch"
    snappy = lab.filled(properties={"write.avro.compression-codec": "snappy"})
    assert ids(snappy) == list(range(30))


def test_nothing_is_removed_from_a_table_that_lost_its_name(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog took the commit and said it did not; then the table was renamed and its name taken by another."""
    table = lab.filled()
    change = changes.append(table, some_rows([100]))
    take = table.catalog.commit_table
    renamed = ("db", "renamed")

    def mislead(*args: Any) -> Any:
        take(*args)
        lab.catalog.rename_table(table.name(), renamed)
        lab.catalog.create_table(table.name(), table.schema())
        raise CommitFailedException("somebody was faster")

    monkeypatch.setattr(table.catalog, "commit_table", mislead)
    assert rejected(commit(table, change)) == "replaced-table"
    monkeypatch.undo()
    found = lab.catalog.load_table(renamed)
    assert sorted(changes.rows(found, ["id"])["id"].to_pylist()) == [*range(30), 100]
    assert Path(found.metadata_location.removeprefix("file://")).exists()
