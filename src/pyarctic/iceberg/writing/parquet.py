"""Data files in Parquet, rolled at the table's target size, with the metrics that planners of all engines rely on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.schema import Schema
from pyiceberg.types import ListType, MapType, NestedField, StructType, UUIDType

from pyarctic.errors import UsageError
from pyarctic.iceberg.manifests import DATA
from pyarctic.iceberg.projection import arrow_type
from pyarctic.iceberg.writing.newfile import Metrics, NewFile, Target
from pyarctic.iceberg.writing.properties import number, positive_property

_CODECS = {"uncompressed": "none", "zstd": "zstd", "gzip": "gzip", "snappy": "snappy", "lz4": "lz4", "brotli": "brotli"}
_FIRST_GUESS = 0.4
"""Bytes in the file for a byte in memory, until the first row group tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetSettings:
    """How the table's properties want its Parquet files; defaults are Iceberg's own."""

    codec: str
    level: int | None
    row_group_bytes: int
    row_group_rows: int
    page_bytes: int
    dictionary_bytes: int
    target_bytes: int

    @classmethod
    def of(cls, properties: Mapping[str, str], kind: str = "write.parquet") -> Self:
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
            level=number(f"{kind}.compression-level", level) if level and codec in ("zstd", "gzip", "brotli") else None,
            row_group_bytes=positive_property(properties, f"{kind}.row-group-size-bytes", 128 << 20),
            row_group_rows=positive_property(properties, f"{kind}.row-group-limit", 1 << 20),
            page_bytes=positive_property(properties, f"{kind}.page-size-bytes", 1 << 20),
            dictionary_bytes=positive_property(properties, f"{kind}.dict-size-bytes", 2 << 20),
            target_bytes=positive_property(properties, "write.target-file-size-bytes", 512 << 20),
        )

    def writer(self, stream: OutputStream, schema: pa.Schema, metadata: list[pq.FileMetaData]) -> pq.ParquetWriter:
        # Arrow's own schema is left out: it would make readers in Python see types that the table does not have.
        return pq.ParquetWriter(
            stream,
            schema,
            compression=self.codec,
            compression_level=self.level,
            data_page_size=self.page_bytes,
            dictionary_pagesize_limit=self.dictionary_bytes,
            store_schema=False,
            metadata_collector=metadata,
        )


class DataFileWriter:
    """Writes batches into one or more data files of one partition: `with DataFileWriter(target) as w: w.write(batch)`, then
    `w.files`. Leaving the block by an exception removes what was written."""

    def __init__(
        self, target: Target, *, extra_fields: Sequence[NestedField] = (), sort_order_id: int | None = None
    ) -> None:
        """`extra_fields`: columns beside those of the table, such as v3 row lineage."""
        self.files: list[NewFile] = []
        self._target = target
        self._fields = (*target.schema.fields, *extra_fields)
        self._schema = file_schema(self._fields)
        self._settings = ParquetSettings.of(target.metadata.properties)
        self._sort_order_id = sort_order_id
        self._floats = [index for index, field in enumerate(self._schema) if pa.types.is_floating(field.type)]
        self._ratio = _FIRST_GUESS
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._open: _OpenDataFile | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows. Columns are taken by name and must fit the table's types."""
        rows = self._fitted(batch)
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        settings = self._settings
        written = self._open.stream.tell() if self._open else 0
        full_file = written + self._waiting_bytes * self._ratio >= settings.target_bytes
        if full_file or self._waiting_bytes >= settings.row_group_bytes or self._waiting_rows >= settings.row_group_rows:
            self._flush()
        if self._open and self._open.stream.tell() >= settings.target_bytes:
            self._finish()

    def close(self) -> list[NewFile]:
        """Write what waits; gives all files."""
        self._flush()
        self._finish()
        return self.files

    def abort(self) -> None:
        """Remove everything that was written."""
        paths = [file.path for file in self.files]
        if self._open:
            self._open.close()
            paths.append(self._open.path)
        self._open, self.files, self._waiting = None, [], []
        for path in paths:
            self._target.io.delete(path)

    def _flush(self) -> None:
        if not self._waiting_rows:
            return
        if self._open is None:
            self._open = _OpenDataFile(self._target, self._settings, self._schema, len(self._floats))
        table = pa.Table.from_batches(self._waiting, schema=self._schema)
        before = self._open.stream.tell()
        self._open.writer.write_table(table, row_group_size=table.num_rows)
        self._ratio = (self._open.stream.tell() - before) / max(self._waiting_bytes, 1)
        for place, index in enumerate(self._floats):
            self._open.nans[place] += pc.sum(pc.is_nan(table.column(index))).as_py() or 0
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def _finish(self) -> None:
        if self._open is None:
            return
        done, self._open = self._open, None
        nans = {self._fields[index].field_id: count for index, count in zip(self._floats, done.nans, strict=True)}
        metadata = done.close()
        metrics, offsets = parquet_metrics(metadata, self._fields, self._target.metadata.properties, nans)
        self.files.append(
            NewFile(
                content=DATA,
                path=done.path,
                file_format="PARQUET",
                spec_id=self._target.spec_id,
                partition=self._target.partition,
                record_count=metadata.num_rows,
                file_size_bytes=done.size,
                metrics=metrics,
                split_offsets=offsets,
                sort_order_id=self._sort_order_id,
            )
        )

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        missing = [field.name for field in self._schema if field.name not in batch.schema.names]
        unknown = [name for name in batch.schema.names if name not in self._schema.names]
        if missing or unknown:
            raise UsageError(
                f"columns do not fit the table: missing {missing or 'none'}, unknown {unknown or 'none'}",
                hint=f"The table has: {', '.join(self._schema.names)}.",
            )
        try:
            arrays = [_storable(batch.column(field.name), field) for field in self._schema]
            return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        except (pa.ArrowException, ValueError) as cause:
            raise UsageError(f"values do not fit the table's types: {cause}", hint=f"They are:\n{self._schema}") from cause


class _OpenDataFile:
    def __init__(self, target: Target, settings: ParquetSettings, schema: pa.Schema, floats: int) -> None:
        self.path = target.new_path(".parquet")
        self.stream = target.io.new_output(self.path).create()
        self.nans = [0] * floats
        self.size = 0
        self._collected: list[pq.FileMetaData] = []
        self.writer = settings.writer(self.stream, schema, self._collected)

    def close(self) -> pq.FileMetaData:
        self.writer.close()
        self.size = self.stream.tell()
        self.stream.close()
        return self._collected[0]


def parquet_metrics(
    metadata: pq.FileMetaData, fields: Sequence[NestedField], properties: Mapping[str, str], nans: Mapping[int, int]
) -> tuple[Metrics, tuple[int, ...]]:
    """Metrics and split offsets from a file's footer, as `write.metadata.metrics.*` wants them."""
    schema = Schema(*fields)
    plan = compute_statistics_plan(schema, dict(properties))
    found = data_file_statistics_from_parquet_metadata(metadata, plan, parquet_path_to_id_mapping(schema))
    values = found.to_serialized_dict()
    metrics = Metrics(
        column_sizes=values["column_sizes"],
        value_counts=values["value_counts"],
        null_counts=values["null_value_counts"],
        nan_counts={field_id: count for field_id, count in nans.items() if field_id in values["value_counts"]},
        lower_bounds=values["lower_bounds"],
        upper_bounds=values["upper_bounds"],
    )
    return metrics, tuple(found.split_offsets)


def file_schema(fields: Sequence[NestedField]) -> pa.Schema:
    """The Arrow schema to write with: field ids in the metadata, UUIDs marked as such."""
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


def _storable(array: pa.Array, field: pa.Field) -> pa.Array:
    if not field.nullable and array.null_count:
        msg = f"column {field.name!r} is required and has nulls"
        raise ValueError(msg)
    if array.type.equals(field.type):
        return array
    if isinstance(field.type, pa.ExtensionType):
        return pa.ExtensionArray.from_storage(field.type, array.cast(field.type.storage_type))
    return array.cast(field.type)
