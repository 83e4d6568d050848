"""Changes of a keyed table: rows in, files of inserts and deletes out, in the order of the changes.

Every change gets an offset, counted over all files of one write. An update is its before-image, deleted, and its
after-image, inserted, with the same offset. A write becomes visible by one commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyarctic.errors import UsageError
from pyarctic.iceberg.read import TableView
from pyarctic.iceberg.write import NewFile
from pyarctic.tables.format.change_columns import (
    ACTIONS,
    CHANGE_ACTION,
    CHANGE_COLUMNS,
    DELETE,
    FILE_OFFSET,
    UPDATE_AFTER,
    UPDATE_BEFORE,
    Offsets,
)
from pyarctic.tables.format.file_names import FileKind, StoreFileNames
from pyarctic.tables.format.store_properties import CHANGE_BUCKETS, key_names, tree_mask
from pyarctic.tables.write.arrow_rows import check_keys, check_partition_columns, fit_to_schema
from pyarctic.tables.write.fanout import Fanout
from pyarctic.tables.write.partition_moves import PartitionMoves
from pyarctic.tables.write.row_sources import to_batches

ChangeMode = Literal["insert", "upsert", "delete", "cdc"]


@dataclass(frozen=True, kw_only=True)
class ChangeWriter:
    """Writes the files of some changes; commits nothing. It can be pickled: several writers may share a write if all rows of
    a key go to one of them."""

    view: TableView
    """The change store."""
    mode: ChangeMode

    def files(self, data: Any, names: StoreFileNames | None = None, moves: PartitionMoves | None = None) -> list[NewFile]:
        """Write changes. With `moves` the rows that keys have in other partitions are deleted there."""
        mask = tree_mask(self.view.metadata.properties, CHANGE_BUCKETS)
        with Fanout(self.view, mask=mask, extra_fields=(FILE_OFFSET,), names=names) as out:
            writer = _OffsetWriter(key_names(self.view.metadata), out, self.mode, moves)
            for batch in to_batches(data):
                if batch.num_rows or self.mode == "cdc":
                    writer.write(*self.parse_batch(batch, looks_up=moves is not None))
        return out.files

    def parse_batch(self, batch: pa.RecordBatch, *, looks_up: bool) -> tuple[pa.RecordBatch, pa.Array | None]:
        """The rows in the columns of the table, and their actions in mode "cdc"; or an error about what does not fit.

        `looks_up`: whether the present rows of the keys are looked up."""
        metadata = self.view.metadata
        actions = _parse_actions(batch, self.mode)
        # Changes that were read from another table have these columns, too.
        extra = list(CHANGE_COLUMNS) if self.mode == "cdc" else []
        rows = fit_to_schema(batch, metadata.schema(), extra=extra)
        check_keys(rows, key_names(metadata))
        if not (self.mode == "delete" and looks_up):
            check_partition_columns(batch, metadata)
        return rows, actions


class _OffsetWriter:
    """Gives offsets to changes and writes them."""

    def __init__(self, keys: Sequence[str], out: Fanout, mode: ChangeMode, moves: PartitionMoves | None) -> None:
        self._keys = keys
        self._out = out
        self._mode = mode
        self._moves = moves
        self._last_offset = 0
        self._open_before_image: pa.RecordBatch | None = None
        """The last row of the previous batch, if it is a before-image whose after-image may follow."""

    def write(self, rows: pa.RecordBatch, actions: pa.Array | None) -> None:
        if self._moves is not None:
            inserts = self._mode == "upsert"
            for chunk in self._moves.chunks(rows, self._out) if inserts else [rows]:
                self._write_deletes(self._moves.replace(chunk, self._out, inserts=inserts))
                if inserts:
                    self._write_rows(chunk)
        elif actions is not None:
            self._write_cdc(rows, actions)
        else:
            self._write_rows(rows)

    def _write_rows(self, rows: pa.RecordBatch) -> None:
        """Write rows that are all inserted, deleted or upserted, by the mode."""
        step = 2 if self._mode == "upsert" else 1
        offsets = self._next_offsets(rows.num_rows, step)
        locations = self._out.locate(rows)
        if self._mode == "upsert":
            self._out.write(rows, locations, {"ED": offsets, "I": pc.add(offsets, 1)})
        else:
            self._out.write(rows, locations, {"I" if self._mode == "insert" else "ED": offsets})

    def _next_offsets(self, count: int, step: int = 1) -> pa.Array:
        first = self._last_offset + 1
        self._last_offset += step * count
        return pa.array(np.arange(first, self._last_offset + 1, step))

    def _write_cdc(self, rows: pa.RecordBatch, actions: pa.Array) -> None:
        locations = self._out.locate(rows)
        offsets, is_deleted = self._cdc_offsets(rows, actions)
        kinds: tuple[tuple[npt.NDArray[np.bool_], FileKind], ...] = ((is_deleted, "ED"), (~is_deleted, "I"))
        for mask, kind in kinds:
            if mask.any():
                self._out.write(rows.filter(pa.array(mask)), locations.filter(mask), {kind: pa.array(offsets[mask])})

    def _cdc_offsets(self, rows: pa.RecordBatch, actions: pa.Array) -> tuple[Offsets, npt.NDArray[np.bool_]]:
        """Offsets, and which rows are deleted. An after-image directly after its before-image has the same offset."""
        is_before, is_after, is_delete = (
            pc.equal(actions, action).to_numpy(zero_copy_only=False) for action in (UPDATE_BEFORE, UPDATE_AFTER, DELETE)
        )
        follows = np.zeros(rows.num_rows, dtype=bool)
        if rows.num_rows:
            follows[1:] = is_before[:-1] & self._same_keys(rows.slice(1), rows.slice(0, rows.num_rows - 1))
            before = self._open_before_image
            follows[0] = before is not None and bool(self._same_keys(rows.slice(0, 1), before)[0])
            self._open_before_image = rows.slice(rows.num_rows - 1) if is_before[-1] else None
        is_counted = ~(is_after & follows)
        offsets = self._last_offset + np.cumsum(is_counted)
        self._last_offset += int(is_counted.sum())
        return offsets, is_before | is_delete

    def _same_keys(self, left: pa.RecordBatch, right: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        same = np.ones(left.num_rows, dtype=bool)
        for name in self._keys:
            same &= pc.equal(left.column(name), right.column(name)).to_numpy(zero_copy_only=False)
        return same

    def _write_deletes(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            self._out.write(rows, self._out.locate(rows), {"ED": self._next_offsets(rows.num_rows)})


def _parse_actions(batch: pa.RecordBatch, mode: ChangeMode) -> pa.Array | None:
    name = CHANGE_ACTION.name
    if mode != "cdc":
        if name in batch.schema.names:
            raise UsageError(f"rows have a column {name}", hint='Write them with [[mode="cdc"]], or drop the column.')
        return None
    if name not in batch.schema.names:
        raise UsageError(
            f'mode "cdc" needs a column {name}', hint=f"It has the action of each row: {', '.join(ACTIONS)}.", column=name
        )
    actions = batch.column(name)
    if pa.types.is_dictionary(actions.type):
        actions = actions.dictionary_decode()
    if not (pa.types.is_string(actions.type) or pa.types.is_large_string(actions.type)):
        raise UsageError(f"column {name} is {actions.type}, not text", hint=f"One of: {', '.join(ACTIONS)}.")
    is_valid = pc.is_in(actions, value_set=pa.array(ACTIONS, actions.type))
    if not pc.all(is_valid, min_count=0).as_py():
        row = pc.index(is_valid, False).as_py()  # the first one
        raise UsageError(
            f"row {row} has the action {actions[row].as_py()!r}", hint=f"One of: {', '.join(ACTIONS)}.", column=name
        )
    return actions
