"""Validation of a change against the current state of the table, for every attempt.

The rules are those of Iceberg Java, stricter where Java can lose or resurrect rows. They use the net difference between the
snapshot the change was planned on and the head of the branch, regardless of the operations in between.
"""

from __future__ import annotations

import polars as pl
from pyiceberg.table.refs import MAIN_BRANCH

from pyarctic.iceberg.commit.change import Change
from pyarctic.iceberg.commit.proof import Proof
from pyarctic.iceberg.commit.table_state import PLAN_AGAIN, ChangeRejected, TableState
from pyarctic.iceberg.delete.delete_files import read_position_deletes
from pyarctic.iceberg.delete.matching import match_deletes
from pyarctic.iceberg.manifest.file_list import FILE_IDENTITY, IS_DATA
from pyarctic.iceberg.manifest.reader import DATA, DELETES_MANIFEST, EQUALITY_DELETES, POSITION_DELETES, ManifestRef
from pyarctic.iceberg.write.new_file import NewFile

_FIRST_RESERVED_ID = (1 << 31) - 1 - 1100
"""Iceberg reserves the last 200 field ids; the mixed-iceberg format uses some of the thousand before them."""
_PLANNED_IDENTITY = [*FILE_IDENTITY, "data_sequence_number"]
"""A file that was removed and added again with another sequence number is not the planned one: other deletes apply to it."""


def check_applicable(change: Change, state: TableState) -> None:
    """Check that the change may be applied to the current state of the table, and that the table may have its files."""
    _check_preconditions(change, state)
    column_ids = {field_id for schema in state.metadata.schemas for field_id in schema.field_ids}
    for file in change.add:
        _check_format(file, state)
        _check_partition(file, state)
        _check_columns(file, column_ids)
        _check_sequence(change, file, state)
    if change.rewrites and change.added_data:
        _check_row_ids(change, state)
    if change.proof is not None:
        _check_proof(change, change.proof)


def _check_preconditions(change: Change, state: TableState) -> None:
    """Check what the change requires of the table's history."""
    if change.once is not None and change.once.is_done(state.metadata):
        last_step = state.metadata.properties[change.once.property]
        raise ChangeRejected(
            "done-already",
            f"step {change.once.number} was committed before: {change.once.property} is {last_step}",
            "Nothing is missing. Continue with the next step.",
        )
    head = state.parent.snapshot_id if state.parent else None
    expected = change.start if change.checked_at is None else change.checked_at
    if change.alone and head != expected:
        raise ChangeRejected(
            "moved", f"snapshot {head} was committed concurrently, after {expected}", PLAN_AGAIN, snapshot_id=head or 0
        )
    if lost := state.not_in_history(change.requires, change.start):
        raise ChangeRejected(
            "history-lost",
            f"snapshot {min(lost)}, which the change relies on, was rolled back",
            "Somebody has rolled it back, or the catalog in favour of another writer. " + PLAN_AGAIN,
            snapshot_id=min(lost),
        )
    if state.parent is None and state.branch != MAIN_BRANCH:
        raise ChangeRejected(
            "mismatch",
            f"the table has no snapshot from which branch {state.branch!r} could start",
            "Commit to the main branch first.",
        )


def check_not_committed_before(change: Change, state: TableState) -> None:
    """Check that the change is not in the table already, by a snapshot that others have expired: files that it added may
    have been replaced since, and would be added once more. The history since its start must be known."""
    if change.start is None or state.not_in_history([change.snapshot_id], change.start):
        return
    raise ChangeRejected(
        "history-lost",
        f"the change was committed as snapshot {change.snapshot_id}, which was expired since",
        "Nothing is missing.",
        may_have_landed=True,
        snapshot_id=change.snapshot_id,
    )


def _check_proof(change: Change, proof: Proof) -> None:
    rows_removed = int(change.removed_data["record_count"].sum())
    fault = proof.fault(rows_removed, sum(file.record_count for file in change.added_data))
    if fault:
        raise ChangeRejected("proof", f"the rows do not balance: {fault}", "The rewrite is faulty. Nothing was committed.")


def _check_format(file: NewFile, state: TableState) -> None:
    version = state.version
    if file.content != DATA and version < 2:
        raise ChangeRejected(
            "format", f"format version 1 has no deletes: {file.path}", "Upgrade the table first.", file=file.path
        )
    if file.is_vector and version < 3:
        raise ChangeRejected(
            "format",
            f"deletion vectors need format version 3, the table has {version}: {file.path}",
            "Write position delete files.",
            file=file.path,
        )
    if file.content == POSITION_DELETES and not file.is_vector and version > 2:
        raise ChangeRejected(
            "format",
            f"format version {version} takes no new position delete files: {file.path}",
            "The table may have been upgraded meanwhile. Write deletion vectors.",
            file=file.path,
        )


def _check_partition(file: NewFile, state: TableState) -> None:
    spec = state.metadata.specs().get(file.spec_id)
    if spec is None:
        raise ChangeRejected(
            "mismatch",
            f"the table has no partition spec {file.spec_id}: {file.path}",
            f"There are: {sorted(state.metadata.specs())}.",
            file=file.path,
        )
    if len(spec.fields) != len(file.partition):
        raise ChangeRejected(
            "mismatch",
            f"{len(file.partition)} partition values, but spec {file.spec_id} has {len(spec.fields)} fields: {file.path}",
            f"The spec is: {spec}.",
            file=file.path,
        )


def _check_columns(file: NewFile, column_ids: set[int]) -> None:
    unknown = set(file.equality_ids) - column_ids
    if file.content == DATA:
        # Reserved ids (row lineage, positions, the offsets of changes) are not columns of the table.
        unknown |= {i for i in file.metrics.value_counts if i < _FIRST_RESERVED_ID} - column_ids
    if unknown:
        raise ChangeRejected(
            "mismatch",
            f"no schema of the table has a column with id {min(unknown)}: {file.path}",
            "The file was written for another table.",
            file=file.path,
        )


def _check_sequence(change: Change, file: NewFile, state: TableState) -> None:
    number = file.data_sequence_number
    if number is None:
        return
    planned = state.sequence_of(change.start)
    if not 0 <= number <= planned:
        raise ChangeRejected(
            "mismatch",
            f"data sequence number {number} is negative or later than that of the planned snapshot, {planned}: {file.path}",
            "A rewritten file takes the sequence number of the snapshot it was planned on.",
            file=file.path,
        )


def _check_row_ids(change: Change, state: TableState) -> None:
    """The first commit after an upgrade to format version 3 assigns row ids. The files of a rewrite that was planned before
    do not have them, but rows must keep their ids."""
    start = state.metadata.snapshot_by_id(change.start) if change.start is not None else None
    head = state.parent
    if start is not None and head is not None and start.first_row_id is None and head.first_row_id is not None:
        raise ChangeRejected(
            "format",
            "rows were assigned ids while they were rewritten: the table was upgraded to format version 3",
            "The new files do not have the ids. " + PLAN_AGAIN,
        )


def check_not_added_before(change: Change, present: pl.DataFrame) -> None:
    """Check that no file of the change was already added by another commit: its rows would be duplicated."""
    added = pl.DataFrame(
        [(file.path, file.content_offset) for file in change.add],
        {"file_path": pl.String, "content_offset": pl.Int64},
        orient="row",
    )
    duplicates = added.join(present, on=["file_path", "content_offset"], nulls_equal=True)
    if duplicates.height:
        path = duplicates["file_path"][0]
        raise ChangeRejected(
            "added-twice",
            f"the table has the file already: {path}",
            f"Snapshot {duplicates['snapshot_id'][0]} added it. Write every file under a unique name, and add it only once.",
            file=path,
        )


def locate_removed(remove: pl.DataFrame, state: TableState, since: pl.DataFrame) -> pl.DataFrame:
    """The files to remove with the manifests they are in now; rejects the change if one is not live."""
    if remove.is_empty():
        return remove
    is_current = remove["manifest_path"].is_in([m.path for m in state.manifests]).fill_null(value=False)
    stayed, moved = remove.filter(is_current), remove.filter(~is_current)
    current_paths = set(stayed["manifest_path"])
    # Files whose manifest was rewritten since are searched in all manifests of their spec and content.
    kinds = {(spec_id, content != DATA) for spec_id, content in moved.select("spec_id", "content").unique().iter_rows()}
    parts = [
        _live_files(stayed, state, [m for m in state.manifests if m.path in current_paths]),
        _live_files(moved, state, [m for m in state.manifests if (m.spec_id, m.content == DELETES_MANIFEST) in kinds]),
    ]
    located = pl.concat(parts)
    missing = remove.join(located, on=_PLANNED_IDENTITY, how="anti", nulls_equal=True)
    if missing.height:
        _reject_missing(missing, since)
    return located


def _live_files(wanted: pl.DataFrame, state: TableState, manifests: list[ManifestRef]) -> pl.DataFrame:
    listed = state.reader.files_of(manifests)
    return listed.join(wanted.select(_PLANNED_IDENTITY), on=_PLANNED_IDENTITY, how="semi", nulls_equal=True)


def _reject_missing(missing: pl.DataFrame, since: pl.DataFrame) -> None:
    removed_since = since.filter(pl.col("change") == "removed")
    replaced = missing.join(removed_since, on=FILE_IDENTITY, how="semi", nulls_equal=True)
    if replaced.height:
        raise ChangeRejected(
            "files-gone",
            f"{replaced.height} of the files to replace were replaced or removed by concurrent commits, such as "
            f"{replaced['file_path'][0]}",
            "Their rows are in other files now, or deleted. " + PLAN_AGAIN,
            file=replaced["file_path"][0],
        )
    raise ChangeRejected(
        "not-live",
        f"{missing.height} of the files to remove are not in the table, such as {missing['file_path'][0]}",
        "Take the files to remove from the file list of the snapshot the change was planned on.",
        file=missing["file_path"][0],
    )


def check_referenced_files(state: TableState, added: pl.DataFrame) -> None:
    """Check that new position deletes and vectors reference live data files, in their partition. `added`: the files that the
    change adds."""
    deletes = added.filter(pl.col("referenced_data_file").is_not_null())
    if deletes.is_empty():
        return
    added_data = added.filter(IS_DATA)
    of_existing_data = deletes.join(added_data, left_on="referenced_data_file", right_on="file_path", how="anti")
    existing_data = state.data(set(of_existing_data["spec_id"])) if of_existing_data.height else added_data.clear()
    targets = pl.concat([added_data, existing_data]).select("file_path", "spec_id", "partition")
    matched = deletes.join(targets, left_on="referenced_data_file", right_on="file_path", how="left", suffix="_data")
    for delete, path, spec_id, partition, data_spec, data_partition in matched.select(
        "file_path", "referenced_data_file", "spec_id", "partition", "spec_id_data", "partition_data"
    ).iter_rows():
        if data_spec is None:
            raise ChangeRejected(
                "not-live",
                f"delete file {delete} references a data file that is not in the table: {path}",
                "The data file was replaced or removed meanwhile, or was never in the table or its partition. " + PLAN_AGAIN,
                file=path,
            )
        if (spec_id, partition) != (data_spec, data_partition):
            raise ChangeRejected(
                "mismatch",
                f"delete file {delete} is not in the partition of the data file it references",
                "Write deletes with the partition spec and values of their data file.",
                file=delete,
            )


def check_position_delete_files(change: Change, state: TableState, since: pl.DataFrame) -> None:
    """A position delete file may name many data files, which its manifest entry does not list. If data files were removed
    meanwhile, or by this change, it is read: deletes of rows that were moved to other files would be lost."""
    removed = {*since.filter((pl.col("change") == "removed") & IS_DATA)["file_path"], *change.removed_data["file_path"]}
    if not removed:
        return
    for file in change.added_deletes:
        if file.content != POSITION_DELETES or file.referenced_data_file is not None:
            continue
        deletes = read_position_deletes(state.reader.io, file.path, file.file_format, size=file.file_size_bytes)
        named = removed & deletes.keys()
        if named:
            raise ChangeRejected(
                "not-live",
                f"delete file {file.path} references a data file that is not in the table any more: {min(named)}",
                "The data file was replaced or removed meanwhile. " + PLAN_AGAIN,
                file=min(named),
            )


def check_removed_deletes(change: Change, state: TableState, since: pl.DataFrame, added: pl.DataFrame) -> None:
    """Check that no data file needs an equality delete that the change removes: rows would come back.

    For a rewrite all data files are checked. A rewrite that converts deletes was planned with all data files of its
    snapshot, and a change that does not keep the rows may restore them on purpose: then only data files that were added
    since with an older sequence number are checked, as a concurrent rewrite adds them.
    """
    removed = change.removed_deletes.filter(pl.col("content") == EQUALITY_DELETES)
    if removed.is_empty():
        return
    data = since.filter((pl.col("change") == "added") & IS_DATA).drop("change")
    if change.rewrites and not change.converts:
        data = state.data(set(state.metadata.specs())).join(change.removed_data, on="file_path", how="anti")
    data = pl.concat([data, added.filter(IS_DATA & pl.col("data_sequence_number").is_not_null())])
    matches = match_deletes(pl.concat([data, removed.select(data.columns)]), state.decoder.unpartitioned_specs())
    affected = matches.data.filter(matches.has_deletes)
    if affected.height:
        raise ChangeRejected(
            "still-needed",
            f"{affected.height} data files still need an equality delete that the change removes, such as "
            f"{affected['file_path'][0]}",
            file=affected["file_path"][0],
        )


def deletes_of_removed_data(change: Change, state: TableState) -> pl.DataFrame:
    """Live delete files that reference a removed data file, and are removed with it. For vectors the specification requires
    it; they are searched in all delete manifests, even if the change itself lists deletes to remove."""
    removed = change.removed_data
    if removed.is_empty():
        return removed
    return state.deletes().join(removed.select(referenced_data_file="file_path"), on="referenced_data_file", how="semi")


def files_to_remove(change: Change, state: TableState) -> pl.DataFrame:
    """The files the change removes, except delete files that reference a removed data file, which are removed with it in any
    case, and except those that a concurrent commit has replaced by a vector, if the change adds a vector too."""
    targets = [file.referenced_data_file for file in change.add if file.is_vector]
    referenced = pl.col("referenced_data_file")
    remove = change.remove.filter(~referenced.is_in(change.removed_data["file_path"].implode()) | referenced.is_null())
    superseded = remove.filter((pl.col("content") == POSITION_DELETES) & referenced.is_in(targets))
    if superseded.is_empty():
        return remove
    already_removed = superseded.join(state.deletes(), on=FILE_IDENTITY, how="anti", nulls_equal=True)
    return remove.join(already_removed, on=FILE_IDENTITY, how="anti", nulls_equal=True)
