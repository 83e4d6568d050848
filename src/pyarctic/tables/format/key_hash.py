"""The hash of a primary key, as every engine that shares the table computes it: Java's `Arrays.hashCode` of the values.

All of it is arithmetic modulo 2^32 on whole columns. A text's hash is a polynomial in 31 over its UTF-16 units. 31 has an
inverse modulo 2^32, so the polynomials of all texts of a column come from one running sum.
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

Words = npt.NDArray[np.uint32]
Octets = npt.NDArray[np.uint8]

_BASE = 31
_INVERSE = pow(_BASE, -1, 1 << 32)
_STRETCH = 1 << 15
"""Units that are summed up at a time: their powers of 31 stay in the cache."""


def check_key_type(field: NestedField) -> None:
    """Refuse key columns that Iceberg does not allow to identify rows."""
    if type(field.field_type) not in _KEY_TYPES:
        raise Unsupported(
            f"column {field.name!r} of type {field.field_type} cannot be part of a primary key",
            hint=f"Types of keys: {', '.join(type_.__name__.removesuffix('Type').lower() for type_ in _KEY_TYPES)}.",
            column=field.name,
        )


def key_hashes(columns: Sequence[pa.Array], types: Sequence[IcebergType]) -> Hashes:
    """The hashes of keys, from 0 to 2^31 - 1. `columns` are the key columns in the order of their declaration."""
    total: Words | None = None
    for column, type_ in zip(columns, types, strict=True):
        array = _plain(column, arrow_type(type_))
        hashes = _HASHES[type(type_)](array)
        if array.null_count:
            hashes = np.where(array.is_valid().to_numpy(zero_copy_only=False), hashes, np.uint32(0))
        total = hashes + np.uint32(_BASE) if total is None else total * np.uint32(_BASE) + hashes
    assert total is not None  # noqa: S101  # a key has columns
    # The least number has no positive twin; the greatest one stands for it.
    positive = np.abs(total.view(np.int32)).view(np.uint32)
    return np.minimum(positive, np.uint32(0x7FFFFFFF)).view(np.int32)


def _plain(column: pa.Array | pa.ChunkedArray, wanted: pa.DataType) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column if column.type.equals(wanted) else column.cast(wanted)


def _numbers(array: pa.Array, type_: Any) -> npt.NDArray[Any]:
    """The values of a column of fixed width, whatever lies under its nulls."""
    values: npt.NDArray[Any] = np.frombuffer(array.buffers()[1] or b"", dtype=type_)
    return values[array.offset : array.offset + len(array)]


def _of_int(array: pa.Array) -> Words:
    return _numbers(array, np.uint32)


def _of_long(array: pa.Array) -> Words:
    return _folded(_numbers(array, np.uint64))


def _folded(values: npt.NDArray[np.uint64]) -> Words:
    """Upper and lower half together; block by block, because memory is slower than the work."""
    found = np.empty(len(values), np.uint32)
    for start in range(0, len(values), _STRETCH):
        block = values[start : start + _STRETCH]
        found[start : start + _STRETCH] = block ^ (block >> np.uint64(32))
    return found


def _of_float(array: pa.Array) -> Words:
    values = _numbers(array, np.float32)
    return np.where(np.isnan(values), np.uint32(0x7FC00000), values.view(np.uint32))


def _of_double(array: pa.Array) -> Words:
    values = _numbers(array, np.float64)
    bits = np.where(np.isnan(values), np.uint64(0x7FF8000000000000), values.view(np.uint64))
    return _folded(bits)


def _of_boolean(array: pa.Array) -> Words:
    truth = pc.fill_null(array, False).to_numpy(zero_copy_only=False)
    return np.where(truth, np.uint32(1231), np.uint32(1237))


def _of_decimal(array: pa.Array) -> Words:
    """The unscaled number's words from the greatest on, with the sign, and then the scale."""
    words = _numbers(array, np.dtype((np.void, 16))).view(np.uint32).reshape(-1, 4)
    negative = words[:, 3] >> np.uint32(31) == 1
    if negative.any():
        words = np.where(negative[:, None], ~words, words)
        carry = negative.copy()
        for place in range(4):
            words[:, place] += carry
            carry &= words[:, place] == 0
    total = np.zeros(len(array), np.uint32)
    for place in (3, 2, 1, 0):
        total = total * np.uint32(_BASE) + words[:, place]
    total = np.where(negative, np.uint32(0) - total, total)
    return total * np.uint32(_BASE) + np.uint32(array.type.scale)


def _of_uuid(array: pa.Array) -> Words:
    words = _numbers(array, np.dtype((np.void, 16))).view(np.uint32).reshape(-1, 4)
    mixed: Words = (words[:, 0] ^ words[:, 1] ^ words[:, 2] ^ words[:, 3]).byteswap()
    return mixed


def _of_string(array: pa.Array) -> Words:
    octets, offsets = _octets(array)
    if not len(octets) or octets.max() < 0x80:
        return _polynomials(octets, offsets, descending=True)
    # A letter has as many units as it has leading bytes, and one more if it takes four bytes.
    units = (octets & 0xC0 != 0x80).astype(np.int64) + (octets >= 0xF0)
    ends = np.concatenate([[0], np.cumsum(units)])[offsets]
    text = octets.tobytes().decode("utf-8")
    return _polynomials(np.frombuffer(text.encode("utf-16-le"), np.uint16), ends, descending=True)


def _of_binary(array: pa.Array) -> Words:
    """From the last byte to the first, beginning with 1."""
    octets, offsets = _octets(array)
    signed = octets.view(np.int8).astype(np.int32).view(np.uint32)
    lengths = np.diff(offsets)
    longest = int(lengths.max(initial=0))
    return _polynomials(signed, offsets, descending=False) + _powers(_BASE, longest + 1)[lengths]


def _of_fixed(array: pa.Array) -> Words:
    return _of_binary(array.cast(pa.binary()))


def _octets(array: pa.Array) -> tuple[Octets, npt.NDArray[np.int64]]:
    """The bytes of all values, and where each begins and ends."""
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    if array.null_count:  # what lies under a null would be decoded, and need not be text
        array = pc.fill_null(array, "" if pa.types.is_string(array.type) or pa.types.is_large_string(array.type) else b"")
    offsets = np.frombuffer(array.buffers()[1] or bytes(8), np.int64 if wide else np.int32)
    offsets = offsets[array.offset : array.offset + len(array) + 1].astype(np.int64)
    octets = np.frombuffer(array.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    return octets, offsets - offsets[0]


def _polynomials(units: npt.NDArray[Any], offsets: npt.NDArray[np.int64], *, descending: bool) -> Words:
    """Polynomials in 31 over stretches of units: the first unit has the greatest power, or the least."""
    found = np.empty(len(offsets) - 1, np.uint32)
    first = 0
    while first < len(found):
        # As many values as fit into one stretch; a longer one makes a stretch of its own.
        last = int(np.searchsorted(offsets, offsets[first] + _STRETCH, side="right")) - 1
        last = min(max(last, first + 1), len(found))
        ends = offsets[first : last + 1] - offsets[first]
        size = max(int(ends[-1]), 1)
        up, down = _powers(_BASE, max(size, _STRETCH)), _powers(_INVERSE, max(size, _STRETCH))
        sums = np.zeros(size + 1, np.uint32)
        part = units[offsets[first] : offsets[last]]
        np.cumsum(part * (down if descending else up)[: len(part)], dtype=np.uint32, out=sums[1 : len(part) + 1])
        raw = sums[ends[1:]] - sums[ends[:-1]]
        # Every power was counted from the beginning of the stretch; move it to the value's own end, or beginning.
        found[first:last] = raw * (up[np.maximum(ends[1:] - 1, 0)] if descending else down[ends[:-1]])
        first = last
    return found


@cache
def _powers(base: int, count: int) -> Words:
    powers = np.full(count + 1, base, np.uint32)
    powers[0] = 1
    return np.cumprod(powers, dtype=np.uint32)


_HASHES: dict[type[IcebergType], Callable[[pa.Array], Words]] = {
    BooleanType: _of_boolean,
    IntegerType: _of_int,
    DateType: _of_int,
    LongType: _of_long,
    TimeType: _of_long,
    TimestampType: _of_long,
    TimestamptzType: _of_long,
    FloatType: _of_float,
    DoubleType: _of_double,
    StringType: _of_string,
    DecimalType: _of_decimal,
    BinaryType: _of_binary,
    FixedType: _of_fixed,
    UUIDType: _of_uuid,
}
_KEY_TYPES = [type_ for type_ in _HASHES if type_ not in (FloatType, DoubleType)]
