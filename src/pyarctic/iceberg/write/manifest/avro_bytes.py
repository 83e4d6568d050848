"""Avro's binary encoding for complete columns at once: the encoded size of each value, and the encoding of numbers.

A manifest of ten thousand entries is rewritten when one file is removed from it. The sizes of all fields of all entries give
their positions in the bytes, so that unchanged fields are copied as slices, without a loop over the entries.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyarctic.iceberg.manifest.avro import NULL, encode_varint

Integers = npt.NDArray[np.int64]
_VARINT_LIMITS = np.array([1 << (7 * groups) for groups in range(1, 10)], np.uint64)
"""A number below the n-th limit takes n bytes of seven bits each, at most ten."""

_EMPTY_BYTES = pa.scalar(b"", pa.large_binary())


_FIXED_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


class UnknownLayout(Exception):
    """The bytes are valid Avro, but not laid out as known writers do: they must be decoded and encoded again."""


def layout(type_: Any) -> Any:
    """The byte layout of a type: types of equal layout are encoded in the same way, regardless of their names."""
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
    """The encoded size of each value in bytes. `type_` is a physical Avro type (see `avro.flatten`)."""
    if isinstance(type_, list):
        return _union_sizes(values, type_)
    kind = type_["type"] if isinstance(type_, dict) else type_
    if kind in _FIXED_SIZES:
        return np.full(len(values), _FIXED_SIZES[kind], np.int64)
    match kind:
        case "int" | "long":
            return _varint_sizes(_integers(values))
        case "string" | "bytes":
            lengths = _integers(pc.binary_length(values))
            return _varint_sizes(lengths) + lengths
        case "fixed":
            return np.full(len(values), type_["size"], np.int64)
        case "array":
            return _array_sizes(values, type_["items"])
        case "record":
            return _record_sizes(values, type_["fields"])
    raise UnknownLayout(f"type {kind}")


def _union_sizes(values: pa.Array, options: list[Any]) -> Integers:
    """One byte for the option, and the value unless it is null. Only optional values are supported."""
    non_null = [option for option in options if option != NULL]
    if len(non_null) != 1 or len(options) > 2:
        raise UnknownLayout(f"union of {options}")
    sizes = encoded_sizes(values, non_null[0])
    if NULL in options:
        sizes = np.where(values.is_valid().to_numpy(zero_copy_only=False), sizes, 0)
    return sizes + 1


def _record_sizes(values: pa.Array, fields: list[dict[str, Any]]) -> Integers:
    sizes = np.zeros(len(values), np.int64)
    for column, field in zip(values.flatten(), fields, strict=True):
        sizes += encoded_sizes(column, field["type"])
    return sizes


def encode_numbers(values: Integers) -> pa.LargeBinaryArray:
    """Encode every number as an int or long."""
    zigzag = _zigzag(values)
    sizes = _varint_sizes(values)
    byte_numbers = np.arange(10)
    groups = ((zigzag[:, None] >> (7 * byte_numbers).astype(np.uint64)) & np.uint64(0x7F)).astype(np.uint8)
    groups[byte_numbers < sizes[:, None] - 1] |= 0x80
    return slice_bytes(groups[byte_numbers < sizes[:, None]].tobytes(), sizes)


def encode_optional_numbers(values: pa.Array) -> pa.LargeBinaryArray:
    """Encode every number as a union of null and long, in this order."""
    encoded = concat_bytes(b"\x02", encode_numbers(_integers(values)))
    return pc.if_else(values.is_valid(), encoded, pa.scalar(b"\x00", pa.large_binary()))


def slice_bytes(data: bytes, sizes: Integers) -> pa.LargeBinaryArray:
    """Consecutive slices of `data` with the given sizes, without copying it."""
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def concat_bytes(*parts: pa.Array | bytes) -> pa.LargeBinaryArray:
    """Concatenate the parts of every row; a single `bytes` is repeated for all rows."""
    length = next(len(part) for part in parts if not isinstance(part, bytes))
    columns = [_repeat(part, length) if isinstance(part, bytes) else part for part in parts]
    return pc.binary_join_element_wise(*columns, _EMPTY_BYTES) if len(columns) > 1 else columns[0]


def container_block(count: int, body: bytes, codec: str, sync: bytes) -> bytes:
    """One block of `count` values."""
    compressed = _compress(body, codec)
    return b"".join([encode_varint(count), encode_varint(len(compressed)), compressed, sync])


CODECS = {"gzip": "deflate", "zstd": "zstandard", "uncompressed": "null", "snappy": "deflate"}
"""Avro's codec for each value of `write.avro.compression-codec`. Every file names its codec, so that snappy, which is not
written here, may be replaced by another."""


def _compress(body: bytes, codec: str) -> bytes:
    match codec:
        case "deflate":
            # Level 1 takes a third of the time of the default level, for manifests that are a tenth larger.
            compressor = zlib.compressobj(1, zlib.DEFLATED, -15)
            return compressor.compress(body) + compressor.flush()
        case "zstandard":
            return bytes(pa.compress(body, codec="zstd", asbytes=True))
    return body


def _array_sizes(values: pa.Array, item: Any) -> Integers:
    """Arrays are one block: the count, the items, and a zero; empty arrays only the zero."""
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


def _repeat(part: bytes, length: int) -> pa.LargeBinaryArray:
    return pa.repeat(pa.scalar(part, pa.large_binary()), length)
