"""How far a file reaches, for columns of every type that has an order: its bounds are those of its rows."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
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

import pyarctic
from pyarctic.iceberg.read.projection import arrow_type
from pyarctic.optimizing.order.key_bounds import key_bounds, metric_ids
from pyarctic.optimizing.order.ranks import NAN, NULL, NULL_LAST, ranks
from pyarctic.optimizing.order.sort_order import table_order
from pyarctic.optimizing.settings import Settings
from tests.support import changes

VALUES: dict[str, tuple[IcebergType, list[Any]]] = {
    "boolean": (BooleanType(), [False, True]),
    "int": (IntegerType(), [-5, 7]),
    "long": (LongType(), [-(2**40), 2**40]),
    "float": (FloatType(), [-1.5, 2.5]),
    "double": (DoubleType(), [-0.0, 1e300]),
    "date": (DateType(), [date(1950, 1, 1), date(2050, 1, 1)]),
    "time": (TimeType(), [time(1), time(2)]),
    "timestamp": (TimestampType(), [datetime(1950, 1, 1), datetime(2050, 1, 1)]),  # noqa: DTZ001
    "timestamptz": (TimestamptzType(), [datetime(1950, 1, 1, tzinfo=UTC), datetime(2050, 1, 1, tzinfo=UTC)]),
    "short_decimal": (DecimalType(9, 2), [Decimal("-12.50"), Decimal("1.25")]),
    "long_decimal": (DecimalType(38, 3), [Decimal("-123456789012345678901.5"), Decimal("0.125")]),
    "string": (StringType(), ["abcdefghijklmnopqrst", "é" * 30]),
    "binary": (BinaryType(), [b"", b"\xfe" * 40]),
    "fixed": (FixedType(3), [b"abc", b"abd"]),
    "uuid": (UUIDType(), [UUID(int=1).bytes, UUID(int=2**127).bytes]),
}
SCHEMA = Schema(*(NestedField(number, name, type_) for number, (name, (type_, _)) in enumerate(VALUES.items(), start=1)))


def column(type_: IcebergType, values: list[Any]) -> pa.Array:
    if isinstance(type_, UUIDType):
        return pa.array(values, pa.binary(16)).cast(arrow_type(type_))
    return pa.array(values, arrow_type(type_))


def columns(*order: int | None) -> pa.Table:
    """Of each column some of its values, or null."""
    taken = {
        name: column(type_, [None if at is None else values[at] for at in order]) for name, (type_, values) in VALUES.items()
    }
    return pa.table(taken)


@pytest.mark.parametrize("name", VALUES)
def test_bounds_have_the_ranks_of_the_rows(lake: Catalog, name: str) -> None:
    table = lake.create_table("db.t", SCHEMA)
    for chosen in ((0, 1), (1, 1), (0, None), (None, None)):
        changes.apply(table, lambda t, chosen=chosen: changes.append(t, columns(*chosen)))  # type: ignore[misc]
    opened = pyarctic.table("lake.db.t")
    metadata = opened.view.metadata
    order = table_order(metadata, replace(Settings.of({}), z_order=(name,)))
    assert order is not None
    files = opened.file_list.frame().sort("data_sequence_number")
    found = key_bounds(order, opened.file_list.with_metrics(opened.view.io, files, metric_ids(order)))
    low, high = ranks(VALUES[name][0], column(*VALUES[name])).tolist()
    told = found.select("key_low_0", "key_high_0", "is_bounded").rows()
    assert low < high
    assert told == [(low, high, True), (high, high, True), (NULL, low, True), (NULL, NULL, True)]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("nulls_last", [False, True])
def test_nulls_and_nan_are_where_sorting_puts_them(lake: Catalog, descending: bool, nulls_last: bool) -> None:
    direction = SortDirection.DESC if descending else SortDirection.ASC
    nulls = NullOrder.NULLS_LAST if nulls_last else NullOrder.NULLS_FIRST
    by = SortOrder(SortField(1, IdentityTransform(), direction, nulls))
    table = lake.create_table("db.t", Schema(NestedField(1, "a", DoubleType())), sort_order=by)
    nan = float("nan")
    for values in ([1.0, 2.0], [1.0, nan], [nan, nan], [1.0, None], [nan, None]):
        changes.apply(table, lambda t, values=values: changes.append(t, pa.table({"a": pa.array(values)})))  # type: ignore[misc]
    opened = pyarctic.table("lake.db.t")
    order = table_order(opened.view.metadata, Settings.of({}))
    assert order is not None
    files = opened.file_list.frame().sort("data_sequence_number")
    found = key_bounds(order, opened.file_list.with_metrics(opened.view.io, files, metric_ids(order)))
    one, two = ranks(DoubleType(), pa.array([1.0, 2.0])).tolist()
    low = nulls_last == descending
    expected = [(one, two), (one, NAN), (NAN, NAN), (NULL, one) if low else (one, NULL_LAST)]
    expected.append((NULL, NAN) if low else (NAN, NULL_LAST))
    assert found.select("key_low_0", "key_high_0").rows() == expected
