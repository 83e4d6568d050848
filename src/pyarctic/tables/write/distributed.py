"""Writing with many writers: which writer gets which row, and that each writer gets its rows in a defined order.

All rows of a key go to one writer, sorted by key and by the given order. Rows of a key that are equal in that order are
refused: which of them is the latest would be random.
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
from pyarctic.tables.write.arrow_rows import fit_to_schema, partition_columns
from pyarctic.tables.write.base_writer import BaseWriter
from pyarctic.tables.write.change_writer import ChangeWriter
from pyarctic.tables.write.partition_moves import PartitionMoves

IS_OLD = "_arctic_is_old"
"""A column that marks rows that are not written: the rows that keys have at present."""
_RUN = "\0run"


@dataclass(frozen=True, kw_only=True)
class WriterAssignment:
    """The assignment of rows to writers, by the values of some columns."""

    schema: Schema
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    """The columns that `numbers` takes: those of the key, or the source columns of partitions."""
    view: TableView
    writers: int
    """With keys a power of two, so that as few writers as possible share a tree node. Without keys a large number: there is
    one writer for each partition."""

    @classmethod
    def of(cls, view: TableView, parallelism: int) -> WriterAssignment:
        metadata = view.metadata
        schema, keys = metadata.schema(), key_names(metadata)
        if keys:
            bucket = CHANGE_BUCKETS if store_of(metadata.properties) == "change" else BASE_BUCKETS
            nodes = tree_mask(metadata.properties, bucket) + 1
            writers = max(nodes, 1 << (max(parallelism, 1) - 1).bit_length())
            return cls(schema=schema, keys=keys, columns=keys, view=view, writers=writers)
        return cls(schema=schema, keys=(), columns=tuple(partition_columns(metadata)), view=view, writers=1 << 30)

    def numbers(self, columns: Sequence[pa.Array]) -> pa.Array:
        """The writers of some rows. Rows that do not fit the table go to writer 0, which raises the error."""
        fields = [self.schema.find_field(name) for name in self.columns]
        rows = pa.RecordBatch.from_arrays(list(columns), names=list(self.columns))
        try:
            fitted = fit_to_schema(rows, Schema(*fields))
            if self.keys:
                hashes = key_hashes(fitted.columns, [field.field_type for field in fields])
                return pa.array((hashes & np.int32(self.writers - 1)).astype(np.int32))
            codes, partitions = partition_values(self.view.metadata.spec(), self.schema, fitted)
        except UsageError:
            return pa.array(np.zeros(rows.num_rows, np.int32))
        writers = np.array([zlib.crc32(repr(values).encode()) % self.writers for values in partitions], np.int32)
        return pa.array(writers[codes])


@dataclass(frozen=True, kw_only=True)
class WriterResult:
    """The result of one of many writers: the files it wrote, as JSON, or an error."""

    files: tuple[dict[str, Any], ...] = ()
    error: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        return {"files": self.files, "error": self.error}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> WriterResult:
        return cls(files=tuple(document["files"]), error=document["error"])


@dataclass(frozen=True, kw_only=True)
class DistributedWriter:
    """One of many writers; it can be pickled. It gets the rows of a keyed table sorted by key and `order`; order columns
    that the table does not have are not written. If keys are looked up, their present rows come first, marked by
    `IS_OLD`."""

    writer: ChangeWriter | BaseWriter
    operation: int
    """Part of the names of all files, so that files of lost writers can be found."""
    order: tuple[str, ...] = ()
    looked_up: tuple[str, ...] = ()
    """The columns of present rows."""

    def write(self, data: Iterator[pa.RecordBatch], task: int, attempt: int) -> WriterResult:
        """Write the rows of a task; `attempt` is unique among the attempts of the task."""
        files = self._write_files(data, StoreFileNames(task, attempt, self.operation))
        return WriterResult(files=tuple(file_to_json(file) for file in files))

    def _write_files(self, data: Iterator[pa.RecordBatch], names: StoreFileNames) -> list[NewFile]:
        metadata = self.writer.view.metadata
        schema, keys = metadata.schema(), key_names(metadata)
        if not keys:
            return self.writer.files(data, names)
        check = _OrderCheck(self.writer.view, keys, self.order, across_partitions=bool(self.looked_up))
        if not (self.looked_up and isinstance(self.writer, ChangeWriter)):
            return self.writer.files(check.apply(data), names)
        old, new = _separate_old_rows(data)
        fields = Schema(*(schema.find_field(name) for name in self.looked_up))
        present = pa.Table.from_batches(
            [fit_to_schema(batch.select(self.looked_up), fields) for batch in old], arrow_schema(fields.fields)
        )
        return self.writer.files(check.apply(new), names, PartitionMoves(schema, keys, present))


def _separate_old_rows(data: Iterator[pa.RecordBatch]) -> tuple[list[pa.RecordBatch], Iterator[pa.RecordBatch]]:
    """All present rows, which come first, and the others."""
    old: list[pa.RecordBatch] = []
    for batch in data:
        count = pc.sum(batch.column(IS_OLD)).as_py() or 0
        rows = batch.drop_columns([IS_OLD])
        old.append(rows.slice(0, count))
        if count < rows.num_rows:
            return old, chain([rows.slice(count)], (later.drop_columns([IS_OLD]) for later in data))
    return old, iter(())


class _OrderCheck:
    """Refuses rows with equal key and order. They may be in different partitions, unless `across_partitions`: then the later
    one would move the key."""

    def __init__(self, view: TableView, keys: Sequence[str], order: Sequence[str], *, across_partitions: bool) -> None:
        self._across_partitions = across_partitions
        self._view = view
        self._schema = view.metadata.schema()
        self._keys = list(keys)
        self._order = [name for name in order if name not in keys]
        self._columns = {field.name for field in self._schema.fields}
        self._dropped = [name for name in order if name not in self._columns]

    def apply(self, data: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows without order columns that the table does not have; raises if some are equal."""
        held: pa.RecordBatch | None = None
        for batch in data:
            rows = batch if held is None else pa.concat_batches([held, batch])
            # The last run may continue in the next batch.
            start = self._check(rows)
            held = rows.slice(start)
            if start:
                yield self._drop_order(rows.slice(0, start))
        if held is not None:
            yield self._drop_order(held)

    def _drop_order(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.drop_columns(self._dropped) if self._dropped else rows

    def _check(self, rows: pa.RecordBatch) -> int:
        """Check all runs of rows with equal key and order; gives the start of the last run."""
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
        columns = [name for name in chosen.schema.names if name in self._columns]
        fitted = fit_to_schema(chosen.select(columns), self._schema)
        codes, _ = partition_values(self._view.metadata.spec(), self._schema, fitted)
        partitions = pl.Series(codes) * int(not self._across_partitions)
        is_duplicate = pl.DataFrame({_RUN: runs.filter(tied), "partition": partitions}).is_duplicated()
        if is_duplicate.any():
            key = frame.select(self._keys).filter(tied).filter(is_duplicate).row(0, named=True)
            reason = f"and equal {', '.join(self._order)}" if self._order else "and nothing tells their order"
            raise UsageError(
                f"key {_format_key(key)} comes several times, {reason}",
                hint="Name columns that order the changes of a key: order_by=[…].",
                key=_format_key(key),
            )


def _are_pairs(runs: pl.Series, actions: pl.Series) -> pl.Series:
    """Rows of runs that consist of a before-image and an after-image."""
    frame = pl.DataFrame({_RUN: runs, "action": actions})
    has_two_rows = pl.len().over(_RUN) == 2
    has_both_images = (pl.col("action") == UPDATE_BEFORE).any().over(_RUN) & (pl.col("action") == UPDATE_AFTER).any().over(
        _RUN
    )
    return frame.select((has_two_rows & has_both_images).fill_null(value=False)).to_series()


def _format_key(key: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {value!r}" for name, value in key.items())
