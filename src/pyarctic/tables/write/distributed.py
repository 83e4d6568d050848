"""Which of many writers gets which row, and how each of them makes sure that its rows are in an order that means something.

All rows of a key go to one writer, sorted by key and by the order that was named. Rows of a key between which nothing
decides are refused: which of them came last would be an accident.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from pyarctic.errors import UsageError
from pyarctic.iceberg import file_to_json, partition_values
from pyarctic.iceberg.read import TableView, arrow_schema
from pyarctic.iceberg.write import NewFile
from pyarctic.tables.format.change_columns import CHANGE_ACTION, UPDATE_AFTER, UPDATE_BEFORE
from pyarctic.tables.format.file_names import StoreFileNames
from pyarctic.tables.format.key_hash import key_hashes
from pyarctic.tables.format.store_properties import BASE_BUCKETS, CHANGE_BUCKETS, key_names, store_of, tree_mask
from pyarctic.tables.write.arrow_rows import fit_to_schema
from pyarctic.tables.write.base_writer import BaseWriter
from pyarctic.tables.write.change_writer import ChangeWriter
from pyarctic.tables.write.partition_moves import Moves

IS_OLD = "_arctic_is_old"
"""Marks rows that are not written: they tell where keys are now."""
_RUN = "\0run"


@dataclass(frozen=True, kw_only=True)
class WriterAssignment:
    """Numbers of writers, out of some columns."""

    schema: Schema
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    """To be given to `numbers`: those of the key, or those that partitions are made of."""
    view: TableView
    writers: int
    """With keys a power of two: a tree node is a writer's own, or it is shared by as few as possible. Without, as many as
    numbers can tell apart, one for each partition."""

    @classmethod
    def of(cls, view: TableView, parallelism: int) -> WriterAssignment:
        metadata = view.metadata
        schema, keys = metadata.schema(), key_names(metadata)
        if keys:
            bucket = CHANGE_BUCKETS if store_of(metadata.properties) == "change" else BASE_BUCKETS
            nodes = tree_mask(metadata.properties, bucket) + 1
            writers = max(nodes, 1 << (max(parallelism, 1) - 1).bit_length())
            return cls(schema=schema, keys=keys, columns=keys, view=view, writers=writers)
        sources = {field.source_id for field in metadata.spec().fields}
        columns = tuple(f.name for f in schema.fields if sources & set(Schema(f).field_ids))
        return cls(schema=schema, keys=(), columns=columns, view=view, writers=1 << 30)

    def numbers(self, columns: Sequence[pa.Array]) -> pa.Array:
        """The writers of some rows. Rows that do not fit the table go anywhere: their writer says what is wrong."""
        fields = [self.schema.find_field(name) for name in self.columns]
        rows = pa.RecordBatch.from_arrays(list(columns), names=list(self.columns))
        try:
            told = fit_to_schema(rows, Schema(*fields))
            if self.keys:
                hashes = key_hashes(told.columns, [field.field_type for field in fields])
                return pa.array((hashes & np.int32(self.writers - 1)).astype(np.int32))
            codes, tuples = partition_values(self.view.metadata.spec(), self.schema, told)
        except UsageError:
            return pa.array(np.zeros(rows.num_rows, np.int32))
        known = np.array([zlib.crc32(repr(values).encode()) % self.writers for values in tuples], np.int32)
        return pa.array(known[codes])


@dataclass(frozen=True, kw_only=True)
class WriterResult:
    """What a writer among many has to say: the files it wrote, as JSON, or what was wrong."""

    files: tuple[dict[str, Any], ...] = ()
    error: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        return {"files": self.files, "error": self.error}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> WriterResult:
        return cls(files=tuple(document["files"]), error=document["error"])


@dataclass(frozen=True, kw_only=True)
class DistributedWriter:
    """One of many writers, to be sent elsewhere. Rows of a keyed table come to it sorted by key and `order`; columns of the
    order that the table does not have are left out. If keys are looked up, the rows they have now come first, marked as
    old."""

    writer: ChangeWriter | BaseWriter
    operation: int
    """Told in the names of all files: what lost writers left can be found by it."""
    order: tuple[str, ...] = ()
    looked_up: tuple[str, ...] = ()
    """The columns of old rows."""

    def answer(self, data: Iterator[pa.RecordBatch], task: int, attempt: int) -> WriterResult:
        files = self._files(data, StoreFileNames(task, attempt, self.operation))
        return WriterResult(files=tuple(file_to_json(file) for file in files))

    def _files(self, data: Iterator[pa.RecordBatch], names: StoreFileNames) -> list[NewFile]:
        metadata = self.writer.view.metadata
        schema, keys = metadata.schema(), key_names(metadata)
        if not keys:
            return self.writer.files(data, names)
        rows = _Checked(self.writer.view, keys, self.order, everywhere=bool(self.looked_up))
        if not (self.looked_up and isinstance(self.writer, ChangeWriter)):
            return self.writer.files(rows.checked(data), names)
        old, new = _told_apart(data)
        fields = Schema(*(schema.find_field(name) for name in self.looked_up))
        found = pa.Table.from_batches(
            [fit_to_schema(batch.select(self.looked_up), fields) for batch in old], arrow_schema(fields.fields)
        )
        return self.writer.files(rows.checked(new), names, Moves(schema, keys, found))


def _told_apart(data: Iterator[pa.RecordBatch]) -> tuple[list[pa.RecordBatch], Iterator[pa.RecordBatch]]:
    """The old rows, all of them, and the others, which follow."""
    old: list[pa.RecordBatch] = []
    for batch in data:
        count = pc.sum(batch.column(IS_OLD)).as_py() or 0
        rows = batch.drop_columns([IS_OLD])
        old.append(rows.slice(0, count))
        if count < rows.num_rows:
            return old, chain([rows.slice(count)], (later.drop_columns([IS_OLD]) for later in data))
    return old, iter(())


class _Checked:
    """Refuses rows of one key and partition between which the order does not decide; `everywhere`: whatever their
    partitions, because the later one moves the key."""

    def __init__(self, view: TableView, keys: Sequence[str], order: Sequence[str], *, everywhere: bool) -> None:
        self._everywhere = everywhere
        self._view = view
        self._schema = view.metadata.schema()
        self._keys = list(keys)
        self._order = [name for name in order if name not in keys]
        known = {field.name for field in self._schema.fields}
        self._dropped = [name for name in order if name not in known]

    def checked(self, data: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: pa.RecordBatch | None = None
        for batch in data:
            rows = batch if held is None else pa.concat_batches([held, batch])
            # The last run may go on in the next batch.
            start = self._check(rows)
            held = rows.slice(start)
            if start:
                yield self._kept(rows.slice(0, start))
        if held is not None:
            yield self._kept(held)

    def _kept(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.drop_columns(self._dropped) if self._dropped else rows

    def _check(self, rows: pa.RecordBatch) -> int:
        """Where the last run of equal keys and orders begins."""
        if not rows.num_rows:
            return 0
        for name in self._order:
            if rows.column(name).null_count:
                raise UsageError(
                    f"column {name!r} orders the rows and is null in some", hint="Fill it, or order by another column."
                )
        names = [*self._keys, *self._order]
        frame = pl.DataFrame(pa.Table.from_batches([rows.select(names)]))
        begins = frame.select(pl.any_horizontal(pl.all().ne_missing(pl.all().shift(1)))).to_series()
        begins[0] = True
        if not begins.all():
            self._refuse_ties(rows, frame, begins.cum_sum())
        return int(begins.arg_true()[-1])

    def _refuse_ties(self, rows: pa.RecordBatch, frame: pl.DataFrame, runs: pl.Series) -> None:
        tied = runs.is_duplicated()
        if CHANGE_ACTION.name in rows.schema.names:
            tied &= ~_are_pairs(runs, pl.Series(rows.column(CHANGE_ACTION.name)))
        if not tied.any():
            return
        chosen = rows.filter(pa.array(tied.to_numpy()))
        known = {field.name for field in self._schema.fields}
        told = fit_to_schema(chosen.select([n for n in chosen.schema.names if n in known]), self._schema, fill=True)
        codes, _ = partition_values(self._view.metadata.spec(), self._schema, told)
        partitions = pl.Series(codes) * int(not self._everywhere)
        twice = pl.DataFrame({_RUN: runs.filter(tied), "partition": partitions}).is_duplicated()
        if twice.any():
            key = frame.select(self._keys).filter(tied).filter(twice).row(0, named=True)
            by = f"and equal {', '.join(self._order)}" if self._order else "and nothing tells their order"
            raise UsageError(
                f"key {_text(key)} comes several times, {by}",
                hint="Name columns that order the changes of a key: order_by=[…].",
                key=_text(key),
            )


def _are_pairs(runs: pl.Series, actions: pl.Series) -> pl.Series:
    """Rows of runs that are one before-image and one after-image."""
    frame = pl.DataFrame({_RUN: runs, "action": actions})
    alone = pl.len().over(_RUN) == 2
    both = (pl.col("action") == UPDATE_BEFORE).any().over(_RUN) & (pl.col("action") == UPDATE_AFTER).any().over(_RUN)
    return frame.select((alone & both).fill_null(value=False)).to_series()


def _text(key: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {value!r}" for name, value in key.items())
