"""Writing Parquet data files, rolled at the table's target size, with column metrics for scan planning."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import OutputStream
from pyiceberg.types import ListType, MapType, NestedField, StructType, UnknownType, UUIDType

from pyarctic.errors import UsageError
from pyarctic.iceberg.manifest.reader import DATA
from pyarctic.iceberg.read.projection import arrow_type, is_dictionary_of, naming_column
from pyarctic.iceberg.storage import remove_quietly
from pyarctic.iceberg.write.new_file import FileTarget, NewFile
from pyarctic.iceberg.write.parquet.dictionaries import choose_dictionaries
from pyarctic.iceberg.write.parquet.metrics import parquet_metrics
from pyarctic.iceberg.write.parquet.settings import Dictionaries, ParquetSettings
from pyarctic.iceberg.write.rolling import ROLL_TOLERANCE, RollingPolicy

_TRIAL_ROWS = 32 << 10


class DataFileWriter:
    """Writes batches into one or more data files of one partition. An exception removes what was written.

    with DataFileWriter(target) as writer:
        writer.write(batch)
    writer.files
    """

    def __init__(
        self,
        target: FileTarget,
        *,
        extra_fields: Sequence[NestedField] = (),
        sort_order_id: int | None = None,
        rolling: RollingPolicy | None = None,
        dictionaries: Dictionaries | None = None,
        bloom_filters: Collection[int] = (),
        memory_bytes: int | None = None,
    ) -> None:
        """`extra_fields`: columns beside those of the table, such as v3 row lineage. `rolling`: when to start the next file,
        if not at the table's target size. `dictionaries`: the columns to dictionary-encode, if known. `bloom_filters`: ids
        of fields to have one beside those that the table asks for; it may grow until the first file begins.
        `memory_bytes`: limit for buffered rows, if less than the table's row group size."""
        self.files: list[NewFile] = []
        self._target = target
        fields = (*target.schema.fields, *extra_fields)
        self._fields = stored_fields(fields)
        self._not_stored = {field.name for field in fields} - {field.name for field in self._fields}
        self._schema = file_schema(self._fields)
        self._settings = ParquetSettings.of(target.metadata.properties)
        self._row_group_bytes = min(self._settings.row_group_bytes, memory_bytes or self._settings.row_group_bytes)
        self._rolling = rolling or RollingPolicy(target_bytes=self._settings.target_bytes)
        self._sort_order_id = sort_order_id
        self._dictionaries = dictionaries
        self._bloom_filters = bloom_filters
        self._float_columns = [index for index, field in enumerate(self._schema) if pa.types.is_floating(field.type)]
        self._compression_ratio: float | None = None
        self._buffered: list[pa.RecordBatch] = []
        self._buffered_rows = self._buffered_bytes = self._rows_done = 0
        self._open_file: _OpenDataFile | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows. Columns are matched by name and cast to the table's types; strings may be dictionary-encoded."""
        rows = self._cast_to_schema(batch)
        start = 0
        while start < rows.num_rows:
            row_bytes, goal = self._estimate(rows)
            # At most an eighth of a file at a time, so that a full file is noticed.
            step = max(int(goal / 8 / row_bytes), 1) if goal < float("inf") else rows.num_rows
            part = rows.slice(start, step)
            start += part.num_rows
            self._buffer(part, goal, row_bytes)

    def _estimate(self, rows: pa.RecordBatch) -> tuple[float, float]:
        """The expected size of a row in the file, and the size at which the file is full."""
        memory = rows.nbytes / rows.num_rows
        ratio = self._compression_ratio
        if ratio is None and self._buffered_bytes + rows.nbytes < self._rolling.target_bytes and self._rolling.is_open:
            ratio = 1.0  # less than a file even if nothing is compressed: a trial would cost as much as writing
        elif ratio is None:
            ratio = self._compression_ratio = self._measure_compression(rows.slice(0, _TRIAL_ROWS))
        row_bytes = max(memory * ratio, 0.001)
        return row_bytes, self._rolling.goal(self._file_bytes(), self._rows_done, row_bytes)

    def _measure_compression(self, rows: pa.RecordBatch) -> float:
        """Bytes in a file per byte in memory, by encoding some rows into a buffer."""
        sink = pa.BufferOutputStream()
        schema = _with_dictionaries(self._schema, [rows])
        with self._settings.writer(sink, schema, [], self._dictionaries) as writer:
            writer.write_table(_concat_batches([rows], schema), row_group_size=rows.num_rows)
            encoded = sink.tell()
        return float(encoded / max(rows.nbytes, 1))

    def _file_bytes(self) -> int:
        return self._open_file.stream.tell() if self._open_file else 0

    def _buffer(self, rows: pa.RecordBatch, goal: float, row_bytes: float) -> None:
        self._buffered.append(rows)
        self._buffered_rows += rows.num_rows
        self._buffered_bytes += rows.nbytes
        full_file = self._file_bytes() + self._buffered_rows * row_bytes >= goal
        full_group = self._buffered_bytes >= self._row_group_bytes or self._buffered_rows >= self._settings.row_group_rows
        if full_file or full_group:
            self.flush()
        if self._open_file and self._file_bytes() >= goal * (ROLL_TOLERANCE if full_file else 1):
            self._finish()

    @property
    def buffered_bytes(self) -> int:
        """Memory of the rows buffered for the next row group."""
        return self._buffered_bytes

    def close(self) -> list[NewFile]:
        """Write the buffered rows and finish the file; returns all files."""
        self.flush()
        self._finish()
        return self.files

    def abort(self) -> None:
        """Remove everything that was written."""
        paths = [file.path for file in self.files]
        if self._open_file:
            with contextlib.suppress(OSError, ValueError):  # closing fails too on a full disk
                self._open_file.close()
            paths.append(self._open_file.path)
        self._open_file, self.files, self._buffered = None, [], []
        remove_quietly(self._target.io, paths)

    def flush(self) -> None:
        """Write the buffered rows as a row group, to free memory."""
        if not self._buffered_rows:
            return
        if self._open_file is None:
            schema = _with_dictionaries(self._schema, self._buffered)
            if self._dictionaries is None:
                self._dictionaries = choose_dictionaries(self._schema, self._buffered, self._settings)
            self._open_file = self._open_next(schema)
        table = _concat_batches(self._buffered, self._open_file.schema)
        before = self._open_file.stream.tell()
        self._open_file.writer.write_table(table, row_group_size=table.num_rows)
        self._compression_ratio = (self._open_file.stream.tell() - before) / max(self._buffered_bytes, 1)
        for number, index in enumerate(self._float_columns):
            self._open_file.nans[number] += pc.sum(pc.is_nan(table.column(index))).as_py() or 0
        self._rows_done += self._buffered_rows
        self._buffered, self._buffered_rows, self._buffered_bytes = [], 0, 0

    def _open_next(self, schema: pa.Schema) -> _OpenDataFile:
        path = self._target.new_path(".parquet")
        stream = self._target.io.new_output(path).create()
        collected: list[pq.FileMetaData] = []
        rows = max(self._buffered_rows, 1)
        writer = self._settings.writer(stream, schema, collected, self._dictionaries, self._bloom_filters, rows)
        return _OpenDataFile(path, stream, schema, writer, collected, nans=[0] * len(self._float_columns))

    def _finish(self) -> None:
        if self._open_file is None:
            return
        file = self._open_file
        nans = {self._fields[index].field_id: count for index, count in zip(self._float_columns, file.nans, strict=True)}
        metadata = file.close()
        self._open_file = None
        self.files.append(
            describe_data_file(self._target, file.path, file.size, metadata, self._fields, nans, self._sort_order_id)
        )

    def _cast_to_schema(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        missing = [field.name for field in self._schema if field.name not in batch.schema.names]
        unknown = [name for name in batch.schema.names if name not in {*self._schema.names, *self._not_stored}]
        if missing or unknown:
            raise UsageError(
                f"columns do not fit the table: missing {missing or 'none'}, unknown {unknown or 'none'}",
                hint=f"The table has: {', '.join(self._schema.names)}.",
            )
        try:
            arrays = [_cast_column(batch.column(field.name), field) for field in self._schema]
            fields = [field.with_type(array.type) for field, array in zip(self._schema, arrays, strict=True)]
            return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
        except (pa.ArrowException, ValueError) as cause:
            raise UsageError(
                f"values do not fit the table's types: {cause}", hint=f"The types are:\n{self._schema}"
            ) from cause


@dataclass
class _OpenDataFile:
    """The file that is being written."""

    path: str
    stream: OutputStream
    schema: pa.Schema
    writer: pq.ParquetWriter
    collected: list[pq.FileMetaData]
    nans: list[int]
    size: int = 0

    def close(self) -> pq.FileMetaData:
        self.writer.close()
        self.size = self.stream.tell()
        self.stream.close()
        return self.collected[0]


def _with_dictionaries(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> pa.Schema:
    """The schema of one file: columns are dictionary-encoded in memory if they are in all first batches."""
    return pa.schema(
        [
            field.with_type(batches[0].column(index).type)
            if all(is_dictionary_of(batch.column(index).type, field.type) for batch in batches)
            else field
            for index, field in enumerate(schema)
        ]
    )


def _concat_batches(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """One table for one row group, in the schema of the file."""
    columns = [
        pa.chunked_array([_cast_encoding(batch.column(index), field.type) for batch in batches], field.type)
        for index, field in enumerate(schema)
    ]
    return pa.Table.from_arrays(columns, schema=schema).unify_dictionaries()


def _cast_encoding(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if array.type.equals(wanted):
        return array
    return array.dictionary_encode() if pa.types.is_dictionary(wanted) else array.cast(wanted)


def describe_data_file(
    target: FileTarget,
    path: str,
    size: int,
    metadata: pq.FileMetaData,
    fields: Sequence[NestedField],
    nans: Mapping[int, int],
    sort_order_id: int | None = None,
) -> NewFile:
    """Describe a finished Parquet file for its manifest entry."""
    metrics, offsets = parquet_metrics(metadata, fields, target.metadata.properties, nans)
    return NewFile(
        content=DATA,
        path=path,
        file_format="PARQUET",
        spec_id=target.spec_id,
        partition=target.partition,
        record_count=metadata.num_rows,
        file_size_bytes=size,
        metrics=metrics,
        split_offsets=offsets,
        sort_order_id=sort_order_id,
    )


def file_schema(fields: Sequence[NestedField]) -> pa.Schema:
    """The Arrow schema of data files: with field ids in the metadata, and UUIDs as extension type."""
    return pa.schema([_file_field(field) for field in stored_fields(fields)])


def stored_fields(fields: Sequence[NestedField]) -> tuple[NestedField, ...]:
    """The fields that data files have. Those of type `unknown` are null everywhere and not stored; Iceberg Java cannot read
    files that have them."""
    return tuple(field for field in fields if not isinstance(field.field_type, UnknownType))


def _file_field(field: NestedField) -> pa.Field:
    with naming_column(field.name):
        type_ = _file_type(field.field_type)
    return pa.field(field.name, type_, nullable=field.optional, metadata={"PARQUET:field_id": str(field.field_id)})


def _file_type(type_: Any) -> pa.DataType:
    match type_:
        case StructType():
            return pa.struct([_file_field(field) for field in stored_fields(type_.fields)])
        case ListType():
            return pa.list_(_file_field(type_.element_field))
        case MapType():
            return pa.map_(_file_field(type_.key_field), _file_field(type_.value_field))
        case UUIDType():
            return pa.uuid()
    return arrow_type(type_)


def _cast_column(array: pa.Array, field: pa.Field) -> pa.Array:
    if not field.nullable and array.null_count:
        msg = f"column {field.name!r} is required and has nulls"
        raise ValueError(msg)
    if array.type.equals(field.type) or is_dictionary_of(array.type, field.type):
        return array
    if isinstance(field.type, pa.ExtensionType):
        return pa.ExtensionArray.from_storage(field.type, array.cast(field.type.storage_type))
    return array.cast(field.type)
