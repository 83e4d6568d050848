"""Containers of every codec and shape, against fastavro; and every way of being cut off."""

from __future__ import annotations

import bz2
import io
import json
import lzma
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import cramjam
import fastavro
import hypothesis.strategies as st
import pytest
import zstandard
from hypothesis import given

from pyarctic.errors import Damaged, Unsupported
from pyarctic.iceberg.manifest.avro import AvroContainer, flatten, parse_container, read_columns

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "outer",
    "fields": [
        {"name": "number", "type": "long", "field-id": 1},
        {"name": "text", "type": ["null", "string"], "field-id": 2},
        {
            "name": "inner",
            "field-id": 3,
            "type": {
                "type": "record",
                "name": "inner_record",
                "fields": [
                    {"name": "flag", "type": "boolean", "field-id": 4},
                    {"name": "numbers", "type": {"type": "array", "items": "int"}, "field-id": 5},
                    {"name": "pairs", "type": {"type": "map", "values": "long"}, "field-id": 6},
                    {"name": "day", "type": {"type": "int", "logicalType": "date"}, "field-id": 7},
                    {"name": "raw", "type": ["null", {"type": "fixed", "name": "f3", "size": 3}], "field-id": 8},
                ],
            },
        },
        {"name": "last", "type": "double", "field-id": 9},
    ],
}


def record(number: int) -> dict[str, Any]:
    inner = {
        "flag": number % 2 == 0,
        "numbers": list(range(number % 4)),
        "pairs": {f"k{i}": i * number for i in range(number % 3)},
        "day": number,
        "raw": None if number % 3 == 0 else bytes([number % 256]) * 3,
    }
    return {
        "number": -number * 10**12,
        "text": None if number % 5 == 0 else "é" * number,
        "inner": inner,
        "last": number / 4,
    }


RECORDS = [record(number) for number in range(60)]


def varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = b""
    while value > 0x7F:
        out += bytes([(value & 0x7F) | 0x80])
        value >>= 7
    return out + bytes([value])


def chunk(data: bytes) -> bytes:
    return varint(len(data)) + data


def snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data)) + struct.pack(">I", zlib.crc32(data))


def deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def zstandard_without_size(data: bytes) -> bytes:
    packer = zstandard.ZstdCompressor().compressobj()
    return packer.compress(data) + packer.flush()


CODECS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "null": ("null", bytes),
    "deflate": ("deflate", deflate),
    "snappy": ("snappy", snappy),
    "zstandard": ("zstandard", lambda data: zstandard.ZstdCompressor().compress(data)),
    "zstandard-stream": ("zstandard", zstandard_without_size),
    "bzip2": ("bzip2", bz2.compress),
    "xz": ("xz", lzma.compress),
}
SYNC = bytes(range(16))


def written(
    records: list[dict[str, Any]],
    *,
    codec: str = "null",
    per_block: int = 1000,
    schema: dict[str, Any] = SCHEMA,
    negative_counts: bool = False,
) -> bytes:
    """A container by hand; fastavro encodes the records alone."""
    name, compress = CODECS[codec]
    header = {"avro.schema": json.dumps(schema).encode(), "avro.codec": name.encode(), "other": b"\x00\xff"}
    pairs = [chunk(key.encode()) + chunk(value) for key, value in header.items()]
    if negative_counts:  # two blocks of the header's map, each with its size in bytes
        parts = [pairs[:1], pairs[1:]]
        coded = b"".join(varint(-len(part)) + varint(len(b"".join(part))) + b"".join(part) for part in parts)
    else:
        coded = varint(len(pairs)) + b"".join(pairs)
    out = b"Obj\x01" + coded + b"\x00" + SYNC
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))
    for start in range(0, len(records), per_block):
        body = io.BytesIO()
        for one in records[start : start + per_block]:
            fastavro.schemaless_writer(body, parsed, one)
        out += varint(len(records[start : start + per_block])) + chunk(compress(body.getvalue())) + SYNC
    return out


def decoded(container: AvroContainer) -> list[dict[str, Any]]:
    """All fields, the nested record lifted, put together again as fastavro would give them."""
    fields = flatten(container, inline=("inner",))
    frame = read_columns(container, fields, [field.path[-1] for field in fields])
    out = []
    for row in frame.to_dicts():
        inner = {name: row.pop(name) for name in ("flag", "numbers", "pairs", "day", "raw")}
        inner["pairs"] = {pair["key"]: pair["value"] for pair in inner["pairs"]}
        out.append({"number": row["number"], "text": row["text"], "inner": inner, "last": row["last"]})
    return out


@pytest.mark.parametrize("per_block", [1, 7, 1000])
@pytest.mark.parametrize("codec", CODECS)
def test_codecs_and_blocks(codec: str, per_block: int) -> None:
    container = parse_container(written(RECORDS, codec=codec, per_block=per_block), "x.avro")
    assert container.count == len(RECORDS)
    assert container.metadata["other"] == b"\x00\xff"
    assert decoded(container) == RECORDS


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "bzip2", "xz"])
def test_fastavro_files(codec: str) -> None:
    buffer = io.BytesIO()
    days = [r | {"inner": r["inner"] | {"day": r["inner"]["day"]}} for r in RECORDS]
    fastavro.writer(buffer, fastavro.parse_schema(json.loads(json.dumps(SCHEMA))), days, codec=codec, sync_interval=200)
    assert decoded(parse_container(buffer.getvalue(), "x.avro")) == RECORDS


def test_negative_counts_in_the_header() -> None:
    assert decoded(parse_container(written(RECORDS, negative_counts=True), "x.avro")) == RECORDS


def test_no_records() -> None:
    container = parse_container(written([]), "x.avro")
    assert container.count == 0
    assert decoded(container) == []


def test_codec_left_out_means_null() -> None:
    data = written(RECORDS).replace(chunk(b"avro.codec"), chunk(b"avro.kodek"))
    assert decoded(parse_container(data, "x.avro")) == RECORDS


@pytest.mark.parametrize("wanted", [("number",), ("last",), ("pairs",), ("raw", "text"), ("day", "numbers", "flag")])
def test_other_fields_are_skipped(wanted: tuple[str, ...]) -> None:
    container = parse_container(written(RECORDS), "x.avro")
    fields = flatten(container, inline=("inner",))
    names = [field.path[-1] if field.path[-1] in wanted else None for field in fields]
    frame = read_columns(container, fields, names)
    everything = read_columns(container, fields, [field.path[-1] for field in fields])
    assert sorted(frame.columns) == sorted(wanted)
    assert frame.equals(everything.select(frame.columns))


def test_flatten_keeps_ids_and_paths() -> None:
    container = parse_container(written([]), "x.avro")
    fields = flatten(container, inline=("inner",))
    assert [(field.field_id, field.path) for field in fields][:4] == [
        (1, ("number",)), (2, ("text",)), (4, ("inner", "flag")), (5, ("inner", "numbers")),
    ]  # fmt: skip
    assert [field.path for field in flatten(container, inline=())] == [("number",), ("text",), ("inner",), ("last",)]


def whole_blocks(data: bytes) -> set[int]:
    """Lengths at which a container may end: a shorter one is a valid container too."""
    ends, at = set(), data.index(SYNC) + len(SYNC)
    while True:
        ends.add(at)
        at = data.find(SYNC, at)
        if at < 0:
            return ends
        at += len(SYNC)


@pytest.mark.parametrize("codec", CODECS)
def test_cut_off_anywhere(codec: str) -> None:
    data = written(RECORDS[:3], codec=codec, per_block=2)
    valid = whole_blocks(data)
    assert len(valid) == 3
    for length in range(len(data)):
        if length in valid:  # only the manifest list can tell that more was there
            assert decoded(parse_container(data[:length], "x.avro")) == RECORDS[: 2 if length > min(valid) else 0]
            continue
        with pytest.raises(Damaged) as caught:
            decoded(parse_container(data[:length], "x.avro"))
        assert caught.value.facts["file"] == "x.avro"
        assert caught.value.hint


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "zstandard", "bzip2", "xz"])
@given(data=st.data())
def test_any_overwritten_byte(codec: str, data: st.DataObject) -> None:
    """One wrong byte gives an error of ours or other values, never another exception."""
    whole = bytearray(written(RECORDS[:3], codec=codec, per_block=2))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255).filter(lambda byte: byte != whole[at]))
    with suppress(Damaged, Unsupported):
        container = parse_container(bytes(whole), "x.avro")
        fields = flatten(container, inline=("inner",))
        read_columns(container, fields, [f"f{index}" for index in range(len(fields))])


def test_wrong_sync_marker() -> None:
    data = bytearray(written(RECORDS, per_block=20))
    data[-1] ^= 1
    with pytest.raises(Damaged, match="sync marker"):
        parse_container(bytes(data), "x.avro")


def test_wrong_checksum_of_snappy() -> None:
    data = bytearray(written(RECORDS, codec="snappy"))
    data[-len(SYNC) - 1] ^= 1
    with pytest.raises(Damaged, match="checksum"):
        parse_container(bytes(data), "x.avro")


def test_unknown_codec() -> None:
    data = written(RECORDS).replace(chunk(b"null"), chunk(b"lzma"))
    with pytest.raises(Unsupported, match="lzma") as caught:
        parse_container(data, "x.avro")
    assert caught.value.facts == {"file": "x.avro", "codec": "lzma"}
    assert "snappy" in str(caught.value.hint)


def test_fewer_records_than_announced() -> None:
    two = io.BytesIO()
    for one in RECORDS[:2]:
        fastavro.schemaless_writer(two, fastavro.parse_schema(json.loads(json.dumps(SCHEMA))), one)
    data = written([]) + varint(3) + chunk(two.getvalue()) + SYNC
    with pytest.raises(Damaged):
        decoded(parse_container(data, "x.avro"))


def test_not_avro() -> None:
    with pytest.raises(Damaged, match="not an Avro file"):
        parse_container(b"PAR1 something else", "x.avro")
