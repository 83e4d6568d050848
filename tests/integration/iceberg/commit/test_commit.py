"""What a commit does to a table: on every catalog, in every format version, alone and against others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataV3
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.table.update import AssertTableUUID, UpgradeFormatVersionUpdate

from pyarctic.iceberg.catalog.pyiceberg_patches import apply_patches
from pyarctic.iceberg.commit import Change, Committed, Conflict, ManifestRewrite, Rejected, commit
from pyarctic.iceberg.delete import match_deletes
from pyarctic.iceberg.manifest import FILE_SCHEMA, PartitionDecoder
from pyarctic.iceberg.manifest.file_list import ManifestReader
from pyarctic.iceberg.write import Blob, write_statistics
from tests.integration.iceberg.commit.conftest import BY_P, QUICK, SCHEMA, Lab, ids, some_rows
from tests.services.catalogs import FreshCatalog
from tests.support import changes


def keys(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


def committed(table: Table, change: Change | ManifestRewrite) -> Table:
    outcome = commit(table, change)
    assert isinstance(outcome, Committed), outcome
    return table.catalog.load_table(table.name())


def summary(table: Table, branch: str = "main") -> dict[str, str]:
    snapshot = table.metadata.snapshot_by_name(branch)
    assert snapshot is not None
    assert snapshot.summary is not None
    return {"operation": snapshot.summary.operation.value, **snapshot.summary.additional_properties}


def assert_true_totals(table: Table) -> None:
    """The totals of the newest snapshot are those of its files."""
    listed, told = changes.files(table), summary(table)
    data, deletes = listed.filter(pl.col("content") == 0), listed.filter(pl.col("content") != 0)
    assert int(told["total-data-files"]) == data.height
    assert int(told["total-delete-files"]) == deletes.height
    assert int(told["total-records"]) == data["record_count"].sum()
    assert int(told["total-position-deletes"]) == deletes.filter(pl.col("content") == 1)["record_count"].sum()
    assert int(told["total-equality-deletes"]) == deletes.filter(pl.col("content") == 2)["record_count"].sum()
    assert int(told["total-files-size"]) == listed.select(pl.coalesce("content_size_bytes", "file_size_bytes").sum()).item()


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_the_whole_life_on_every_catalog(any_catalog: FreshCatalog, version: int, partitioned: bool) -> None:
    """Append, delete, rewrite with deletes arriving, rewrite of manifests, properties: rows and totals are right."""
    apply_patches()
    table = any_catalog.catalog.create_table(
        f"{any_catalog.namespace}.t",
        schema=SCHEMA,
        partition_spec=BY_P if partitioned else UNPARTITIONED_PARTITION_SPEC,
        properties={"format-version": str(version), **QUICK},
    )
    for batch in range(3):
        table = committed(table, changes.append(table, some_rows(range(batch * 10, batch * 10 + 10))))
        assert_true_totals(table)
    expected = list(range(30))
    rewrite = changes.rewrite(table, set_properties={"healed": "yes"})
    if version > 1:
        table = changes.apply(table, lambda current: changes.position_delete(current, "id = 3 or id = 14"))
        table = changes.apply(table, lambda current: changes.position_delete(current, "id = 4"))
        table = committed(table, changes.equality_delete(table, keys(8), ("a",) if partitioned else ()))
        expected = [i for i in expected if i not in (3, 4, 8, 14)]
        assert_true_totals(table)
    table = committed(table, rewrite)
    assert ids(table) == expected
    assert_true_totals(table)
    told = summary(table)
    assert told["operation"] == "replace"
    assert (told["arctic.rows-in"], told["arctic.rows-deleted"], told["arctic.rows-out"]) == ("30", "0", "30")
    assert told.get("arctic.rebased-rows") == ("3" if version > 1 else None)
    assert table.properties["healed"] == "yes"
    table = committed(table, ManifestRewrite())
    assert ids(table) == expected
    assert_true_totals(table)
    table = committed(table, changes.rewrite(table))
    assert ids(table) == expected
    unpartitioned = PartitionDecoder(table.metadata).unpartitioned_specs()
    idle = match_deletes(changes.files(table), unpartitioned).unused()
    if idle.height:
        table = committed(table, Change(start=changes.head(table), remove=idle.select(FILE_SCHEMA.names()), rewrites=True))
    assert ids(table) == expected
    assert changes.files(table)["content"].to_list() == [0] * (2 if partitioned else 1)
    assert_true_totals(table)


def test_operations_are_named_for_what_they_do(lab: Lab) -> None:
    table = lab.filled(3)
    listed = changes.files(table)
    new = changes.write_data(table, some_rows([100]))
    delete = changes.position_delete(table, "id = 0")
    assert delete is not None
    equality = changes.equality_delete(table, keys(1))
    head = changes.head(table)
    for change, operation in (
        (changes.append(table, some_rows([1])), Operation.APPEND),
        (delete, Operation.DELETE),
        (equality, Operation.DELETE),
        (Change(start=head, remove=listed), Operation.DELETE),
        (Change(start=head, add=(*new, *equality.add)), Operation.OVERWRITE),
        (Change(start=head, add=tuple(new), remove=listed), Operation.OVERWRITE),
        (changes.rewrite(table), Operation.REPLACE),
        # Deletes for a file that stays: Iceberg Java would overlook them in a `replace`.
        (Change(start=head, add=delete.add, remove=_as_equality(listed.head(1)), rewrites=True), Operation.OVERWRITE),
    ):
        assert change.operation == operation


def _as_equality(files: pl.DataFrame) -> pl.DataFrame:
    return files.with_columns(content=pl.lit(2, pl.Int8))


def test_several_kinds_in_one_snapshot(lab: Lab) -> None:
    """New rows, removed files, equality deletes and position deletes at once."""
    table = lab.filled(2)
    listed = changes.files(table)
    oldest = listed.filter(pl.col("data_sequence_number") == 1)
    delete = changes.position_delete(table, "id = 15")
    assert delete is not None
    add = (*changes.write_data(table, some_rows([100, 25])), *changes.equality_delete(table, keys(25)).add, *delete.add)
    table = committed(table, Change(start=changes.head(table), add=add, remove=oldest))
    # The equality delete spares the new row of its own snapshot.
    assert ids(table) == [*(i for i in range(10, 30) if i != 15), 100]
    assert_true_totals(table)


def test_a_change_is_committed_once(lab: Lab) -> None:
    table = lab.filled()
    change = changes.append(table, some_rows([100]))
    first, second = commit(table, change), commit(table, change)
    assert isinstance(first, Committed)
    assert isinstance(second, Committed)
    assert first.snapshot_id == second.snapshot_id == change.snapshot_id
    assert ids(table).count(100) == 1


def test_branches_keep_their_retention_and_begin_at_the_current_snapshot(lab: Lab) -> None:
    table = lab.filled()
    side = replace(changes.append(table, some_rows([100])), branch="side")
    table = committed(table, side)
    assert ids(table, "side") == [*range(30), 100]
    assert ids(table) == list(range(30))
    head = changes.head(table, "side")
    table.manage_snapshots().create_branch(head or 0, "kept", min_snapshots_to_keep=7, max_ref_age_ms=10**12).commit()
    table = committed(table, Change(start=head, add=tuple(changes.write_data(table, some_rows([101]))), branch="kept"))
    ref = table.metadata.refs["kept"]
    assert (ref.min_snapshots_to_keep, ref.max_ref_age_ms, ref.snapshot_ref_type) == (7, 10**12, SnapshotRefType.BRANCH)
    assert ids(table, "kept") == [*range(30), 100, 101]


@pytest.mark.parametrize("version", [2, 3])
def test_two_branches_never_share_a_sequence_number(lab: Lab, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit to another branch between load and swap takes the number; PyIceberg notices it only in version 2."""
    table = lab.filled(version)
    change = replace(changes.equality_delete(table, keys(1)), branch="main")
    side = replace(changes.equality_delete(table, keys(2)), branch="side")
    _interrupt(monkeypatch, table, lambda: committed(lab.catalog.load_table(table.name()), side))
    outcome = commit(table, change)
    assert isinstance(outcome, Committed)
    assert outcome.attempts == 2
    numbers = [snapshot.sequence_number for snapshot in outcome.metadata.snapshots]
    assert len(set(numbers)) == len(numbers)


def _interrupt(monkeypatch: pytest.MonkeyPatch, table: Table, act: Any) -> None:
    """Let something happen right before the catalog takes the next commit, once."""
    catalog = table.catalog
    take = catalog.commit_table
    pending = [act]

    def interrupted(*args: Any) -> Any:
        if pending:
            pending.pop()()
        return take(*args)

    monkeypatch.setattr(catalog, "commit_table", interrupted)


def test_retries_end_in_a_conflict_that_leaves_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lab.filled(properties={"commit.retry.num-retries": "2"})
    change = changes.rewrite(table)
    before = lab.metadata_files()

    def busy(*_: Any) -> Any:
        raise CommitFailedException("somebody was faster")

    monkeypatch.setattr(table.catalog, "commit_table", busy)
    outcome = commit(table, change)
    assert isinstance(outcome, Conflict)
    assert (outcome.attempts, "somebody was faster" in outcome.reason) == (3, True)
    assert lab.metadata_files() == before
    monkeypatch.undo()
    assert isinstance(commit(table, change), Committed)


def test_a_retry_reuses_what_was_written_and_removes_the_rest(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lab.filled()
    change = changes.rewrite(table)
    _interrupt(monkeypatch, table, lambda: changes.apply(table, lambda now: changes.append(now, some_rows([100]))))
    outcome = commit(table, change)
    assert isinstance(outcome, Committed)
    assert outcome.attempts == 2
    assert ids(table) == [*range(30), 100]
    table = table.catalog.load_table(table.name())
    lists = {snapshot.manifest_list for snapshot in table.metadata.snapshots}
    used = {m.path for s in table.metadata.snapshots for m in ManifestReader(table.io).manifests(s)}
    metadata = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    known = {path.removeprefix("file://") for path in lists | used | metadata}
    assert lab.metadata_files() == known


def test_properties_and_statistics_without_a_snapshot(lab: Lab) -> None:
    table = lab.filled()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    blob = Blob(
        type="pyarctic-test-v1",
        data=b"some bytes",
        fields=(1,),
        snapshot_id=snapshot.snapshot_id,
        sequence_number=snapshot.sequence_number or 0,
        properties={"ndv": "30"},
    )
    statistics = write_statistics(table.metadata, table.io, snapshot.snapshot_id, [blob])
    change = Change(start=snapshot.snapshot_id, set_properties={"a": "1"}, statistics=(statistics,))
    outcome = commit(table, change)
    assert isinstance(outcome, Committed)
    assert outcome.snapshot_id is None
    table = table.catalog.load_table(table.name())
    assert len(table.metadata.snapshots) == 3
    assert table.properties["a"] == "1"
    (file,) = table.metadata.statistics
    assert isinstance(file, StatisticsFile)
    told = file.blob_metadata[0].model_dump(by_alias=True)
    assert (told["type"], told["properties"]) == ("pyarctic-test-v1", {"ndv": "30"})
    with table.io.new_input(file.statistics_path).open() as stream:
        written = stream.read()
    assert len(written) == file.file_size_in_bytes
    assert written[4:14] == b"some bytes"
    assert written[-file.file_footer_size_in_bytes :][:4] == b"PFA1"
    table = committed(table, Change(start=None, remove_properties=("a",)))
    assert "a" not in table.properties


@pytest.mark.parametrize("version", [2, 3])
def test_equality_deletes_must_reach_rewritten_rows(lab: Lab, version: int) -> None:
    """Files that do not keep the planned sequence number would hide from deletes that came meanwhile."""
    table = lab.filled(version)
    change = changes.rewrite(table)
    careless = replace(change, add=tuple(replace(file, data_sequence_number=None) for file in change.add))
    committed(table, changes.equality_delete(table, keys(3)))
    outcome = commit(table, careless)
    assert isinstance(outcome, Rejected)
    assert outcome.code == "deletes-arrived"
    committed(table, change)
    assert ids(table) == [i for i in range(30) if i != 3]


def test_equality_deletes_of_a_partition_do_not_follow_rows_to_another_spec(lab: Lab) -> None:
    """Rows move from an old partition spec to the current one; a delete for the old partition would miss them."""
    table = lab.filled(partitioned=True)
    with table.update_spec() as update:
        update.remove_field("p")
    table = table.catalog.load_table(table.name())
    change = changes.rewrite(table)
    late = changes.equality_delete(table, keys(4))
    scoped = replace(late.add[0], spec_id=0, partition=("a",))
    committed(table, replace(late, add=(scoped,)))
    assert ids(table) == [i for i in range(30) if i != 4]
    outcome = commit(table, change)
    assert isinstance(outcome, Rejected)
    assert (outcome.code, "would miss its rows" in outcome.reason) == ("deletes-arrived", True)
    committed(table, changes.equality_delete(table, keys(5)))  # a global one reaches all specs
    table = committed(table, changes.rewrite(table.catalog.load_table(table.name())))
    assert ids(table) == [i for i in range(30) if i not in (4, 5)]


@pytest.mark.parametrize("version", [2, 3])
def test_without_a_row_map_late_deletes_refuse_the_rewrite(lab: Lab, version: int) -> None:
    table = lab.filled(version)
    change = replace(changes.rewrite(table), row_map=None)
    changes.apply(table, lambda current: changes.position_delete(current, "id = 3"))
    outcome = commit(table, change)
    assert isinstance(outcome, Rejected)
    assert outcome.code == "deletes-arrived"


@pytest.mark.parametrize("version", [2, 3])
def test_an_equality_delete_stays_while_it_is_needed(lab: Lab, version: int) -> None:
    """Planned as idle, it hits a file that another rewrite brought meanwhile with an older sequence number."""
    table = lab.filled(version, batches=1)
    rewrite = changes.rewrite(table)
    table = committed(table, changes.equality_delete(table, keys(3)))
    equality = changes.files(table).filter(pl.col("content") == 2)
    removal = Change(start=changes.head(table), remove=equality)
    table = committed(table, rewrite)
    outcome = commit(table, removal)
    assert isinstance(outcome, Rejected)
    assert outcome.code == "still-needed"
    assert ids(table) == [i for i in range(10) if i != 3]


@pytest.mark.parametrize("version", [2, 3])
def test_a_needed_delete_does_not_leave_by_a_rewrite(lab: Lab, version: int) -> None:
    """A rewrite promises the same rows; without the delete they would be more."""
    table = lab.filled(version)
    table = committed(table, changes.equality_delete(table, keys(3)))
    listed = changes.files(table)
    removal = Change(start=changes.head(table), remove=listed.filter(pl.col("content") == 2), rewrites=True)
    outcome = commit(table, removal)
    assert isinstance(outcome, Rejected)
    assert outcome.code == "still-needed"
    assert ids(table) == [i for i in range(30) if i != 3]


def test_vectors_for_one_file_are_merged(lab: Lab) -> None:
    """Two writers delete rows of one file: whoever comes second takes the first one's vector in."""
    table = lab.filled(3, batches=1)
    first, second = changes.position_delete(table, "id < 2"), changes.position_delete(table, "id > 7")
    assert first is not None
    assert second is not None
    committed(table, first)
    table = committed(table, second)
    assert ids(table) == [2, 3, 4, 5, 6, 7]
    (vector,) = changes.files(table).filter(pl.col("content") == 1).iter_rows(named=True)
    assert vector["record_count"] == 4
    assert_true_totals(table)


def test_a_first_vector_takes_in_older_position_delete_files(lab: Lab) -> None:
    """After an upgrade to version 3 a vector hides the position delete files of its data file."""
    table = lab.filled(2, batches=1)
    table = changes.apply(table, lambda current: changes.position_delete(current, "id < 2"))
    table = _upgraded(table)
    delete = changes.position_delete(table, "id > 7")
    assert delete is not None
    table = committed(table, delete)
    assert ids(table) == [2, 3, 4, 5, 6, 7]
    assert changes.files(table).filter(pl.col("content") == 1)["file_format"].to_list() == ["PUFFIN"]


def _upgraded(table: Table) -> Table:
    """The table in version 3, as Iceberg Java would make it; PyIceberg does not."""
    update = UpgradeFormatVersionUpdate.model_validate({"format-version": 3})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyiceberg.table.update.SUPPORTED_TABLE_FORMAT_VERSION", 3)
        table.catalog.commit_table(table, (AssertTableUUID(uuid=table.metadata.table_uuid),), (update,))
    return table.catalog.load_table(table.name())


def test_row_ids_are_given_once_and_kept(lab: Lab) -> None:
    table = lab.filled(3, partitioned=True)
    columns = ["id", "_row_id", "_last_updated_sequence_number"]
    before = sorted(map(tuple, map(dict.values, changes.rows(table, columns).to_pylist())))
    assert len({row_id for _, row_id, _ in before}) == 30
    table = committed(table, changes.rewrite(table))
    table = committed(table, ManifestRewrite())
    after = sorted(map(tuple, map(dict.values, changes.rows(table, columns).to_pylist())))
    assert after == before
    assert isinstance(table.metadata, TableMetadataV3)
    assert (table.metadata.next_row_id or 0) >= 30


def test_rows_of_an_upgraded_table_get_ids(lab: Lab) -> None:
    table = _upgraded(lab.filled(2))
    table = committed(table, changes.append(table, some_rows([100])))
    row_ids = changes.rows(table, ["_row_id"])["_row_id"].to_pylist()
    assert len(set(row_ids)) == 31
    assert None not in row_ids
    assert ids(table) == [*range(30), 100]
