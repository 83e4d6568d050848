"""Changes in the order in which they happened: by transaction, then by offset; a before-image before its after-image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import NestedField

from pyarctic.iceberg.read import TableReader, arrow_schema
from pyarctic.tables.format.change_columns import (
    CHANGE_ACTION,
    CHANGE_COLUMNS,
    FILE_OFFSET,
    UPDATE_AFTER,
    UPDATE_BEFORE,
    ChangeFile,
)

_EMIT_ROWS = 128 << 10
_WRITER = "\0writer"


class ChangeLog:
    """Rows of the change store, in order. No row is read before it is asked for, and every call reads anew."""

    def __init__(
        self, reading: TableReader, files: pl.DataFrame, fields: Sequence[NestedField], keys: Sequence[str]
    ) -> None:
        """`files`: those to read, with the facts of their names."""
        self._reading = reading
        self._files = files
        self._fields = (*fields, *CHANGE_COLUMNS.values())
        self._keys = list(keys)

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the batches: the table's columns, `_transaction_id`, `_file_offset`, `_change_action`."""
        return arrow_schema(self._fields)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The changes, oldest first; one transaction after the other, and of each file a piece at a time."""
        for _, files in self._files.sort("transaction_id", maintain_order=True).group_by(
            "transaction_id", maintain_order=True
        ):
            writers = files["writer"].unique(maintain_order=True).to_list()
            streams = [_Stream(self._rows(row, writers.index(row["writer"]))) for row in files.iter_rows(named=True)]
            yield from self._with_updates(_in_order(streams))

    def to_arrow(self) -> pa.Table:
        """All changes in memory."""
        return pa.Table.from_batches(self.batches(), schema=self.schema)

    def count(self) -> int:
        return int(self._files["record_count"].sum())

    def _rows(self, row: dict[str, object], writer: int) -> Iterator[pa.RecordBatch]:
        file = ChangeFile(self._reading, row)
        for piece in file.pieces(self._fields):
            batch = file.project(piece, self._fields)
            offsets = batch.column(FILE_OFFSET.name)
            if len(offsets) > 1 and not pc.all(pc.less_equal(offsets[:-1], offsets[1:])).as_py():
                batch = batch.take(pc.sort_indices(batch, [(FILE_OFFSET.name, "ascending")]))
            yield batch.append_column(_WRITER, pa.array(np.full(batch.num_rows, writer, np.int32)))

    def _with_updates(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Name the pairs of deleted and inserted rows with one offset and one key what they are."""
        held: pa.RecordBatch | None = None
        for batch in batches:
            told = self._told(batch if held is None else _joined([held, batch]))
            # The last row may be the first of a pair.
            held = told.slice(told.num_rows - 1)
            if told.num_rows > 1:
                yield told.slice(0, told.num_rows - 1)
        if held is not None and held.num_rows:
            yield held

    def _told(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows < 2:
            return batch
        before, after = batch.slice(0, batch.num_rows - 1), batch.slice(1)
        pair = _mask(pc.equal(before.column(FILE_OFFSET.name), after.column(FILE_OFFSET.name)))
        pair &= _mask(pc.not_equal(before.column(CHANGE_ACTION.name), after.column(CHANGE_ACTION.name)))
        for name in self._keys:
            pair &= _mask(pc.fill_null(pc.equal(before.column(name), after.column(name)), True))
        if not pair.any():
            return batch
        first, second = np.append(pair, False), np.insert(pair, 0, False)
        actions = batch.column(CHANGE_ACTION.name)
        actions = pc.if_else(pa.array(first), UPDATE_BEFORE, pc.if_else(pa.array(second), UPDATE_AFTER, actions))
        index = batch.schema.get_field_index(CHANGE_ACTION.name)
        return batch.set_column(index, batch.schema.field(index), actions)


@dataclass
class _Stream:
    """One file of a transaction, in pieces of ascending offsets."""

    batches: Iterator[pa.RecordBatch]
    held: list[pa.RecordBatch] = field(default_factory=list)
    ended: bool = False

    def fill(self) -> None:
        if not self.held and not self.ended:
            batch = next(self.batches, None)
            if batch is None:
                self.ended = True
            else:
                self.held.append(batch)

    @property
    def reach(self) -> int:
        """The greatest offset that is at hand."""
        return int(self.held[-1].column(FILE_OFFSET.name)[-1].as_py())

    def taken(self, upto: int) -> list[pa.RecordBatch]:
        offsets = self.held[0].column(FILE_OFFSET.name).to_numpy()
        end = int(np.searchsorted(offsets, upto, side="right"))
        batch = self.held.pop()
        if end < batch.num_rows:
            self.held.append(batch.slice(end))
        return [batch.slice(0, end)] if end else []


def _in_order(streams: list[_Stream]) -> Iterator[pa.RecordBatch]:
    """Merge by offset: as far as all streams reach, rows are complete and can be sorted."""
    while True:
        for stream in streams:
            stream.fill()
        streams = [stream for stream in streams if stream.held]
        if not streams:
            return
        upto = min(stream.reach for stream in streams)
        parts = [part for stream in streams for part in stream.taken(upto)]
        together = _joined(parts)
        # Writers count for themselves. DELETE sorts before INSERT: the before-image comes first.
        names = (FILE_OFFSET.name, _WRITER, CHANGE_ACTION.name)
        order = pc.sort_indices(together, [(name, "ascending") for name in names])
        together = together.select([name for name in together.schema.names if name != _WRITER])
        for start in range(0, len(order), _EMIT_ROWS):
            yield together.take(order.slice(start, _EMIT_ROWS))


def _joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]


def _mask(array: pa.Array) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = array.to_numpy(zero_copy_only=False)
    return found
