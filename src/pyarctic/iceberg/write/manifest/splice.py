"""Manifest entries carried over from an existing manifest as bytes.

Most fields of an entry, above all its column metrics, are not decoded and encoded again: the sizes of all fields are
computed from the decoded columns, which gives their positions in the bytes. Only the fields that a commit changes (status,
snapshot, sequence numbers, row ids) are encoded, for all entries at once.
"""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import pairwise
from typing import Any

import fastavro
import numpy as np
import polars as pl
import pyarrow as pa

from pyarctic.errors import Damaged
from pyarctic.iceberg.manifest.avro import AvroField, physical_type
from pyarctic.iceberg.manifest.reader import DATA, DELETED, EXISTING, RawManifests, describe_entries
from pyarctic.iceberg.write.manifest.avro_bytes import (
    Integers,
    UnknownLayout,
    concat_bytes,
    encode_numbers,
    encode_optional_numbers,
    encoded_sizes,
    layout,
    slice_bytes,
)
from pyarctic.iceberg.write.manifest.avro_schemas import entry_schema
from pyarctic.iceberg.write.manifest.entries import EntryBatch, describe_batch, physical_schema, without_logical_types

_CONTENT_ID, _FIRST_ROW_ID, _PARTITION_ID = 134, 142, 102
_Run = tuple[int, int]
"""Consecutive fields of the source: the index of the first, and that after the last."""


def carry_entries(version: int, raw: RawManifests, removed: pl.Series, snapshot_id: int) -> EntryBatch:
    """The live entries of manifests: EXISTING, or DELETED by this snapshot if `removed` is true (one row per entry)."""
    described = describe_entries(raw)
    status = pl.when(removed).then(DELETED).otherwise(EXISTING).cast(pl.Int32)
    live = described.with_columns(
        status=pl.when(pl.col("status") == DELETED).then(None).otherwise(status),
        snapshot_id=pl.when(removed).then(snapshot_id).otherwise("snapshot_id"),
    )
    rows = live.select(pl.arg_where(pl.col("status").is_not_null())).to_series()
    schema = entry_schema(version, _partition_record(raw))
    try:
        encoded = _splice(raw, live.with_columns(pl.col("status").fill_null(EXISTING)), schema).take(rows.to_arrow())
    except UnknownLayout:
        encoded = _reencode(raw, live, schema)
    batch = describe_batch(schema, encoded, raw.refs[0].spec_id, raw.refs[0].content, snapshot_id)
    expected = live[rows]
    _check_unchanged(raw, batch.facts, expected)
    facts = pl.concat([expected, batch.facts.select(batch.partition_columns)], how="horizontal")
    return replace(batch, facts=facts)


def _splice(raw: RawManifests, described: pl.DataFrame, schema: dict[str, Any]) -> pa.LargeBinaryArray:
    """All entries in the new schema, with most bytes copied."""
    sizes = _field_sizes(raw)
    runs = _field_runs(raw.fields)
    parts: list[_Run | pa.Array | bytes] = []
    for field in [*schema["fields"][:-1], *_data_file_fields(schema)]:
        run = runs.get(field["field-id"])
        if field["field-id"] in _CHANGED_FIELDS:
            parts.append(_encode_number_field(field, described))
        elif run is None:
            parts.append(_default_bytes(field))
        else:
            _require_equal_layout(raw, field, run)
            _add_run(parts, run)
    copied = iter(_slice_runs(raw.container.body, sizes, [part for part in parts if isinstance(part, tuple)]))
    return concat_bytes(*[next(copied) if isinstance(part, tuple) else part for part in parts])


def _add_run(parts: list[_Run | pa.Array | bytes], run: _Run) -> None:
    """Add a run; consecutive runs are merged, to be copied at once."""
    last = parts[-1] if parts else None
    if isinstance(last, tuple) and last[1] == run[0]:
        parts[-1] = (last[0], run[1])
    else:
        parts.append(run)


def _field_sizes(raw: RawManifests) -> list[Integers]:
    sizes = []
    for field, name in zip(raw.fields, raw.names, strict=True):
        sizes.append(encoded_sizes(raw.frame[name].to_arrow(), field.type))  # type: ignore[index]  # everything was decoded
    if sum(int(size.sum()) for size in sizes) != len(raw.container.body):
        raise UnknownLayout("lengths differ")  # arrays in several blocks, or numbers not in their shortest form
    return sizes


def _field_runs(fields: list[AvroField]) -> dict[int, _Run]:
    """Field id → run of flattened fields, for the fields of `data_file`. The partition tuple has any number of fields."""
    runs: dict[int, _Run] = {}
    for index, field in enumerate(fields):
        if len(field.path) > 2:
            start = runs[_PARTITION_ID][0] if _PARTITION_ID in runs else index
            runs[_PARTITION_ID] = (start, index + 1)
        elif len(field.path) == 2 and field.field_id is not None:
            runs[field.field_id] = (index, index + 1)
    if _PARTITION_ID not in runs:  # the empty tuple takes no bytes, so its position does not matter
        after = next(index for index, field in enumerate(fields) if field.field_id == 101) + 1
        runs[_PARTITION_ID] = (after, after)
    return runs


def _slice_runs(body: bytes, sizes: list[Integers], runs: list[_Run]) -> list[pa.Array]:
    """The bytes of each run of fields, for all entries."""
    cuts = sorted({0, len(sizes), *(cut for run in runs for cut in run)})
    lengths = np.stack([np.sum(sizes[a:b], axis=0) for a, b in pairwise(cuts)], axis=1)
    slices = slice_bytes(body, lengths.ravel())
    width = lengths.shape[1]
    run_slices = []
    for start, end in runs:
        columns = [
            slices.take(pa.array(np.arange(column, len(slices), width)))
            for column in range(cuts.index(start), cuts.index(end))
        ]
        run_slices.append(concat_bytes(*columns) if columns else slice_bytes(b"", np.zeros(lengths.shape[0], np.int64)))
    return run_slices


def _require_equal_layout(raw: RawManifests, field: dict[str, Any], run: _Run) -> None:
    if field["field-id"] == _PARTITION_ID:
        return  # the schema has the partition type of the source
    if layout(physical_type(field["type"])) != layout(raw.fields[run[0]].type):
        raise UnknownLayout(field["name"])


_CHANGED_FIELDS = {
    0: "status",
    1: "snapshot_id",
    3: "data_sequence_number",
    4: "file_sequence_number",
    _FIRST_ROW_ID: "first_row_id",
}


def _encode_number_field(field: dict[str, Any], described: pl.DataFrame) -> pa.Array:
    values = described[_CHANGED_FIELDS[field["field-id"]]].to_arrow()
    if isinstance(field["type"], list):
        return encode_optional_numbers(values)
    return encode_numbers(values.to_numpy().astype(np.int64))


def _default_bytes(field: dict[str, Any]) -> bytes:
    """The encoding of a field that the source does not have: null, or content DATA."""
    if isinstance(field["type"], list) or field["field-id"] == _CONTENT_ID:
        return b"\x00"
    raise UnknownLayout(field["name"])


def _data_file_fields(schema: dict[str, Any]) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = schema["fields"][-1]["type"]["fields"]
    return fields


def _partition_record(raw: RawManifests) -> Any:
    """The Avro record of the partition tuple in the manifests, so that values of dropped columns keep their type."""
    data_file = next(field for field in raw.container.schema["fields"] if field["name"] == "data_file")
    partition = next(field for field in data_file["type"]["fields"] if field["name"] == "partition")
    return {**partition["type"], "name": "r102"}


def _check_unchanged(raw: RawManifests, written: pl.DataFrame, expected: pl.DataFrame) -> None:
    """Check that the decoded entries are the expected ones: a wrong byte must never get into a table."""
    columns = [name for name in expected.columns if name != "manifest_path"]
    if not written.select(columns).equals(expected.select(columns)):
        raise Damaged(
            f"entries of manifest {raw.refs[0].path} cannot be carried over",
            hint="This is a bug in PyArctic; nothing was written. Please report it together with the manifest.",
            file=raw.refs[0].path,
        )


def _reencode(raw: RawManifests, described: pl.DataFrame, schema: dict[str, Any]) -> pa.LargeBinaryArray:
    """Decode and encode the live entries one by one, for manifests with another byte layout."""
    container = raw.container
    decoder = fastavro.parse_schema(without_logical_types(container.schema))
    encoder = fastavro.parse_schema(physical_schema(schema))
    names = {field.field_id: field.path[-1] for field in raw.fields if len(field.path) == 2}
    stream = io.BytesIO(container.body)
    encoded = []
    for facts in described.iter_rows(named=True):
        source: dict[str, Any] = fastavro.schemaless_reader(stream, decoder)["data_file"]  # type: ignore[assignment,call-overload,index]
        if facts["status"] is None:
            continue
        data_file = {field["name"]: source.get(names.get(field["field-id"], "")) for field in _data_file_fields(schema)}
        data_file |= {"partition": source["partition"]}
        if _CONTENT_ID not in names:
            data_file["content"] = DATA
        if any(field["field-id"] == _FIRST_ROW_ID for field in _data_file_fields(schema)):
            data_file["first_row_id"] = facts["first_row_id"]
        outer = {field["name"]: facts[_CHANGED_FIELDS[field["field-id"]]] for field in schema["fields"][:-1]}
        target = io.BytesIO()
        fastavro.schemaless_writer(target, encoder, {**outer, "data_file": data_file})
        encoded.append(target.getvalue())
    return pa.array(encoded, pa.large_binary())
