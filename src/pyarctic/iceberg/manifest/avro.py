"""Fast reading of Avro files as Polars frames: decompress and join the blocks, flatten the schema, decode with Polars.

The schema is rewritten without touching the encoded bytes, which three properties of Avro's encoding allow:

* A record is the concatenation of its fields. Lifting the fields of a nested record into the outer schema does not change
  the data, but lets the decoder *skip* fields that are not needed (most bytes of a manifest are column metrics).
* A map is encoded exactly as an array of (key, value) records, which Polars can read.
* A logical type is an annotation. Without it every value is decoded in its physical form, the same from every writer.

Joining the blocks also makes PyIceberg's manifests cheap to read, which have one block per entry.
"""

from __future__ import annotations

import bz2
import io
import json
import lzma
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import polars as pl
import pyarrow as pa

from pyarctic.errors import Damaged, Unsupported

MAGIC = b"Obj\x01"
NULL = "null"
SYNC_SIZE = 16
DAMAGED_HINT = "The file was cut off or overwritten. Restore it from a backup, or roll back to an earlier snapshot."


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroContainer:
    """An Avro file with its blocks decompressed and joined into one."""

    path: str
    metadata: dict[str, bytes]
    schema: dict[str, Any]
    sync: bytes
    count: int
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroField:
    """One field of a flattened record: its path, its Iceberg field id, and its type without annotations."""

    path: tuple[str, ...]
    field_id: int | None
    type: Any
    is_decimal: bool = False


def parse_container(data: bytes, path: str) -> AvroContainer:
    """Parse an Avro file; `path` is used in error messages only."""
    if data[:4] != MAGIC:
        raise Damaged(f"not an Avro file, or cut off at its start: {path}", hint=DAMAGED_HINT, file=path)
    try:
        metadata, position = _read_header(data)
        schema = _parse_schema(metadata["avro.schema"])
        codec = metadata.get("avro.codec", b"null").decode()
        sync = data[position : position + SYNC_SIZE]
        blocks, count = _read_blocks(data, position + SYNC_SIZE, sync)
    except (IndexError, KeyError, ValueError) as cause:
        raise Damaged(f"Avro file is truncated or corrupt: {path} ({cause})", hint=DAMAGED_HINT, file=path) from cause
    decompress = _CODECS.get(codec)
    if decompress is None:
        raise Unsupported(
            f"Avro codec {codec!r} is not supported: {path}",
            hint=f"Rewrite the manifests with one of: {', '.join(_CODECS)}.",
            file=path,
            codec=codec,
        )
    try:
        body = b"".join([decompress(block) for block in blocks])
    except (zlib.error, OSError, EOFError, ValueError, lzma.LZMAError, pa.ArrowInvalid) as cause:
        raise Damaged(f"Avro block does not decompress: {path} ({cause})", hint=DAMAGED_HINT, file=path) from cause
    return AvroContainer(path=path, metadata=metadata, schema=schema, sync=sync, count=count, body=body)


@lru_cache(maxsize=64)
def _parse_schema(text: bytes) -> dict[str, Any]:
    """The schema of a file. Thousands of small files of one writer have the same one, which is not to be changed."""
    schema: dict[str, Any] = json.loads(text)
    return schema


def join_containers(containers: Sequence[AvroContainer]) -> AvroContainer:
    """Files of the same schema as one."""
    return replace(
        containers[0],
        count=sum(container.count for container in containers),
        body=b"".join([container.body for container in containers]),
    )


def flatten(container: AvroContainer, inline: Collection[str]) -> list[AvroField]:
    """The fields of the record in order, with nested records named in `inline` replaced by their fields."""
    try:
        return _flatten(container.schema, inline, (), {})
    except (AttributeError, KeyError, TypeError) as cause:
        raise Damaged(
            f"Avro file has no valid schema: {container.path} ({cause!r})", hint=DAMAGED_HINT, file=container.path
        ) from cause


def _flatten(
    schema: dict[str, Any], inline: Collection[str], parents: tuple[str, ...], named: dict[str, Any]
) -> list[AvroField]:
    fields: list[AvroField] = []
    for field in schema["fields"]:
        path = (*parents, field["name"])
        if field["name"] in inline and isinstance(field["type"], dict) and field["type"]["type"] == "record":
            fields += _flatten(field["type"], inline, path, named)
        else:
            type_ = _physical(field["type"], named)
            options = field["type"] if isinstance(field["type"], list) else [field["type"]]
            resolved = [named.get(option, option) if isinstance(option, str) else option for option in options]
            is_decimal = any(isinstance(o, dict) and o.get("logicalType") == "decimal" for o in resolved)
            fields.append(AvroField(path=path, field_id=field.get("field-id"), type=type_, is_decimal=is_decimal))
    return fields


def read_columns(container: AvroContainer, fields: Sequence[AvroField], names: Sequence[str | None]) -> pl.DataFrame:
    """Decode the fields that have a name; the others are skipped."""
    # A field of type null takes no bytes, and Polars does not support the type: it is left out and added afterwards.
    null_columns = [name for field, name in zip(fields, names, strict=True) if field.type == NULL and name is not None]
    schema = {
        "type": "record",
        "name": "entry",
        "fields": [
            {"name": name or f"skipped_{index}", "type": field.type}
            for index, (field, name) in enumerate(zip(fields, names, strict=True))
            if field.type != NULL
        ],
    }
    metadata = {"avro.schema": json.dumps(schema).encode(), "avro.codec": b"null"}
    parts = [container_header(metadata, container.sync)]
    if container.count:
        parts += [encode_varint(container.count), encode_varint(len(container.body)), container.body, container.sync]
    wanted = [name for name in names if name is not None and name not in null_columns]
    try:
        frame = pl.read_avro(io.BytesIO(b"".join(parts)), columns=wanted)
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as cause:
        raise Damaged(
            f"Avro data does not fit its schema: {container.path}", hint=DAMAGED_HINT, file=container.path
        ) from cause
    if frame.height != container.count:
        raise Damaged(
            f"Avro file should have {container.count} records and has {frame.height}: {container.path}",
            hint=DAMAGED_HINT,
            file=container.path,
        )
    return frame.with_columns(pl.lit(None, pl.Null).alias(name) for name in null_columns)


def container_header(metadata: Mapping[str, bytes], sync: bytes) -> bytes:
    """The start of an Avro file, up to its first block."""
    parts = [MAGIC, encode_varint(len(metadata))]
    for key, value in metadata.items():
        name = key.encode()
        parts += [encode_varint(len(name)), name, encode_varint(len(value)), value]
    return b"".join([*parts, b"\x00", sync])


def _read_header(data: bytes) -> tuple[dict[str, bytes], int]:
    metadata: dict[str, bytes] = {}
    position = len(MAGIC)
    while True:
        count, position = _read_varint(data, position)
        if count == 0:
            return metadata, position
        if count < 0:  # a negative count is followed by the size of the block in bytes
            count = -count
            _, position = _read_varint(data, position)
        for _ in range(count):
            key, position = _read_bytes(data, position)
            value, position = _read_bytes(data, position)
            metadata[key.decode()] = value


def _read_blocks(data: bytes, position: int, sync: bytes) -> tuple[list[bytes], int]:
    blocks: list[bytes] = []
    total = 0
    if len(sync) != SYNC_SIZE:
        msg = "ends early"
        raise ValueError(msg)
    while position < len(data):
        count, position = _read_varint(data, position)
        block, position = _read_bytes(data, position)
        if data[position : position + SYNC_SIZE] != sync:
            msg = "sync marker differs"
            raise ValueError(msg)
        position += SYNC_SIZE
        total += count
        blocks.append(block)
    return blocks, total


def _read_bytes(data: bytes, position: int) -> tuple[bytes, int]:
    size, position = _read_varint(data, position)
    end = position + size
    if size < 0 or end > len(data):
        msg = "ends early"
        raise ValueError(msg)
    return data[position:end], end


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    shift = value = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7


def encode_varint(value: int) -> bytes:
    """Encode an int or long: zigzag, seven bits a byte."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value & ~0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def physical_type(type_: Any) -> Any:
    """The physical form of a self-contained type (see the module docstring)."""
    return _physical(type_, {})


def _physical(type_: Any, named: dict[str, Any]) -> Any:
    """The type without logical annotations, with maps as arrays of pairs, and with names replaced by their definitions."""
    if isinstance(type_, list):
        return [_physical(option, named) for option in type_]
    if not isinstance(type_, dict):
        return _physical(named[type_], named) if type_ in named else type_
    kind = type_["type"]
    if "name" in type_:
        named[type_["name"]] = type_
        if "namespace" in type_:
            named[f"{type_['namespace']}.{type_['name']}"] = type_
    if kind == "record":
        fields = [{"name": field["name"], "type": _physical(field["type"], named)} for field in type_["fields"]]
        return {"type": "record", "name": type_["name"], "fields": [field for field in fields if field["type"] != NULL]}
    if kind == "array":
        return {"type": "array", "items": _physical(type_["items"], named)}
    if kind == "map":
        pair = [{"name": "key", "type": "string"}, {"name": "value", "type": _physical(type_["values"], named)}]
        return {"type": "array", "items": {"type": "record", "name": "pair", "fields": pair}}
    if kind == "fixed":
        return {"type": "fixed", "name": type_["name"], "size": type_["size"]}
    return _physical(kind, named)


def _decompress_deflate(block: bytes) -> bytes:
    return zlib.decompress(block, -15)


def _decompress_snappy(block: bytes) -> bytes:
    # Avro appends a big-endian CRC of the plain bytes to the snappy data, which starts with their number.
    size = shift = 0
    for byte in block:
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    plain = bytes(pa.decompress(block[:-4], decompressed_size=size, codec="snappy", asbytes=True))
    if zlib.crc32(plain) != int.from_bytes(block[-4:], "big"):
        msg = "checksum differs"
        raise ValueError(msg)
    return plain


def _decompress_zstandard(block: bytes) -> bytes:
    # Read as a stream: writers may omit the plain size from the frame header.
    with pa.CompressedInputStream(pa.BufferReader(block), "zstd") as stream:
        return bytes(stream.read())


_CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": _decompress_deflate,
    "snappy": _decompress_snappy,
    "zstandard": _decompress_zstandard,
    "bzip2": bz2.decompress,
    "xz": lzma.decompress,
}
