"""Row groups in which nothing changes are copied, pages and all; the rows between them are encoded.

A copied row group keeps its size, its codec and its statistics. It costs a hundredth of decoding and encoding it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from types import TracebackType
from typing import Any, Self

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.types import NestedField

from pyarctic.iceberg import open_input, remove_quietly
from pyarctic.iceberg.delete import check_not_encrypted
from pyarctic.iceberg.read import LAST_UPDATED, ROW_ID, DataFileReader, filter_rows
from pyarctic.iceberg.write import ROLL_TOLERANCE, FileTarget, NewFile, RollingPolicy
from pyarctic.iceberg.write.parquet import (
    NotCopyable,
    ParquetSchema,
    ParquetSettings,
    RowGroupSource,
    RowGroupWriter,
    describe_data_file,
    file_schema,
)
from pyarctic.optimizing.execute.kernel.inputs import SHARE, Attempt
from pyarctic.optimizing.execute.kernel.row_map import NOWHERE, RunLog
from pyarctic.optimizing.execute.kernel.sources import RowCount, Sources
from pyarctic.tables.format import FILE_OFFSET

_LOOKED_AT = 3
"""Files whose footers decide whether copying is worth a try: the largest ones."""
_WORTHWHILE = 0.5
"""Of the rows, at least so many should be in files that are large enough and that no delete hits."""


class Copier:
    """Writes the data files of one task, copying what it can."""

    def __init__(
        self,
        attempt: Attempt,
        sources: Sources,
        log: RunLog,
        fields: Sequence[NestedField],
        numbers: Mapping[str, int],
    ) -> None:
        self._attempt = attempt
        self._sources = sources
        self._log = log
        self._fields = fields
        self._numbers = numbers
        self._own_fields = attempt.job.metadata.schema().fields
        self._output = _Output(attempt, fields)
        self.count = RowCount()
        self.copied_rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self._output.abort()

    def is_worthwhile(self) -> bool:
        """Whether most rows can be expected to be copied, by the first footers and the deletes there are."""
        listed, least = self._sources.listed, self._attempt.task.copy_least_rows
        if least is None or (listed["file_format"] != "PARQUET").any():
            return False
        untouched = self._sources.untouched().filter(pl.col("record_count") >= least)
        if int(untouched["record_count"].sum()) < max(_WORTHWHILE * int(listed["record_count"].sum()), 1):
            return False
        largest = untouched.top_k(_LOOKED_AT, by="record_count")
        copied = 0
        for path, rows in largest.select("file_path", "record_count").iter_rows():
            with open_input(self._attempt.bench.io, path) as stream:
                source = _source(stream, path)
                copied += rows if source is not None and self._copyable(source, set()) else 0
        return copied >= _WORTHWHILE * int(largest["record_count"].sum())

    def run(self) -> list[NewFile]:
        for file in self._sources.files():
            with open_input(self._attempt.bench.io, file.path) as stream:
                rows = self._take(file, _source(stream, file.path))
            self.count.add(file, rows, is_replaced=file.path in self._numbers)
            self._attempt.progress(file.row["record_count"], file.row["file_size_bytes"])
        return self._output.finish()

    def _take(self, file: DataFileReader, source: RowGroupSource | None) -> int:
        """Gives the number of rows that were read."""
        check_not_encrypted(file.path, file.row["key_metadata_bytes"])
        if source is None or file.needs_keys or not self._copyable(source, set()):
            return self._encode(file, None)
        dead = file.find_deleted_positions()
        starts = list(accumulate((group.rows for group in source.groups), initial=0))
        touched = {int(place) for place in np.searchsorted(starts, dead, side="right") - 1} if len(dead) else set()
        copyable = self._copyable(source, touched)
        number = self._numbers.get(file.path, NOWHERE)
        rows = 0
        for first, group in enumerate(source.groups):
            if first not in copyable:
                rows += self._encode(file, [first])
                continue
            try:
                self._output.copy(source, first, self._lineage(file, starts[first], group.rows))
            except NotCopyable:  # noticed before anything was written
                rows += self._encode(file, [first])
                continue
            self._log.add_piece(number, starts[first], group.rows, None)
            rows += group.rows
            self.copied_rows += group.rows
        return rows

    def _copyable(self, source: RowGroupSource, touched: set[int]) -> set[int]:
        if source.schema != self._output.schema_of(self._own_fields):
            return set()
        least = self._attempt.task.copy_least_rows or 0
        most = self._attempt.task.target_bytes * 1.25  # a larger one would make a file that is too large
        return {
            number
            for number, group in enumerate(source.groups)
            if group.rows >= least and group.compressed_bytes <= most and number not in touched
        }

    def _encode(self, file: DataFileReader, row_groups: list[int] | None) -> int:
        read = 0
        for piece, alive in file.live_batches(self._fields, row_groups=row_groups):
            rows = file.project(piece, self._fields)
            self._log.add_piece(self._numbers.get(file.path, NOWHERE), piece.position, rows.num_rows, alive)
            self._output.encode(rows if alive is None else filter_rows(rows, alive))
            read += piece.batch.num_rows
        return read

    def _lineage(self, file: DataFileReader, start: int, rows: int) -> RowGroupSource | None:
        """The ids of copied rows, which they had by their place in the old file, as columns of their own."""
        if not self._attempt.bench.lineage:
            return None
        first: int | None = file.row["first_row_id"]
        ids = pa.nulls(rows, pa.int64()) if first is None else pa.array(np.arange(first + start, first + start + rows))
        updated = pa.nulls(rows, pa.int64()) if first is None else pa.repeat(file.row["data_sequence_number"], rows)
        schema = file_schema((ROW_ID, LAST_UPDATED))
        return _in_memory(pa.Table.from_arrays([ids, updated], schema=schema), self._output.settings, [LAST_UPDATED.name])


def _source(stream: Any, path: str) -> RowGroupSource | None:
    try:
        # The offsets of changes are not part of the rows.
        return RowGroupSource.open(stream, path).without_last(FILE_OFFSET.field_id)
    except NotCopyable:
        return None


def adopted(attempt: Attempt, file: DataFileReader) -> NewFile | None:
    """A file of another store as a file of the task's place. None if it does not look as one written now would."""
    fields = attempt.job.metadata.schema().fields
    with open_input(attempt.bench.io, file.path) as stream:
        source = _source(stream, file.path)
        if source is None or source.schema != _schema_of(fields, ParquetSettings.of(attempt.job.metadata.properties)):
            return None
        metadata = pq.ParquetFile(stream).metadata
    return describe_data_file(attempt.target(), file.path, file.row["file_size_bytes"], metadata, fields, {})


def _schema_of(fields: Sequence[NestedField], settings: ParquetSettings) -> ParquetSchema:
    """How a file of ours with these columns looks."""
    return _in_memory(file_schema(fields).empty_table(), settings).schema


def _in_memory(table: pa.Table, settings: ParquetSettings, dictionaries: Sequence[str] | None = None) -> RowGroupSource:
    sink = pa.BufferOutputStream()
    with settings.writer(sink, table.schema, [], dictionaries) as writer:
        writer.write_table(table, row_group_size=max(table.num_rows, 1))
    return RowGroupSource.of_bytes(sink.getvalue())


class _Output:
    """Data files made of row groups, copied ones and new ones."""

    def __init__(self, attempt: Attempt, fields: Sequence[NestedField]) -> None:
        task = attempt.task
        self._attempt = attempt
        self._fields = fields
        self._schema = file_schema(fields)
        self._target: FileTarget = attempt.target()
        self.settings = ParquetSettings.of(attempt.job.metadata.properties)
        self._schemas: dict[tuple[int, ...], ParquetSchema] = {}
        self._rolling = RollingPolicy(target_bytes=task.target_bytes, expected_rows=task.expected_rows)
        self._row_bytes = max(task.expected_bytes / max(task.expected_rows, 1), 0.001)
        self._group_bytes = min(self.settings.row_group_bytes, attempt.job.memory_bytes // SHARE)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._rows_done = 0
        self._open: tuple[str, Any, RowGroupWriter] | None = None
        self._done: list[NewFile] = []

    def schema_of(self, fields: Sequence[NestedField]) -> ParquetSchema:
        """How a file of ours with these columns looks; whatever is equal to it can be copied."""
        key = tuple(field.field_id for field in fields)
        if key not in self._schemas:
            self._schemas[key] = _schema_of(fields, self.settings)
        return self._schemas[key]

    def copy(self, source: RowGroupSource, group: int, beside: RowGroupSource | None) -> None:
        self._flush()
        self._append(source, group, beside)

    def encode(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= self._group_bytes:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        fitted = [batch.cast(self._schema) if batch.schema != self._schema else batch for batch in waiting]
        table = pa.Table.from_batches(fitted, schema=self._schema)
        for source in _steps(table, self._rolling.target_bytes, self._row_bytes, self.settings):
            self._append(source, 0, None)

    def _append(self, source: RowGroupSource, group: int, beside: RowGroupSource | None) -> None:
        if self._open is None:
            path = self._target.new_path(".parquet")
            stream = self._target.io.new_output(path).create()
            self._open = (path, stream, RowGroupWriter(stream))
        writer = self._open[2]
        before = writer.tell()
        writer.append(source, group, beside)
        rows = source.groups[group].rows
        self._rows_done += rows
        self._row_bytes = max((writer.tell() - before) / max(rows, 1), 0.001)
        goal = self._rolling.goal(writer.tell(), self._rows_done, self._row_bytes)
        if writer.tell() >= ROLL_TOLERANCE * goal:
            self._close()

    def finish(self) -> list[NewFile]:
        self._flush()
        self._close()
        return self._done

    def _close(self) -> None:
        if self._open is None:
            return
        path, stream, writer = self._open
        metadata: pq.FileMetaData = writer.close()
        size = stream.tell()
        stream.close()
        self._open = None
        # Of floats in copied row groups nobody has counted what is not a number.
        self._done.append(describe_data_file(self._target, path, size, metadata, self._fields, {}))

    def abort(self) -> None:
        paths = [file.path for file in self._done]
        if self._open is not None:
            paths.append(self._open[0])
            with contextlib.suppress(OSError, ValueError):  # a full disk is full also for the rest
                self._open[1].close()
        remove_quietly(self._target.io, paths)


def _steps(table: pa.Table, target_bytes: int, row_bytes: float, settings: ParquetSettings) -> Iterator[RowGroupSource]:
    """New row groups, small enough that files can end between them."""
    rows = min(max(int(target_bytes / 4 / row_bytes), 1), settings.row_group_rows)
    for start in range(0, table.num_rows, rows):
        yield _in_memory(table.slice(start, rows), settings)
