"""Entries carried over from an older manifest, byte for byte.

What a manifest says of a file, its metrics above all, is not decoded and encoded again: from the decoded columns the size of
every field is computed, which tells where it lies in the bytes. Only what a commit changes (status, snapshot, sequence
numbers, row ids) is put in anew, for all entries at once.
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
from pyarctic.iceberg.manifest.reader import DATA, DELETED, EXISTING, RawManifest, describe_entries
from pyarctic.iceberg.write.manifest.avro_bytes import (
    Integers,
    UnknownLayout,
    as_slices,
    encode_numbers,
    encode_optional_numbers,
    encoded_sizes,
    join,
    layout,
)
from pyarctic.iceberg.write.manifest.avro_schemas import entry_schema
from pyarctic.iceberg.write.manifest.entries import EntryBatch, described_batch, physical_schema, without_logical_types

_CONTENT_ID, _FIRST_ROW_ID, _PARTITION_ID = 134, 142, 102
_Run = tuple[int, int]
"""Fields of the source in sequence: the first, and the one behind the last."""


def carried_entries(version: int, raw: RawManifest, removed: pl.Series, snapshot_id: int) -> EntryBatch:
    """The live entries of a manifest: EXISTING, or DELETED by this snapshot where `removed` is true (a row per entry)."""
    described = describe_entries(raw)
    status = pl.when(removed).then(DELETED).otherwise(EXISTING).cast(pl.Int32)
    live = described.with_columns(
        status=pl.when(pl.col("status") == DELETED).then(None).otherwise(status),
        snapshot_id=pl.when(removed).then(snapshot_id).otherwise("snapshot_id"),
    )
    rows = live.select(pl.arg_where(pl.col("status").is_not_null())).to_series()
    schema = entry_schema(version, _partition_type(raw))
    try:
        encoded = _spliced(raw, live.with_columns(pl.col("status").fill_null(EXISTING)), schema).take(rows.to_arrow())
    except UnknownLayout:
        encoded = _encoded_anew(raw, live, schema)
    batch = described_batch(schema, encoded, raw.ref.spec_id, raw.ref.content, snapshot_id)
    expected = live[rows]
    _check(raw, batch.facts, expected)
    facts = pl.concat([expected, batch.facts.select(batch.partition_columns)], how="horizontal")
    return replace(batch, facts=facts)


def _spliced(raw: RawManifest, described: pl.DataFrame, schema: dict[str, Any]) -> pa.LargeBinaryArray:
    """All entries in the new schema, with most of their bytes copied."""
    sizes = _field_sizes(raw)
    places = _places(raw.fields)
    parts: list[_Run | pa.Array | bytes] = []
    for field in [*schema["fields"][:-1], *_data_file_fields(schema)]:
        place = places.get(field["field-id"])
        if field["field-id"] in _NUMBERS:
            parts.append(_number(field, described))
        elif place is None:
            parts.append(_absent(field))
        else:
            _require_equal_layout(raw, field, place)
            _add_run(parts, place)
    copied = iter(_slices(raw.container.body, sizes, [part for part in parts if isinstance(part, tuple)]))
    return join(*[next(copied) if isinstance(part, tuple) else part for part in parts])


def _add_run(parts: list[_Run | pa.Array | bytes], place: _Run) -> None:
    """Fields that follow each other in the source are copied as one piece."""
    last = parts[-1] if parts else None
    if isinstance(last, tuple) and last[1] == place[0]:
        parts[-1] = (last[0], place[1])
    else:
        parts.append(place)


def _field_sizes(raw: RawManifest) -> list[Integers]:
    sizes = []
    for field, name in zip(raw.fields, raw.names, strict=True):
        sizes.append(encoded_sizes(raw.frame[name].to_arrow(), field.type))  # type: ignore[index]  # everything was decoded
    if sum(int(size.sum()) for size in sizes) != len(raw.container.body):
        raise UnknownLayout("lengths differ")  # arrays in several blocks, or numbers longer than they need be
    return sizes


def _places(fields: list[AvroField]) -> dict[int, _Run]:
    """For every field of a data file, which of the flattened fields it is; the partition tuple is several, or none."""
    places: dict[int, _Run] = {}
    for index, field in enumerate(fields):
        if len(field.path) > 2:
            start = places[_PARTITION_ID][0] if _PARTITION_ID in places else index
            places[_PARTITION_ID] = (start, index + 1)
        elif len(field.path) == 2 and field.field_id is not None:
            places[field.field_id] = (index, index + 1)
    if _PARTITION_ID not in places:  # no field at all: nothing stands for it in the bytes, wherever it is
        after = next(index for index, field in enumerate(fields) if field.field_id == 101) + 1
        places[_PARTITION_ID] = (after, after)
    return places


def _slices(body: bytes, sizes: list[Integers], runs: list[_Run]) -> list[pa.Array]:
    """The bytes of some runs of fields, for all entries."""
    cuts = sorted({0, len(sizes), *(cut for run in runs for cut in run)})
    lengths = np.stack([np.sum(sizes[a:b], axis=0) for a, b in pairwise(cuts)], axis=1)
    everything = as_slices(body, lengths.ravel())
    width = lengths.shape[1]
    found = []
    for start, end in runs:
        columns = [
            everything.take(pa.array(np.arange(column, len(everything), width)))
            for column in range(cuts.index(start), cuts.index(end))
        ]
        found.append(join(*columns) if columns else as_slices(b"", np.zeros(lengths.shape[0], np.int64)))
    return found


def _require_equal_layout(raw: RawManifest, field: dict[str, Any], place: _Run) -> None:
    if field["field-id"] == _PARTITION_ID:
        return  # the schema took the type over
    if layout(physical_type(field["type"])) != layout(raw.fields[place[0]].type):
        raise UnknownLayout(field["name"])


_NUMBERS = {
    0: "status",
    1: "snapshot_id",
    3: "data_sequence_number",
    4: "file_sequence_number",
    _FIRST_ROW_ID: "first_row_id",
}


def _number(field: dict[str, Any], described: pl.DataFrame) -> pa.Array:
    values = described[_NUMBERS[field["field-id"]]].to_arrow()
    if isinstance(field["type"], list):
        return encode_optional_numbers(values)
    return encode_numbers(values.to_numpy().astype(np.int64))


def _absent(field: dict[str, Any]) -> bytes:
    """A field that an older version did not have: null, or data."""
    if isinstance(field["type"], list) or field["field-id"] == _CONTENT_ID:
        return b"\x00"
    raise UnknownLayout(field["name"])


def _data_file_fields(schema: dict[str, Any]) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = schema["fields"][-1]["type"]["fields"]
    return fields


def _partition_type(raw: RawManifest) -> Any:
    """The Avro record of the partition tuple, as the manifest has it: values of dropped columns keep their type."""
    data_file = next(field for field in raw.container.schema["fields"] if field["name"] == "data_file")
    partition = next(field for field in data_file["type"]["fields"] if field["name"] == "partition")
    return {**partition["type"], "name": "r102"}


def _check(raw: RawManifest, written: pl.DataFrame, expected: pl.DataFrame) -> None:
    """Read back, the entries must say what they said before: a byte out of place must never reach a table."""
    columns = [name for name in expected.columns if name != "manifest_path"]
    if not written.select(columns).equals(expected.select(columns)):
        raise Damaged(
            f"entries of manifest {raw.ref.path} cannot be carried over",
            hint="This is a fault of PyArctic, nothing was written. Please report it with the manifest.",
            file=raw.ref.path,
        )


def _encoded_anew(raw: RawManifest, described: pl.DataFrame, schema: dict[str, Any]) -> pa.LargeBinaryArray:
    """The live entries decoded and encoded one by one: for writers whose bytes are not laid out as ours."""
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
        outer = {field["name"]: facts[_NUMBERS[field["field-id"]]] for field in schema["fields"][:-1]}
        target = io.BytesIO()
        fastavro.schemaless_writer(target, encoder, {**outer, "data_file": data_file})
        encoded.append(target.getvalue())
    return pa.array(encoded, pa.large_binary())
