"""The Avro schemas of written manifests and manifest lists, per format version."""

from __future__ import annotations

from typing import Any

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import NestedField
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from pyarctic.errors import UsageError
from pyarctic.iceberg.manifest.partition_keys import PartitionDecoder

AvroType = Any
V1_BLOCK_SIZE = 64 << 20
"""Format version 1 requires a block size, which is not used; this is the value of Iceberg Java."""


def entry_schema(version: int, partition: AvroType) -> dict[str, Any]:
    """The schema of a manifest; `partition` is the Avro record of the partition tuple."""
    entry = [_required("status", "int", 0), _optional("snapshot_id", "long", 1)]
    if version > 1:
        entry += [_optional("sequence_number", "long", 3), _optional("file_sequence_number", "long", 4)]
    data_file = {"type": "record", "name": "r2", "fields": _data_file_fields(version, partition)}
    return {"type": "record", "name": "manifest_entry", "fields": [*entry, _required("data_file", data_file, 2)]}


def _data_file_fields(version: int, partition: AvroType) -> list[dict[str, Any]]:
    fields = [
        _required("content", "int", 134),
        _required("file_path", "string", 100),
        _required("file_format", "string", 101),
        _required("partition", partition, 102),
        _required("record_count", "long", 103),
        _required("file_size_in_bytes", "long", 104),
        _required("block_size_in_bytes", "long", 105),
        _optional("column_sizes", _map(117, 118, "long"), 108),
        _optional("value_counts", _map(119, 120, "long"), 109),
        _optional("null_value_counts", _map(121, 122, "long"), 110),
        _optional("nan_value_counts", _map(138, 139, "long"), 137),
        _optional("lower_bounds", _map(126, 127, "bytes"), 125),
        _optional("upper_bounds", _map(129, 130, "bytes"), 128),
        _optional("key_metadata", "bytes", 131),
        _optional("split_offsets", {"type": "array", "items": "long", "element-id": 133}, 132),
        _optional("equality_ids", {"type": "array", "items": "int", "element-id": 136}, 135),
        _optional("sort_order_id", "int", 140),
        _optional("first_row_id", "long", 142),
        _optional("referenced_data_file", "string", 143),
        _optional("content_offset", "long", 144),
        _optional("content_size_in_bytes", "long", 145),
    ]
    # Version 2 may reference the data file of a position delete, as Iceberg Java does; row ids and vectors need version 3.
    absent = {1: {134, 135, 142, 143, 144, 145}, 2: {105, 142, 144, 145}}.get(version, {105})
    return [field for field in fields if field["field-id"] not in absent]


def manifest_list_schema(version: int) -> dict[str, Any]:
    """The schema of a manifest list."""
    range_ = [
        _required("contains_null", "boolean", 509),
        _optional("contains_nan", "boolean", 518),
        _optional("lower_bound", "bytes", 510),
        _optional("upper_bound", "bytes", 511),
    ]
    ranges = {"type": "array", "items": {"type": "record", "name": "r508", "fields": range_}, "element-id": 508}
    fields = [
        _required("manifest_path", "string", 500),
        _required("manifest_length", "long", 501),
        _required("partition_spec_id", "int", 502),
        _required("content", "int", 517),
        _required("sequence_number", "long", 515),
        _required("min_sequence_number", "long", 516),
        _required("added_snapshot_id", "long", 503),
        _required("added_files_count", "int", 504),
        _required("existing_files_count", "int", 505),
        _required("deleted_files_count", "int", 506),
        _required("added_rows_count", "long", 512),
        _required("existing_rows_count", "long", 513),
        _required("deleted_rows_count", "long", 514),
        _optional("partitions", ranges, 507),
        _optional("key_metadata", "bytes", 519),
        _optional("first_row_id", "long", 520),
    ]
    absent = {1: {517, 515, 516, 520}, 2: {520}}.get(version, set())
    return {
        "type": "record",
        "name": "manifest_file",
        "fields": [field for field in fields if field["field-id"] not in absent],
    }


def partition_record(metadata: TableMetadata, spec: PartitionSpec) -> AvroType:
    """The Avro record of a spec's partition tuples."""
    decoder = PartitionDecoder(metadata)
    fields = []
    for field in spec.fields:
        result = decoder.result_type(field)
        if result is None:
            raise UsageError(
                f"the column of partition field {field.name!r} was dropped, and its type is no longer known",
                hint="Write with the table's current partition spec.",
            )
        fields.append(NestedField(field.field_id, field.name, result, required=False))
    record: dict[str, Any] = AvroSchemaConversion().iceberg_to_avro(Schema(*fields), schema_name="r102")  # type: ignore[assignment]
    for field in record["fields"]:
        # Two fields of the same type would define its name twice, which Avro forbids.
        for option in field["type"]:
            if isinstance(option, dict) and "name" in option:
                option["name"] += f"_{field['field-id']}"
    return record


def _required(name: str, type_: AvroType, field_id: int) -> dict[str, Any]:
    return {"name": name, "type": type_, "field-id": field_id}


def _optional(name: str, type_: AvroType, field_id: int) -> dict[str, Any]:
    return {"name": name, "type": ["null", type_], "default": None, "field-id": field_id}


def _map(key_id: int, value_id: int, value: str) -> AvroType:
    """A map as an array of pairs, because Avro's own maps have string keys only."""
    pair = [_required("key", "int", key_id), _required("value", value, value_id)]
    items = {"type": "record", "name": f"k{key_id}_v{value_id}", "fields": pair}
    return {"type": "array", "logicalType": "map", "items": items}
