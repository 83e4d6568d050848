"""Entries carried over from a manifest say afterwards what they said before, whoever wrote it."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import fastavro
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyarctic.iceberg.manifest.avro import AvroContainer
from pyarctic.iceberg.manifest.reader import ManifestRef, RawManifests, decode_manifest
from pyarctic.iceberg.write.manifest import splice
from pyarctic.iceberg.write.manifest.avro_bytes import UnknownLayout, encode_numbers, encode_optional_numbers, encoded_sizes
from pyarctic.iceberg.write.manifest.entries import EntryBatch
from pyarctic.iceberg.write.manifest.splice import carry_entries
from tests.models.spec.avro_schemas import manifest_entry, optional

NUMBERS = st.integers(-(2**63), 2**63 - 1)
COUNTS = st.integers(0, 2**50)
TEXTS = st.text(max_size=200)
PARTITION = [
    optional("i", "int", 1000),
    optional("s", "string", 1001),
    optional("d", {"type": "fixed", "name": "d16", "size": 9, "logicalType": "decimal", "precision": 20, "scale": 2}, 1002),
    optional("f", "double", 1003),
    optional("b", "boolean", 1004),
    optional("t", {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True}, 1005),
    optional("x", "bytes", 1006),
]


def _maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


def _map(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    pair = st.fixed_dictionaries({"key": st.integers(0, 2**31 - 1), "value": values})
    return _maybe(st.lists(pair, max_size=4))


PARTITIONS = st.fixed_dictionaries(
    {
        "i": _maybe(st.integers(-(2**31), 2**31 - 1)),
        "s": _maybe(TEXTS),
        "d": _maybe(st.integers(-(10**20) + 1, 10**20 - 1).map(lambda value: value.to_bytes(9, "big", signed=True))),
        "f": _maybe(st.floats(allow_nan=False)),
        "b": _maybe(st.booleans()),
        "t": _maybe(NUMBERS),
        "x": _maybe(st.binary(max_size=20)),
    }
)


@st.composite
def written_entries(draw: st.DrawFn) -> tuple[int, list[dict[str, Any]], bool]:
    """A format version, entries of a manifest of that version, and whether it is partitioned."""
    version, partitioned = draw(st.sampled_from([1, 2, 3])), draw(st.booleans())
    entries = []
    for number in range(draw(st.integers(1, 6))):
        data_file = {
            "content": 0,
            "file_path": f"{number}-{draw(TEXTS)}",
            "file_format": draw(st.sampled_from(["PARQUET", "ORC"])),
            "partition": draw(PARTITIONS) if partitioned else {},
            "record_count": draw(COUNTS),
            "file_size_in_bytes": draw(COUNTS),
            "block_size_in_bytes": 64,
            "column_sizes": draw(_map(COUNTS)),
            "value_counts": draw(_map(COUNTS)),
            "null_value_counts": draw(_map(COUNTS)),
            "nan_value_counts": draw(_map(COUNTS)),
            "lower_bounds": draw(_map(st.binary(max_size=40))),
            "upper_bounds": draw(_map(st.binary(max_size=40))),
            "key_metadata": draw(_maybe(st.binary(max_size=9))),
            "split_offsets": draw(_maybe(st.lists(COUNTS, max_size=5))),
            "equality_ids": None,
            "sort_order_id": draw(_maybe(st.integers(0, 9))),
            "first_row_id": draw(_maybe(COUNTS)),
        }
        status = draw(st.sampled_from([0, 1, 2]))
        number_ = draw(st.integers(0, 100))
        known = {"sequence_number": number_, "file_sequence_number": number_}
        own = known if status != 1 or draw(st.booleans()) else {}
        entries.append({"status": status, "snapshot_id": draw(_maybe(COUNTS)), **own, "data_file": data_file})
    return version, entries, partitioned


def raw_manifest(
    version: int, entries: list[dict[str, Any]], schema: dict[str, Any], body: bytes | None = None
) -> RawManifests:
    container = AvroContainer(
        path="m.avro",
        metadata={},
        schema=schema,
        sync=bytes(16),
        count=len(entries),
        body=_encoded(schema, entries) if body is None else body,
    )
    ref = ManifestRef(
        path="m.avro",
        length=0,
        spec_id=0,
        sequence_number=0 if version == 1 else 7,
        added_snapshot_id=70,
        first_row_id=1000 if version == 3 else None,
    )
    return decode_manifest(container, ref, metrics=True, everything=True)


def _plain(schema: Any) -> Any:
    """Without logical types: every value as it is in the bytes."""
    if isinstance(schema, dict):
        return {key: _plain(value) for key, value in schema.items() if key != "logicalType"}
    return [_plain(item) for item in schema] if isinstance(schema, list) else schema


def _encoded(schema: dict[str, Any], entries: list[dict[str, Any]]) -> bytes:
    stream = io.BytesIO()
    parsed = fastavro.parse_schema(_plain(json.loads(json.dumps(schema))))
    for entry in entries:
        fastavro.schemaless_writer(stream, parsed, entry)
    return stream.getvalue()


def _decoded(batch: EntryBatch) -> list[dict[str, Any]]:
    parsed = fastavro.parse_schema(_plain(json.loads(json.dumps(batch.schema))))
    return [
        fastavro.schemaless_reader(io.BytesIO(value), parsed)  # type: ignore[misc]
        for value in batch.encoded.to_pylist()
    ]


def assert_carried(version: int, target: int, entries: list[dict[str, Any]], raw: RawManifests, removed: list[bool]) -> None:
    carried = _decoded(carry_entries(target, raw, pl.Series(removed, dtype=pl.Boolean), 99))
    live = [(entry, gone) for entry, gone in zip(entries, removed, strict=True) if entry["status"] != 2]
    assert len(carried) == len(live)
    next_row = 1000
    for found, (entry, gone) in zip(carried, live, strict=True):
        old, new = entry["data_file"], found["data_file"]
        assert found["status"] == (2 if gone else 0)
        assert found["snapshot_id"] == (99 if gone else entry["snapshot_id"] if entry["snapshot_id"] is not None else 70)
        if target > 1:
            inherited = 0 if version == 1 else 7
            assert found["sequence_number"] == (entry.get("sequence_number", inherited) if version > 1 else 0)
            assert new["content"] == 0
        if target == 3:
            row_id = None if version < 3 else old["first_row_id"]
            if version == 3 and row_id is None:
                row_id, next_row = next_row, next_row + old["record_count"]
            assert new["first_row_id"] == row_id
        for name in set(new) - {"content", "first_row_id", "block_size_in_bytes"}:
            assert new[name] == old.get(name), name


@given(written_entries(), st.data())
def test_every_field_is_carried(made: tuple[int, list[dict[str, Any]], bool], data: st.DataObject) -> None:
    version, entries, partitioned = made
    target = data.draw(st.integers(version, 3))
    schema = manifest_entry(version, PARTITION if partitioned else [])
    removed = data.draw(st.lists(st.booleans(), min_size=len(entries), max_size=len(entries)))
    assert_carried(version, target, entries, raw_manifest(version, entries, schema), removed)


@given(written_entries(), st.data())
def test_unusual_bytes_are_decoded_and_reencode(made: tuple[int, list[dict[str, Any]], bool], data: st.DataObject) -> None:
    """Unions the other way round, and arrays in blocks that tell their size: valid, and written by nobody known."""
    version, entries, partitioned = made
    schema = manifest_entry(version, PARTITION if partitioned else [])
    if data.draw(st.booleans()):
        inner = schema["fields"][-1]["type"]["fields"]
        turned = next(field for field in inner if field["name"] == "sort_order_id")
        turned["type"] = turned["type"][::-1]
        del turned["default"]
        raw = raw_manifest(version, entries, schema)
    else:
        raw = raw_manifest(version, entries, schema, b"".join(_in_sized_blocks(schema, entry) for entry in entries))
    assert_carried(version, version, entries, raw, [False] * len(entries))


def test_the_fast_way_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of known writers are copied, not decoded."""
    monkeypatch.setattr(splice, "_reencode", None)
    data_file = {"file_path": "a", "file_format": "PARQUET", "partition": {}, "record_count": 1, "file_size_in_bytes": 1}
    entries = [{"status": 1, "data_file": {"content": 0, **data_file}}]
    raw = raw_manifest(2, entries, manifest_entry(2, []))
    assert carry_entries(2, raw, pl.Series([False]), 99).encoded.to_pylist()[0].startswith(b"\x00\x02")


@given(st.lists(NUMBERS, max_size=20))
def test_numbers(values: list[int]) -> None:
    encoded = encode_numbers(pa.array(values, pa.int64()).to_numpy())
    assert [fastavro.schemaless_reader(io.BytesIO(v), "long") for v in encoded.to_pylist()] == values
    assert encoded_sizes(pa.array(values, pa.int64()), "long").tolist() == [len(v) for v in encoded.to_pylist()]
    some = encode_optional_numbers(pa.array([None, *values], pa.int64()))
    decoded = [fastavro.schemaless_reader(io.BytesIO(v), ["null", "long"]) for v in some.to_pylist()]
    assert decoded == [None, *values]


def test_a_union_of_three_is_no_known_layout() -> None:
    with pytest.raises(UnknownLayout):
        encoded_sizes(pa.array([1]), ["null", "int", "string"])


def _in_sized_blocks(type_: Any, value: Any) -> bytes:
    """Avro's encoding by the book, with arrays as one block of negative count, followed by its size."""
    if isinstance(type_, list):
        branch = type_.index("null") if value is None else next(i for i, option in enumerate(type_) if option != "null")
        return _number(branch) + _in_sized_blocks(type_[branch], value)
    kind = type_["type"] if isinstance(type_, dict) else type_
    match kind:
        case "record":
            return b"".join(_in_sized_blocks(field["type"], value.get(field["name"])) for field in type_["fields"])
        case "array":
            items = b"".join(_in_sized_blocks(type_["items"], item) for item in value)
            return (_number(-len(value)) + _number(len(items)) + items if value else b"") + b"\x00"
        case "int" | "long":
            return _number(value)
        case "string":
            return _number(len(value.encode())) + bytes(value.encode())
        case "bytes":
            return _number(len(value)) + bytes(value)
        case "fixed":
            return bytes(value)
        case "boolean":
            return bytes([value])
        case "double":
            return struct.pack("<d", value)
    return b""


def _number(value: int) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, "long", value)
    return stream.getvalue()
