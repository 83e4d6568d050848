"""Hashes of keys against vectors computed by a JDK, and against the definition, value by value."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
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

from pyarctic.errors import Unsupported
from pyarctic.iceberg.read.projection import arrow_type
from pyarctic.tables.format.key_hash import check_key_type, key_hashes
from pyarctic.tables.format.tree import node_ids

INT, LONG, TEXT = IntegerType(), LongType(), StringType()

VECTORS: list[tuple[IcebergType, Any, int]] = [
    *[(INT, value, hash_) for value, hash_ in {0: 31, 1: 32, 42: 73, -1: 30, -32: 1, -100: 69}.items()],
    (INT, 2147483647, 2147483618),
    (INT, -2147483648, 2147483617),
    (INT, 2147483617, 2147483647),
    *[(LONG, value, hash_) for value, hash_ in {1: 32, -1: 31, 4294967296: 32, 1234567890123: 1912276467}.items()],
    *[(TEXT, value, hash_) for value, hash_ in {"": 31, "a": 128, "abc": 96385, "user_42": 147134575}.items()],
    (TEXT, "中文", 646425),
    (TEXT, "😀", 1772930),
    (BooleanType(), True, 1262),
    (BooleanType(), False, 1268),
    (FloatType(), 1.5, 1069547551),
    (DoubleType(), 1.5, 1073217567),
    (DecimalType(10, 2), Decimal("12.34"), 38287),
    (DecimalType(10, 2), Decimal("-12.34"), 38221),
    (DecimalType(10, 2), Decimal("5.00"), 15533),
    (DecimalType(10, 0), Decimal(5), 186),
    (DecimalType(38, 4), Decimal("123456789012345678901234.5678"), 894439195),
    (DecimalType(38, 4), Decimal("-123456789012345678901234.5678"), 894439125),
    (DecimalType(20, 0), Decimal(9223372036854775807), 2147482687),
    (DecimalType(20, 0), Decimal(4294967296), 992),
    (DateType(), date(2022, 7, 3), 19207),
    (TimestampType(), datetime(2022, 7, 3, 11, 50, 30), 971296644),  # noqa: DTZ001  # it has none
    (TimestamptzType(), datetime(2022, 7, 3, 11, 50, 30, tzinfo=UTC), 971296644),
    (TimeType(), time(12), 250327081),
    (BinaryType(), b"\x01\xff\x80", 93216),
    (FixedType(3), b"\x01\xff\x80", 93216),
    (UUIDType(), UUID("123e4567-e89b-12d3-a456-426614174000").bytes, 1256478193),
    (TEXT, None, 31),
]


def hashes_of(types: list[IcebergType], rows: list[tuple[Any, ...]]) -> list[int]:
    columns = [pa.array([row[i] for row in rows], arrow_type(type_)) for i, type_ in enumerate(types)]
    return [int(value) for value in key_hashes(columns, types)]


@pytest.mark.parametrize(("type_", "value", "expected"), VECTORS)
def test_vectors(type_: IcebergType, value: Any, expected: int) -> None:
    assert hashes_of([type_], [(value,)]) == [expected]


def test_composite_vectors() -> None:
    assert hashes_of([INT, TEXT], [(1, "a"), (1, None)]) == [1089, 992]
    assert hashes_of([TEXT, INT], [("a", 1)]) == [3969]
    assert hashes_of([LONG, LONG, TEXT], [(7, 8, "x")]) == [36886]


def test_nodes_of_vectors() -> None:
    hashes = np.array(hashes_of([INT], [(0,), (1,), (42,), (-1,)]))
    assert node_ids(hashes, 3).tolist() == [7, 4, 5, 6]
    assert node_ids(hashes, 7).tolist() == [15, 8, 9, 14]
    assert node_ids(hashes, 0).tolist() == [1, 1, 1, 1]


def _java(value: Any, type_: IcebergType) -> int:
    """The definition, one value at a time, in numbers without an end."""
    match type_:
        case _ if value is None:
            return 0
        case StringType():
            total, raw = 0, value.encode("utf-16-le")
            for at in range(0, len(raw), 2):
                total = 31 * total + int.from_bytes(raw[at : at + 2], "little")
            return total
        case BinaryType():
            total = 1
            for octet in reversed(value):
                total = 31 * total + (octet - 256 if octet > 127 else octet)
            return total
        case DecimalType():
            unscaled = int(value.scaleb(type_.scale))
            words, rest = 0, abs(unscaled)
            for shift in (96, 64, 32, 0):
                words = 31 * words + ((rest >> shift) & 0xFFFFFFFF)
            return 31 * (-words if unscaled < 0 else words) + type_.scale
        case LongType():
            bits = int(value) & 0xFFFFFFFFFFFFFFFF
            return bits ^ (bits >> 32)
    return int(value)


def _java_key(values: tuple[Any, ...], types: list[IcebergType]) -> int:
    total = 1
    for value, type_ in zip(values, types, strict=True):
        total = (31 * total + _java(value, type_)) & 0xFFFFFFFF
    signed = total - (1 << 32) if total >= 1 << 31 else total
    return 2147483647 if signed == -2147483648 else abs(signed)


_texts = st.text(st.characters(codec="utf-8"), max_size=12)
KEYS = [
    ([TEXT], st.tuples(_texts | st.none())),
    ([BinaryType()], st.tuples(st.binary(max_size=9) | st.none())),
    ([LONG, TEXT], st.tuples(st.integers(-(2**63), 2**63 - 1), _texts)),
    ([INT], st.tuples(st.integers(-(2**31), 2**31 - 1) | st.none())),
]


@pytest.mark.parametrize(("types", "keys"), KEYS, ids=["text", "binary", "long and text", "int"])
def test_as_defined(types: list[IcebergType], keys: st.SearchStrategy[tuple[Any, ...]]) -> None:
    @given(st.lists(keys, max_size=30))
    def check(rows: list[tuple[Any, ...]]) -> None:
        assert hashes_of(types, rows) == [_java_key(row, types) for row in rows]

    check()


@given(st.lists(st.integers(-(10**38) + 1, 10**38 - 1), min_size=1, max_size=20))
def test_decimals_as_defined(unscaled: list[int]) -> None:
    raw = b"".join(value.to_bytes(16, "little", signed=True) for value in unscaled)
    array = pa.Array.from_buffers(pa.decimal128(38, 6), len(unscaled), [None, pa.py_buffer(raw)])
    expected = []
    for value in unscaled:
        words = 0
        for shift in (96, 64, 32, 0):
            words = 31 * words + ((abs(value) >> shift) & 0xFFFFFFFF)
        total = (31 + 31 * (-words if value < 0 else words) + 6) & 0xFFFFFFFF
        signed = total - (1 << 32) if total >= 1 << 31 else total
        expected.append(2147483647 if signed == -2147483648 else abs(signed))
    assert key_hashes([array], [DecimalType(38, 6)]).tolist() == expected


def test_long_texts_and_slices() -> None:
    """Texts beyond a stretch, many of them, and arrays that begin in the middle of others."""
    texts = ["x" * 100_000, "", "né" * 7, *[f"key-{number}" for number in range(20_000)], None, "z" * 40_000]
    array = pa.array(texts)
    expected = [_java_key((text,), [TEXT]) for text in texts]
    assert key_hashes([array], [TEXT]).tolist() == expected
    assert key_hashes([array.slice(2, 500)], [TEXT]).tolist() == expected[2:502]
    assert key_hashes([array.slice(2, 500).dictionary_encode()], [TEXT]).tolist() == expected[2:502]
    assert key_hashes([pa.chunked_array([array.slice(0, 3), array.slice(3)])], [TEXT]).tolist() == expected
    numbers = pa.array(range(100), pa.int64())
    assert key_hashes([numbers.slice(7, 9)], [LONG]).tolist() == key_hashes([numbers], [LONG])[7:16].tolist()


@pytest.mark.parametrize("type_", [FloatType(), DoubleType()])
def test_floats_are_no_keys(type_: IcebergType) -> None:
    with pytest.raises(Unsupported, match=r"'x' of type .* cannot be part of a primary key"):
        check_key_type(NestedField(1, "x", type_))
