"""Ranks that keep the order of values, z-values, and the tree that divides rows into files."""

from __future__ import annotations

import math
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
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
    StringType,
    TimestampType,
)

from pyarctic.iceberg.read.projection import arrow_type
from pyarctic.optimizing.execute.kernel.z_order import ClusterTree, expected_files, interleave, spread
from pyarctic.optimizing.order.ranks import MIN_RANK, NAN, NULL, Ranks, is_orderable, ranks

TYPES: dict[IcebergType, st.SearchStrategy[Any]] = {
    BooleanType(): st.booleans(),
    IntegerType(): st.integers(-(2**31), 2**31 - 1),
    LongType(): st.integers(-(2**63), 2**63 - 1),
    FloatType(): st.floats(width=32),
    DoubleType(): st.floats(),
    DateType(): st.dates(),
    TimestampType(): st.datetimes(),
    DecimalType(9, 2): st.integers(-(10**9) + 1, 10**9 - 1).map(lambda n: Decimal(n).scaleb(-2)),
    DecimalType(38, 0): st.integers(-(10**28) + 1, 10**28 - 1).map(Decimal),
    StringType(): st.text(max_size=12),
    BinaryType(): st.binary(max_size=12),
    FixedType(3): st.binary(min_size=3, max_size=3),
}


def sort_key(value: Any) -> Any:
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    return value.encode() if isinstance(value, str) else value


@pytest.mark.parametrize("type_", TYPES, ids=str)
@given(data=st.data())
@settings(max_examples=60)
def test_ranks_keep_the_order_of_values(type_: IcebergType, data: st.DataObject) -> None:
    assert is_orderable(type_)
    values = data.draw(st.lists(st.none() | TYPES[type_], min_size=1, max_size=20))
    found = ranks(type_, pa.array([None, *values], arrow_type(type_)).slice(1))
    for value, rank in zip(values, found, strict=True):
        assert (rank == NULL) == (value is None)
        if isinstance(value, float) and math.isnan(value):
            assert rank == NAN
        for other, other_rank in zip(values, found, strict=True):
            if value is not None and other is not None and sort_key(value) <= sort_key(other):
                assert MIN_RANK <= rank <= other_rank <= NAN


def test_values_that_differ_have_different_ranks() -> None:
    dates = pa.array([date(1, 1, 1), date(1969, 12, 31), date(1970, 1, 1), date(9999, 12, 31)])
    assert len(set(ranks(DateType(), dates).tolist())) == 4
    instants = pa.array([datetime(1960, 1, 1), datetime(2030, 1, 1)], pa.timestamp("us"))  # noqa: DTZ001
    assert len(set(ranks(TimestampType(), instants).tolist())) == 2
    digits = pa.array([Decimal(-(10**30)), Decimal(-1), Decimal(0), Decimal(1), Decimal(10**30)], pa.decimal128(38, 0))
    assert len(set(ranks(DecimalType(38, 0), digits).tolist())) == 5


@given(st.lists(st.tuples(st.integers(0, 2**16 - 1), st.integers(0, 2**16 - 1)), min_size=1, max_size=30))
def test_bits_take_turns(pairs: list[tuple[int, int]]) -> None:
    columns = [np.array(column, np.uint16) for column in zip(*pairs, strict=True)]
    found = interleave(columns)
    for (x, y), octets in zip(pairs, found, strict=True):
        expected = "".join(a + b for a, b in zip(f"{x:016b}", f"{y:016b}", strict=True))
        assert int.from_bytes(octets.tobytes(), "big") == int(expected, 2)


@given(st.lists(st.integers(1, 2**64 - 2), min_size=1, max_size=50), st.lists(st.integers(0, 2**64 - 1), max_size=50))
def test_spreading_keeps_the_order(sample: list[int], values: list[int]) -> None:
    quantiles = np.unique(np.array(sample, np.uint64))
    ordered = np.sort(np.array(values, np.uint64))
    assert (np.diff(spread(ordered, quantiles).astype(np.int64)) >= 0).all()


def test_spreading_shares_the_bits_of_skewed_columns() -> None:
    skewed = np.sort(np.exp(np.random.default_rng(1).normal(20, 5, 10_000)).astype(np.uint64))
    places = spread(skewed, np.unique(skewed))
    assert np.abs(np.quantile(places, [0.25, 0.5, 0.75]) / 65_535 - [0.25, 0.5, 0.75]).max() < 0.01


# -- the tree ---------------------------------------------------------------------------------------------------------


def boxes(found: Ranks, leaves: np.ndarray[Any, np.dtype[np.int32]]) -> list[tuple[Ranks, Ranks]]:
    return [(found[leaves == leaf].min(axis=0), found[leaves == leaf].max(axis=0)) for leaf in np.unique(leaves)]


def are_apart(one: tuple[Ranks, Ranks], other: tuple[Ranks, Ranks]) -> bool:
    return bool(((one[1] < other[0]) | (other[1] < one[0])).any())


COLUMNS: dict[str, Any] = {
    "even": lambda rng, n: [rng.integers(0, 2**60, n), rng.integers(0, 2**60, n)],
    "skewed": lambda rng, n: [np.exp(rng.normal(10, 4, n)).astype(np.int64), rng.integers(0, 50, n)],
    "alike": lambda rng, n: [np.arange(n), np.arange(n) + rng.integers(0, 10, n)],
    "three": lambda rng, n: [rng.integers(0, 1000, n), rng.integers(0, 7, n), rng.integers(0, 2**40, n)],
    "heavy": lambda rng, n: [np.where(rng.random(n) < 0.8, 5, rng.integers(0, 1000, n)), rng.integers(0, 1000, n)],
    "constant": lambda _, n: [np.full(n, 3), np.full(n, 4)],
}


@pytest.mark.parametrize("files", [1, 2, 3, 7, 16, 61])
@pytest.mark.parametrize("name", COLUMNS)
def test_leaves_are_apart_and_even(name: str, files: int) -> None:
    rng = np.random.default_rng(files)
    found = np.column_stack(COLUMNS[name](rng, 40_000)).astype(np.uint64) + MIN_RANK
    clusters = ClusterTree.of(found[::2], files)
    assert clusters.files.sum() == files
    leaves = clusters.leaves(found)
    listed = boxes(found, leaves)
    assert len(listed) == len(clusters.files)
    for number, box in enumerate(listed):
        assert all(are_apart(box, other) for other in listed[:number])
    shares = np.bincount(leaves, minlength=len(listed)) / len(found) * files / clusters.files
    if name in ("even", "alike"):
        assert (clusters.files == 1).all()
        assert 0.8 < shares.min() <= shares.max() < 1.25
    assert 0.65 < shares.min() <= shares.max() < 1.4


def test_keys_of_a_leaf_with_several_files_go_column_by_column() -> None:
    found = np.column_stack([np.full(1000, 3), np.repeat([4, 5], [990, 10])]).astype(np.uint64)
    clusters = ClusterTree.of(found, 4)
    leaves = clusters.leaves(found)
    keys = clusters.keys(found, leaves).to_pylist()
    assert keys == sorted(keys)
    assert clusters.files.tolist() == [4]


def test_how_many_files() -> None:
    assert [expected_files(size, 100) for size in (0, 50, 149, 150, 310, 1000)] == [1, 1, 1, 2, 2, 8]


def test_a_set_without_a_sample_is_one_file() -> None:
    clusters = ClusterTree.of(np.empty((0, 2), np.uint64), 5)
    assert clusters.leaves(np.ones((3, 2), np.uint64)).tolist() == [0, 0, 0]
