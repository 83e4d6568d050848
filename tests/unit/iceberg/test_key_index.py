"""The index of deleted keys against a dictionary, over all types that can be keys."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from pyiceberg.schema import Schema
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
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)

from pyarctic.iceberg.delete import key_index as keyindex
from pyarctic.iceberg.delete.delete_files import KeyColumns
from pyarctic.iceberg.delete.key_index import (
    DenseCodes,
    EqualityIndex,
    Integers,
    MembershipBitmap,
    SparseCodes,
    are_dense,
)
from pyarctic.iceberg.read.data_files import FileBatch, OpenFile
from pyarctic.iceberg.read.projection import arrow_type

MOST, LEAST = 2**63 - 1, -(2**63)
NAN_BITS = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000123))[0]

# Few values, so that rows meet deleted keys; the extremes of every type among them.
VALUES: dict[IcebergType, list[Any]] = {
    BooleanType(): [True, False],
    IntegerType(): [0, 1, -1, 2**31 - 1, -(2**31)],
    LongType(): [0, 1, -1, 2**31, MOST, MOST - 1, LEAST, LEAST + 1],
    DateType(): [0, 1, -1, 2**31 - 1, -(2**31)],
    TimeType(): [0, 1, 86_399_999_999],
    TimestampType(): [0, 1, -1, MOST, LEAST],
    TimestamptzType(): [0, 1, -1, MOST, LEAST],
    TimestampNanoType(): [0, 1, -1, MOST, LEAST],
    FloatType(): [0.0, -0.0, 1.5, float("nan"), float("inf"), -1.5],
    DoubleType(): [0.0, -0.0, 1.5, float("nan"), NAN_BITS, 5e-324, float("-inf"), 2.0**52],
    DecimalType(9, 2): [Decimal("0.00"), Decimal("0.01"), Decimal("-9999999.99")],
    DecimalType(18, 0): [Decimal(0), Decimal(10**18 - 1), Decimal(1 - 10**18)],
    DecimalType(18, 1): [Decimal("0.0"), Decimal("0.1"), Decimal(f"{'9' * 17}.9")],
    DecimalType(38, 1): [Decimal("0.0"), Decimal("0.1"), Decimal(f"{'9' * 37}.8"), Decimal(f"-{'9' * 37}.8")],
    StringType(): ["", "a", "b", "thirteen bytes", "thirteen bytes!", "é"],
    BinaryType(): [b"", b"\0", b"\0\0", b"a", b"thirteen bytes"],
    FixedType(2): [b"\0\0", b"\0\1", b"\xff\xff"],
    UUIDType(): [bytes(16), bytes(15) + b"\1"],
    UnknownType(): [None],
}
NARROW: dict[IcebergType, IcebergType] = {
    LongType(): IntegerType(),
    DoubleType(): FloatType(),
    DecimalType(38, 1): DecimalType(18, 1),
}
"""What a file may hold that was written before its column was made wider."""

Row = tuple[Any, ...]


def columns_of(types: Sequence[IcebergType]) -> KeyColumns:
    fields = [NestedField(number, f"c{number}", type_) for number, type_ in enumerate(types, start=1)]
    return KeyColumns.of([field.field_id for field in fields], [Schema(*fields)], "x")


def frame(keys: KeyColumns, types: Sequence[IcebergType], content: Sequence[Row], encoded: bool = False) -> pl.DataFrame:
    """Key columns as reading gives them, of a file that holds `types`."""
    arrays = []
    for number, type_ in enumerate(types):
        array = pa.array([row[number] for row in content], arrow_type(type_))
        arrays.append(array.dictionary_encode() if encoded and pa.types.is_string(array.type) else array)
    schema = pa.schema(
        [
            pa.field(f"c{number}", array.type, metadata={"PARQUET:field_id": str(number)})
            for number, array in enumerate(arrays, start=1)
        ]
    )
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return keys.frame(FileBatch(file=OpenFile(path="x", schema=schema, names=None), position=0, batch=batch), {})


def plain(row: Row) -> Row:
    """Comparable as Java compares: floats by their bits, of which NaN has one kind."""
    return tuple(
        value if not isinstance(value, float) else "NaN" if value != value else struct.pack("<d", value) for value in row
    )


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[IcebergType], list[IcebergType], list[tuple[list[Row], int]], list[Row], int]:
    types = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3).map(lambda t: t[: 1 + len(t) // 2]))
    narrowed = [NARROW.get(type_, type_) if draw(st.booleans()) else type_ for type_ in types]

    def row(of: list[IcebergType]) -> st.SearchStrategy[Row]:
        return st.tuples(*[st.none() | st.sampled_from(VALUES[type_]) for type_ in of])

    deleted = draw(st.lists(st.tuples(st.lists(row(types), max_size=6), st.integers(1, 5)), max_size=4))
    return types, narrowed, deleted, draw(st.lists(row(narrowed), max_size=12)), draw(st.integers(0, 5))


@pytest.mark.parametrize("colliding", [False, True])
@given(history=histories())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
def test_index_equals_a_dictionary(
    monkeypatch: pytest.MonkeyPatch,
    colliding: bool,
    history: tuple[list[IcebergType], list[IcebergType], list[tuple[list[Row], int]], list[Row], int],
) -> None:
    if colliding:
        monkeypatch.setattr(keyindex, "hash_rows", lambda rows: pl.zeros(rows.height, pl.UInt64, eager=True))
    types, narrowed, deleted, asked, at = history
    keys = columns_of(types)
    newest: dict[Row, int] = {}
    for content, sequence in deleted:
        for row in map(plain, content):
            newest[row] = max(newest.get(row, 0), sequence)
    index = EqualityIndex(part(frame(keys, types, content), sequence) for content, sequence in deleted)
    rows = frame(keys, narrowed, asked, encoded=True)
    assert index.is_deleted(rows, at).tolist() == [newest.get(plain(row), 0) > at for row in asked]
    # The same of files that were joined, asked for rows of several files at once.
    contents = frame(keys, types, [row for content, _ in deleted for row in content])
    sequences = np.array([sequence for _, sequence in deleted], np.int64)
    joined = EqualityIndex([(contents, sequences, np.array([len(content) for content, _ in deleted], np.int64))])
    each_at = np.arange(len(asked)) % 6
    dead = joined.is_deleted(rows, each_at)
    assert dead.tolist() == [newest.get(plain(row), 0) > at for row, at in zip(asked, each_at, strict=True)]


def part(rows: pl.DataFrame, sequence: int) -> tuple[pl.DataFrame, Integers, Integers]:
    """The keys of one delete file."""
    return rows, np.array([sequence]), np.array([rows.height])


def test_collision_with_a_row_that_is_not_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One deleted key, and every row has its hash."""
    monkeypatch.setattr(keyindex, "hash_rows", lambda rows: pl.zeros(rows.height, pl.UInt64, eager=True))
    types = [IntegerType(), StringType()]
    keys = columns_of(types)
    index = EqualityIndex([part(frame(keys, types, [(1, "a")]), 5)])
    asked: list[Row] = [(2, "a"), (1, "a"), (1, None), (None, None)]
    assert index.is_deleted(frame(keys, types, asked), 4).tolist() == [False, True, False, False]


def test_index_of_nothing() -> None:
    keys = columns_of([LongType()])
    for index in (EqualityIndex([]), EqualityIndex([part(frame(keys, [LongType()], []), 5)])):
        assert index.is_deleted(frame(keys, [LongType()], [(1,), (None,)]), 0).tolist() == [False, False]
        assert index.nbytes < 10


@given(
    known=st.sets(
        st.one_of(st.integers(-70, 200), st.integers(MOST - 130, MOST), st.integers(LEAST, LEAST + 130)), min_size=1
    ),
    asked=st.lists(st.one_of(st.integers(-200, 300), st.integers(MOST - 200, MOST), st.integers(LEAST, LEAST + 200))),
)
def test_close_codes_are_found_where_a_search_finds_them(known: set[int], asked: list[int]) -> None:
    near = [code for code in known if code < min(known) + 4096]  # what is farther would take a bit for each number between
    codes, rows = np.array(sorted(near), np.int64), np.array(asked, np.int64)
    found, places = DenseCodes(codes).locate(rows)
    assert [(asked[row], near_code) for row, near_code in zip(found, codes[places], strict=True)] == [
        (code, code) for code in asked if code in near
    ]
    searched, at = SparseCodes(codes).locate(rows)
    assert sorted(zip(searched, at, strict=True)) == list(zip(found, places, strict=True))


def test_which_codes_are_close() -> None:
    assert are_dense(np.array([LEAST, LEAST + 95]))
    assert not are_dense(np.array([LEAST, LEAST + 96]))
    assert not are_dense(np.array([LEAST, MOST]))
    assert not are_dense(np.empty(0, np.int64))


@pytest.mark.parametrize("step", [1, 86_400_000_000, 2**20, 0x5851F42D4C957F2D])
def test_many_keys(step: int) -> None:
    """More than one block, several sequence numbers, in any order; and little memory for each key."""
    numbers = np.random.default_rng(7).permutation(900_000).astype(np.int64) * np.int64(step)
    deleted, sequences = numbers[:300_000], np.repeat([7, 3, 300], 100_000)
    parts = [part(pl.DataFrame({"key_0": deleted[sequences == sequence]}), sequence) for sequence in (7, 3, 300)]
    index = EqualityIndex(parts)
    for at, least in ((2, 0), (3, 4), (7, 8), (300, 301)):
        dead = index.is_deleted(pl.DataFrame({"key_0": numbers}), at)
        assert np.array_equal(dead, np.append(sequences >= least, np.zeros(600_000, bool)))
    assert index.nbytes <= 12 * len(deleted)
    turned_away = 1 - len(MembershipBitmap(deleted).may_contain(numbers[300_000:])) / 600_000
    assert turned_away > 0.85
