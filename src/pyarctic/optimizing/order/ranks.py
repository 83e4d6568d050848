"""Ranks: values as unsigned 64-bit numbers that keep their order. Bounds are compared and z-order is computed by them.

Nulls come first, NaN last. Only the first bytes of texts and binaries count, and decimals beyond 18 digits have the
precision of a double: different values may have the same rank, but never ranks in the wrong order.
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
MIN_RANK, NAN = np.uint64(1), np.uint64(2**64 - 2)
"""The range of values."""
NULL_LAST = np.uint64(2**64 - 1)
"""For nulls that come last."""
TEXTS = (StringType, BinaryType, FixedType, UUIDType)
PREFIX_BYTES = 8
_SIGN = np.uint64(1 << 63)
_EXACT_DIGITS = 18


def is_orderable(type_: IcebergType) -> bool:
    """Whether values of a type have ranks."""
    return isinstance(type_, (*INTEGER_TYPES, *TEXTS, BooleanType, FloatType, DoubleType, DecimalType))


def ranks(type_: IcebergType, values: pa.Array, prefix_bytes: int = PREFIX_BYTES) -> Ranks:
    """The ranks of values of an Iceberg type; those of texts and binaries are made of their first bytes, at most eight."""
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if isinstance(type_, TEXTS):
        result = _rank_bytes(values, prefix_bytes)
    elif isinstance(type_, FloatType | DoubleType):
        result = _rank_floats(values.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False))
    elif isinstance(type_, DecimalType):
        result = _rank_decimals(values, type_.precision)
    elif isinstance(type_, BooleanType):
        result = values.cast(pa.uint8()).fill_null(0).to_numpy(zero_copy_only=False).astype(np.uint64) + MIN_RANK
    else:
        result = _rank_integers(_integers(type_, values))
    result = np.clip(result, MIN_RANK, NAN)
    if values.null_count:
        result[values.is_null().to_numpy(zero_copy_only=False)] = NULL
    return result


def _integers(type_: IcebergType, values: pa.Array) -> npt.NDArray[np.int64]:
    stored = values if pa.types.is_integer(values.type) else values.view(internal_type(type_))
    return np.asarray(stored.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False))


def _rank_integers(values: npt.NDArray[np.int64]) -> Ranks:
    return values.view(np.uint64) ^ _SIGN


def _rank_floats(values: npt.NDArray[np.float64]) -> Ranks:
    bits = (values + 0.0).view(np.uint64)  # -0.0 becomes 0.0: equal numbers have one rank
    negative = bits >> np.uint64(63) == 1
    result = np.where(negative, ~bits, bits | _SIGN)
    return np.where(np.isnan(values), NAN, np.minimum(result, NAN - MIN_RANK))


def _rank_decimals(values: pa.Array, precision: int) -> Ranks:
    wide = values.cast(pa.decimal128(38, values.type.scale))
    halves = np.frombuffer(wide.buffers()[1], "<u8")[2 * wide.offset :][: 2 * len(wide)].reshape(-1, 2)
    low, high = halves[:, 0], halves[:, 1]
    if precision <= _EXACT_DIGITS:
        return _rank_integers(low.copy().view(np.int64))
    # From the magnitude: adding both halves of a small negative number would lose all digits.
    negative = high >> np.uint64(63) == 1
    minus_low = ~low + np.uint64(1)
    minus_high = ~high + (minus_low == 0)
    magnitude = np.where(negative, minus_high, high) * 2.0**64 + np.where(negative, minus_low, low)
    return _rank_floats(np.where(negative, -magnitude, magnitude))


def _rank_bytes(values: pa.Array, prefix_bytes: int) -> Ranks:
    """The first bytes as a big-endian number; shorter values are padded with zeros."""
    plain = values.cast(pa.large_binary()).fill_null(b"")
    cut = pc.binary_slice(plain, 0, prefix_bytes)
    _, offsets, data = cut.buffers()
    bounds = np.frombuffer(offsets, np.int64)[cut.offset : cut.offset + len(cut) + 1]
    octets = np.append(np.frombuffer(data or b"", np.uint8), np.uint8(0))
    indexes = bounds[:-1, None] + np.arange(PREFIX_BYTES)
    is_inside = indexes < bounds[1:, None]
    matrix = np.where(is_inside, octets[np.where(is_inside, indexes, 0)], np.uint8(0))
    return np.ascontiguousarray(matrix).view(">u8")[:, 0].astype(np.uint64)
