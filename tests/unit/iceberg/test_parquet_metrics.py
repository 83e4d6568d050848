"""Metrics of Parquet files: bounds are true for every row, or not told."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimeType,
    UUIDType,
)

from pyarctic.iceberg.write.new_file import Metrics
from pyarctic.iceberg.write.parquet import file_schema
from pyarctic.iceberg.write.parquet.metrics import parquet_metrics
from pyarctic.iceberg.write.parquet.settings import ParquetSettings


def metrics(type_: IcebergType, *groups: list[Any], **properties: str) -> Metrics:
    """Of a file with one column, written as PyArctic writes, with these row groups."""
    field = NestedField(1, "c", type_)
    schema = file_schema([field])
    sink, collected = pa.BufferOutputStream(), []  # type: ignore[var-annotated]
    with ParquetSettings.of({}).writer(sink, schema, collected) as writer:
        for values in groups:
            array = pa.array(values, pa.binary(16)) if isinstance(type_, UUIDType) else pa.array(values, schema[0].type)
            if isinstance(type_, UUIDType):
                array = pa.ExtensionArray.from_storage(pa.uuid(), array)
            writer.write_table(pa.Table.from_arrays([array], schema=schema))
    found, offsets = parquet_metrics(collected[0], [field], properties, {})
    assert len(offsets) == len(groups)
    return found


PLAIN: list[tuple[PrimitiveType, list[Any], list[Any], Any, Any]] = [
    (IntegerType(), [3, None], [-2], -2, 3),
    (LongType(), [1 << 40], [-(1 << 63), None], -(1 << 63), 1 << 40),
    (FloatType(), [1.5], [-0.25], -0.25, 1.5),
    (DoubleType(), [1.5, 2.5], [float("-inf")], float("-inf"), 2.5),
    (BooleanType(), [True], [False], False, True),
    (DateType(), [19_000], [-1], -1, 19_000),
    (TimeType(), [5], [7], 5, 7),
    (TimestampType(), [1_700_000_000_123_456], [-5], -5, 1_700_000_000_123_456),
    (TimestampNanoType(), [1_700_000_000_123_456_789], [1], 1, 1_700_000_000_123_456_789),
    (DecimalType(9, 2), [Decimal("-1.20")], [Decimal("3.40")], Decimal("-1.20"), Decimal("3.40")),
    (DecimalType(18, 2), [Decimal("-129.00")], [Decimal("0.00")], Decimal("-129.00"), Decimal("0.00")),
    (DecimalType(38, 4), [Decimal("-1.2000")], [Decimal("3.4000")], Decimal("-1.2000"), Decimal("3.4000")),
    (StringType(), ["b", "aé"], ["zz", None], "aé", "zz"),
    (BinaryType(), [b"\xff"], [b"a"], b"a", b"\xff"),
]


@pytest.mark.parametrize(("type_", "first", "second", "least", "most"), PLAIN, ids=lambda value: str(value)[:20])
def test_bounds_span_all_row_groups(
    type_: PrimitiveType, first: list[Any], second: list[Any], least: Any, most: Any
) -> None:
    found = metrics(type_, first, second)
    assert found.lower_bounds[1] == to_bytes(type_, least)
    assert found.upper_bounds[1] == to_bytes(type_, most)
    assert found.null_counts[1] == [*first, *second].count(None)
    assert found.value_counts[1] == len(first) + len(second)


def test_uuids_are_bytes() -> None:
    found = metrics(UUIDType(), [b"b" * 16], [b"a" * 16])
    assert (found.lower_bounds[1], found.upper_bounds[1]) == (b"a" * 16, b"b" * 16)


@pytest.mark.parametrize("long_first", [False, True])
def test_a_row_group_that_tells_nothing_takes_the_bounds_away(long_first: bool) -> None:
    """Arrow leaves out bounds of more than 4,096 bytes. Those of the other row groups are no bounds of the file."""
    groups = [["z" * 5_000], ["a", "b"]] if long_first else [["a", "b"], ["z" * 5_000]]
    found = metrics(StringType(), *groups)
    assert 1 not in found.lower_bounds
    assert 1 not in found.upper_bounds
    assert found.null_counts[1] == 0


def test_a_row_group_of_nulls_takes_nothing_away() -> None:
    found = metrics(StringType(), ["a", "b"], [None, None])
    assert found.upper_bounds[1] == b"b"
    assert found.null_counts[1] == 2


@pytest.mark.parametrize("days", [2_932_897, -719_163, 2**31 - 1], ids=["year 10000", "year 0", "the last day"])
def test_days_beyond_pythons_calendar(days: int) -> None:
    found = metrics(DateType(), [days])
    assert int(from_bytes(DateType(), found.upper_bounds[1])) == days


def test_what_is_not_a_number_is_no_bound() -> None:
    assert metrics(DoubleType(), [float("nan")]).lower_bounds == {}


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("a" * 20, "a" * 15 + "b"),
        ("a" * 15 + "\ud7ff" + "x", "a" * 15 + "\ue000"),
        ("a" * 15 + "\U0010ffff" + "x", "a" * 14 + "b"),
        ("\U0010ffff" * 17, None),
        ("a" * 16, "a" * 16),
    ],
    ids=["next", "over the surrogates", "carried", "none", "whole"],
)
def test_cut_texts_are_above_all_that_begin_with_them(text: str, bound: str | None) -> None:
    found = metrics(StringType(), [text])
    assert found.lower_bounds[1] == text[:16].encode()
    assert found.upper_bounds.get(1) == (None if bound is None else bound.encode())


@pytest.mark.parametrize(
    ("mode", "counts", "bounds"), [("none", False, False), ("counts", True, False), ("full", True, True)]
)
def test_modes(mode: str, counts: bool, bounds: bool) -> None:
    found = metrics(StringType(), ["x" * 40], **{"write.metadata.metrics.default": mode})
    assert bool(found.value_counts) == counts
    assert found.upper_bounds == ({1: b"x" * 40} if bounds else {})
    assert found.column_sizes[1] > 0


def test_an_empty_file() -> None:
    schema = file_schema([NestedField(1, "c", LongType())])
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    found, _ = parquet_metrics(pq.read_metadata(pa.BufferReader(sink.getvalue())), [NestedField(1, "c", LongType())], {}, {})
    assert found.lower_bounds == {}
