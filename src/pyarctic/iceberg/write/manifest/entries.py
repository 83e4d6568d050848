"""Encoded manifest entries together with their decoded values, and the encoding of entries of new files."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import numpy as np
import polars as pl
import pyarrow as pa
from pyiceberg.table.metadata import TableMetadata

from pyarctic.iceberg.manifest.avro import AvroContainer, AvroField
from pyarctic.iceberg.manifest.partition_keys import EXACT_DECIMALS
from pyarctic.iceberg.manifest.reader import (
    ADDED,
    DATA,
    DATA_MANIFEST,
    DELETES_MANIFEST,
    ManifestRef,
    decode_manifest,
    describe_entries,
)
from pyarctic.iceberg.write.manifest.avro_schemas import V1_BLOCK_SIZE, entry_schema, partition_record
from pyarctic.iceberg.write.new_file import NewFile

_NO_SYNC = bytes(16)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryBatch:
    """Encoded entries of one partition spec and one content. `facts` has a row for each, as described by `describe_entries`
    (a sequence number still to be inherited is null), and the columns of the partition tuple."""

    spec_id: int
    content: int
    schema: dict[str, Any]
    encoded: pa.LargeBinaryArray
    facts: pl.DataFrame
    partition_fields: tuple[tuple[str, AvroField], ...]

    def take(self, rows: pl.Series) -> EntryBatch:
        """Some of the entries, in this order."""
        return replace(self, encoded=self.encoded.take(rows.to_arrow()), facts=self.facts[rows])

    def cluster(self) -> EntryBatch:
        """Sort the entries by partition, so that each manifest covers few partitions."""
        order = self.facts.select(pl.arg_sort_by(*self.partition_columns, "file_path"))
        return self.take(order.to_series())

    @property
    def partition_columns(self) -> list[str]:
        """Columns of `facts` with the partition tuple."""
        return [name for name, _ in self.partition_fields]

    def can_concat(self, other: EntryBatch) -> bool:
        """Whether the entries of both may be in one manifest."""
        return (self.spec_id, self.content) == (other.spec_id, other.content) and self.schema == other.schema

    @classmethod
    def concat(cls, batches: Sequence[EntryBatch]) -> EntryBatch:
        """The entries of all batches; they must satisfy `can_concat`."""
        return replace(
            batches[0],
            encoded=pa.concat_arrays([batch.encoded for batch in batches]),
            facts=pl.concat([batch.facts for batch in batches]),
        )


def new_entries(metadata: TableMetadata, files: Sequence[NewFile], snapshot_id: int) -> EntryBatch:
    """Encode the entries of added files, all of one spec and one content: data or deletes."""
    spec = metadata.specs()[files[0].spec_id]
    partition = partition_record(metadata, spec)
    schema = entry_schema(metadata.format_version, partition)
    encoder = fastavro.parse_schema(physical_schema(schema))
    partition_types = [field["type"][-1] for field in partition["fields"]]
    names = [field["name"] for field in partition["fields"]]
    encoded = []
    for file in files:
        values = [_to_physical(value, kind) for value, kind in zip(file.partition, partition_types, strict=True)]
        record = _entry(file, dict(zip(names, values, strict=True)), snapshot_id)
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, encoder, record)
        encoded.append(stream.getvalue())
    content = DATA_MANIFEST if files[0].content == DATA else DELETES_MANIFEST
    batch = describe_batch(schema, pa.array(encoded, pa.large_binary()), spec.spec_id, content, snapshot_id)
    if metadata.format_version == 1:
        return batch
    # The sequence number is assigned by the commit, unless it was given.
    given = pl.Series([file.data_sequence_number for file in files], dtype=pl.Int64)
    return replace(
        batch, facts=batch.facts.with_columns(data_sequence_number=given, file_sequence_number=pl.lit(None, pl.Int64))
    )


def partition_columns_of(batch: EntryBatch) -> list[tuple[AvroField, pl.Series]]:
    """The columns of the partition tuple in physical form, with their Avro fields."""
    return [(field, batch.facts[name]) for name, field in batch.partition_fields]


def describe_batch(
    schema: dict[str, Any], encoded: pa.LargeBinaryArray, spec_id: int, content: int, snapshot_id: int
) -> EntryBatch:
    """Decode encoded entries, so that their facts are exactly what readers will find."""
    container = AvroContainer(
        path="entries to be written",
        metadata={},
        schema=schema,
        sync=_NO_SYNC,
        count=len(encoded),
        body=concat_entries(encoded),
    )
    ref = ManifestRef(
        path=container.path,
        length=len(container.body),
        spec_id=spec_id,
        content=content,
        sequence_number=0,
        added_snapshot_id=snapshot_id,
    )
    raw = decode_manifest(container, ref, metrics=content == DELETES_MANIFEST)
    facts = describe_entries(raw).with_columns(raw.frame["first_row_id"])  # as written, not as inherited
    fields = dict(zip(raw.names, raw.fields, strict=True))
    return EntryBatch(
        spec_id=spec_id,
        content=content,
        schema=schema,
        encoded=encoded,
        facts=pl.concat([facts, raw.frame.select(raw.partition_columns)], how="horizontal"),
        partition_fields=tuple((name, fields[name]) for name in raw.partition_columns),
    )


def concat_entries(encoded: pa.LargeBinaryArray) -> bytes:
    """The bytes of all entries."""
    if not len(encoded):
        return b""
    packed = pa.concat_arrays([encoded])  # copied into a new buffer if it was a slice
    _, offsets, data = packed.buffers()
    bounds = np.frombuffer(offsets, np.int64)[packed.offset : packed.offset + len(packed) + 1]
    return bytes(data[int(bounds[0]) : int(bounds[-1])])


def without_logical_types(schema: Any) -> Any:
    """The Avro schema without its logical types."""
    if isinstance(schema, dict):
        return {key: without_logical_types(value) for key, value in schema.items() if key != "logicalType"}
    return [without_logical_types(item) for item in schema] if isinstance(schema, list) else schema


def physical_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema for the encoder, which takes values in physical form."""
    plain: dict[str, Any] = without_logical_types(json.loads(json.dumps(schema)))
    return plain


def _entry(file: NewFile, partition: dict[str, Any], snapshot_id: int) -> dict[str, Any]:
    """The entry of an added file. The encoder ignores fields that the format version does not have."""
    metrics = file.metrics
    data_file = {
        "content": file.content,
        "file_path": file.path,
        "file_format": file.file_format,
        "partition": partition,
        "record_count": file.record_count,
        "file_size_in_bytes": file.file_size_bytes,
        "block_size_in_bytes": V1_BLOCK_SIZE,
        "column_sizes": _to_pairs(metrics.column_sizes),
        "value_counts": _to_pairs(metrics.value_counts),
        "null_value_counts": _to_pairs(metrics.null_counts),
        "nan_value_counts": _to_pairs(metrics.nan_counts),
        "lower_bounds": _to_pairs(metrics.lower_bounds),
        "upper_bounds": _to_pairs(metrics.upper_bounds),
        "split_offsets": list(file.split_offsets) or None,
        "equality_ids": list(file.equality_ids) or None,
        "sort_order_id": file.sort_order_id,
        "referenced_data_file": file.referenced_data_file,
        "content_offset": file.content_offset,
        "content_size_in_bytes": file.content_size_bytes,
    }
    return {
        "status": ADDED,
        "snapshot_id": snapshot_id,
        "sequence_number": file.data_sequence_number,
        "data_file": data_file,
    }


def _to_pairs(values: Any) -> list[dict[str, Any]] | None:
    return [{"key": key, "value": value} for key, value in values.items()] or None


def _to_physical(value: Any, kind: Any) -> Any:
    """A partition value in the physical form of its Avro type."""
    match value:
        case UUID():
            return value.bytes
        case Decimal():
            unscaled = int(value.scaleb(kind["scale"], EXACT_DECIMALS))
            return unscaled.to_bytes(kind["size"], "big", signed=True)
    return value
