"""Changes in their order: by transaction, then by offset; a before-image comes before its after-image."""

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

_BATCH_ROWS = 128 << 10
_WRITER = "\0writer"


class ChangeLog:
    """Rows of the change store, in order. It is lazy: every call of `batches` reads the files again."""

    def __init__(self, reader: TableReader, files: pl.DataFrame, fields: Sequence[NestedField], keys: Sequence[str]) -> None:
        """`files`: those to read, with the facts of their names."""
        self._reader = reader
        self._files = files
        self._fields = (*fields, *CHANGE_COLUMNS.values())
        self._keys = list(keys)

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the batches: the table's columns, `_transaction_id`, `_file_offset`, `_change_action`."""
        return arrow_schema(self._fields)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The changes, oldest first: transaction by transaction, with one batch of each of its files in memory."""
        for _, files in self._files.sort("transaction_id", maintain_order=True).group_by(
            "transaction_id", maintain_order=True
        ):
            writers = files["writer"].unique(maintain_order=True).to_list()
            streams = [_Stream(self._rows(row, writers.index(row["writer"]))) for row in files.iter_rows(named=True)]
            yield from self._name_updates(_merge_streams(streams))

    def to_arrow(self) -> pa.Table:
        """All changes in memory."""
        return pa.Table.from_batches(self.batches(), schema=self.schema)

    def count(self) -> int:
        """The number of changes."""
        return int(self._files["record_count"].sum())

    def _rows(self, row: dict[str, object], writer: int) -> Iterator[pa.RecordBatch]:
        file = ChangeFile(self._reader, row)
        for file_batch in file.all_batches(self._fields):
            batch = file.project(file_batch, self._fields)
            offsets = batch.column(FILE_OFFSET.name)
            if len(offsets) > 1 and not pc.all(pc.less_equal(offsets[:-1], offsets[1:])).as_py():
                batch = batch.take(pc.sort_indices(batch, [(FILE_OFFSET.name, "ascending")]))
            yield batch.append_column(_WRITER, pa.array(np.full(batch.num_rows, writer, np.int32)))

    def _name_updates(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Set the actions of updates: pairs of a deleted and an inserted row with the same offset and key."""
        held: pa.RecordBatch | None = None
        for batch in batches:
            named = self._name_pairs(batch if held is None else _concat_batches([held, batch]))
            # The last row may be the first of a pair.
            held = named.slice(named.num_rows - 1)
            if named.num_rows > 1:
                yield named.slice(0, named.num_rows - 1)
        if held is not None and held.num_rows:
            yield held

    def _name_pairs(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows < 2:
            return batch
        before, after = batch.slice(0, batch.num_rows - 1), batch.slice(1)
        is_pair = _to_mask(pc.equal(before.column(FILE_OFFSET.name), after.column(FILE_OFFSET.name)))
        is_pair &= _to_mask(pc.not_equal(before.column(CHANGE_ACTION.name), after.column(CHANGE_ACTION.name)))
        for name in self._keys:
            is_pair &= _to_mask(pc.fill_null(pc.equal(before.column(name), after.column(name)), True))
        if not is_pair.any():
            return batch
        is_before, is_after = np.append(is_pair, False), np.insert(is_pair, 0, False)
        actions = batch.column(CHANGE_ACTION.name)
        actions = pc.if_else(pa.array(is_before), UPDATE_BEFORE, pc.if_else(pa.array(is_after), UPDATE_AFTER, actions))
        index = batch.schema.get_field_index(CHANGE_ACTION.name)
        return batch.set_column(index, batch.schema.field(index), actions)


@dataclass
class _Stream:
    """One file of a transaction, in batches of ascending offsets."""

    batches: Iterator[pa.RecordBatch]
    held: list[pa.RecordBatch] = field(default_factory=list)
    ended: bool = False

    def fill(self) -> None:
        """Read a batch if none is held."""
        if not self.held and not self.ended:
            batch = next(self.batches, None)
            if batch is None:
                self.ended = True
            else:
                self.held.append(batch)

    @property
    def max_offset(self) -> int:
        """The greatest offset of the rows that are held."""
        return int(self.held[-1].column(FILE_OFFSET.name)[-1].as_py())

    def take(self, upto: int) -> list[pa.RecordBatch]:
        """Remove the rows up to an offset from those that are held."""
        offsets = self.held[0].column(FILE_OFFSET.name).to_numpy()
        end = int(np.searchsorted(offsets, upto, side="right"))
        batch = self.held.pop()
        if end < batch.num_rows:
            self.held.append(batch.slice(end))
        return [batch.slice(0, end)] if end else []


def _merge_streams(streams: list[_Stream]) -> Iterator[pa.RecordBatch]:
    """Merge by offset: up to the least offset that all streams have reached, all rows are there and can be sorted."""
    while True:
        for stream in streams:
            stream.fill()
        streams = [stream for stream in streams if stream.held]
        if not streams:
            return
        upto = min(stream.max_offset for stream in streams)
        rows = _concat_batches([part for stream in streams for part in stream.take(upto)])
        # Offsets of different writers are independent. DELETE sorts before INSERT: the before-image comes first.
        names = (FILE_OFFSET.name, _WRITER, CHANGE_ACTION.name)
        order = pc.sort_indices(rows, [(name, "ascending") for name in names])
        rows = rows.select([name for name in rows.schema.names if name != _WRITER])
        for start in range(0, len(order), _BATCH_ROWS):
            yield rows.take(order.slice(start, _BATCH_ROWS))


def _concat_batches(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _to_mask(array: pa.Array) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = array.to_numpy(zero_copy_only=False)
    return mask
