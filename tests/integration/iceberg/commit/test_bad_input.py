"""What cannot be committed is refused with one clear reason, and nothing is written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.table import Table

from pyarctic.errors import UsageError
from pyarctic.iceberg.commit import ROW_MAP_SCHEMA, Change, Proof, Rejected, commit
from pyarctic.iceberg.write import NewFile, write_equality_deletes, write_position_deletes, write_vectors
from pyarctic.iceberg.write.new_file import Metrics
from tests.integration.iceberg.commit.conftest import Lab, ids, some_rows
from tests.support import changes

FIRST = np.array([0])


def data_of(table: Table) -> pl.DataFrame:
    return changes.files(table).filter(pl.col("content") == 0)


def new_file(table: Table) -> NewFile:
    return changes.write_data(table, some_rows([100]))[0]


def refused(lab: Lab, table: Table, change: Change) -> Rejected:
    """Commit, expect a rejection, and that nothing came of it."""
    before, rows = lab.metadata_files(), ids(table)
    outcome = commit(table, change)
    assert isinstance(outcome, Rejected)
    assert outcome.hint.endswith(".")
    assert lab.metadata_files() == before
    assert ids(table) == rows
    return outcome


def test_removing_a_file_that_is_not_live(lab: Lab) -> None:
    table = lab.filled()
    stranger = data_of(table).head(1).with_columns(file_path=pl.lit("file:///nowhere.parquet"))
    outcome = refused(lab, table, Change(start=changes.head(table), remove=stranger))
    assert outcome.code == "not-live"
    assert "file:///nowhere.parquet" in outcome.reason


def test_removing_a_file_that_others_removed(lab: Lab) -> None:
    table = lab.filled()
    change = changes.rewrite(table)
    changes.apply(table, lambda current: Change(start=changes.head(current), remove=data_of(current).head(1)))
    outcome = refused(lab, table, change)
    assert outcome.code == "files-gone"


@pytest.mark.parametrize("known", [False, True])
def test_adding_a_file_that_is_there(lab: Lab, known: bool) -> None:
    table = lab.filled()
    change = changes.append(table, some_rows([100]))
    again = replace(change, snapshot_id=change.snapshot_id + 1)
    table = changes.apply(table, lambda _: change)
    if known:  # begun after it was added, so that only a complete file list can tell
        again = replace(again, start=changes.head(table))
    outcome = commit(table, again, known=changes.file_list(table) if known else None)
    assert isinstance(outcome, Rejected)
    assert outcome.code == "added-twice"
    assert ids(table).count(100) == 1


def test_deletes_for_a_file_outside_the_table(lab: Lab) -> None:
    for version, write in ((2, write_position_deletes), (3, write_vectors)):
        table = lab.filled(version)
        made: Any = write(changes.target(table), {"file:///nowhere.parquet": FIRST})
        add = tuple(made) if isinstance(made, list) else (made,)
        outcome = refused(lab, table, Change(start=changes.head(table), add=add))
        assert outcome.code == "not-live"
        assert "file:///nowhere.parquet" in outcome.reason


def test_vectors_on_version_2_and_position_files_on_version_3(lab: Lab) -> None:
    old, new = lab.filled(2), lab.filled(3)
    path = data_of(old)["file_path"][0]
    vector = write_vectors(changes.target(new), {path: FIRST})[0]
    outcome = refused(lab, old, Change(start=changes.head(old), add=(vector,)))
    assert (outcome.code, "deletion vectors need format version 3" in outcome.reason) == ("format", True)
    positions = write_position_deletes(changes.target(old), {data_of(new)["file_path"][0]: FIRST})
    outcome = refused(lab, new, Change(start=changes.head(new), add=(positions,)))
    assert (outcome.code, "takes no new position delete files" in outcome.reason) == ("format", True)


def test_deletes_on_version_1(lab: Lab) -> None:
    first, second = lab.filled(1), lab.filled(2)
    keys = pa.table({"id": pa.array([1], pa.int64())})
    file = write_equality_deletes(changes.target(second), keys, [second.schema().find_field("id")])
    assert refused(lab, first, Change(start=changes.head(first), add=(file,))).code == "format"


def test_partition_spec_and_schema_of_another_table(lab: Lab) -> None:
    table, other = lab.filled(), lab.filled(partitioned=True)
    file = new_file(table)
    for wrong, code in (
        (replace(file, spec_id=7), "mismatch"),
        (replace(file, partition=("a",)), "mismatch"),
        (replace(file, metrics=Metrics(value_counts={99: 1})), "mismatch"),
        (replace(file, data_sequence_number=99), "mismatch"),
    ):
        assert refused(lab, table, Change(start=changes.head(table), add=(wrong,))).code == code
    typed = replace(changes.write_data(other, some_rows([2]))[0], partition=(5,))
    assert refused(lab, other, Change(start=changes.head(other), add=(typed,))).code == "mismatch"


def test_deletes_in_another_partition_than_their_data(lab: Lab) -> None:
    table = lab.filled(partitioned=True)
    listed = data_of(table).filter(pl.col("partition") == '["a"]')
    wrong = write_position_deletes(changes.target(table, ("b",)), {listed["file_path"][0]: FIRST})
    assert refused(lab, table, Change(start=changes.head(table), add=(wrong,))).code == "mismatch"


def test_rows_that_do_not_balance(lab: Lab) -> None:
    table = lab.filled()
    good = changes.rewrite(table, hashed=True)
    assert good.proof is not None
    for proof, told in (
        (replace(good.proof, rows_in=29), "29 rows were read, but the replaced files have 30"),
        (replace(good.proof, rows_out=31), "31 rows were written, but the new files have 30"),
        (replace(good.proof, rows_deleted=1), "30 rows in − 1 deleted is not 30 rows out"),
        (replace(good.proof, hash_out="30:0"), "content hash"),
    ):
        outcome = refused(lab, table, replace(good, proof=proof))
        assert (outcome.code, told in outcome.reason) == ("proof", True)


def test_a_tag_does_not_move(lab: Lab) -> None:
    table = lab.filled()
    table.manage_snapshots().create_tag(table.metadata.current_snapshot_id or 0, "release").commit()
    with pytest.raises(UsageError, match="'release' is a tag"):
        commit(table, replace(changes.append(table, some_rows([100])), branch="release"))


def test_changes_that_contradict_themselves(lab: Lab) -> None:
    table = lab.filled()
    listed, file = data_of(table), new_file(table)
    head = changes.head(table)
    positions = write_position_deletes(changes.target(table), {listed["file_path"][0]: FIRST})
    proof = Proof(rows_in=10, rows_deleted=0, rows_out=1)
    source, other = listed["file_path"][:2]
    rewrite = {"add": (file,), "remove": listed.head(1), "rewrites": True, "proof": proof}

    twice = replace(file, record_count=2)

    def row_map(*runs: tuple[Any, ...]) -> pl.DataFrame:
        return pl.DataFrame(runs, ROW_MAP_SCHEMA, orient="row")

    vector = replace(positions, file_format="PUFFIN", content_offset=4, content_size_bytes=40)
    for wrong, told in (
        ({}, "the change is empty"),
        ({"add": (file, file)}, "added twice"),
        ({"remove": pl.concat([listed, listed])}, "removes a file twice"),
        ({"remove": listed.drop("content")}, "lack the columns"),
        ({"add": (replace(file, path=listed["file_path"][0]),), "remove": listed}, "adds and removes the same file"),
        ({"add": (positions,), "remove": listed}, "adds deletes for it"),
        ({"add": (vector, replace(vector, path="other"))}, "given a deletion vector twice"),
        ({"add": (replace(file, record_count=-1),)}, "negative"),
        ({"add": (replace(file, content=2),)}, "without key columns"),
        ({"add": (replace(file, equality_ids=(1,)),)}, "only equality delete files"),
        ({"add": (replace(file, content=7),)}, "unknown content"),
        ({"add": (replace(vector, referenced_data_file=None),)}, "vector without"),
        ({"add": (file,), "rewrites": True}, "must remove files"),
        ({"add": (file,), "remove": listed.head(1), "rewrites": True}, "needs a proof"),
        ({**rewrite, "row_map": row_map((source, 0, 1, file.path, 0)).drop("length")}, "row map has the columns"),
        ({**rewrite, "row_map": row_map((source, 0, 1, "b", 0))}, "row map leads"),
        ({**rewrite, "row_map": row_map((other, 0, 1, file.path, 0))}, "does not remove"),
        ({**rewrite, "row_map": row_map()}, "row map leads 0 rows to a file that has 1"),
        ({**rewrite, "row_map": row_map((source, -1, 1, file.path, 0))}, "negative positions"),
        ({**rewrite, "row_map": row_map((source, None, 1, file.path, 0))}, "nulls"),
        (
            {**rewrite, "add": (twice,), "row_map": row_map(*[(source, 0, 1, file.path, 0)] * 2)},
            "overlap",
        ),
        ({"add": (replace(positions, data_sequence_number=1),)}, "take the sequence number of their commit"),
        ({"add": (file,), "converts": True}, "rewrites=True"),
        ({"add": (file,), "snapshot_properties": {"operation": "append"}}, "cannot be set"),
        ({"remove": listed.with_columns(content=pl.lit("data"))}, "not those of a file list"),
    ):
        with pytest.raises(UsageError, match=told):
            Change(start=head, **wrong)
    deletes = listed.head(1).with_columns(content=pl.lit(2, pl.Int8))
    with pytest.raises(UsageError, match="replaces none"):
        Change(start=head, add=(file,), remove=deletes, rewrites=True)
