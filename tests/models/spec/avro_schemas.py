"""Avro schemas of manifests and manifest lists, as the specification's tables give them."""

from __future__ import annotations

from typing import Any


def optional(name: str, type_: Any, field_id: int) -> dict[str, Any]:
    return {"name": name, "type": ["null", type_], "default": None, "field-id": field_id}


def required(name: str, type_: Any, field_id: int) -> dict[str, Any]:
    return {"name": name, "type": type_, "field-id": field_id}


def _metric(name: str, field_id: int, key_id: int, value_id: int, value: str) -> dict[str, Any]:
    pair = {
        "type": "record",
        "name": f"k{key_id}_v{value_id}",
        "fields": [required("key", "int", key_id), required("value", value, value_id)],
    }
    return optional(name, {"type": "array", "items": pair, "logicalType": "map"}, field_id)


def manifest_entry(version: int, partition: list[dict[str, Any]]) -> dict[str, Any]:
    """The schema of a manifest of a format version; `partition` holds the Avro fields of the partition tuple."""
    data_file = [
        required("file_path", "string", 100),
        required("file_format", "string", 101),
        required("partition", {"type": "record", "name": "r102", "fields": partition}, 102),
        required("record_count", "long", 103),
        required("file_size_in_bytes", "long", 104),
        _metric("column_sizes", 108, 117, 118, "long"),
        _metric("value_counts", 109, 119, 120, "long"),
        _metric("null_value_counts", 110, 121, 122, "long"),
        _metric("nan_value_counts", 137, 138, 139, "long"),
        _metric("lower_bounds", 125, 126, 127, "bytes"),
        _metric("upper_bounds", 128, 129, 130, "bytes"),
        optional("key_metadata", "bytes", 131),
        optional("split_offsets", {"type": "array", "items": "long", "element-id": 133}, 132),
        optional("sort_order_id", "int", 140),
    ]
    entry = [required("status", "int", 0), optional("snapshot_id", "long", 1)]
    if version == 1:
        data_file.insert(5, required("block_size_in_bytes", "long", 105))
    else:
        entry += [optional("sequence_number", "long", 3), optional("file_sequence_number", "long", 4)]
        data_file.insert(0, required("content", "int", 134))
        data_file += [
            optional("equality_ids", {"type": "array", "items": "int", "element-id": 136}, 135),
            optional("first_row_id", "long", 142),
            optional("referenced_data_file", "string", 143),
            optional("content_offset", "long", 144),
            optional("content_size_in_bytes", "long", 145),
        ]
    entry.append(required("data_file", {"type": "record", "name": "r2", "fields": data_file}, 2))
    return {"type": "record", "name": "manifest_entry", "fields": entry}


def manifest_list(version: int) -> dict[str, Any]:
    fields = [
        required("manifest_path", "string", 500),
        required("manifest_length", "long", 501),
        required("partition_spec_id", "int", 502),
    ]
    if version > 1:
        fields += [
            required("content", "int", 517),
            required("sequence_number", "long", 515),
            required("min_sequence_number", "long", 516),
        ]
    fields.append(required("added_snapshot_id", "long", 503))
    fields += [
        required(f"{kind}_files_count", "int", field_id)
        for kind, field_id in (("added", 504), ("existing", 505), ("deleted", 506))
    ]
    fields += [
        required(f"{kind}_rows_count", "long", field_id)
        for kind, field_id in (("added", 512), ("existing", 513), ("deleted", 514))
    ]
    if version > 2:
        fields.append(optional("first_row_id", "long", 520))
    return {"type": "record", "name": "manifest_file", "fields": fields}
