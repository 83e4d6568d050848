"""Whether the metadata of a snapshot agrees with its live files: totals, sequence numbers, row ids and deletes. Nothing is
read here."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import polars as pl
from pyiceberg.table.metadata import TableMetadata, TableMetadataV1, TableMetadataV3
from pyiceberg.table.snapshots import Snapshot

from pyarctic.errors import Damaged
from pyarctic.iceberg.check.manifests import SnapshotFiles
from pyarctic.iceberg.check.problems import Problem, join_problems, problem_frame, problems_of
from pyarctic.iceberg.commit.summary import count_totals
from pyarctic.iceberg.delete.matching import match_deletes
from pyarctic.iceberg.manifest.file_list import FILE_IDENTITY, IS_DATA
from pyarctic.iceberg.manifest.partition_keys import PartitionDecoder


def check_summary(state: SnapshotFiles) -> pl.DataFrame:
    """The totals of a snapshot's summary; those it does not have are not missed."""
    snapshot = state.snapshot
    properties = snapshot.summary.additional_properties if snapshot.summary else {}
    wrong = [
        f"{name} is {properties[name]}, counted {count}"
        for name, count in count_totals(state.files).items()
        if name in properties and properties[name] != str(count)
    ]
    detail = f"snapshot {snapshot.snapshot_id}: {'; '.join(wrong)}"
    return problem_frame([Problem("wrong-summary", detail)] if wrong else [])


def check_history(metadata: TableMetadata) -> pl.DataFrame:
    """Whether branches and tags lead to snapshots, and sequence numbers grow along the history."""
    return problem_frame(chain(_check_refs(metadata), _check_lineage(metadata)))


def _check_refs(metadata: TableMetadata) -> Iterator[Problem]:
    refs = {f"{ref.snapshot_ref_type} {name}": ref.snapshot_id for name, ref in metadata.refs.items()}
    if metadata.current_snapshot_id is not None:
        refs["the current state"] = metadata.current_snapshot_id
    for name, snapshot_id in refs.items():
        if metadata.snapshot_by_id(snapshot_id) is None:
            yield Problem("missing-snapshot", f"{name} is snapshot {snapshot_id}")


def _check_lineage(metadata: TableMetadata) -> Iterator[Problem]:
    """Sequence numbers are greater than that of the parent, and not greater than the table's."""
    if isinstance(metadata, TableMetadataV1):
        return
    for snapshot in metadata.snapshots:
        number = snapshot.sequence_number or 0
        parent = metadata.snapshot_by_id(snapshot.parent_snapshot_id) if snapshot.parent_snapshot_id is not None else None
        if parent is not None and 0 < number <= (parent.sequence_number or 0):
            detail = f"snapshot {snapshot.snapshot_id} has {number}, its parent {parent.sequence_number}"
            yield Problem("wrong-sequence-number", detail)
        if number > metadata.last_sequence_number:
            detail = f"snapshot {snapshot.snapshot_id} has {number}, the table {metadata.last_sequence_number}"
            yield Problem("wrong-sequence-number", detail)


def check_specs(metadata: TableMetadata, state: SnapshotFiles) -> pl.DataFrame:
    """Files of partition specs that the table does not have: their partition is not known."""
    unknown = state.files.filter(~pl.col("spec_id").is_in(list(metadata.specs())))
    return problems_of(unknown, "unknown-spec", pl.format("partition spec {}", "spec_id"), pl.col("record_count"))


def check_sequence_numbers(state: SnapshotFiles) -> pl.DataFrame:
    """The sequence numbers of files: none is from after the snapshot, and no data is newer than its file."""
    number = state.snapshot.sequence_number or 0
    data, file = pl.col("data_sequence_number"), pl.col("file_sequence_number")
    is_wrong = (data > number) | (file > number) | (data > file)
    detail = pl.format(f"data {{}}, file {{}}, snapshot {number}", data, file)
    return problems_of(state.files.filter(is_wrong), "wrong-sequence-number", detail, pl.col("record_count"))


def check_row_ids(metadata: TableMetadata, state: SnapshotFiles) -> pl.DataFrame:
    """Row ids of format version 3: ranges of files do not overlap, and the next row id is greater than all."""
    if not isinstance(metadata, TableMetadataV3):
        return problem_frame([])
    next_row_id = metadata.next_row_id or 0
    first, end = pl.col("first_row_id"), pl.col("first_row_id") + pl.col("record_count")
    data = state.files.filter(IS_DATA & first.is_not_null() & (pl.col("record_count") > 0)).sort("first_row_id")
    previous = data.with_columns(taken=end.cum_max().shift(1))
    beyond = data.filter(end > next_row_id)
    return join_problems(
        [
            problems_of(
                previous.filter(first < pl.col("taken")),
                "wrong-row-ids",
                pl.format("row ids from {} are also those of another file", first),
                pl.col("record_count"),
            ),
            problems_of(
                beyond,
                "wrong-row-ids",
                pl.format(f"row ids up to {{}}, the next row id of the table is {next_row_id}", end - 1),
                pl.col("record_count"),
            ),
            _check_next_row_id(state.snapshot, next_row_id),
        ]
    )


def _check_next_row_id(snapshot: Snapshot, next_row_id: int) -> pl.DataFrame:
    end = (snapshot.first_row_id or 0) + (getattr(snapshot, "added_rows", None) or 0)
    if end <= next_row_id:
        return problem_frame([])
    detail = f"snapshot {snapshot.snapshot_id} added row ids up to {end - 1}, the next row id of the table is {next_row_id}"
    return problem_frame([Problem("wrong-row-ids", detail)])


def check_listed_twice(state: SnapshotFiles) -> pl.DataFrame:
    """Files that are live twice: readers return their rows twice, or apply their deletes twice."""
    twice = state.files.group_by(FILE_IDENTITY, maintain_order=True).agg(pl.col("record_count").first(), count=pl.len())
    detail = pl.format("listed {} times", "count")
    return problems_of(twice.filter(pl.col("count") > 1), "file-listed-twice", detail, pl.col("record_count"))


def check_deletes(metadata: TableMetadata, state: SnapshotFiles) -> pl.DataFrame:
    """Whether deletes fit the data files, and which of the current snapshot apply to none."""
    try:
        dangling = find_dangling_deletes(metadata, state.files)
    except Damaged as error:
        return problem_frame([Problem("contradicting-deletes", error.message, error.facts.get("file"))])
    if state.snapshot.snapshot_id != metadata.current_snapshot_id:
        dangling = dangling.clear()
    rows = pl.col("record_count")
    return problems_of(dangling, "dangling-deletes", pl.format("{} rows", rows), rows)


def find_dangling_deletes(metadata: TableMetadata, files: pl.DataFrame) -> pl.DataFrame:
    """The delete files of a file list that apply to no data file, and never will."""
    unused = match_deletes(files, PartitionDecoder(metadata).unpartitioned_specs()).unused()
    return unused.select(files.columns)


def check_snapshot(metadata: TableMetadata, state: SnapshotFiles) -> pl.DataFrame:
    """All that needs the complete file list of a snapshot."""
    return join_problems(
        list(
            chain(
                (check_summary(state), check_specs(metadata, state)),
                (check_row_ids(metadata, state), check_listed_twice(state)),
                (check_deletes(metadata, state),) if state.files.filter(~IS_DATA).height else (),
                (check_sequence_numbers(state),) if metadata.format_version > 1 else (),
            )
        )
    )
