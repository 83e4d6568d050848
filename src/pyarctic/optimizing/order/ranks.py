"""Values as unsigned numbers of 64 bits that keep their order: what bounds are compared by and z-order is made of.

Nulls come first, NaN last. Of texts and bytes the first ones count, of decimals beyond 18 digits what a double can tell:
values that differ may have one rank, but never ranks in the wrong order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    StringType,
    UUIDType,
)

from pyarctic.iceberg import internal_type
from pyarctic.iceberg.manifest import INTEGER_TYPES

Ranks = npt.NDArray[np.uint64]
NULL = np.uint64(0)
LEAST, NAN = np.uint64(1), np.uint64(2**64 - 2)
"""Of values; above them is room for nulls that come last."""
NULL_LAST = np.uint64(2**64 - 1)
TEXTS = (StringType, BinaryType, FixedType, UUIDType)
PREFIX_BYTES = 8
_SIGN = np.uint64(1 << 63)
_EXACT_DIGITS = 18


def is_orderable(type_: IcebergType) -> bool:
    """Whether values of a type have ranks."""
    return isinstance(type_, (*INTEGER_TYPES, *TEXTS, BooleanType, FloatType, DoubleType, DecimalType))


def ranks(type_: IcebergType, values: pa.Array, prefix_bytes: int = PREFIX_BYTES) -> Ranks:
    """The ranks of values of an Iceberg type; of texts and bytes those of so many first bytes, at most eight."""
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if isinstance(type_, TEXTS):
        found = _of_bytes(values, prefix_bytes)
    elif isinstance(type_, FloatType | DoubleType):
        found = _of_floats(values.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False))
    elif isinstance(type_, DecimalType):
        found = _of_decimals(values, type_.precision)
    elif isinstance(type_, BooleanType):
        found = values.cast(pa.uint8()).fill_null(0).to_numpy(zero_copy_only=False).astype(np.uint64) + LEAST
    else:
        found = of_integers(_integers(type_, values))
    found = np.clip(found, LEAST, NAN)
    if values.null_count:
        found[values.is_null().to_numpy(zero_copy_only=False)] = NULL
    return found


def _integers(type_: IcebergType, values: pa.Array) -> npt.NDArray[np.int64]:
    stored = values if pa.types.is_integer(values.type) else values.view(internal_type(type_))
    return np.asarray(stored.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False))


def of_integers(values: npt.NDArray[np.int64]) -> Ranks:
    return values.view(np.uint64) ^ _SIGN


def _of_floats(values: npt.NDArray[np.float64]) -> Ranks:
    bits = (values + 0.0).view(np.uint64)  # one zero: of equal numbers none comes first
    negative = bits >> np.uint64(63) == 1
    found = np.where(negative, ~bits, bits | _SIGN)
    return np.where(np.isnan(values), NAN, np.minimum(found, NAN - LEAST))


def _of_decimals(values: pa.Array, precision: int) -> Ranks:
    wide = values.cast(pa.decimal128(38, values.type.scale))
    halves = np.frombuffer(wide.buffers()[1], "<u8")[2 * wide.offset :][: 2 * len(wide)].reshape(-1, 2)
    low, high = halves[:, 0], halves[:, 1]
    if precision <= _EXACT_DIGITS:
        return of_integers(low.copy().view(np.int64))
    # Of the magnitude: the sum of both halves of a small negative number would have no digit left.
    negative = high >> np.uint64(63) == 1
    minus_low = ~low + np.uint64(1)
    minus_high = ~high + (minus_low == 0)
    magnitude = np.where(negative, minus_high, high) * 2.0**64 + np.where(negative, minus_low, low)
    return _of_floats(np.where(negative, -magnitude, magnitude))


def _of_bytes(values: pa.Array, prefix_bytes: int) -> Ranks:
    """The first bytes as a number, the first one weighs most; shorter values are filled with zeros."""
    plain = values.cast(pa.large_binary()).fill_null(b"")
    cut = pc.binary_slice(plain, 0, prefix_bytes)
    _, offsets, data = cut.buffers()
    bounds = np.frombuffer(offsets, np.int64)[cut.offset : cut.offset + len(cut) + 1]
    octets = np.append(np.frombuffer(data or b"", np.uint8), np.uint8(0))
    at = bounds[:-1, None] + np.arange(PREFIX_BYTES)
    inside = at < bounds[1:, None]
    matrix = np.where(inside, octets[np.where(inside, at, 0)], np.uint8(0))
    return np.ascontiguousarray(matrix).view(">u8")[:, 0].astype(np.uint64)
