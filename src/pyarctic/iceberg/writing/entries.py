"""Manifest entries in their encoded form: of new files, and of files carried over from an older manifest.

New entries are encoded one by one. Carried ones are not encoded at all: what a manifest says of a file, its metrics above
all, is copied byte for byte, and only what a commit changes (status, snapshot, sequence numbers, row ids) is put in anew.
"""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import numpy as np
import polars as pl
import pyarrow as pa
from pyiceberg.table.metadata import TableMetadata

from pyarctic.errors import Damaged
from pyarctic.iceberg.avro import AvroContainer, AvroField, physical_type
from pyarctic.iceberg.manifests import (
    ADDED,
    DATA,
    DATA_MANIFEST,
    DELETED,
    DELETES_MANIFEST,
    ManifestRef,
    RawManifest,
    decode_manifest,
    describe_entries,
)
from pyarctic.iceberg.partitions import EXACT
from pyarctic.iceberg.writing.avrobytes import (
    Integers,
    UnknownLayout,
    as_slices,
    encode_numbers,
    encode_optional_numbers,
    encoded_sizes,
    join,
    layout,
)
from pyarctic.iceberg.writing.manifestschema import V1_BLOCK_SIZE, entry_schema, partition_record
from pyarctic.iceberg.writing.newfile import NewFile

_NO_SYNC = bytes(16)
_BLOCK_SIZE_ID, _CONTENT_ID, _FIRST_ROW_ID, _PARTITION_ID = 105, 134, 142, 102


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryBatch:
    """Encoded entries of one partition spec and one content. `facts` has a row for each, as `describe_entries` gives it
    (a sequence number still to be inherited is null there), and the columns of the partition tuple."""

    spec_id: int
    content: int
    schema: dict[str, Any]
    encoded: pa.LargeBinaryArray
    facts: pl.DataFrame
    partition_fields: tuple[tuple[str, AvroField], ...]

    def take(self, rows: pl.Series) -> EntryBatch:
        """Some of the entries, in this order."""
        return EntryBatch(
            spec_id=self.spec_id,
            content=self.content,
            schema=self.schema,
            encoded=self.encoded.take(rows.to_arrow()),
            facts=self.facts[rows],
            partition_fields=self.partition_fields,
        )

    def clustered(self) -> EntryBatch:
        """Entries of one partition side by side, so that a manifest covers few of them."""
        order = self.facts.select(pl.arg_sort_by(*self._partition_columns, "file_path"))
        return self.take(order.to_series())

    @property
    def _partition_columns(self) -> list[str]:
        return [name for name, _ in self.partition_fields]

    def can_join(self, other: EntryBatch) -> bool:
        """True when both may stand in one manifest."""
        return (self.spec_id, self.content) == (other.spec_id, other.content) and self.schema == other.schema

    @classmethod
    def joined(cls, batches: Sequence[EntryBatch]) -> EntryBatch:
        """The entries of all batches, which `can_join`."""
        first = batches[0]
        return cls(
            spec_id=first.spec_id,
            content=first.content,
            schema=first.schema,
            encoded=pa.concat_arrays([batch.encoded for batch in batches]),
            facts=pl.concat([batch.facts for batch in batches]),
            partition_fields=first.partition_fields,
        )


def new_entries(metadata: TableMetadata, files: Sequence[NewFile], snapshot_id: int) -> EntryBatch:
    """Entries of added files, all of one spec and of one content: data, or deletes."""
    spec = metadata.specs()[files[0].spec_id]
    partition = partition_record(metadata, spec)
    schema = entry_schema(metadata.format_version, partition)
    encoder = fastavro.parse_schema(_physical_schema(schema))
    partition_types = [field["type"][-1] for field in partition["fields"]]
    names = [field["name"] for field in partition["fields"]]
    encoded = []
    for file in files:
        values = [_partition_value(value, kind) for value, kind in zip(file.partition, partition_types, strict=True)]
        record = _entry(file, dict(zip(names, values, strict=True)), snapshot_id)
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, encoder, record)
        encoded.append(stream.getvalue())
    content = DATA_MANIFEST if files[0].content == DATA else DELETES_MANIFEST
    batch = _described(schema, pa.array(encoded, pa.large_binary()), spec.spec_id, content, snapshot_id)
    if metadata.format_version == 1:
        return batch
    # Reading back gave them the sequence number of a manifest without one: it is still to come, unless it was fixed.
    fixed = pl.Series([file.data_sequence_number for file in files], dtype=pl.Int64)
    return _with_facts(
        batch, batch.facts.with_columns(data_sequence_number=fixed, file_sequence_number=pl.lit(None, pl.Int64))
    )


def carried_entries(version: int, raw: RawManifest, removed: pl.Series, snapshot_id: int) -> EntryBatch:
    """The live entries of a manifest: EXISTING, or DELETED by this snapshot where `removed` is true (a row per entry)."""
    described = describe_entries(raw)
    status = pl.when(removed).then(DELETED).otherwise(0).cast(pl.Int32)
    live = described.with_columns(
        status=pl.when(pl.col("status") == DELETED).then(None).otherwise(status),
        snapshot_id=pl.when(removed).then(snapshot_id).otherwise("snapshot_id"),
    )
    rows = live.select(pl.arg_where(pl.col("status").is_not_null())).to_series()
    schema = entry_schema(version, _partition_type(raw))
    try:
        encoded = _spliced(raw, live.with_columns(pl.col("status").fill_null(0)), schema).take(rows.to_arrow())
    except UnknownLayout:
        encoded = _encoded_anew(raw, live, schema)
    batch = _described(schema, encoded, raw.ref.spec_id, raw.ref.content, snapshot_id)
    expected = live[rows]
    _check(raw, batch.facts, expected)
    return _with_facts(batch, pl.concat([expected, batch.facts.select(batch._partition_columns)], how="horizontal"))


def raw_partitions(batch: EntryBatch) -> list[tuple[AvroField, pl.Series]]:
    """The columns of the partition tuple in their physical form, with what Avro says of them."""
    return [(field, batch.facts[name]) for name, field in batch.partition_fields]


def _with_facts(batch: EntryBatch, facts: pl.DataFrame) -> EntryBatch:
    return EntryBatch(
        spec_id=batch.spec_id,
        content=batch.content,
        schema=batch.schema,
        encoded=batch.encoded,
        facts=facts,
        partition_fields=batch.partition_fields,
    )


def _described(
    schema: dict[str, Any], encoded: pa.LargeBinaryArray, spec_id: int, content: int, snapshot_id: int
) -> EntryBatch:
    """Read encoded entries back: what is known of them is what any reader will find in them."""
    container = AvroContainer(
        path="entries to be written",
        metadata={},
        schema=schema,
        sync=_NO_SYNC,
        count=len(encoded),
        body=body_of(encoded),
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
    facts = describe_entries(raw).with_columns(raw.frame["first_row_id"])  # not as inherited, as written
    fields = dict(zip(raw.names, raw.fields, strict=True))
    return EntryBatch(
        spec_id=spec_id,
        content=content,
        schema=schema,
        encoded=encoded,
        facts=pl.concat([facts, raw.frame.select(raw.partition_columns)], how="horizontal"),
        partition_fields=tuple((name, fields[name]) for name in raw.partition_columns),
    )


def body_of(encoded: pa.LargeBinaryArray) -> bytes:
    """The entries one behind the other."""
    if not len(encoded):
        return b""
    packed = pa.concat_arrays([encoded])  # in a buffer of its own if it was a slice of another
    _, offsets, data = packed.buffers()
    bounds = np.frombuffer(offsets, np.int64)[packed.offset : packed.offset + len(packed) + 1]
    return bytes(data[int(bounds[0]) : int(bounds[-1])])


def _spliced(raw: RawManifest, described: pl.DataFrame, schema: dict[str, Any]) -> pa.LargeBinaryArray:
    """All entries in the new schema, with most of their bytes copied."""
    sizes = _field_sizes(raw)
    places = _places(raw.fields)
    outer = [field for field in schema["fields"] if field["name"] != "data_file"]
    pieces: list[pa.Array | bytes] = [_number(field, described) for field in outer]
    run: tuple[int, int] | None = None  # source fields in sequence, to be copied as one piece
    runs: list[tuple[int, int] | pa.Array | bytes] = []
    for field in _data_file_fields(schema):
        place = places.get(field["field-id"])
        if place is not None and field["field-id"] != _FIRST_ROW_ID:
            _require_equal_layout(raw, field, place)
            if run is not None and run[1] == place[0]:
                run = (run[0], place[1])
            else:
                runs += [run] if run else []
                run = place
            continue
        runs += [run] if run else []
        run = None
        runs.append(_number(field, described) if field["field-id"] == _FIRST_ROW_ID else _absent(field))
    runs += [run] if run else []
    copied = iter(_slices(raw.container.body, sizes, [run for run in runs if isinstance(run, tuple)]))
    pieces += [next(copied) if isinstance(run, tuple) else run for run in runs]
    return join(*pieces)


def _field_sizes(raw: RawManifest) -> list[Integers]:
    sizes = []
    for field, name in zip(raw.fields, raw.names, strict=True):
        sizes.append(encoded_sizes(raw.frame[name].to_arrow(), field.type))  # type: ignore[index]  # everything was decoded
    if sum(int(size.sum()) for size in sizes) != len(raw.container.body):
        raise UnknownLayout("lengths differ")  # arrays in several blocks, or numbers longer than they need be
    return sizes


def _places(fields: list[AvroField]) -> dict[int, tuple[int, int]]:
    """For every field of a data file, which of the flattened fields it is; the partition tuple is several, or none."""
    places: dict[int, tuple[int, int]] = {}
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


def _slices(body: bytes, sizes: list[Integers], runs: list[tuple[int, int]]) -> list[pa.Array]:
    """The bytes of some runs of fields, for all entries."""
    cuts = sorted({0, len(sizes), *(cut for run in runs for cut in run)})
    lengths = np.stack([np.sum(sizes[a:b], axis=0) for a, b in itertools.pairwise(cuts)], axis=1)
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


def _require_equal_layout(raw: RawManifest, field: dict[str, Any], place: tuple[int, int]) -> None:
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
    decoder = fastavro.parse_schema(_without_logical_types(container.schema))
    encoder = fastavro.parse_schema(_physical_schema(schema))
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


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: _without_logical_types(value) for key, value in schema.items() if key != "logicalType"}
    return [_without_logical_types(item) for item in schema] if isinstance(schema, list) else schema


def _physical_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema for the encoder, which gets every value in its physical form."""
    plain: dict[str, Any] = _without_logical_types(json.loads(json.dumps(schema)))
    return plain


def _entry(file: NewFile, partition: dict[str, Any], snapshot_id: int) -> dict[str, Any]:
    """The entry of an added file. The encoder takes from it what the format version has."""
    metrics = file.metrics
    data_file = {
        "content": file.content,
        "file_path": file.path,
        "file_format": file.file_format,
        "partition": partition,
        "record_count": file.record_count,
        "file_size_in_bytes": file.file_size_bytes,
        "block_size_in_bytes": V1_BLOCK_SIZE,
        "column_sizes": _pairs(metrics.column_sizes),
        "value_counts": _pairs(metrics.value_counts),
        "null_value_counts": _pairs(metrics.null_counts),
        "nan_value_counts": _pairs(metrics.nan_counts),
        "lower_bounds": _pairs(metrics.lower_bounds),
        "upper_bounds": _pairs(metrics.upper_bounds),
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


def _pairs(values: Any) -> list[dict[str, Any]] | None:
    return [{"key": key, "value": value} for key, value in values.items()] or None


def _partition_value(value: Any, kind: Any) -> Any:
    """A partition value in the physical form of its Avro type."""
    match value:
        case UUID():
            return value.bytes
        case Decimal():
            unscaled = int(value.scaleb(kind["scale"], EXACT))
            return unscaled.to_bytes(kind["size"], "big", signed=True)
    return value
