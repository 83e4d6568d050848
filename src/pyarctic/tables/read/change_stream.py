"""Changes of a keyed table as a stream: the rows of Base as inserts, if they are wanted, then what was committed since.

A position tells how far a reader is. It is small, goes into the reader's own records, and means the same for ever: merging
changes into Base moves nothing, and changes that are gone before they were read are noticed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import polars as pl
import pyarrow as pa
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import NestedField

from pyarctic.errors import NotFound, Rejected, UsageError, about
from pyarctic.iceberg import frame_from_bytes, frame_to_bytes
from pyarctic.iceberg.manifest import FILE_SCHEMA, snapshot_by_id
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
from pyarctic.tables.read.latest_versions import MOST_OFFSET
from pyarctic.tables.read.splits import Split, SplitReader, SplitSizes, plan_splits

_PORTION_BYTES = 32 << 20
_AGAIN = "Start again from earliest, with a new checkpoint, or give fail-on-gaps=false to go on without them."


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPosition:
    """Changes up to `sequence` were read. With `base`, reading began with the rows of that snapshot: so many of its files
    were read, and of the changes up to `upto` those count that were not merged into it."""

    table: str
    sequence: int
    base: int | None = None
    files: int = 0
    upto: int = 0
    pending: int = 0
    """How many changed rows up to `upto` are to be read."""
    begun: StreamPosition | None = None
    """With the end of the first batch: where that began. Whoever reads it again may not know it any more."""

    def to_json(self) -> dict[str, Any]:
        names = ("table", "sequence", "base", "files", "upto", "pending") if self.base is not None else ("table", "sequence")
        told = {name: getattr(self, name) for name in names}
        return told if self.begun is None else told | {"begun": self.begun.to_json()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> StreamPosition:
        begun = document.get("begun")
        return cls(**{**document, "begun": None if begun is None else cls.from_json(begun)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """How much is read at a time. Commits are not divided: one that is larger comes alone."""

    rows: int | None = None
    files: int | None = None
    fail_on_gaps: bool = True

    @property
    def are_none(self) -> bool:
        return self.rows is None and self.files is None

    def taken(self, sizes: pl.DataFrame) -> int:
        """How many of some steps, with their `rows` and `files`, fit; at least one."""
        if self.are_none:
            return sizes.height
        fits = pl.lit(value=True)
        if self.rows is not None:
            fits &= pl.col("rows").cum_sum() <= self.rows
        if self.files is not None:
            fits &= pl.col("files").cum_sum() <= self.files
        return max(int(sizes.select(fits.sum()).item()), 1) if sizes.height else 0


class ChangeStream:
    """The changes of a table from some position on."""

    def __init__(self, table: KeyedTable, columns: Sequence[str] | None = None, limits: ReadLimits | None = None) -> None:
        self._table = table
        self._limits = limits or ReadLimits()
        self._fields = select_fields(table.schema, columns, extra=CHANGE_COLUMNS)
        if columns is None:
            self._fields += tuple(CHANGE_COLUMNS.values())

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows: the table's columns, `_transaction_id`, `_file_offset`, `_change_action`."""
        return arrow_schema(self._fields)

    def beginning(self, origin: str) -> StreamPosition:
        """`origin`: "earliest", "latest", or the id of a snapshot of the change store, after which to begin."""
        with about(table=self._table.name):
            change = self._table.change_store.view.metadata
            head = _sequence(change.current_snapshot())
            at = StreamPosition(table=self._table.uuid, sequence=head)
            if origin == "latest":
                return at
            if origin == "earliest":
                base = self._table.view.metadata.current_snapshot()
                at = replace(at, sequence=0, base=base.snapshot_id if base else 0, upto=head)
                return replace(at, pending=_rows(self._unmerged(at, head)))
            if not origin.lstrip("-").isdigit():
                raise UsageError(f"a stream cannot begin at {origin!r}", hint="Say earliest, latest or a snapshot id.")
            return replace(at, sequence=_sequence(snapshot_by_id(change, int(origin))))

    def first(self, beginning: StreamPosition) -> StreamPosition:
        """The position after the first rows."""
        return replace(self.following(beginning), begun=beginning)

    def following(self, at: StreamPosition) -> StreamPosition:
        """The position after the next rows; the same if there are none."""
        with about(table=self._table.name):
            self._check(at)
            at = replace(at, begun=None)
            if at.base is not None and (files := self._base_files(at).slice(at.files)).height:
                taken = self._limits.taken(files.select(rows="record_count", files=pl.lit(1, pl.Int64)))
                at = replace(at, files=at.files + taken)
                if not self._limits.are_none:
                    return at
            return self._after_changes(at)

    def _after_changes(self, at: StreamPosition) -> StreamPosition:
        self._refuse_gaps(at, self._head)
        steps = _by_commit(self._unmerged(at, self._head))
        taken = self._limits.taken(steps)
        # What was committed without changes is passed by.
        end = self._head if taken == steps.height else int(steps["sequence"][taken - 1])
        if at.base is None or end >= at.upto:  # nothing after that was merged into it
            return StreamPosition(table=at.table, sequence=max(end, at.sequence))
        return replace(at, sequence=end, pending=at.pending - _rows(self._unmerged(at, end)))

    def portions(self, start: StreamPosition, end: StreamPosition) -> list[tuple[SplitReader, Split]]:
        """What is to be read between two positions, in order."""
        start = end.begun or start
        with about(table=self._table.name):
            self._check(start)
            self._refuse_gaps(start, end.sequence)  # it may have been planned long ago
            stop = None if end.base is None else end.files
            inserted = [] if start.base is None else self._inserted(start, stop)
            return inserted + self._logged(self._unmerged(start, end.sequence))

    def _check(self, at: StreamPosition) -> None:
        if at.table != self._table.uuid:
            raise Rejected(
                "another table has the name now",
                hint="The table was dropped and made anew. Start the stream again, with a new checkpoint.",
            )

    # --- Base

    def _base(self, at: StreamPosition) -> Snapshot | None:
        if not at.base:
            return None
        try:
            return snapshot_by_id(self._table.view.metadata, at.base)
        except NotFound as gone:
            raise NotFound(
                f"snapshot {at.base} of Base, which is being read, was expired",
                hint="Start again from earliest, with a new checkpoint.",
            ) from gone

    def _base_scan(self, at: StreamPosition) -> Scan | None:
        snapshot = self._base(at)
        if snapshot is None:
            return None
        table, schema = self._table, self._table.schema
        own = tuple(field for field in self._fields if field.name not in CHANGE_COLUMNS) or schema.fields[:1]
        # By the names of now, whatever the columns were called when it was written.
        return Scan(table.view, snapshot, schema, own, ALWAYS_TRUE, table._file_list(snapshot))

    def _base_files(self, at: StreamPosition) -> pl.DataFrame:
        scan = self._base_scan(at)
        return pl.DataFrame(schema=FILE_SCHEMA) if scan is None else scan.plan.data.sort("file_path")

    def _merged(self, at: StreamPosition) -> dict[str, int]:
        if not at.base:
            return {}
        return merged_sequences(self._table.view.metadata, self._table.view.io, self._base(at))

    def _inserted(self, start: StreamPosition, stop: int | None) -> list[tuple[SplitReader, Split]]:
        scan = self._base_scan(start)
        if scan is None:
            return []
        chosen = scan.plan.data.sort("file_path").slice(start.files, None if stop is None else stop - start.files)
        found: list[tuple[SplitReader, Split]] = []
        for (transaction,), files in parse_file_names(chosen, "base").group_by("transaction_id", maintain_order=True):
            part = scan.restricted_to(files["file_path"])
            division = plan_splits(part, SplitSizes(readers=1, most_bytes=_PORTION_BYTES), allow_plain=False)
            reader = _BaseInserts(reader=division.reader, fields=self._fields, transaction_id=int(str(transaction)))
            found += [(reader, portion) for portion in division.portions]
        return found

    # --- changes

    @property
    def _head(self) -> int:
        return _sequence(self._table.change_store.view.metadata.current_snapshot())

    @cached_property
    def _files(self) -> pl.DataFrame:
        return parse_change_file_names(self._table.change_store.file_list.frame())

    def _unmerged(self, at: StreamPosition, upto: int) -> pl.DataFrame:
        """The files with changes after a position, up to a sequence number."""
        number = pl.col("data_sequence_number")
        found = self._files.filter((number > at.sequence) & (number <= upto))
        return select_unmerged(found, StorePaths(self._table.change_store.view.metadata), self._merged(at))

    def _refuse_gaps(self, at: StreamPosition, upto: int) -> None:
        """Snapshots tell how many rows they added: that many must still be there."""
        if not self._limits.fail_on_gaps:
            return
        after = at.sequence
        if at.base is not None:
            after = max(after, at.upto)
            if (gone := at.pending - _rows(self._unmerged(at, after))) > 0:
                raise NotFound(f"{gone} changed rows that follow those of Base are gone", hint=_AGAIN)
        if upto <= after:
            return
        metadata = self._table.change_store.view.metadata
        snapshot, added, oldest = metadata.current_snapshot(), 0, self._head + 1
        while snapshot is not None and _sequence(snapshot) > after:
            told = snapshot.summary.additional_properties if snapshot.summary else {}
            added += int(told.get("added-records", 0)) if _sequence(snapshot) <= upto else 0
            oldest = _sequence(snapshot)
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else metadata.snapshot_by_id(parent)
        if oldest > after + 1 and snapshot is None:
            raise NotFound(
                f"it is not known what was committed after sequence number {after}: snapshots before {oldest} were expired",
                hint=_AGAIN,
            )
        gone = added - _rows(self._files.filter(pl.col("data_sequence_number").is_between(after, upto, closed="right")))
        if gone > 0:
            raise NotFound(f"{gone} changed rows after sequence number {after} are gone", hint=_AGAIN)

    def _logged(self, files: pl.DataFrame) -> list[tuple[SplitReader, Split]]:
        """Portions of whole commits; a large one is divided by its writers, which have no key in common."""
        if files.is_empty():
            return []
        reader = _Log(view=self._table.change_store.view, fields=self._fields, keys=self._table.primary_key)
        size = pl.col("file_size_bytes")
        order = ["transaction_id", "data_sequence_number"]
        sized = files.sort(*order, "writer", maintain_order=True).with_columns(whole=size.sum().over(order))
        large = pl.when(pl.col("whole") > _PORTION_BYTES).then("writer")
        steps = sized.with_columns(part=large).with_columns(step=pl.struct(*order, "part").rle_id())
        sizes = steps.group_by("step", maintain_order=True).agg(bytes=size.sum())
        portions = sizes.with_columns(portion=(pl.col("bytes").cum_sum() - 1) // _PORTION_BYTES).drop("bytes")
        numbered = steps.join(portions, on="step", how="left", maintain_order="left")
        return [
            (reader, (frame_to_bytes(part.select(FILE_SCHEMA.names())),))
            for part in numbered.partition_by("portion", maintain_order=True)
        ]


@dataclass(frozen=True, kw_only=True)
class _BaseInserts:
    """Rows of Base, as changes: inserted after all offsets of their file's transaction, as the rule of last words has it."""

    reader: SplitReader
    fields: tuple[NestedField, ...]
    transaction_id: int

    def batches(self, portion: Split) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(self.fields)
        values = {TRANSACTION_ID.name: self.transaction_id, FILE_OFFSET.name: MOST_OFFSET, CHANGE_ACTION.name: INSERT}
        for batch in self.reader.batches(portion):
            columns = [
                pa.repeat(pa.scalar(values[field.name], field.type), batch.num_rows)
                if field.name in values
                else batch.column(field.name)
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


@dataclass(frozen=True, kw_only=True)
class _Log:
    """Changes in order."""

    view: TableView
    fields: tuple[NestedField, ...]
    keys: tuple[str, ...]

    def batches(self, portion: Split) -> Iterator[pa.RecordBatch]:
        files = parse_change_file_names(frame_from_bytes(portion[0]))
        reading = read_change_files(self.view, files)
        own = [field for field in self.fields if field.name not in CHANGE_COLUMNS]
        # Pairs of before- and after-images are told by their keys, wanted or not.
        have = {field.name for field in own}
        keys = [self.view.metadata.schema().find_field(name) for name in self.keys if name not in have]
        for batch in ChangeLog(reading, reading.numbered(), [*own, *keys], self.keys).batches():
            yield batch.select([field.name for field in self.fields])


def _sequence(snapshot: Snapshot | None) -> int:
    return (snapshot.sequence_number or 0) if snapshot else 0


def _rows(files: pl.DataFrame) -> int:
    return int(files["record_count"].sum())


def _by_commit(files: pl.DataFrame) -> pl.DataFrame:
    """Commits with changes, oldest first."""
    by_commit = files.group_by(sequence="data_sequence_number")
    return by_commit.agg(rows=pl.col("record_count").sum(), files=pl.len().cast(pl.Int64)).sort("sequence")
