"""Transforms of whole arrays against PyIceberg's, value by value, and the partitions of rows."""

from __future__ import annotations

import math
from contextlib import suppress
from decimal import Context, Decimal
from typing import Any
from uuid import UUID

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    UnknownTransform,
    VoidTransform,
    YearTransform,
)
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
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from pyarctic.errors import Unsupported
from pyarctic.iceberg.read.projection import arrow_type
from pyarctic.iceberg.transforms import apply_transform, internal_type, partition_values

EXACT = Context(prec=40)


def signed(bits: int) -> st.SearchStrategy[int]:
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1
    return st.integers(least, most) | st.integers(-1000, 1000) | st.sampled_from([least, least + 1, most])


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    bytes_end = [sign * 2**power + more for power in (7, 8, 15, 31, 63, 64) for sign in (1, -1) for more in (-1, 0, 1)]
    fitting = [number for number in bytes_end if abs(number) <= most]
    numbers = st.integers(-most, most) | st.sampled_from([0, -1, most, -most, *fitting])
    return numbers.map(lambda number: Decimal(number).scaleb(-scale, EXACT))


VALUES: dict[IcebergType, st.SearchStrategy[Any]] = {
    BooleanType(): st.booleans(),
    IntegerType(): signed(32),
    LongType(): signed(64),
    FloatType(): st.floats(width=32),
    DoubleType(): st.floats(),
    DateType(): signed(32),
    TimeType(): st.integers(0, 86_399_999_999),
    TimestampType(): signed(64),
    TimestamptzType(): signed(64),
    TimestampNanoType(): signed(64),
    TimestamptzNanoType(): signed(64),
    DecimalType(9, 2): decimals(9, 2),
    DecimalType(18, 0): decimals(18, 0),
    DecimalType(38, 10): decimals(38, 10),
    StringType(): st.text() | st.text("aé€𝄞", max_size=9),
    BinaryType(): st.binary() | st.binary(max_size=9),
    FixedType(3): st.binary(min_size=3, max_size=3),
    FixedType(8): st.binary(min_size=8, max_size=8),
    UUIDType(): st.uuids().map(lambda uuid: uuid.bytes),
}
TRANSFORMS: list[Transform[Any, Any]] = [
    IdentityTransform(),
    VoidTransform(),
    *[BucketTransform(count) for count in (1, 16, 1000, 2**31 - 1)],
    *[TruncateTransform(width) for width in (1, 3, 10, 2**31 - 1)],
    YearTransform(),
    MonthTransform(),
    DayTransform(),
    HourTransform(),
]
PAIRS = [(transform, type_) for transform in TRANSFORMS for type_ in VALUES if transform.can_transform(type_)]
PER_DAY: dict[IcebergType, int] = {DateType(): 1, TimestampNanoType(): 86_400 * 10**9, TimestamptzNanoType(): 86_400 * 10**9}


def array_of(type_: IcebergType, values: list[Any]) -> pa.Array:
    return pa.array(values, arrow_type(type_))


def months_since_1970(days: int) -> int:
    """By counting years of 400: Python's dates end with 9999, PyIceberg with them."""
    eras, day = divmod(days, 146_097)
    at = np.datetime64(day, "D").astype("M8[M]").astype(int)
    return int(eras * 4800 + at)


def expected(transform: Transform[Any, Any], type_: IcebergType, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(transform, YearTransform | MonthTransform):
        months = months_since_1970(value // PER_DAY.get(type_, 86_400 * 10**6))
        units = months // 12 if isinstance(transform, YearTransform) else months
        with suppress(OverflowError):  # beyond Python's dates
            assert transform.transform(type_)(value) == units
        return units
    result = transform.transform(type_)(value)
    if isinstance(transform, HourTransform | TruncateTransform) and isinstance(result, int):
        bits = 64 if isinstance(type_, LongType) else 32
        return (result + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)  # Java's numbers wrap around, Python's grow
    return result


@pytest.mark.parametrize(("transform", "type_"), PAIRS, ids=str)
@given(data=st.data())
@settings(max_examples=25)
def test_as_pyiceberg_says(transform: Transform[Any, Any], type_: IcebergType, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | VALUES[type_], max_size=15))
    skipped = data.draw(st.integers(0, len(values)))
    array = array_of(type_, values)[skipped:]
    if data.draw(st.booleans()):
        array = array.dictionary_encode()
    found = apply_transform(transform, type_, array)
    assert found.type == internal_type(transform.result_type(type_))
    found.validate(full=not isinstance(type_, DecimalType))  # truncated, the least decimal has a digit more
    assert list(map(repr, found.to_pylist())) == [repr(expected(transform, type_, value)) for value in values[skipped:]]


@pytest.mark.parametrize(
    ("type_", "value", "hashed"),
    [
        (IntegerType(), 34, 2017239379),
        (LongType(), 34, 2017239379),
        (DecimalType(9, 2), Decimal("14.20"), -500754589),
        (DateType(), 17486, -653330422),
        (TimeType(), 81_068_000_000, -662762989),
        (TimestampType(), 1_510_871_468_000_000, -2047944441),
        (TimestampType(), 1_510_871_468_000_001, -1207196810),
        (TimestampNanoType(), 1_510_871_468_000_001_001, -1207196810),
        (StringType(), "iceberg", 1210000089),
        (UUIDType(), UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7").bytes, 1488055340),
        (FixedType(4), b"\0\1\2\3", -188683207),
        (BinaryType(), b"\0\1\2\3", -188683207),
    ],
    ids=str,
)
def test_hashes_of_the_specification(type_: IcebergType, value: Any, hashed: int) -> None:
    buckets = 1_000_003
    found = apply_transform(BucketTransform(buckets), type_, array_of(type_, [value])).to_pylist()
    assert found == [(hashed & 2**31 - 1) % buckets]


def test_values_of_very_different_length() -> None:
    values = [bytes([number % 251]) * number for number in [*range(40), 1023, 1024, 1025, 100_000, 3]]
    one = BucketTransform(97).transform(BinaryType())
    assert apply_transform(BucketTransform(97), BinaryType(), pa.array(values)).to_pylist() == list(map(one, values))


@pytest.mark.parametrize(
    ("transform", "type_"),
    [(HourTransform(), DateType()), (BucketTransform(2), DoubleType()), (UnknownTransform("zorder"), LongType())],
    ids=str,
)
def test_what_cannot_be_transformed(transform: Transform[Any, Any], type_: IcebergType) -> None:
    with pytest.raises(Unsupported, match="is not supported"):
        apply_transform(transform, type_, array_of(type_, [None]))


# -- partitions ------------------------------------------------------------------------------------------------------

INNER = StructType(NestedField(5, "x", StringType()), NestedField(6, "y", DateType()))
SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "name", StringType()),
    NestedField(3, "amount", DoubleType()),
    NestedField(4, "s", StructType(NestedField(7, "t", INNER))),
)
SPEC = PartitionSpec(
    PartitionField(99, 1000, VoidTransform(), "gone"),
    PartitionField(1, 1001, BucketTransform(2), "id_bucket"),
    PartitionField(2, 1002, IdentityTransform(), "name"),
    PartitionField(3, 1003, IdentityTransform(), "amount"),
    PartitionField(6, 1004, MonthTransform(), "month"),
)
ROW = st.fixed_dictionaries(
    {
        "id": st.none() | st.integers(0, 9),
        "name": st.none() | st.sampled_from("ab"),
        "amount": st.none() | st.sampled_from([0.0, -0.0, math.nan]),
        "s": st.none() | st.fixed_dictionaries({"t": st.none() | st.fixed_dictionaries({"y": st.integers(-40, 40)})}),
    }
)


def batch_of(content: list[dict[str, Any]], encoded: bool) -> pa.RecordBatch:
    inner = pa.struct([pa.field("y", pa.date32()), pa.field("x", pa.string())])
    types = {"s": pa.struct([pa.field("t", inner)]), "name": pa.string(), "amount": pa.float64(), "id": pa.int64()}
    columns = {name: pa.array([row[name] for row in content], type_) for name, type_ in types.items()}
    if encoded:
        columns["name"] = pa.array(["unused", *columns["name"].to_pylist()]).dictionary_encode()[1:]
    return pa.record_batch(columns)


@given(content=st.lists(ROW, max_size=20), encoded=st.booleans())
def test_partitions_of_rows(content: list[dict[str, Any]], encoded: bool) -> None:
    codes, tuples = partition_values(SPEC, SCHEMA, batch_of(content, encoded))
    wanted = []
    for row in content:
        day = ((row["s"] or {}).get("t") or {}).get("y")
        bucket = BucketTransform(2).transform(LongType())(row["id"])
        wanted.append(repr((None, bucket, row["name"], row["amount"], None if day is None else months_since_1970(day))))
    assert codes.dtype == np.int32
    assert [repr(tuples[code]) for code in codes] == wanted
    assert list(map(repr, tuples)) == list(dict.fromkeys(wanted))


def test_one_partition_without_fields() -> None:
    row = {"id": 1, "name": None, "amount": None, "s": None}
    codes, tuples = partition_values(PartitionSpec(), SCHEMA, batch_of([row, row], encoded=False))
    assert codes.tolist() == [0, 0]
    assert tuples == [()]
    assert partition_values(PartitionSpec(), SCHEMA, batch_of([], encoded=False))[1] == []


def test_nulls_of_a_dictionary_are_one_partition() -> None:
    """A null may stand among the places as well as among the values."""
    names = pa.DictionaryArray.from_arrays(pa.array([0, None, 1, 2], pa.int8()), pa.array(["a", None, "a"]))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name"))
    codes, tuples = partition_values(spec, SCHEMA, pa.record_batch({"name": names}))
    assert codes.tolist() == [0, 1, 1, 0]
    assert tuples == [("a",), (None,)]
