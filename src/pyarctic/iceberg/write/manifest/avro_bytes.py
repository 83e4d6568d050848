"""Avro's binary form, for whole columns at once: how many bytes each value takes, and the bytes of numbers.

A manifest of ten thousand entries is rewritten when one file leaves it. Knowing the size of every field of every entry tells
where each field lies in the bytes, so that all others are copied as they are, by slices, without a loop over the entries.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyarctic.iceberg.manifest.avro import NULL, varint

Integers = npt.NDArray[np.int64]
_VARINT_LIMITS = np.array([1 << (7 * groups) for groups in range(1, 10)], np.uint64)
"""A number below the n-th limit needs n bytes of seven bits; ten are the most."""

_NOTHING = pa.scalar(b"", pa.large_binary())


class UnknownLayout(Exception):
    """The bytes are valid Avro, but not in the plain form all known writers use: they must be decoded and encoded anew."""


def layout(type_: Any) -> Any:
    """What a type means for the bytes: two types of equal layout are written alike, whatever their names say."""
    if isinstance(type_, list):
        return tuple(layout(option) for option in type_)
    if isinstance(type_, dict):
        match type_["type"]:
            case "record":
                return "record", tuple(layout(field["type"]) for field in type_["fields"])
            case "array":
                return "array", layout(type_["items"])
            case "fixed":
                return "fixed", type_["size"]
            case other:
                return layout(other)
    return {"int": "varint", "long": "varint", "string": "bytes"}.get(type_, type_)


def encoded_sizes(values: pa.Array, type_: Any) -> Integers:
    """The bytes each value takes. `type_` is a physical Avro type, as `avro.flatten` gives it."""
    if isinstance(type_, list):
        filled = [option for option in type_ if option != NULL]
        if len(filled) != 1 or len(type_) > 2:
            raise UnknownLayout(f"union of {type_}")
        optional = NULL in type_
        sizes = encoded_sizes(values, filled[0])
        return np.where(values.is_valid().to_numpy(zero_copy_only=False), sizes, 0) + 1 if optional else sizes + 1
    match type_["type"] if isinstance(type_, dict) else type_:
        case "int" | "long":
            return _varint_sizes(_integers(values))
        case "string" | "bytes":
            lengths = _integers(pc.binary_length(values))
            return _varint_sizes(lengths) + lengths
        case "null":
            return np.zeros(len(values), np.int64)
        case "boolean":
            return np.ones(len(values), np.int64)
        case "float":
            return np.full(len(values), 4, np.int64)
        case "double":
            return np.full(len(values), 8, np.int64)
        case "fixed":
            return np.full(len(values), type_["size"], np.int64)
        case "array":
            return _array_sizes(values, type_["items"])
        case "record":
            columns = values.flatten()
            pairs = zip(columns, type_["fields"], strict=True)
            return sum((encoded_sizes(column, field["type"]) for column, field in pairs), np.zeros(len(values), np.int64))
        case other:
            raise UnknownLayout(f"type {other}")


def encode_numbers(values: Integers) -> pa.LargeBinaryArray:
    """Every number as Avro writes an int or long."""
    zigzag = _zigzag(values)
    sizes = _varint_sizes(values)
    places = np.arange(10)
    groups = ((zigzag[:, None] >> (7 * places).astype(np.uint64)) & np.uint64(0x7F)).astype(np.uint8)
    groups[places < sizes[:, None] - 1] |= 0x80
    return as_slices(groups[places < sizes[:, None]].tobytes(), sizes)


def encode_optional_numbers(values: pa.Array) -> pa.LargeBinaryArray:
    """Every number as a union of null and long, in this order."""
    some = join(b"\x02", encode_numbers(_integers(values)))
    return pc.if_else(values.is_valid(), some, pa.scalar(b"\x00", pa.large_binary()))


def as_slices(data: bytes, sizes: Integers) -> pa.LargeBinaryArray:
    """Neighbouring slices of `data`, without copying it."""
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def join(*pieces: pa.Array | bytes) -> pa.LargeBinaryArray:
    """The pieces of every row, one behind the other."""
    length = next(len(piece) for piece in pieces if not isinstance(piece, bytes))
    columns = [_same(piece, length) if isinstance(piece, bytes) else piece for piece in pieces]
    return pc.binary_join_element_wise(*columns, _NOTHING) if len(columns) > 1 else columns[0]


def container_block(count: int, body: bytes, codec: str, sync: bytes) -> bytes:
    """One block of `count` values."""
    packed = _pack(body, codec)
    return b"".join([varint(count), varint(len(packed)), packed, sync])


CODECS = {"gzip": "deflate", "zstd": "zstandard", "uncompressed": "null", "snappy": "deflate"}
"""Avro's names for what `write.avro.compression-codec` may say. Every file names its own codec, so that one we do not write
may be replaced by another."""


def _pack(body: bytes, codec: str) -> bytes:
    match codec:
        case "deflate":
            # Level 1 takes a third of the time of the default and gives manifests a tenth larger.
            packer = zlib.compressobj(1, zlib.DEFLATED, -15)
            return packer.compress(body) + packer.flush()
        case "zstandard":
            return bytes(pa.compress(body, codec="zstd", asbytes=True))
    return body


def _array_sizes(values: pa.Array, item: Any) -> Integers:
    """Arrays as one block: the count, the items, a zero; nothing but the zero when empty."""
    lengths = _integers(values.value_lengths())
    items = values.flatten()
    ends = np.cumsum(lengths)
    total = np.zeros(len(items) + 1, np.int64)
    np.cumsum(encoded_sizes(items, item), out=total[1:])
    return np.where(lengths > 0, total[ends] - total[ends - lengths] + _varint_sizes(lengths) + 1, 1)


def _integers(values: pa.Array) -> Integers:
    return np.asarray(pc.fill_null(pc.cast(values, pa.int64()), 0).to_numpy(zero_copy_only=False), np.int64)


def _zigzag(values: Integers) -> npt.NDArray[np.uint64]:
    return ((values << 1) ^ (values >> 63)).astype(np.uint64)


def _varint_sizes(values: Integers) -> Integers:
    return np.searchsorted(_VARINT_LIMITS, _zigzag(values), side="right").astype(np.int64) + 1


def _same(piece: bytes, length: int) -> pa.LargeBinaryArray:
    return pa.repeat(pa.scalar(piece, pa.large_binary()), length)
