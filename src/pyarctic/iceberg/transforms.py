"""Partition and sort transforms over whole Arrow arrays, and the partitions that the rows of a batch belong to.

PyIceberg applies transforms value by value; its extra for arrays weighs 40 MB and answers null for years out of its range.
Results are in Iceberg's internal representation (days, microseconds …): their `to_pylist` is what manifests hold.
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

Numbers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint32]

_LONG_VALUE_BYTES = 1 << 10
_NANOS = (TimestampNanoType, TimestamptzNanoType)
_NANOS_PER_MICRO = 1_000
_MICROS_PER_HOUR = 3_600_000_000
_hash_of_one = BucketTransform(1).transform(BinaryType(), bucket=False)


def apply_transform(transform: Transform[Any, Any], source_type: IcebergType, array: pa.Array) -> pa.Array:
    """The transform of every value, null of null. Dictionary-encoded values are transformed once each."""
    if isinstance(transform, VoidTransform):
        return pa.nulls(len(array), internal_type(source_type))
    if not transform.can_transform(source_type):
        raise Unsupported(
            f"transform {transform} of columns of type {source_type} is not known",
            hint="Have an engine that knows it write to this table.",
        )
    if pa.types.is_dictionary(array.type):
        return apply_transform(transform, source_type, array.dictionary).take(array.indices)
    values = array.cast(arrow_type(source_type)).view(internal_type(source_type))
    match transform:
        case BucketTransform():
            buckets = (_hashes(source_type, values) & np.uint32(2**31 - 1)) % np.uint32(transform.num_buckets)
            return _where_valid(values, buckets.astype(np.int32))
        case TruncateTransform():
            return _truncated(source_type, values, transform.width)
        case TimeTransform():
            # Hours beyond 32 bits wrap around, as in Java; they are 246,000 years away.
            return _where_valid(values, _since_1970(transform, source_type, _numbers(values)).astype(np.int32))
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
    columns of the schema that the spec needs, by name."""
    codes = np.zeros(batch.num_rows, np.int32)
    distinct: list[pa.Array] = []
    for field in spec.fields:
        own, values = _partition_column(field, schema, batch)
        # Numbers of pairs stay small, as those that occur are numbered anew.
        pairs = pa.array(codes.astype(np.int64) * len(values) + own).dictionary_encode()
        former, latter = np.divmod(pairs.dictionary.to_numpy(), max(len(values), 1))
        distinct = [column.take(pa.array(former)) for column in distinct] + [values.take(pa.array(latter))]
        codes = pairs.indices.to_numpy()
    if not distinct:
        return codes, [()] * min(batch.num_rows, 1)
    return codes, list(zip(*(column.to_pylist() for column in distinct), strict=True))


def _partition_column(
    field: PartitionField, schema: Schema, batch: pa.RecordBatch
) -> tuple[npt.NDArray[np.int32], pa.Array]:
    """The distinct values of a partition field, and for every row the place of its value among them."""
    if isinstance(field.transform, VoidTransform):  # its source may be gone
        return _encoded(pa.nulls(batch.num_rows))
    source = schema.find_type(field.source_id)
    column = source_column(schema, field.source_id, batch)
    if not pa.types.is_dictionary(column.type):
        return _encoded(apply_transform(field.transform, source, column))
    dictionary, places = column.dictionary, column.indices
    if places.null_count:
        places = places.cast(pa.int32()).fill_null(len(dictionary))
        dictionary = pa.concat_arrays([dictionary, pa.nulls(1, dictionary.type)])
    codes, values = _encoded(apply_transform(field.transform, source, dictionary))
    return codes[places.to_numpy()], values


def source_column(schema: Schema, field_id: int, batch: pa.RecordBatch) -> pa.Array:
    accessor = schema.accessor_for_field(field_id)
    field = schema.fields[accessor.position]
    column = batch.column(field.name)
    while accessor.inner is not None and isinstance(field.field_type, StructType):
        accessor = accessor.inner
        field = field.field_type.fields[accessor.position]
        column = pc.struct_field(column, column.type.get_field_index(field.name))
    return column


def _encoded(values: pa.Array) -> tuple[npt.NDArray[np.int32], pa.Array]:
    type_ = values.type
    if pa.types.is_floating(type_):
        # By their bits: 0.0 and -0.0 are two partitions, all NaN are one.
        values = pc.if_else(pc.is_nan(values), pa.scalar(float("nan"), type_), values)
        values = values.view(pa.int32() if type_.bit_width == 32 else pa.int64())
    encoded = values.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy(), encoded.dictionary.view(type_)


# -- time and truncation ---------------------------------------------------------------------------------------------


def _since_1970(transform: TimeTransform[Any], source_type: IcebergType, values: Numbers) -> Numbers:
    """Whole years, months, days or hours, rounded down also before 1970."""
    per_hour = _MICROS_PER_HOUR * (_NANOS_PER_MICRO if isinstance(source_type, _NANOS) else 1)
    if isinstance(transform, HourTransform):
        return values // per_hour
    # By days, because NumPy's own instants take the least number for "no time".
    days: Numbers = values if isinstance(source_type, DateType) else values // (24 * per_hour)
    if isinstance(transform, DayTransform):
        return days
    unit = "M8[M]" if isinstance(transform, MonthTransform) else "M8[Y]"
    return days.view("M8[D]").astype(unit).view(np.int64)


def _truncated(source_type: IcebergType, values: pa.Array, width: int) -> pa.Array:
    match source_type:
        case StringType():
            return pc.utf8_slice_codeunits(values, 0, width)  # counts code points, whatever its name
        case BinaryType():
            return pc.binary_slice(values, 0, width)
        case DecimalType():
            return _truncated_decimal(values, width)
    numbers = _numbers(values)
    # What would fall below the least number wraps around, as in Java.
    return _where_valid(values, (numbers - numbers % width).astype(values.type.to_pandas_dtype()))


def _truncated_decimal(values: pa.Array, width: int) -> pa.Array:
    """The remainder is found digit by digit, of 32 bits each, and taken off the two 64-bit halves."""
    halves = _decimal_halves(values)
    remainder = np.zeros(len(values), np.uint64)
    for digits in halves.view("<u4").T[::-1]:
        remainder = (remainder << np.uint64(32) | digits) % np.uint64(width)
    negative = halves[:, 1] >> np.uint64(63) == 1
    remainder[negative] += np.uint64(width - 2**128 % width)
    remainder %= np.uint64(width)
    less = np.empty_like(halves)
    less[:, 0] = halves[:, 0] - remainder
    less[:, 1] = halves[:, 1] - (halves[:, 0] < remainder)
    return pa.Array.from_buffers(values.type, len(values), [_validity(values), pa.py_buffer(less)])


# -- hashes ----------------------------------------------------------------------------------------------------------


def _hashes(source_type: IcebergType, values: pa.Array) -> Words:
    """Murmur3 of 32 bits, of what the specification says for each type."""
    if isinstance(source_type, INTEGER_TYPES):
        numbers = _numbers(values)
        if isinstance(source_type, _NANOS):
            numbers = numbers // _NANOS_PER_MICRO  # as if the column held microseconds
        halves = np.ascontiguousarray(numbers, "<i8").view("<u4").reshape(-1, 2)
        hashes = _mixed(_mixed(np.zeros(len(numbers), np.uint32), halves[:, 0]), halves[:, 1])
        return _finished(hashes, np.full(len(numbers), 8, np.uint32))
    if isinstance(source_type, DecimalType):
        # Big-endian, in as few bytes as hold the number and its sign.
        octets = np.ascontiguousarray(_decimal_halves(values).view(np.uint8)[:, ::-1])
        sign = octets[:, :1] >> 7
        differs = octets != sign * np.uint8(255)
        differs[:, -1] = True
        start = differs.argmax(axis=1)
        start -= (start > 0) & (np.take_along_axis(octets, start[:, None], 1) >> 7 != sign)[:, 0]
        return _hashes_of_bytes(octets.reshape(-1), start + np.arange(len(octets)) * 16, 16 - start)
    values = values.cast(pa.large_binary())
    _, offsets, data = values.buffers()
    bounds = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    octets = np.frombuffer(data or b"", np.uint8)[bounds[0] : bounds[-1]]
    return _hashes_of_bytes(octets, bounds[:-1] - bounds[0], np.diff(bounds))


def _hashes_of_bytes(octets: npt.NDArray[np.uint8], starts: Numbers, lengths: Numbers) -> Words:
    """Word by word for all values at once. Values lie by falling length meanwhile, so that those that still have words are
    the first ones."""
    # A very long value among others would be alone in most steps: it is hashed apart.
    long = np.flatnonzero(lengths > _LONG_VALUE_BYTES)
    apart = [_hash_of_one(octets[starts[row] : starts[row] + lengths[row]].tobytes()) for row in long]
    lengths = np.where(lengths > _LONG_VALUE_BYTES, 0, lengths)
    order = np.argsort(-lengths, kind="stable")
    starts, lengths = starts[order], lengths[order]
    # Words begin anywhere, and the last one may reach beyond the end.
    padded = np.append(octets, np.zeros(4, np.uint8))
    words = np.ndarray((len(octets) + 1,), "<u4", padded, strides=(1,))
    hashes = np.zeros(len(starts), np.uint32)
    whole = lengths // 4
    counts = np.searchsorted(-whole, -np.arange(1, whole.max(initial=0) + 1), side="right")
    for number, count in enumerate(counts):
        hashes[:count] = _mixed(hashes[:count], words[starts[:count] + 4 * number])
    rest = words[starts + 4 * whole] & ((np.uint32(1) << (lengths % 4 * 8).astype(np.uint32)) - np.uint32(1))
    hashes = _finished(hashes ^ _scrambled(rest), lengths.astype(np.uint32))
    result = np.empty_like(hashes)
    result[order] = hashes
    result[long] = np.array(apart, np.int32).view(np.uint32)
    return result


def _mixed(hashes: Words, words: Words) -> Words:
    return _rotated(hashes ^ _scrambled(words), 13) * np.uint32(5) + np.uint32(0xE6546B64)


def _scrambled(words: Words) -> Words:
    return _rotated(words * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)


def _rotated(words: Words, bits: int) -> Words:
    return words << np.uint32(bits) | words >> np.uint32(32 - bits)


def _finished(hashes: Words, lengths: Words) -> Words:
    hashes = hashes ^ lengths
    hashes = (hashes ^ hashes >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ hashes >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return hashes ^ hashes >> np.uint32(16)


# -- between Arrow and NumPy -----------------------------------------------------------------------------------------


def _numbers(values: pa.Array) -> Numbers:
    """Integers, with anything in the place of nulls."""
    numbers: Numbers = values.fill_null(0).to_numpy().astype(np.int64, copy=False)
    return numbers


def _decimal_halves(values: pa.Array) -> npt.NDArray[np.uint64]:
    """The lower and the upper 64 bits of 128-bit decimals."""
    return np.frombuffer(values.buffers()[1], "<u8")[2 * values.offset :][: 2 * len(values)].reshape(-1, 2)


def _where_valid(values: pa.Array, results: npt.NDArray[Any]) -> pa.Array:
    """The results as an Arrow array, with nulls where `values` has them."""
    return pa.array(results, mask=values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None)


def _validity(values: pa.Array) -> pa.Buffer | None:
    return values.is_valid().buffers()[1] if values.null_count else None
