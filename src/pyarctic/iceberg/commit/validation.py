"""Whether a change still fits the table: asked on every attempt, of the table as it is then.

The rules are those of Iceberg Java, stricter where Java can lose or resurrect rows. They look at the net difference between
the snapshot the change was planned on and the branch's head, whatever the operations in between were called.
"""

from __future__ import annotations

import polars as pl
from pyiceberg.table.refs import MAIN_BRANCH

from pyarctic.iceberg.commit.change import Change
from pyarctic.iceberg.commit.table_state import PLAN_ANEW, Refusal, TableState
from pyarctic.iceberg.delete.delete_files import read_position_deletes
from pyarctic.iceberg.delete.matching import match_deletes
from pyarctic.iceberg.manifest.file_list import FILE_IDENTITY, IS_DATA
from pyarctic.iceberg.manifest.reader import DATA, DELETES_MANIFEST, EQUALITY_DELETES, POSITION_DELETES, ManifestRef
from pyarctic.iceberg.write.new_file import NewFile

_RESERVED = (1 << 31) - 1 - 1100
"""Iceberg keeps the last 200 field ids for itself; the mixed-iceberg format uses some of the thousand before them."""
_PLANNED = [*FILE_IDENTITY, "data_sequence_number"]
"""A file that went and came back with another sequence number is not the one that was planned with: other deletes hit it."""


def check_fits(change: Change, state: TableState) -> None:
    """Files must be such as the table, as it is now, can hold."""
    if change.once is not None and change.once.is_done(state.metadata):
        told = state.metadata.properties[change.once.property]
        raise Refusal(
            "done-already",
            f"step {change.once.number} was committed before: {change.once.property} is {told}",
            "Nothing is missing. Go on with the next one.",
        )
    head = state.parent.snapshot_id if state.parent else None
    expected = change.start if change.looked_at is None else change.looked_at
    if change.alone and head != expected:
        raise Refusal("moved", f"somebody committed snapshot {head} after {expected}", PLAN_ANEW, snapshot_id=head or 0)
    if state.parent is None and state.branch != MAIN_BRANCH:
        raise Refusal(
            "mismatch", f"the table has no snapshot from which branch {state.branch!r} could begin", "Fill it first."
        )
    columns = {field_id for schema in state.metadata.schemas for field_id in schema.field_ids}
    for file in change.add:
        _check_format(file, state)
        _check_partition(file, state)
        _check_columns(file, columns)
        _check_sequence(change, file, state)
    if change.rewrites and change.added_data:
        _check_row_ids(change, state)
    if change.proof is not None:
        removed = int(change.removed_data["record_count"].sum())
        fault = change.proof.fault(removed, sum(file.record_count for file in change.added_data))
        if fault:
            raise Refusal("proof", f"the rows do not balance: {fault}", "The rewrite is faulty. Nothing was committed.")


def _check_format(file: NewFile, state: TableState) -> None:
    version = state.version
    if file.content != DATA and version < 2:
        raise Refusal("format", f"format version 1 has no deletes: {file.path}", "Upgrade the table first.", file=file.path)
    if file.is_vector and version < 3:
        raise Refusal(
            "format",
            f"deletion vectors need format version 3, the table has {version}: {file.path}",
            "Write position delete files.",
            file=file.path,
        )
    if file.content == POSITION_DELETES and not file.is_vector and version > 2:
        raise Refusal(
            "format",
            f"format version {version} takes no new position delete files: {file.path}",
            "The table may have been upgraded meanwhile. Write deletion vectors.",
            file=file.path,
        )


def _check_partition(file: NewFile, state: TableState) -> None:
    spec = state.metadata.specs().get(file.spec_id)
    if spec is None:
        raise Refusal(
            "mismatch",
            f"the table has no partition spec {file.spec_id}: {file.path}",
            f"There are: {sorted(state.metadata.specs())}.",
            file=file.path,
        )
    if len(spec.fields) != len(file.partition):
        raise Refusal(
            "mismatch",
            f"{len(file.partition)} partition values, but spec {file.spec_id} has {len(spec.fields)} fields: {file.path}",
            f"The spec is: {spec}.",
            file=file.path,
        )


def _check_columns(file: NewFile, known: set[int]) -> None:
    lacking = set(file.equality_ids) - known
    if file.content == DATA:
        # A reserved id (row lineage, positions, the offsets of changes) is no column of the table.
        lacking |= {i for i in file.metrics.value_counts if i < _RESERVED} - known
    if lacking:
        raise Refusal(
            "mismatch",
            f"no schema of the table has a column with id {min(lacking)}: {file.path}",
            "The file was written for another table.",
            file=file.path,
        )


def _check_sequence(change: Change, file: NewFile, state: TableState) -> None:
    number = file.data_sequence_number
    if number is None:
        return
    planned = state.sequence_of(change.start)
    if not 0 <= number <= planned:
        raise Refusal(
            "mismatch",
            f"data sequence number {number} is not one of the planned snapshot's past (up to {planned}): {file.path}",
            "A rewritten file takes the sequence number of the snapshot it was planned on.",
            file=file.path,
        )


def _check_row_ids(change: Change, state: TableState) -> None:
    """The first commit after an upgrade to version 3 gives ids to all rows. A rewrite that was begun before it does not have
    them, and rows must keep theirs."""
    start = state.metadata.snapshot_by_id(change.start) if change.start is not None else None
    head = state.parent
    if start is not None and head is not None and start.first_row_id is None and head.first_row_id is not None:
        raise Refusal(
            "format",
            "the rows got ids while they were rewritten: the table was upgraded to format version 3",
            "The new files do not have the ids. " + PLAN_ANEW,
        )


def check_not_there(change: Change, present: pl.DataFrame) -> None:
    """A file must not be added that another commit has added already: its rows would be doubled."""
    mine = pl.DataFrame(
        [(file.path, file.content_offset) for file in change.add],
        {"file_path": pl.String, "content_offset": pl.Int64},
        orient="row",
    )
    there = mine.join(present, on=["file_path", "content_offset"], nulls_equal=True)
    if there.height:
        path = there["file_path"][0]
        raise Refusal(
            "added-twice",
            f"the table has the file already: {path}",
            f"Snapshot {there['snapshot_id'][0]} added it. Write every file under a name of its own, and add it once.",
            file=path,
        )


def locate(remove: pl.DataFrame, state: TableState, since: pl.DataFrame) -> pl.DataFrame:
    """The files to remove with the manifests they are in now; refuses if one is not live."""
    if remove.is_empty():
        return remove
    here = remove["manifest_path"].is_in([m.path for m in state.manifests]).fill_null(value=False)
    stayed, moved = remove.filter(here), remove.filter(~here)
    hinted = set(stayed["manifest_path"])
    # Those whose manifest was rewritten since are looked for in all manifests of their spec and content.
    kinds = {(spec_id, content != DATA) for spec_id, content in moved.select("spec_id", "content").unique().iter_rows()}
    live = [
        _found(stayed, state, [m for m in state.manifests if m.path in hinted]),
        _found(moved, state, [m for m in state.manifests if (m.spec_id, m.content == DELETES_MANIFEST) in kinds]),
    ]
    found = pl.concat(live)
    missing = remove.join(found, on=_PLANNED, how="anti", nulls_equal=True)
    if missing.height:
        _refuse_missing(missing, since)
    return found


def _found(wanted: pl.DataFrame, state: TableState, manifests: list[ManifestRef]) -> pl.DataFrame:
    listed = state.reader.files_of(manifests)
    return listed.join(wanted.select(_PLANNED), on=_PLANNED, how="semi", nulls_equal=True)


def _refuse_missing(missing: pl.DataFrame, since: pl.DataFrame) -> None:
    gone = since.filter(pl.col("change") == "removed")
    taken = missing.join(gone, on=FILE_IDENTITY, how="semi", nulls_equal=True)
    if taken.height:
        raise Refusal(
            "files-gone",
            f"{taken.height} of the files to replace were replaced or dropped by others meanwhile, such as "
            f"{taken['file_path'][0]}",
            "Their rows are elsewhere now, or deleted. " + PLAN_ANEW,
            file=taken["file_path"][0],
        )
    raise Refusal(
        "not-live",
        f"{missing.height} of the files to remove are not in the table, such as {missing['file_path'][0]}",
        "Take the files to remove from the file list of the snapshot the change was planned on.",
        file=missing["file_path"][0],
    )


def check_targets(state: TableState, added: pl.DataFrame) -> None:
    """New position deletes and vectors must be about live data files, in their partition. `added` describes the change's own
    files."""
    about = added.filter(pl.col("referenced_data_file").is_not_null())
    if about.is_empty():
        return
    own = added.filter(IS_DATA)
    elsewhere = about.join(own, left_on="referenced_data_file", right_on="file_path", how="anti")
    live = state.data(set(elsewhere["spec_id"])) if elsewhere.height else own.clear()
    targets = pl.concat([own, live]).select("file_path", "spec_id", "partition")
    placed = about.join(targets, left_on="referenced_data_file", right_on="file_path", how="left", suffix="_data")
    for delete, path, spec_id, partition, found_spec, found in placed.select(
        "file_path", "referenced_data_file", "spec_id", "partition", "spec_id_data", "partition_data"
    ).iter_rows():
        if found_spec is None:
            raise Refusal(
                "not-live",
                f"delete file {delete} is about a data file that is not in the table: {path}",
                "The data file was replaced or dropped meanwhile, or never was in the table or its partition. " + PLAN_ANEW,
                file=path,
            )
        if (spec_id, partition) != (found_spec, found):
            raise Refusal(
                "mismatch",
                f"delete file {delete} is not in the partition of the data file it is about",
                "Write deletes with the partition spec and values of their data file.",
                file=delete,
            )


def check_named_files(change: Change, state: TableState, since: pl.DataFrame) -> None:
    """A position delete file may name many data files, and its description does not tell which. If data files went
    meanwhile, or go by this change, it is read: deletes of rows that were moved elsewhere would be lost."""
    gone = {*since.filter((pl.col("change") == "removed") & IS_DATA)["file_path"], *change.removed_data["file_path"]}
    if not gone:
        return
    for file in change.added_deletes:
        if file.content != POSITION_DELETES or file.referenced_data_file is not None:
            continue
        named = gone & read_position_deletes(state.reader.io, file.path, file.file_format).keys()
        if named:
            raise Refusal(
                "not-live",
                f"delete file {file.path} is about a data file that is not in the table any more: {min(named)}",
                "The data file was replaced or dropped meanwhile. " + PLAN_ANEW,
                file=min(named),
            )


def check_removed_deletes(change: Change, state: TableState, since: pl.DataFrame, added: pl.DataFrame) -> None:
    """An equality delete may only leave if no data needs it any more: rows would come back.

    Of a rewrite all data is asked. One that converts deletes was planned on the data there was, and a change that does not
    promise the same rows may bring them back on purpose: then only data that arrived meanwhile with an older sequence
    number is asked, as a rewrite by somebody else brings it.
    """
    leaving = change.removed_deletes.filter(pl.col("content") == EQUALITY_DELETES)
    if leaving.is_empty():
        return
    data = since.filter((pl.col("change") == "added") & IS_DATA).drop("change")
    if change.rewrites and not change.converts:
        data = state.data(set(state.metadata.specs())).join(change.removed_data, on="file_path", how="anti")
    data = pl.concat([data, added.filter(IS_DATA & pl.col("data_sequence_number").is_not_null())])
    matches = match_deletes(pl.concat([data, leaving.select(data.columns)]), state.decoder.unpartitioned_specs())
    hit = matches.data.filter(matches.has_deletes)
    if hit.height:
        raise Refusal(
            "still-needed",
            f"{hit.height} data files still need an equality delete that the change removes, such as {hit['file_path'][0]}",
            file=hit["file_path"][0],
        )


def companions(change: Change, state: TableState) -> pl.DataFrame:
    """Live delete files that are about one removed data file each, and leave with it. For vectors the specification demands
    it; they are looked for in all delete manifests, also when the change names deletes to remove itself."""
    removed = change.removed_data
    if removed.is_empty():
        return removed
    return state.deletes().join(removed.select(referenced_data_file="file_path"), on="referenced_data_file", how="semi")


def still_to_remove(change: Change, state: TableState) -> pl.DataFrame:
    """The files the change removes, without delete files about one removed data file, which leave by themselves whatever has
    become of them, and without those that others have replaced meanwhile by a vector, when the change brings one too."""
    targets = [file.referenced_data_file for file in change.add if file.is_vector]
    about = pl.col("referenced_data_file")
    remove = change.remove.filter(~about.is_in(change.removed_data["file_path"].implode()) | about.is_null())
    superseded = remove.filter((pl.col("content") == POSITION_DELETES) & about.is_in(targets))
    if superseded.is_empty():
        return remove
    gone = superseded.join(state.deletes(), on=FILE_IDENTITY, how="anti", nulls_equal=True)
    return remove.join(gone, on=FILE_IDENTITY, how="anti", nulls_equal=True)
