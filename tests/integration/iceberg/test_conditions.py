"""Conditions as people write them: what they select, and what is said of those that cannot be understood."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, IntegerType, NestedField, TimestampType, TimestamptzType, UUIDType

from pyarctic.errors import UsageError
from tests.integration.iceberg.conftest import Lake, rows

SCHEMA = Schema(
    NestedField(1, "i", IntegerType()),
    NestedField(2, "d", DecimalType(6, 3)),
    NestedField(3, "t", TimestampType()),
    NestedField(4, "z", TimestamptzType()),
    NestedField(5, "u", UUIDType()),
)


@pytest.fixture
def typed(lake: Lake) -> Lake:
    """Rows 1 to 4 with growing values, and row None without any."""
    table = lake.catalog.create_table("db.t", SCHEMA)
    moments = [datetime(2026, 1, day, tzinfo=UTC) for day in (14, 15, 16, 17)]
    table.append(
        pa.table(
            {
                "i": pa.array([1, 2, 3, 4, None], pa.int32()),
                "d": pa.array([Decimal("-1.5"), Decimal(0), Decimal("2.8"), Decimal("999.999"), None], pa.decimal128(6, 3)),
                "t": pa.array([*(moment.replace(tzinfo=None) for moment in moments), None], pa.timestamp("us")),
                "z": pa.array([*moments, None], pa.timestamp("us", "UTC")),
                "u": pa.array([*(UUID(int=number).bytes for number in range(1, 5)), None], pa.uuid()),
            }
        )
    )
    return lake


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("d = 2.8", [3]),
        ("d = 2.80", [3]),
        ("d >= 0", [2, 3, 4]),
        ("d in (2.8, 0.0)", [2, 3]),
        ("d > 1000000000000.000", []),
        ("d < 1000000000000.5", [1, 2, 3, 4]),
        ("d not in (1000000000000.5, 2.8)", [1, 2, 4]),
        ("d <> 5000", [1, 2, 3, 4]),
        ("t >= '2026-01-16'", [3, 4]),
        ("t >= '2026-01-16 00:00:00'", [3, 4]),
        ("t = '2026-01-16T00:00:00'", [3]),
        ("z >= '2026-01-16T00:00:00Z'", [3, 4]),
        ("z >= '2026-01-16'", [3, 4]),
        ("z < '2026-01-16T01:00:00+01:00'", [1, 2]),
        ("z in ('2026-01-16', '2026-01-17T00:00:00Z')", [3, 4]),
        ("u = '00000000-0000-0000-0000-000000000003'", [3]),
        ("i < 3000000000", [1, 2, 3, 4]),
        ("i in (2, 3000000000)", [2]),
        ("not (i in (2, 3000000000))", [1, 3, 4]),
        ("not (i > 3000000000)", [1, 2, 3, 4]),
        ("i is null", [None]),
    ],
)
def test_what_a_condition_selects(typed: Lake, where: str, found: list[int | None]) -> None:
    scan = typed.open().scan(["i"], where=where)
    assert scan.to_arrow()["i"].to_pylist() == found
    assert scan.count() == len(found)


@pytest.mark.parametrize(
    ("where", "hint"),
    [
        ("i >", "Write it like"),
        ('i = "2"', "single quotes"),
        ("i = null", "is null"),
        ("j = 1", "Columns: i, d"),
        ("d = 2.80001", "Write it like"),
        ("d = 'abc'", "values of the type of the column"),
        ("z > 'yesterday'", "Timestamps look like"),
        ("", "Write it like"),
    ],
)
def test_what_cannot_be_understood_is_told_briefly(typed: Lake, where: str, hint: str) -> None:
    with pytest.raises(UsageError, match="condition is not understood") as failure:
        typed.open().scan(where=where)
    assert hint in (failure.value.hint or "")
    assert len(str(failure.value)) < 250
    assert "<class" not in str(failure.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": "id"}, "list of names"),
        ({"columns": ["idd"]}, "no such column: idd"),
        ({"columns": []}, "no column"),
        ({"snapshot_id": "5"}, "is a number"),
        ({"as_of": "2026-01-01"}, "is a datetime"),
    ],
)
def test_wrong_arguments_are_named(lake: Lake, options: dict[str, Any], message: str) -> None:
    table = lake.make()
    table.commit(table.data(rows(1)))
    with pytest.raises(UsageError, match=message) as failure:
        lake.open().scan(**options)
    assert failure.value.hint


def test_near_names_are_offered_and_scans_describe_themselves(lake: Lake) -> None:
    lake.make()
    with pytest.raises(UsageError) as failure:
        lake.open().scan(["nme"])
    assert "Did you mean 'name'?" in cast("str", failure.value.hint)
    assert repr(lake.open().scan(["id"], where="id = 1")).startswith("<Scan of lake.db.t: id where")
