"""Bounds of manifests against footers: true bounds are never called wrong, and a bound that is off by one is."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimeType,
)

from pyarctic.iceberg.check.bounds import Bounds, columns_miscounted, columns_outside
from pyarctic.iceberg.write.parquet.metrics import parquet_metrics

ID = {"PARQUET:field_id": "1"}


def footer(type_: pa.DataType, *groups: list[Any]) -> pq.FileMetaData:
    """Of a file with one column, with these row groups."""
    schema = pa.schema([pa.field("c", type_, metadata=ID)])
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, store_decimal_as_integer=False) as writer:
        for values in groups:
            writer.write_table(pa.table([pa.array(values, type_)], schema=schema))
    return pq.ParquetFile(pa.BufferReader(sink.getvalue())).metadata


def outside(metadata: pq.FileMetaData, type_: PrimitiveType, bounds: Bounds) -> list[str]:
    return list(columns_outside(metadata, bounds, {1: type_}, None))


CASES: list[tuple[PrimitiveType, pa.DataType, list[Any], list[Any], Any, Any]] = [
    # type, stored type, two row groups, a lower bound that is too high, an upper bound that is too low
    (IntegerType(), pa.int32(), [3, None], [-2], -1, 2),
    (LongType(), pa.int64(), [1 << 40], [-(1 << 63)], 1 - (1 << 63), (1 << 40) - 1),
    (LongType(), pa.int32(), [7], [-7], -6, 6),
    (FloatType(), pa.float32(), [1.5], [-0.25], -0.125, 1.25),
    (DoubleType(), pa.float64(), [1.5, float("nan")], [-2.5], -2.25, 1.25),
    (BooleanType(), pa.bool_(), [True], [False], True, False),
    (DateType(), pa.date32(), [19_000], [-1], 0, 18_999),
    (TimeType(), pa.time64("us"), [5], [7], 6, 6),
    (TimestampType(), pa.timestamp("us"), [-5], [7], -4, 6),
    (DecimalType(9, 2), pa.decimal128(9, 2), [Decimal("-1.50")], [Decimal("2.00")], Decimal("-1.49"), Decimal("1.99")),
    (DecimalType(38, 0), pa.decimal128(38, 0), [Decimal(-(10**30))], [Decimal(10**30)], Decimal(-1), Decimal(1)),
    (StringType(), pa.string(), ["ä", "b"], [""], "a", "z"),
    (StringType(), pa.string(), ["mm"], ["mn"], "n", "mm"),
    (BinaryType(), pa.binary(), [b"\x80"], [b"\x7f"], b"\x80", b"\x7f"),
]


@pytest.mark.parametrize(("type_", "stored", "first", "second", "high", "low"), CASES, ids=str)
def test_bounds(type_: PrimitiveType, stored: pa.DataType, first: list[Any], second: list[Any], high: Any, low: Any) -> None:
    metadata = footer(stored, first, second)
    field = NestedField(1, "c", type_)
    measured, _ = parquet_metrics(metadata, [field], {"write.metadata.metrics.default": "full"}, {})
    true = (measured.lower_bounds.get(1), measured.upper_bounds.get(1))
    assert outside(metadata, type_, {1: true}) == []
    assert outside(metadata, type_, {}) == outside(metadata, type_, {1: (None, None)}) == []
    assert outside(metadata, type_, {1: (to_bytes(type_, high), None)}) == ["c"]
    assert outside(metadata, type_, {1: (None, to_bytes(type_, low))}) == ["c"]


def test_truncated_bounds_are_true() -> None:
    metadata = footer(pa.string(), ["a" * 30], ["z" * 30])
    measured, _ = parquet_metrics(metadata, [NestedField(1, "c", StringType())], {}, {})
    assert len(measured.lower_bounds[1]) == 16
    assert outside(metadata, StringType(), {1: (measured.lower_bounds[1], measured.upper_bounds[1])}) == []
    assert outside(metadata, StringType(), {1: (None, b"z" * 16)}) == ["c"]


def test_what_footers_cut_is_not_compared() -> None:
    """Some writers cut long values: the least one down, the greatest one up."""
    metadata = footer(pa.string(), ["m" * 64], ["n" * 64])
    assert outside(metadata, StringType(), {1: (b"n", b"m")}) == []


def test_another_unit_is_not_compared() -> None:
    metadata = footer(pa.timestamp("ms"), [1_767_225_600_000])
    bound = to_bytes(TimestampType(), 0)
    assert outside(metadata, TimestampType(), {1: (bound, bound)}) == []


@pytest.mark.parametrize("bounds", [{2: (b"", b"")}, {1: (b"\xff" * 8, None)}])
def test_fields_that_the_file_or_the_table_does_not_have(bounds: Mapping[int, tuple[bytes, bytes | None]]) -> None:
    assert list(columns_outside(footer(pa.int64(), [5]), bounds, {2: LongType()}, None)) == []


def test_a_nan_bound_says_nothing() -> None:
    metadata = footer(pa.float64(), [5.0])
    nan = to_bytes(DoubleType(), float("nan"))
    assert outside(metadata, DoubleType(), {1: (nan, nan)}) == []


@pytest.mark.parametrize(
    ("values", "nulls", "names"),
    [
        ({1: 3}, {1: 1}, []),
        ({}, {}, []),
        ({2: 9}, {2: 9}, []),
        ({1: 3}, {1: 0}, ["c"]),
        ({1: 3}, {1: 3}, ["c"]),
        ({1: 1}, {1: 1}, ["c"]),
    ],
)
def test_counts_of_values_and_nulls(values: dict[int, int], nulls: dict[int, int], names: list[str]) -> None:
    metadata = footer(pa.int64(), [5, None], [7])
    assert list(columns_miscounted(metadata, values, nulls, None)) == names
