"""Writing Parquet data files, rolled at the table's target size, with column metrics for scan planning."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import OutputStream
from pyiceberg.types import ListType, MapType, NestedField, StructType, UUIDType

from pyarctic.errors import UsageError
from pyarctic.iceberg.manifest.reader import DATA
from pyarctic.iceberg.read.projection import arrow_type, is_dictionary_of
from pyarctic.iceberg.storage import remove_quietly
from pyarctic.iceberg.write.new_file import FileTarget, NewFile
from pyarctic.iceberg.write.parquet.metrics import parquet_metrics
from pyarctic.iceberg.write.properties import parse_integer, positive_property
from pyarctic.iceberg.write.rolling import ROLL_TOLERANCE, RollingPolicy

_CODECS = {"uncompressed": "none", "zstd": "zstd", "gzip": "gzip", "snappy": "snappy", "lz4": "lz4", "brotli": "brotli"}
_TRIAL_ROWS = 32 << 10
_SAMPLE_ROWS = 8 << 10
_MAX_DISTINCT_RATIO = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetSettings:
    """Parquet settings from the table's properties, with the defaults of Iceberg."""

    codec: str
    level: int | None
    row_group_bytes: int
    row_group_rows: int
    page_bytes: int
    dictionary_bytes: int
    target_bytes: int

    @classmethod
    def of(cls, properties: Mapping[str, str], kind: str = "write.parquet") -> Self:
        """The settings of a table. `kind`: the prefix of its properties, `write.delete.parquet` for delete files."""
        codec = properties.get(
            f"{kind}.compression-codec", properties.get("write.parquet.compression-codec", "zstd")
        ).lower()
        if codec not in _CODECS:
            raise UsageError(
                f"table property {kind}.compression-codec = {codec!r} is not a codec", hint=f"One of: {', '.join(_CODECS)}."
            )
        level = properties.get(f"{kind}.compression-level")
        return cls(
            codec=_CODECS[codec],
            level=parse_integer(f"{kind}.compression-level", level)
            if level and codec in ("zstd", "gzip", "brotli")
            else None,
            row_group_bytes=positive_property(properties, f"{kind}.row-group-size-bytes", 128 << 20),
            row_group_rows=positive_property(properties, f"{kind}.row-group-limit", 1 << 20),
            page_bytes=positive_property(properties, f"{kind}.page-size-bytes", 1 << 20),
            dictionary_bytes=positive_property(properties, f"{kind}.dict-size-bytes", 2 << 20),
            target_bytes=positive_property(properties, "write.target-file-size-bytes", 512 << 20),
        )

    def writer(
        self,
        stream: OutputStream | pa.NativeFile,
        schema: pa.Schema,
        metadata: list[pq.FileMetaData],
        dictionaries: Sequence[str] | None = None,
    ) -> pq.ParquetWriter:
        """A Parquet writer. `dictionaries`: paths of the columns to dictionary-encode; None means all."""
        # Arrow's schema is not stored: readers in Python would see types that the table does not have.
        return pq.ParquetWriter(
            stream,
            schema,
            compression=self.codec,
            compression_level=self.level,
            data_page_size=self.page_bytes,
            dictionary_pagesize_limit=self.dictionary_bytes,
            use_dictionary=True if dictionaries is None else list(dictionaries),
            store_decimal_as_integer=True,
            store_schema=False,
            metadata_collector=metadata,
        )


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
        dictionaries: Sequence[str] | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        """`extra_fields`: columns beside those of the table, such as v3 row lineage. `rolling`: when to start the next file,
        if not at the table's target size. `dictionaries`: paths of the columns to dictionary-encode, if known.
        `memory_bytes`: limit for buffered rows, if less than the table's row group size."""
        self.files: list[NewFile] = []
        self._target = target
        self._fields = (*target.schema.fields, *extra_fields)
        self._schema = file_schema(self._fields)
        self._settings = ParquetSettings.of(target.metadata.properties)
        self._row_group_bytes = min(self._settings.row_group_bytes, memory_bytes or self._settings.row_group_bytes)
        self._rolling = rolling or RollingPolicy(target_bytes=self._settings.target_bytes)
        self._sort_order_id = sort_order_id
        self._dictionaries = dictionaries
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
                self._dictionaries = choose_dictionaries(self._schema, self._buffered[0])
            self._open_file = _OpenDataFile(
                self._target, self._settings, schema, len(self._float_columns), self._dictionaries
            )
        table = _concat_batches(self._buffered, self._open_file.schema)
        before = self._open_file.stream.tell()
        self._open_file.writer.write_table(table, row_group_size=table.num_rows)
        self._compression_ratio = (self._open_file.stream.tell() - before) / max(self._buffered_bytes, 1)
        for number, index in enumerate(self._float_columns):
            self._open_file.nans[number] += pc.sum(pc.is_nan(table.column(index))).as_py() or 0
        self._rows_done += self._buffered_rows
        self._buffered, self._buffered_rows, self._buffered_bytes = [], 0, 0

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
        unknown = [name for name in batch.schema.names if name not in self._schema.names]
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


class _OpenDataFile:
    """The file that is being written."""

    def __init__(
        self,
        target: FileTarget,
        settings: ParquetSettings,
        schema: pa.Schema,
        floats: int,
        dictionaries: Sequence[str] | None,
    ) -> None:
        self.path = target.new_path(".parquet")
        self.stream = target.io.new_output(self.path).create()
        self.schema = schema
        self.nans = [0] * floats
        self.size = 0
        self._collected: list[pq.FileMetaData] = []
        self.writer = settings.writer(self.stream, schema, self._collected, dictionaries)

    def close(self) -> pq.FileMetaData:
        self.writer.close()
        self.size = self.stream.tell()
        self.stream.close()
        return self._collected[0]


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


def choose_dictionaries(schema: pa.Schema, rows: pa.RecordBatch) -> list[str]:
    """Paths of the columns to dictionary-encode: not those with mostly distinct values, whose dictionary would cost more
    time than all the rest and save no space."""
    sample = rows.slice(0, _SAMPLE_ROWS)
    distinct = {
        field.name
        for field, column in zip(sample.schema, sample.columns, strict=True)
        if not pa.types.is_nested(field.type)
        and not pa.types.is_dictionary(field.type)
        and not isinstance(field.type, pa.BaseExtensionType)
        and pc.count_distinct(column, mode="only_valid").as_py() > _MAX_DISTINCT_RATIO * max(len(column), 1)
    }
    return [path for path in leaf_paths(schema) if path not in distinct]


def leaf_paths(schema: pa.Schema) -> list[str]:
    """The Parquet paths of all leaf columns, as Arrow names them."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_batches([], schema), sink)  # `empty_table` fails for UUIDs within structs
    parquet = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    return [parquet.column(index).path for index in range(len(parquet))]


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
    return pa.schema([_file_field(field) for field in fields])


def _file_field(field: NestedField) -> pa.Field:
    return pa.field(
        field.name, _file_type(field.field_type), nullable=field.optional, metadata={"PARQUET:field_id": str(field.field_id)}
    )


def _file_type(type_: Any) -> pa.DataType:
    match type_:
        case StructType():
            return pa.struct([_file_field(field) for field in type_.fields])
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
