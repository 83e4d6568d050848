"""Changes of a keyed table as a stream: the rows of Base as inserts, if they are wanted, then what was committed since.

A position tells how far a reader is. It is small, the reader stores it in its checkpoint, and its meaning does not change:
merging changes into Base moves no position, and changes that were removed before they were read are noticed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl
import pyarrow as pa
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import NestedField

from pyarctic.errors import NotFound, Rejected, UsageError, about
from pyarctic.iceberg import frame_from_bytes, frame_to_bytes
from pyarctic.iceberg.manifest import FILE_SCHEMA, ancestors, snapshot_by_id
from pyarctic.iceberg.predicate import ALWAYS_TRUE
from pyarctic.iceberg.read import Scan, TableView, arrow_schema, select_fields
from pyarctic.tables.format.change_columns import (
    CHANGE_ACTION,
    CHANGE_COLUMNS,
    FILE_OFFSET,
    INSERT,
    TRANSACTION_ID,
    read_change_files,
)
from pyarctic.tables.format.file_names import StorePaths, parse_change_file_names, parse_file_names
from pyarctic.tables.format.merged_sequence import merged_sequences
from pyarctic.tables.keyed_table import KeyedTable
from pyarctic.tables.read.change_log import ChangeLog
from pyarctic.tables.read.key_groups import select_unmerged
from pyarctic.tables.read.latest_versions import MAX_OFFSET
from pyarctic.tables.read.splits import Split, SplitReader, SplitSizes, plan_splits

_SPLIT_BYTES = 32 << 20
_RESTART_HINT = "Start again from earliest, with a new checkpoint, or set fail-on-gaps=false to go on without them."


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPosition:
    """Changes up to `sequence` were read. With `base`, reading began with the rows of that snapshot: `files` of its files
    were read, and of the changes up to `upto` only those count that were not merged into it."""

    table: str
    sequence: int
    base: int | None = None
    files: int = 0
    upto: int = 0
    pending: int = 0
    """How many changed rows up to `upto` are still to be read."""
    begun: StreamPosition | None = None
    """Only at the end of the first batch: where that batch began. A restarted reader may not know it any more."""

    def to_json(self) -> dict[str, Any]:
        names = ("table", "sequence", "base", "files", "upto", "pending") if self.base is not None else ("table", "sequence")
        document = {name: getattr(self, name) for name in names}
        return document if self.begun is None else document | {"begun": self.begun.to_json()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> StreamPosition:
        begun = document.get("begun")
        return cls(**{**document, "begun": None if begun is None else cls.from_json(begun)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """How much is read at a time. Commits are not divided: one that is larger is read alone."""

    rows: int | None = None
    files: int | None = None
    fail_on_gaps: bool = True

    @property
    def are_none(self) -> bool:
        return self.rows is None and self.files is None

    def count_fitting(self, sizes: pl.DataFrame) -> int:
        """How many steps, given by their `rows` and `files`, are within the limits; at least one."""
        if self.are_none:
            return sizes.height
        fits = pl.lit(value=True)
        if self.rows is not None:
            fits &= pl.col("rows").cum_sum() <= self.rows
        if self.files is not None:
            fits &= pl.col("files").cum_sum() <= self.files
        return max(int(sizes.select(fits.sum()).item()), 1) if sizes.height else 0


class ChangeStream:
    """The changes of a table from some position on.

    >>> stream = ChangeStream(table)
    >>> start = stream.beginning("earliest")
    >>> end = stream.first(start)
    >>> rows = [batch for reader, split in stream.splits(start, end) for batch in reader.batches(split)]
    """

    def __init__(self, table: KeyedTable, columns: Sequence[str] | None = None, limits: ReadLimits | None = None) -> None:
        self._table = table
        self._limits = limits or ReadLimits()
        self._fields = select_fields(table.schema, columns, extra=CHANGE_COLUMNS)
        if columns is None:
            self._fields += tuple(CHANGE_COLUMNS.values())
        self._reader = table.change_store.reader()
        self._files: dict[tuple[int | None, int], pl.DataFrame] = {}
        """By snapshot, and by the sequence number after which they were committed."""

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows: the table's columns, `_transaction_id`, `_file_offset`, `_change_action`."""
        return arrow_schema(self._fields)

    def beginning(self, origin: str) -> StreamPosition:
        """`origin`: "earliest", "latest", or the id of a snapshot of the change store, after which to begin."""
        with about(table=self._table.name):
            change = self._table.change_store.view.metadata
            head = _sequence(change.current_snapshot())
            latest = StreamPosition(table=self._table.uuid, sequence=head)
            if origin == "latest":
                return latest
            if origin == "earliest":
                base = self._table.view.metadata.current_snapshot()
                earliest = replace(latest, sequence=0, base=base.snapshot_id if base else 0, upto=head)
                return replace(earliest, pending=_count_rows(self._unmerged(earliest, head)))
            if not origin.lstrip("-").isdigit():
                raise UsageError(f"a stream cannot begin at {origin!r}", hint="Give earliest, latest or a snapshot id.")
            return replace(latest, sequence=_sequence(snapshot_by_id(change, int(origin))))

    def first(self, beginning: StreamPosition) -> StreamPosition:
        """The position after the first rows."""
        return replace(self.following(beginning), begun=beginning)

    def following(self, position: StreamPosition) -> StreamPosition:
        """The position after the next rows; the same if there are none."""
        with about(table=self._table.name):
            self._check_table(position)
            position = replace(position, begun=None)
            if position.base is not None and (files := self._base_files(position).slice(position.files)).height:
                count = self._limits.count_fitting(files.select(rows="record_count", files=pl.lit(1, pl.Int64)))
                position = replace(position, files=position.files + count)
                if not self._limits.are_none:
                    return position
            return self._advance_changes(position)

    def _advance_changes(self, position: StreamPosition) -> StreamPosition:
        self._refuse_gaps(position, self._head)
        commits = _group_by_commit(self._unmerged(position, self._head))
        count = self._limits.count_fitting(commits)
        # Commits without changes are skipped.
        end = self._head if count == commits.height else int(commits["sequence"][count - 1])
        if position.base is None or end >= position.upto:  # no later change is merged into the base snapshot
            return StreamPosition(table=position.table, sequence=max(end, position.sequence))
        return replace(position, sequence=end, pending=position.pending - _count_rows(self._unmerged(position, end)))

    def splits(self, start: StreamPosition, end: StreamPosition) -> list[tuple[SplitReader, Split]]:
        """What is to be read between two positions, in order."""
        start = end.begun or start
        with about(table=self._table.name):
            self._check_table(start)
            self._refuse_gaps(start, end.sequence)  # the positions may be old
            stop = None if end.base is None else end.files
            inserts = [] if start.base is None else self._split_base(start, stop)
            return inserts + self._split_changes(self._unmerged(start, end.sequence))

    def _check_table(self, position: StreamPosition) -> None:
        if position.table != self._table.uuid:
            raise Rejected(
                "another table has the name now",
                hint="The table was dropped and created again. Start the stream again, with a new checkpoint.",
            )

    # --- Base

    def _base_snapshot(self, position: StreamPosition) -> Snapshot | None:
        if not position.base:
            return None
        try:
            return snapshot_by_id(self._table.view.metadata, position.base)
        except NotFound as cause:
            raise NotFound(
                f"snapshot {position.base} of Base, which is being read, was expired",
                hint="Start again from earliest, with a new checkpoint.",
            ) from cause

    def _base_scan(self, position: StreamPosition) -> Scan | None:
        snapshot = self._base_snapshot(position)
        if snapshot is None:
            return None
        table, schema = self._table, self._table.schema
        fields = tuple(field for field in self._fields if field.name not in CHANGE_COLUMNS) or schema.fields[:1]
        # With the current schema, whatever the columns were called when the snapshot was written.
        return Scan(table.view, snapshot, schema, fields, ALWAYS_TRUE, table._file_list(snapshot))

    def _base_files(self, position: StreamPosition) -> pl.DataFrame:
        scan = self._base_scan(position)
        return pl.DataFrame(schema=FILE_SCHEMA) if scan is None else scan.plan.data.sort("file_path")

    def _merged_sequences(self, position: StreamPosition) -> dict[str, int]:
        if not position.base:
            return {}
        return merged_sequences(self._table.view.metadata, self._table.view.io, self._base_snapshot(position))

    def _split_base(self, start: StreamPosition, stop: int | None) -> list[tuple[SplitReader, Split]]:
        scan = self._base_scan(start)
        if scan is None:
            return []
        chosen = scan.plan.data.sort("file_path").slice(start.files, None if stop is None else stop - start.files)
        splits: list[tuple[SplitReader, Split]] = []
        for (transaction,), files in parse_file_names(chosen, "base").group_by("transaction_id", maintain_order=True):
            part = scan.restrict_to(files["file_path"])
            plan = plan_splits(part, SplitSizes(readers=1, max_bytes=_SPLIT_BYTES), allow_plain=False)
            reader = _BaseInsertReader(reader=plan.reader, fields=self._fields, transaction_id=int(str(transaction)))
            splits += [(reader, split) for split in plan.splits]
        return splits

    # --- changes

    @property
    def _head(self) -> int:
        return _sequence(self._table.change_store.view.metadata.current_snapshot())

    def _files_after(self, sequence: int) -> pl.DataFrame:
        """The files with changes that were committed after a sequence number. Manifests that were written before it are not
        read: a reader that follows the stream would read all of them for every few rows."""
        key = (self._table.change_store.view.snapshot_id, sequence)
        if key not in self._files:
            store = self._table.change_store
            manifests = self._reader.manifests(store.view.metadata.current_snapshot())
            files = self._reader.files_of(manifest for manifest in manifests if manifest.sequence_number > sequence)
            # Merged manifests are newer than their files.
            self._files[key] = parse_change_file_names(files.filter(pl.col("data_sequence_number") > sequence))
        return self._files[key]

    def _unmerged(self, position: StreamPosition, upto: int) -> pl.DataFrame:
        """The files with changes after a position, up to a sequence number."""
        files = self._files_after(position.sequence).filter(pl.col("data_sequence_number") <= upto)
        paths = StorePaths(self._table.change_store.view.metadata)
        return select_unmerged(files, paths, self._merged_sequences(position))

    def _refuse_gaps(self, position: StreamPosition, upto: int) -> None:
        """Raise if changes were removed before they were read."""
        if not self._limits.fail_on_gaps:
            return
        after = position.sequence
        if position.base is not None:
            after = max(after, position.upto)
            missing = position.pending - _count_rows(self._unmerged(position, after))
            if missing > 0:
                raise NotFound(f"{missing} changed rows that follow those of Base are gone", hint=_RESTART_HINT)
        if upto <= after:
            return
        added = self._count_added_rows(after, upto)
        present = self._files_after(after).filter(pl.col("data_sequence_number") <= upto)
        missing = added - _count_rows(present)
        if missing > 0:
            raise NotFound(f"{missing} changed rows after sequence number {after} are gone", hint=_RESTART_HINT)

    def _count_added_rows(self, after: int, upto: int) -> int:
        """How many rows were added between two sequence numbers, by the summaries of the snapshots."""
        metadata = self._table.change_store.view.metadata
        added, oldest = 0, self._head + 1
        for snapshot in ancestors(metadata, metadata.current_snapshot()):
            if _sequence(snapshot) <= after:
                return added
            summary = snapshot.summary.additional_properties if snapshot.summary else {}
            added += int(summary.get("added-records", 0)) if _sequence(snapshot) <= upto else 0
            oldest = _sequence(snapshot)
        if oldest > after + 1:
            raise NotFound(
                f"it is not known what was committed after sequence number {after}: snapshots before {oldest} were expired",
                hint=_RESTART_HINT,
            )
        return added

    def _split_changes(self, files: pl.DataFrame) -> list[tuple[SplitReader, Split]]:
        """Splits of complete commits; a large commit is divided by its writers, which have no key in common."""
        if files.is_empty():
            return []
        reader = _ChangeLogReader(view=self._table.change_store.view, fields=self._fields, keys=self._table.primary_key)
        size = pl.col("file_size_bytes")
        commit = ["transaction_id", "data_sequence_number"]
        sized = files.sort(*commit, "writer", maintain_order=True).with_columns(commit_bytes=size.sum().over(commit))
        divided_by = pl.when(pl.col("commit_bytes") > _SPLIT_BYTES).then("writer")
        steps = sized.with_columns(part=divided_by).with_columns(step=pl.struct(*commit, "part").rle_id())
        sizes = steps.group_by("step", maintain_order=True).agg(bytes=size.sum())
        splits = sizes.select("step", split=(pl.col("bytes").cum_sum() - 1) // _SPLIT_BYTES)
        numbered = steps.join(splits, on="step", how="left", maintain_order="left")
        return [
            (reader, (frame_to_bytes(part.select(FILE_SCHEMA.names())),))
            for part in numbered.partition_by("split", maintain_order=True)
        ]


@dataclass(frozen=True, kw_only=True)
class _BaseInsertReader:
    """Reads rows of Base as changes: inserted after all offsets of their file's transaction, as in `latest_versions`."""

    reader: SplitReader
    fields: tuple[NestedField, ...]
    transaction_id: int

    def batches(self, split: Split) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(self.fields)
        values = {TRANSACTION_ID.name: self.transaction_id, FILE_OFFSET.name: MAX_OFFSET, CHANGE_ACTION.name: INSERT}
        for batch in self.reader.batches(split):
            columns = [
                pa.repeat(pa.scalar(values[field.name], field.type), batch.num_rows)
                if field.name in values
                else batch.column(field.name)
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


@dataclass(frozen=True, kw_only=True)
class _ChangeLogReader:
    """Reads changes in order."""

    view: TableView
    fields: tuple[NestedField, ...]
    keys: tuple[str, ...]

    def batches(self, split: Split) -> Iterator[pa.RecordBatch]:
        files = parse_change_file_names(frame_from_bytes(split[0]))
        reader = read_change_files(self.view, files)
        table_fields = [field for field in self.fields if field.name not in CHANGE_COLUMNS]
        # Pairs of before- and after-images are found by their keys, wanted or not.
        names = {field.name for field in table_fields}
        keys = [self.view.metadata.schema().find_field(name) for name in self.keys if name not in names]
        for batch in ChangeLog(reader, reader.numbered_files(), [*table_fields, *keys], self.keys).batches():
            yield batch.select([field.name for field in self.fields])


def _sequence(snapshot: Snapshot | None) -> int:
    return (snapshot.sequence_number or 0) if snapshot else 0


def _count_rows(files: pl.DataFrame) -> int:
    return int(files["record_count"].sum())


def _group_by_commit(files: pl.DataFrame) -> pl.DataFrame:
    """Commits with changes, oldest first."""
    grouped = files.group_by(sequence="data_sequence_number")
    return grouped.agg(rows=pl.col("record_count").sum(), files=pl.len().cast(pl.Int64)).sort("sequence")
