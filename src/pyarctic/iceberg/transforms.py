"""Vectorized partition and sort transforms of Arrow arrays, and the partitions that the rows of a batch belong to.

PyIceberg applies transforms value by value; its optional extension for arrays takes 40 MB and returns null for years out of
its range. Results are in Iceberg's internal representation (days, microseconds …), as manifests store them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    MonthTransform,
    TimeTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
)
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    StringType,
    StructType,
    TimestampNanoType,
    TimestamptzNanoType,
)

from pyarctic.errors import Unsupported
from pyarctic.iceberg.manifest.partition_keys import INTEGER_TYPES
from pyarctic.iceberg.read.projection import arrow_type

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint32]

_LONG_VALUE_BYTES = 1 << 10
_NANOS = (TimestampNanoType, TimestamptzNanoType)
_NANOS_PER_MICRO = 1_000
_MICROS_PER_HOUR = 3_600_000_000
_hash_value = BucketTransform(1).transform(BinaryType(), bucket=False)


def apply_transform(transform: Transform[Any, Any], source_type: IcebergType, array: pa.Array) -> pa.Array:
    """Apply a transform to every value; null stays null. Dictionary-encoded values are transformed once each.

    apply_transform(DayTransform(), DateType(), array)
    """
    if isinstance(transform, VoidTransform):
        return pa.nulls(len(array), internal_type(source_type))
    if not transform.can_transform(source_type):
        raise Unsupported(
            f"transform {transform} of columns of type {source_type} is not supported",
            hint="Write to this table with an engine that supports it.",
        )
    if pa.types.is_dictionary(array.type):
        return apply_transform(transform, source_type, array.dictionary).take(array.indices)
    values = array.cast(arrow_type(source_type)).view(internal_type(source_type))
    match transform:
        case BucketTransform():
            buckets = (_hash(source_type, values) & np.uint32(2**31 - 1)) % np.uint32(transform.num_buckets)
            return _with_nulls_of(values, buckets.astype(np.int32))
        case TruncateTransform():
            return _truncate(source_type, values, transform.width)
        case TimeTransform():
            # Hours beyond 32 bits, after 246,000 years, wrap around as in Java.
            return _with_nulls_of(values, _since_1970(transform, source_type, _to_int64(values)).astype(np.int32))
    return values


def internal_type(type_: IcebergType) -> pa.DataType:
    """The Arrow type of Iceberg's internal representation."""
    if isinstance(type_, INTEGER_TYPES):
        return pa.int32() if isinstance(type_, IntegerType | DateType) else pa.int64()
    return arrow_type(type_)


# -- partitions of rows ----------------------------------------------------------------------------------------------


def partition_values(
    spec: PartitionSpec, schema: Schema, batch: pa.RecordBatch
) -> tuple[npt.NDArray[np.int32], list[tuple[Any, ...]]]:
    """For every row the number of its partition, and the partition tuples by number, in order of appearance. `batch` has the
    source columns of the spec, by their names in the schema."""
    codes = np.zeros(batch.num_rows, np.int32)
    distinct: list[pa.Array] = []
    for field in spec.fields:
        field_codes, values = _partition_column(field, schema, batch)
        # Only the pairs of codes that occur are numbered, so that numbers stay small.
        pairs = pa.array(codes.astype(np.int64) * len(values) + field_codes).dictionary_encode()
        tuple_codes, value_codes = np.divmod(pairs.dictionary.to_numpy(), max(len(values), 1))
        distinct = [column.take(pa.array(tuple_codes)) for column in distinct] + [values.take(pa.array(value_codes))]
        codes = pairs.indices.to_numpy()
    if not distinct:
        return codes, [()] * min(batch.num_rows, 1)
    return codes, list(zip(*(column.to_pylist() for column in distinct), strict=True))


def _partition_column(
    field: PartitionField, schema: Schema, batch: pa.RecordBatch
) -> tuple[npt.NDArray[np.int32], pa.Array]:
    """For every row the index of its value of a partition field among the distinct values, and these."""
    if isinstance(field.transform, VoidTransform):  # its source column may have been dropped
        return _dictionary_encode(pa.nulls(batch.num_rows))
    source = schema.find_type(field.source_id)
    column = source_column(schema, field.source_id, batch)
    if not pa.types.is_dictionary(column.type):
        return _dictionary_encode(apply_transform(field.transform, source, column))
    dictionary, indices = column.dictionary, column.indices
    if indices.null_count:
        indices = indices.cast(pa.int32()).fill_null(len(dictionary))
        dictionary = pa.concat_arrays([dictionary, pa.nulls(1, dictionary.type)])
    codes, values = _dictionary_encode(apply_transform(field.transform, source, dictionary))
    return codes[indices.to_numpy()], values


def source_column(schema: Schema, field_id: int, batch: pa.RecordBatch) -> pa.Array:
    """The column of a batch with this field id, also within structs."""
    accessor = schema.accessor_for_field(field_id)
    field = schema.fields[accessor.position]
    column = batch.column(field.name)
    while accessor.inner is not None and isinstance(field.field_type, StructType):
        accessor = accessor.inner
        field = field.field_type.fields[accessor.position]
        column = pc.struct_field(column, column.type.get_field_index(field.name))
    return column


def _dictionary_encode(values: pa.Array) -> tuple[npt.NDArray[np.int32], pa.Array]:
    type_ = values.type
    if pa.types.is_floating(type_):
        # Compared by their bits: 0.0 and -0.0 are two partitions, all NaN are one.
        values = pc.if_else(pc.is_nan(values), pa.scalar(float("nan"), type_), values)
        values = values.view(pa.int32() if type_.bit_width == 32 else pa.int64())
    encoded = values.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy(), encoded.dictionary.view(type_)


# -- time and truncation ---------------------------------------------------------------------------------------------


def _since_1970(transform: TimeTransform[Any], source_type: IcebergType, values: Integers) -> Integers:
    """Years, months, days or hours since 1970, rounded down also before 1970."""
    per_hour = _MICROS_PER_HOUR * (_NANOS_PER_MICRO if isinstance(source_type, _NANOS) else 1)
    if isinstance(transform, HourTransform):
        return values // per_hour
    # Computed from days, because NumPy's timestamps reserve the smallest number for "not a time".
    days: Integers = values if isinstance(source_type, DateType) else values // (24 * per_hour)
    if isinstance(transform, DayTransform):
        return days
    unit = "M8[M]" if isinstance(transform, MonthTransform) else "M8[Y]"
    return days.view("M8[D]").astype(unit).view(np.int64)


def _truncate(source_type: IcebergType, values: pa.Array, width: int) -> pa.Array:
    match source_type:
        case StringType():
            return pc.utf8_slice_codeunits(values, 0, width)  # counts code points, despite its name
        case BinaryType():
            return pc.binary_slice(values, 0, width)
        case DecimalType():
            return _truncate_decimal(values, width)
    numbers = _to_int64(values)
    # Results below the smallest number wrap around, as in Java.
    return _with_nulls_of(values, (numbers - numbers % width).astype(values.type.to_pandas_dtype()))


def _truncate_decimal(values: pa.Array, width: int) -> pa.Array:
    """The remainder is computed by long division with digits of 32 bits, and subtracted from the two 64-bit words."""
    words = _decimal_words(values)
    remainder = np.zeros(len(values), np.uint64)
    for digits in words.view("<u4").T[::-1]:
        remainder = (remainder << np.uint64(32) | digits) % np.uint64(width)
    negative = words[:, 1] >> np.uint64(63) == 1
    remainder[negative] += np.uint64(width - 2**128 % width)
    remainder %= np.uint64(width)
    truncated = np.empty_like(words)
    truncated[:, 0] = words[:, 0] - remainder
    truncated[:, 1] = words[:, 1] - (words[:, 0] < remainder)
    return pa.Array.from_buffers(values.type, len(values), [_validity_buffer(values), pa.py_buffer(truncated)])


# -- hashes ----------------------------------------------------------------------------------------------------------


def _hash(source_type: IcebergType, values: pa.Array) -> Words:
    """32-bit Murmur3 hashes of the bytes that the specification defines for each type."""
    if isinstance(source_type, INTEGER_TYPES):
        numbers = _to_int64(values)
        if isinstance(source_type, _NANOS):
            numbers = numbers // _NANOS_PER_MICRO  # hashed as microseconds
        halves = np.ascontiguousarray(numbers, "<i8").view("<u4").reshape(-1, 2)
        hashes = _mix(_mix(np.zeros(len(numbers), np.uint32), halves[:, 0]), halves[:, 1])
        return _finalize(hashes, np.full(len(numbers), 8, np.uint32))
    if isinstance(source_type, DecimalType):
        # Big-endian, in the fewest bytes that represent the number and its sign.
        octets = np.ascontiguousarray(_decimal_words(values).view(np.uint8)[:, ::-1])
        sign = octets[:, :1] >> 7
        differs = octets != sign * np.uint8(255)
        differs[:, -1] = True
        start = differs.argmax(axis=1)
        start -= (start > 0) & (np.take_along_axis(octets, start[:, None], 1) >> 7 != sign)[:, 0]
        return _hash_bytes(octets.reshape(-1), start + np.arange(len(octets)) * 16, 16 - start)
    values = values.cast(pa.large_binary())
    _, offsets, data = values.buffers()
    bounds = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    octets = np.frombuffer(data or b"", np.uint8)[bounds[0] : bounds[-1]]
    return _hash_bytes(octets, bounds[:-1] - bounds[0], np.diff(bounds))


def _hash_bytes(octets: npt.NDArray[np.uint8], starts: Integers, lengths: Integers) -> Words:
    """Hash all values at once, word by word. Values are sorted by descending length meanwhile, so that those that still have
    words come first."""
    # A very long value would be alone in most steps, so it is hashed separately.
    long_rows = np.flatnonzero(lengths > _LONG_VALUE_BYTES)
    long_hashes = [_hash_value(octets[starts[row] : starts[row] + lengths[row]].tobytes()) for row in long_rows]
    lengths = np.where(lengths > _LONG_VALUE_BYTES, 0, lengths)
    order = np.argsort(-lengths, kind="stable")
    starts, lengths = starts[order], lengths[order]
    # Words may start at any byte, and the last one may reach beyond the end.
    padded = np.append(octets, np.zeros(4, np.uint8))
    words = np.ndarray((len(octets) + 1,), "<u4", padded, strides=(1,))
    hashes = np.zeros(len(starts), np.uint32)
    word_counts = lengths // 4
    counts = np.searchsorted(-word_counts, -np.arange(1, word_counts.max(initial=0) + 1), side="right")
    for word_index, count in enumerate(counts):
        hashes[:count] = _mix(hashes[:count], words[starts[:count] + 4 * word_index])
    last_words = words[starts + 4 * word_counts] & ((np.uint32(1) << (lengths % 4 * 8).astype(np.uint32)) - np.uint32(1))
    hashes = _finalize(hashes ^ _scramble(last_words), lengths.astype(np.uint32))
    result = np.empty_like(hashes)
    result[order] = hashes
    result[long_rows] = np.array(long_hashes, np.int32).view(np.uint32)
    return result


def _mix(hashes: Words, words: Words) -> Words:
    return _rotate(hashes ^ _scramble(words), 13) * np.uint32(5) + np.uint32(0xE6546B64)


def _scramble(words: Words) -> Words:
    return _rotate(words * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)


def _rotate(words: Words, bits: int) -> Words:
    return words << np.uint32(bits) | words >> np.uint32(32 - bits)


def _finalize(hashes: Words, lengths: Words) -> Words:
    hashes = hashes ^ lengths
    hashes = (hashes ^ hashes >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ hashes >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return hashes ^ hashes >> np.uint32(16)


# -- between Arrow and NumPy -----------------------------------------------------------------------------------------


def _to_int64(values: pa.Array) -> Integers:
    """Integers; nulls become zero."""
    numbers: Integers = values.fill_null(0).to_numpy().astype(np.int64, copy=False)
    return numbers


def _decimal_words(values: pa.Array) -> npt.NDArray[np.uint64]:
    """The lower and the upper 64-bit word of 128-bit decimals."""
    return np.frombuffer(values.buffers()[1], "<u8")[2 * values.offset :][: 2 * len(values)].reshape(-1, 2)


def _with_nulls_of(values: pa.Array, results: npt.NDArray[Any]) -> pa.Array:
    """The results as an Arrow array, with nulls where `values` has them."""
    return pa.array(results, mask=values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None)


def _validity_buffer(values: pa.Array) -> pa.Buffer | None:
    return values.is_valid().buffers()[1] if values.null_count else None
