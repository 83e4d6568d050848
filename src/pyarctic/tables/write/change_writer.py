"""Changes of a keyed table: rows in, files of inserts and deletes out, in the order in which they happened.

Every change gets an offset, counted over all files of one write. An update is its before-image, deleted, and its
after-image, inserted, with the same offset. All of a write becomes visible by one commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

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
)
from pyarctic.tables.format.file_names import FileKind, StoreFileNames
from pyarctic.tables.format.store_properties import CHANGE_BUCKETS, key_names, tree_mask
from pyarctic.tables.write.arrow_rows import check_keys, fit_to_schema, to_batches
from pyarctic.tables.write.fanout import Fanout
from pyarctic.tables.write.partition_moves import Moves

ChangeMode = Literal["insert", "upsert", "delete", "cdc"]
Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class ChangeWriter:
    """Writes the files of some changes; nothing is committed. It can be sent elsewhere: several may share a write if no key
    comes to two of them."""

    view: TableView
    """The change store."""
    mode: ChangeMode

    def files(self, data: Any, names: StoreFileNames | None = None, moves: Moves | None = None) -> list[NewFile]:
        """With `moves` the rows that keys have in other partitions are deleted there."""
        mask = tree_mask(self.view.metadata.properties, CHANGE_BUCKETS)
        with Fanout(self.view, mask=mask, extra_fields=(FILE_OFFSET,), names=names) as out:
            writer = _Writer(key_names(self.view.metadata), out, self.mode, moves)
            for batch in to_batches(data):
                if batch.num_rows or self.mode == "cdc":
                    writer.write(*self.understood(batch, looks_up=moves is not None))
        return out.files

    def understood(self, batch: pa.RecordBatch, *, looks_up: bool) -> tuple[pa.RecordBatch, pa.Array | None]:
        """Rows in the columns of the table, with what they are if they say it; or an error about what does not fit."""
        metadata = self.view.metadata
        actions = _actions(batch, self.mode)
        if self.mode == "delete" and not looks_up:
            sources = {field.source_id for field in metadata.spec().fields}
            _require([f.name for f in metadata.schema().fields if sources & set(Schema(f).field_ids)], batch)
        # Who reads changes elsewhere gets these columns too, and may hand them on.
        extra = CHANGE_COLUMNS if self.mode == "cdc" else ()
        rows = fit_to_schema(batch, metadata.schema(), fill=self.mode == "delete", extra=[*extra])
        check_keys(rows, key_names(metadata))
        return rows, actions


class _Writer:
    def __init__(self, keys: Sequence[str], out: Fanout, mode: ChangeMode, moves: Moves | None) -> None:
        self._keys = keys
        self._out = out
        self._mode = mode
        self._moves = moves
        self._count = 0
        """The last offset that was given."""
        self._last: pa.RecordBatch | None = None
        """The last row of the batch before, if it is a before-image whose after-image may follow."""

    def write(self, rows: pa.RecordBatch, actions: pa.Array | None) -> None:
        if self._moves is not None:
            arrives = self._mode == "upsert"
            for chunk in self._moves.chunks(rows, self._out) if arrives else [rows]:
                self._write_old(self._moves.leave(chunk, self._out, arrives=arrives))
                if arrives:
                    self._write_plain(chunk)
        elif actions is not None:
            self._write_cdc(rows, actions)
        else:
            self._write_plain(rows)

    def _write_plain(self, rows: pa.RecordBatch) -> None:
        each = 2 if self._mode == "upsert" else 1
        first = pa.array(np.arange(self._count + 1, self._count + each * rows.num_rows + 1, each))
        self._count += each * rows.num_rows
        places = self._out.places(rows)
        if self._mode == "upsert":
            self._out.write(rows, places, {"ED": first, "I": pc.add(first, 1)})
        else:
            self._out.write(rows, places, {"I" if self._mode == "insert" else "ED": first})

    def _write_cdc(self, rows: pa.RecordBatch, actions: pa.Array) -> None:
        places = self._out.places(rows)
        offsets, deletes = self._cdc_offsets(rows, actions)
        kinds: tuple[tuple[npt.NDArray[np.bool_], FileKind], ...] = ((deletes, "ED"), (~deletes, "I"))
        for chosen, kind in kinds:
            if chosen.any():
                told = {kind: pa.array(offsets[chosen])}
                self._out.write(rows.filter(pa.array(chosen)), places.filtered(chosen), told)

    def _cdc_offsets(self, rows: pa.RecordBatch, actions: pa.Array) -> tuple[Offsets, npt.NDArray[np.bool_]]:
        """Offsets, and which rows are deleted. An after-image right behind its before-image shares its offset."""
        is_before, is_after, is_delete = (
            pc.equal(actions, action).to_numpy(zero_copy_only=False) for action in (UPDATE_BEFORE, UPDATE_AFTER, DELETE)
        )
        follows = np.zeros(rows.num_rows, dtype=bool)
        if rows.num_rows:
            follows[1:] = is_before[:-1] & self._same_keys(rows.slice(1), rows.slice(0, rows.num_rows - 1))
            follows[0] = self._last is not None and bool(self._same_keys(rows.slice(0, 1), self._last)[0])
            self._last = rows.slice(rows.num_rows - 1) if is_before[-1] else None
        counted = ~(is_after & follows)
        offsets = self._count + np.cumsum(counted)
        self._count += int(counted.sum())
        return offsets, is_before | is_delete

    def _same_keys(self, some: pa.RecordBatch, others: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        same = np.ones(some.num_rows, dtype=bool)
        for name in self._keys:
            same &= pc.equal(some.column(name), others.column(name)).to_numpy(zero_copy_only=False)
        return same

    def _write_old(self, old: pa.RecordBatch) -> None:
        if old.num_rows:
            offsets = pa.array(np.arange(self._count + 1, self._count + old.num_rows + 1))
            self._count += old.num_rows
            self._out.write(old, self._out.places(old), {"ED": offsets})


def _actions(batch: pa.RecordBatch, mode: ChangeMode) -> pa.Array | None:
    name = CHANGE_ACTION.name
    if mode != "cdc":
        if name in batch.schema.names:
            raise UsageError(f"rows have a column {name}", hint='Write them with mode="cdc", or drop the column.')
        return None
    if name not in batch.schema.names:
        raise UsageError(
            f'mode "cdc" needs a column {name}', hint=f"Each row says what it is: {', '.join(ACTIONS)}.", column=name
        )
    actions = batch.column(name)
    if pa.types.is_dictionary(actions.type):
        actions = actions.dictionary_decode()
    if not (pa.types.is_string(actions.type) or pa.types.is_large_string(actions.type)):
        raise UsageError(f"column {name} is {actions.type}, not text", hint=f"One of: {', '.join(ACTIONS)}.")
    known = pc.is_in(actions, value_set=pa.array(ACTIONS, actions.type))
    if not pc.all(known, min_count=0).as_py():
        row = pc.index(known, False).as_py()  # the value looked for
        raise UsageError(
            f"row {row} has the action {actions[row].as_py()!r}", hint=f"One of: {', '.join(ACTIONS)}.", column=name
        )
    return actions


def _require(partition_columns: Sequence[str], batch: pa.RecordBatch) -> None:
    """Filled with null, a partition column would send the delete where the key is not."""
    if missing := [name for name in partition_columns if name not in batch.schema.names]:
        raise UsageError(
            f"rows to delete lack the partition column {missing[0]}",
            hint="Give it, or have the keys looked up: across_partitions=True.",
            column=missing[0],
        )
