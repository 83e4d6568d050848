"""The hash of a primary key, as all engines of the format compute it: Java's `Arrays.hashCode` of the values.

It is computed with arithmetic modulo 2^32 on complete columns. The hash of a text is a polynomial in 31 over its UTF-16
units. 31 has an inverse modulo 2^32, so the polynomials of all texts of a column follow from one cumulative sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from pyarctic.errors import Unsupported
from pyarctic.iceberg.read import arrow_type
from pyarctic.tables.format.tree import Hashes

UInt32Array = npt.NDArray[np.uint32]
UInt8Array = npt.NDArray[np.uint8]

_BASE = 31
_INVERSE = pow(_BASE, -1, 1 << 32)
_BLOCK_UNITS = 1 << 15
"""Units that are summed at a time: their powers of 31 stay in the CPU cache."""


def check_key_type(field: NestedField) -> None:
    """Refuse columns that Iceberg does not allow as identifier fields."""
    if type(field.field_type) not in _KEY_TYPES:
        raise Unsupported(
            f"column {field.name!r} of type {field.field_type} cannot be part of a primary key",
            hint=f"Types of keys: {', '.join(type_.__name__.removesuffix('Type').lower() for type_ in _KEY_TYPES)}.",
            column=field.name,
        )


def key_hashes(columns: Sequence[pa.Array], types: Sequence[IcebergType]) -> Hashes:
    """The hashes of keys, from 0 to 2^31 - 1. `columns` are the key columns in the order of their declaration."""
    total: UInt32Array | None = None
    for column, type_ in zip(columns, types, strict=True):
        array = _to_array(column, arrow_type(type_))
        hashes = _HASHES[type(type_)](array)
        if array.null_count:
            hashes = np.where(array.is_valid().to_numpy(zero_copy_only=False), hashes, np.uint32(0))
        total = hashes + np.uint32(_BASE) if total is None else total * np.uint32(_BASE) + hashes
    assert total is not None  # noqa: S101  # a key has columns
    # The smallest int has no absolute value; the greatest int is used for it.
    positive = np.abs(total.view(np.int32)).view(np.uint32)
    return np.minimum(positive, np.uint32(0x7FFFFFFF)).view(np.int32)


def _to_array(column: pa.Array | pa.ChunkedArray, wanted: pa.DataType) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column if column.type.equals(wanted) else column.cast(wanted)


def _fixed_values(array: pa.Array, type_: Any) -> npt.NDArray[Any]:
    """The values of a column of fixed width; those of nulls are undefined."""
    values: npt.NDArray[Any] = np.frombuffer(array.buffers()[1] or b"", dtype=type_)
    return values[array.offset : array.offset + len(array)]


def _hash_int(array: pa.Array) -> UInt32Array:
    return _fixed_values(array, np.uint32)


def _hash_long(array: pa.Array) -> UInt32Array:
    return _fold(_fixed_values(array, np.uint64))


def _fold(values: npt.NDArray[np.uint64]) -> UInt32Array:
    """Combine the upper and lower half; block by block, because memory bandwidth is the limit."""
    folded = np.empty(len(values), np.uint32)
    for start in range(0, len(values), _BLOCK_UNITS):
        block = values[start : start + _BLOCK_UNITS]
        folded[start : start + _BLOCK_UNITS] = block ^ (block >> np.uint64(32))
    return folded


def _hash_float(array: pa.Array) -> UInt32Array:
    values = _fixed_values(array, np.float32)
    return np.where(np.isnan(values), np.uint32(0x7FC00000), values.view(np.uint32))


def _hash_double(array: pa.Array) -> UInt32Array:
    values = _fixed_values(array, np.float64)
    bits = np.where(np.isnan(values), np.uint64(0x7FF8000000000000), values.view(np.uint64))
    return _fold(bits)


def _hash_boolean(array: pa.Array) -> UInt32Array:
    truth = pc.fill_null(array, False).to_numpy(zero_copy_only=False)
    return np.where(truth, np.uint32(1231), np.uint32(1237))


def _hash_decimal(array: pa.Array) -> UInt32Array:
    """Of the unscaled number: its 32-bit words from the most significant on, with the sign; and then the scale."""
    words = _fixed_values(array, np.dtype((np.void, 16))).view(np.uint32).reshape(-1, 4)
    negative = words[:, 3] >> np.uint32(31) == 1
    if negative.any():
        words = np.where(negative[:, None], ~words, words)
        carry = negative.copy()
        for index in range(4):
            words[:, index] += carry
            carry &= words[:, index] == 0
    total = np.zeros(len(array), np.uint32)
    for index in (3, 2, 1, 0):
        total = total * np.uint32(_BASE) + words[:, index]
    total = np.where(negative, np.uint32(0) - total, total)
    return total * np.uint32(_BASE) + np.uint32(array.type.scale)


def _hash_uuid(array: pa.Array) -> UInt32Array:
    words = _fixed_values(array, np.dtype((np.void, 16))).view(np.uint32).reshape(-1, 4)
    mixed: UInt32Array = (words[:, 0] ^ words[:, 1] ^ words[:, 2] ^ words[:, 3]).byteswap()
    return mixed


def _hash_string(array: pa.Array) -> UInt32Array:
    bytes_, offsets = _value_bytes(array)
    if not len(bytes_) or bytes_.max() < 0x80:
        return _hash_polynomials(bytes_, offsets, descending=True)
    # A character has one UTF-16 unit, or two if it has four bytes in UTF-8.
    units = (bytes_ & 0xC0 != 0x80).astype(np.int64) + (bytes_ >= 0xF0)
    ends = np.concatenate([[0], np.cumsum(units)])[offsets]
    text = bytes_.tobytes().decode("utf-8")
    return _hash_polynomials(np.frombuffer(text.encode("utf-16-le"), np.uint16), ends, descending=True)


def _hash_binary(array: pa.Array) -> UInt32Array:
    """From the last byte to the first, starting with 1."""
    bytes_, offsets = _value_bytes(array)
    signed = bytes_.view(np.int8).astype(np.int32).view(np.uint32)
    lengths = np.diff(offsets)
    longest = int(lengths.max(initial=0))
    return _hash_polynomials(signed, offsets, descending=False) + _powers(_BASE, longest + 1)[lengths]


def _hash_fixed(array: pa.Array) -> UInt32Array:
    return _hash_binary(array.cast(pa.binary()))


def _value_bytes(array: pa.Array) -> tuple[UInt8Array, npt.NDArray[np.int64]]:
    """The bytes of all values, and their offsets."""
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    if array.null_count:  # the bytes of nulls would be decoded, and may be no valid text
        array = pc.fill_null(array, "" if pa.types.is_string(array.type) or pa.types.is_large_string(array.type) else b"")
    offsets = np.frombuffer(array.buffers()[1] or bytes(8), np.int64 if wide else np.int32)
    offsets = offsets[array.offset : array.offset + len(array) + 1].astype(np.int64)
    bytes_ = np.frombuffer(array.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    return bytes_, offsets - offsets[0]


def _hash_polynomials(units: npt.NDArray[Any], offsets: npt.NDArray[np.int64], *, descending: bool) -> UInt32Array:
    """Polynomials in 31 over the units of each value. `descending`: the first unit has the greatest power."""
    hashes = np.empty(len(offsets) - 1, np.uint32)
    first = 0
    while first < len(hashes):
        # As many values as fit into one block; a longer value is a block of its own.
        last = int(np.searchsorted(offsets, offsets[first] + _BLOCK_UNITS, side="right")) - 1
        last = min(max(last, first + 1), len(hashes))
        ends = offsets[first : last + 1] - offsets[first]
        size = max(int(ends[-1]), 1)
        up, down = _powers(_BASE, max(size, _BLOCK_UNITS)), _powers(_INVERSE, max(size, _BLOCK_UNITS))
        sums = np.zeros(size + 1, np.uint32)
        part = units[offsets[first] : offsets[last]]
        np.cumsum(part * (down if descending else up)[: len(part)], dtype=np.uint32, out=sums[1 : len(part) + 1])
        raw = sums[ends[1:]] - sums[ends[:-1]]
        # Powers were counted from the start of the block: shift them to the end, or the start, of the value.
        hashes[first:last] = raw * (up[np.maximum(ends[1:] - 1, 0)] if descending else down[ends[:-1]])
        first = last
    return hashes


@cache
def _powers(base: int, count: int) -> UInt32Array:
    powers = np.full(count + 1, base, np.uint32)
    powers[0] = 1
    return np.cumprod(powers, dtype=np.uint32)


_HASHES: dict[type[IcebergType], Callable[[pa.Array], UInt32Array]] = {
    BooleanType: _hash_boolean,
    IntegerType: _hash_int,
    DateType: _hash_int,
    LongType: _hash_long,
    TimeType: _hash_long,
    TimestampType: _hash_long,
    TimestamptzType: _hash_long,
    FloatType: _hash_float,
    DoubleType: _hash_double,
    StringType: _hash_string,
    DecimalType: _hash_decimal,
    BinaryType: _hash_binary,
    FixedType: _hash_fixed,
    UUIDType: _hash_uuid,
}
_KEY_TYPES = [type_ for type_ in _HASHES if type_ not in (FloatType, DoubleType)]
