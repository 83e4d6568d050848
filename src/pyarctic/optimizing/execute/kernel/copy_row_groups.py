"""Copying row groups as is, if nothing in them changes; the rows of the others are encoded again.

A copied row group keeps its size, its codec and its statistics. It costs a hundredth of decoding and encoding it. Tables
with a column that cannot be decoded are optimized only by copying: rows that would have to be encoded are refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
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
from pyarctic.iceberg.read import LAST_UPDATED, ROW_ID, DataFileReader, filter_rows, is_decodable
from pyarctic.iceberg.write import ROLL_TOLERANCE, FileTarget, NewFile, RollingPolicy
from pyarctic.iceberg.write.parquet import (
    Dictionaries,
    NotCopyable,
    ParquetSchema,
    ParquetSettings,
    RowGroupSource,
    RowGroupWriter,
    choose_dictionaries,
    describe_data_file,
    file_schema,
    stored_fields,
)
from pyarctic.optimizing.execute.kernel.inputs import MEMORY_SHARES, Attempt
from pyarctic.optimizing.execute.kernel.row_map import NO_SOURCE, RowMapLog
from pyarctic.optimizing.execute.kernel.sources import RowCount, Sources
from pyarctic.tables.format import FILE_OFFSET

_SAMPLED_FILES = 3
"""The number of files whose footers decide whether copying is worth a try: the largest ones."""
_WORTHWHILE_SHARE = 0.5
"""The share of the rows that must be in files which are large enough and have no deletes."""
_MAX_GROUP_SHARE = 1.25
"""A row group of more than this many target sizes would make a file that is too large."""


class RowGroupCopier:
    """Writes the data files of one task, copying row groups as is where it can."""

    def __init__(self, attempt: Attempt, sources: Sources, log: RowMapLog, source_numbers: Mapping[str, int]) -> None:
        self._attempt = attempt
        self._sources = sources
        self._log = log
        self._source_numbers = source_numbers
        self._fields = stored_fields(attempt.context.output_fields)
        self._table_fields = attempt.job.metadata.schema().fields
        self._copies_only = not all(is_decodable(field.field_type) for field in self._table_fields)
        self._output = _Output(attempt, self._fields)
        self.count = RowCount()
        self.copied_rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self._output.abort()

    def is_worthwhile(self) -> bool:
        """Whether most rows can be expected to be copied, judging by some footers and the existing deletes."""
        files, min_rows = self._sources.file_list, self._attempt.task.copy_least_rows
        if min_rows is None or (files["file_format"] != "PARQUET").any():
            return False
        if self._copies_only:
            return True
        candidates = self._sources.files_without_deletes().filter(pl.col("record_count") >= min_rows)
        if int(candidates["record_count"].sum()) < max(_WORTHWHILE_SHARE * int(files["record_count"].sum()), 1):
            return False
        largest = candidates.top_k(_SAMPLED_FILES, by="record_count")
        copyable_rows = 0
        for path, size, rows in largest.select("file_path", "file_size_bytes", "record_count").iter_rows():
            with open_input(self._attempt.context.io, path, size) as stream:
                source = _open_source(stream, path)
                copyable_rows += rows if source is not None and self._copyable_groups(source, set()) else 0
        return copyable_rows >= _WORTHWHILE_SHARE * int(largest["record_count"].sum())

    def run(self) -> list[NewFile]:
        """Write all files."""
        for file in self._sources.files():
            with open_input(self._attempt.context.io, file.path, file.row["file_size_bytes"]) as stream:
                rows = self._write_file(file, _open_source(stream, file.path))
            self.count.add(file, rows, is_replaced=file.path in self._source_numbers)
            self._attempt.progress(file.row["record_count"], file.row["file_size_bytes"])
        return self._output.finish()

    def _write_file(self, file: DataFileReader, source: RowGroupSource | None) -> int:
        """Write the live rows of a file, and return the number of rows that were read."""
        check_not_encrypted(file.path, file.row["key_metadata_bytes"])
        if source is None or file.needs_keys or not self._copyable_groups(source, set()):
            return self._encode(file, None)
        positions = file.find_deleted_positions()
        starts = list(accumulate((group.rows for group in source.groups), initial=0))
        with_deletes = {int(group) for group in np.searchsorted(starts, positions, side="right") - 1}
        copyable = self._copyable_groups(source, with_deletes)
        source_number = self._source_numbers.get(file.path, NO_SOURCE)
        rows_read = 0
        for number, group in enumerate(source.groups):
            if number not in copyable or not self._try_copy(file, source, number, starts[number]):
                rows_read += self._encode(file, [number])
                continue
            self._log.add_batch(source_number, starts[number], group.rows, None)
            rows_read += group.rows
            self.copied_rows += group.rows
        return rows_read

    def _try_copy(self, file: DataFileReader, source: RowGroupSource, number: int, start: int) -> bool:
        """Copy a row group; False if that is impossible, which is noticed before anything is written."""
        try:
            has_lineage = source.schema.fields[-1][1] == LAST_UPDATED.field_id
            rows = source.groups[number].rows
            self._output.copy(source, number, None if has_lineage else self._lineage_columns(file, start, rows))
        except NotCopyable:
            return False
        return True

    def _copyable_groups(self, source: RowGroupSource, with_deletes: set[int]) -> set[int]:
        """The numbers of the row groups that can be copied."""
        if self._copies_only:
            fits = _has_columns(source.read_metadata(), stored_fields(self._table_fields))
            return set(range(len(source.groups))) - with_deletes if fits else set()
        if source.schema != self._output.schema_of(self._table_fields):
            return set()
        min_rows = self._attempt.task.copy_least_rows or 0
        max_bytes = self._attempt.task.target_bytes * _MAX_GROUP_SHARE
        return {
            number
            for number, group in enumerate(source.groups)
            if group.rows >= min_rows and group.compressed_bytes <= max_bytes and number not in with_deletes
        }

    def _encode(self, file: DataFileReader, row_groups: list[int] | None) -> int:
        rows_read = 0
        source_number = self._source_numbers.get(file.path, NO_SOURCE)
        for batch, is_live in file.live_batches(self._fields, row_groups=row_groups):
            rows = file.project(batch, self._fields)
            self._output.bloom_filters |= batch.file.bloom_filter_ids
            self._log.add_batch(source_number, batch.position, rows.num_rows, is_live)
            self._output.encode(rows if is_live is None else filter_rows(rows, is_live))
            rows_read += batch.batch.num_rows
        return rows_read

    def _lineage_columns(self, file: DataFileReader, start: int, rows: int) -> RowGroupSource | None:
        """The ids of copied rows as columns; in the old file they were derived from the positions of the rows."""
        if not self._attempt.context.lineage:
            return None
        first: int | None = file.row["first_row_id"]
        ids = pa.nulls(rows, pa.int64()) if first is None else pa.array(np.arange(first + start, first + start + rows))
        updated = pa.nulls(rows, pa.int64()) if first is None else pa.repeat(file.row["data_sequence_number"], rows)
        table = pa.Table.from_arrays([ids, updated], schema=file_schema((ROW_ID, LAST_UPDATED)))
        return _encode_table(table, self._output.settings, Dictionaries(columns=(LAST_UPDATED.name,)))


def _open_source(stream: Any, path: str) -> RowGroupSource | None:
    try:
        # The offsets of changes are not part of the rows.
        return RowGroupSource.open(stream, path).without_last(FILE_OFFSET.field_id)
    except NotCopyable:
        return None


def _has_columns(metadata: pq.FileMetaData, fields: Sequence[NestedField]) -> bool:
    """Whether a file has these columns, in this order, and of these types as far as they can be decoded. Row lineage may
    follow, but without nulls: they would have to be filled in."""
    columns = metadata.schema.to_arrow_schema()
    ids = [int((column.metadata or {}).get(b"PARQUET:field_id", -1)) for column in columns]
    has_types = all(
        column.type.equals(file_schema((field,)).field(0).type)
        for column, field in zip(columns, fields, strict=False)
        if is_decodable(field.field_type)
    )
    lineage = ids[len(fields) :]
    has_lineage = lineage == [ROW_ID.field_id, LAST_UPDATED.field_id] and not any(
        _may_have_nulls(metadata.row_group(group).column(metadata.num_columns - place))
        for group in range(metadata.num_row_groups)
        for place in (1, 2)
    )
    return ids[: len(fields)] == [field.field_id for field in fields] and has_types and (has_lineage or not lineage)


def _may_have_nulls(chunk: pq.ColumnChunkMetaData) -> bool:
    statistics = chunk.statistics
    return statistics is None or not statistics.has_null_count or statistics.null_count > 0


def adopt_file(attempt: Attempt, file: DataFileReader) -> NewFile | None:
    """A file of another store as a file of the task's partition; None if a file written now would look different."""
    fields = attempt.job.metadata.schema().fields
    with open_input(attempt.context.io, file.path, file.row["file_size_bytes"]) as stream:
        source = _open_source(stream, file.path)
        if source is None or source.schema != _schema_of(fields, ParquetSettings.of(attempt.job.metadata.properties)):
            return None
        metadata = pq.ParquetFile(stream).metadata
    return describe_data_file(attempt.target(), file.path, file.row["file_size_bytes"], metadata, fields, {})


def _schema_of(fields: Sequence[NestedField], settings: ParquetSettings) -> ParquetSchema:
    """The Parquet schema of a file with these columns, if it is written here."""
    return _encode_table(file_schema(fields).empty_table(), settings).schema


def _encode_table(
    table: pa.Table,
    settings: ParquetSettings,
    dictionaries: Dictionaries | None = None,
    bloom_filters: Collection[int] = (),
) -> RowGroupSource:
    sink = pa.BufferOutputStream()
    with settings.writer(sink, table.schema, [], dictionaries, bloom_filters, table.num_rows) as writer:
        writer.write_table(table, row_group_size=max(table.num_rows, 1))
    return RowGroupSource.of_bytes(sink.getvalue())


class _Output:
    """Data files made of row groups, copied and new ones."""

    def __init__(self, attempt: Attempt, fields: Sequence[NestedField]) -> None:
        task = attempt.task
        self._attempt = attempt
        self._fields = fields
        self._target: FileTarget = attempt.target()
        self.settings = ParquetSettings.of(attempt.job.metadata.properties)
        self._schemas: dict[tuple[int, ...], ParquetSchema] = {}
        self._rolling = RollingPolicy(target_bytes=task.target_bytes, expected_rows=task.expected_rows)
        self._row_bytes = max(task.expected_bytes / max(task.expected_rows, 1), 0.001)
        self._group_bytes = min(self.settings.row_group_bytes, attempt.job.memory_bytes // MEMORY_SHARES)
        self.bloom_filters: set[int] = set()
        """Ids of the fields that have a bloom filter in files whose rows are encoded again."""
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._rows_written = 0
        self._open: tuple[str, Any, RowGroupWriter] | None = None
        self._files: list[NewFile] = []

    @cached_property
    def _schema(self) -> pa.Schema:
        return file_schema(self._fields)

    def schema_of(self, fields: Sequence[NestedField]) -> ParquetSchema:
        """The Parquet schema that outputs have; row groups of files with the same schema can be copied."""
        key = tuple(field.field_id for field in fields)
        if key not in self._schemas:
            self._schemas[key] = _schema_of(fields, self.settings)
        return self._schemas[key]

    def copy(self, source: RowGroupSource, group: int, extra_columns: RowGroupSource | None) -> None:
        """Copy a row group as is, with extra columns."""
        self._flush()
        self._append(source, group, extra_columns)

    def encode(self, rows: pa.RecordBatch) -> None:
        """Write rows into new row groups."""
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
        batches = [batch.cast(self._schema) if batch.schema != self._schema else batch for batch in waiting]
        table = pa.Table.from_batches(batches, schema=self._schema)
        dictionaries = choose_dictionaries(self._schema, table.to_batches(), self.settings)
        # New row groups are small enough that files can end between them.
        rows = min(max(int(self._rolling.target_bytes / 4 / self._row_bytes), 1), self.settings.row_group_rows)
        for start in range(0, table.num_rows, rows):
            part = table.slice(start, rows)
            self._append(_encode_table(part, self.settings, dictionaries, self.bloom_filters), 0, None)

    def _append(self, source: RowGroupSource, group: int, extra_columns: RowGroupSource | None) -> None:
        if self._open is None:
            path = self._target.new_path(".parquet")
            stream = self._target.io.new_output(path).create()
            self._open = (path, stream, RowGroupWriter(stream))
        writer = self._open[2]
        before = writer.tell()
        writer.append(source, group, extra_columns)
        rows = source.groups[group].rows
        self._rows_written += rows
        self._row_bytes = max((writer.tell() - before) / max(rows, 1), 0.001)
        goal = self._rolling.goal(writer.tell(), self._rows_written, self._row_bytes)
        if writer.tell() >= ROLL_TOLERANCE * goal:
            self._close()

    def finish(self) -> list[NewFile]:
        """Close all files, and return them."""
        self._flush()
        self._close()
        return self._files

    def _close(self) -> None:
        if self._open is None:
            return
        path, stream, writer = self._open
        metadata: pq.FileMetaData = writer.close()
        size = stream.tell()
        stream.close()
        self._open = None
        # NaN values in copied row groups were not counted.
        self._files.append(describe_data_file(self._target, path, size, metadata, self._fields, {}))

    def abort(self) -> None:
        """Remove all files."""
        paths = [file.path for file in self._files]
        if self._open is not None:
            paths.append(self._open[0])
            with contextlib.suppress(OSError, ValueError):  # a full disk fails again here
                self._open[1].close()
        remove_quietly(self._target.io, paths)
