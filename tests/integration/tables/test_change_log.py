"""Changes in order: some columns, some rows, some commits; and transactions of any size and number of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic.errors import NotFound, UsageError
from pyarctic.tables.keyed_table import KeyedTable
from pyarctic.tables.read import change_log, merge_sorted
from tests.integration.tables.test_key_lookup import opening
from tests.support.keyed_tables import CITIES, IDS, cities, made, many, opened, rows

pytestmark = pytest.mark.usefixtures("lake")


def logged(**options: Any) -> list[tuple[Any, ...]]:
    log = opened().changes(**options)
    found = [tuple(row.values()) for row in log.to_arrow().to_pylist()]
    assert log.count() == len(found)
    return found


@pytest.fixture
def snapshots() -> list[int | None]:
    """Of an insert, an update with its before-image, and a delete."""
    table = made(CITIES, ("city",))
    first = table.write(cities((1, "Oslo", "a"), (2, "Bergen", "b")))
    images = cities((1, "Oslo", "a"), (1, "Bergen", "c"), (3, "Oslo", "d"))
    actions = pa.array(["UPDATE_BEFORE", "UPDATE_AFTER", "INSERT"])
    second = table.write(images.append_column("_change_action", actions), "cdc")
    third = table.write(cities((2, "Bergen", "-")), "delete")
    return [first, second, third]


def test_columns(snapshots: list[int]) -> None:
    assert logged(columns=["_change_action", "text"]) == [
        ("INSERT", "a"),
        ("INSERT", "b"),
        ("UPDATE_BEFORE", "a"),
        ("UPDATE_AFTER", "c"),
        ("INSERT", "d"),
        ("DELETE", "-"),
    ]
    assert opened().changes(columns=["text"]).schema.names == ["text"]
    assert opened().changes().schema.names == [*CITIES.names, "_transaction_id", "_file_offset", "_change_action"]


def test_conditions_leave_images_of_updates_as_they_are(snapshots: list[int]) -> None:
    columns = ["_change_action", "id", "text"]
    after = [("UPDATE_AFTER", 1, "c")]
    for where in ("text = 'c'", "_change_action = 'UPDATE_AFTER'", "id = 1 and city = 'Bergen'"):
        assert logged(columns=columns, where=where) == after, where
    assert logged(columns=columns, where="id = 1") == [("INSERT", 1, "a"), ("UPDATE_BEFORE", 1, "a"), *after]
    assert logged(columns=["id"], where="_transaction_id = 3") == [(2,)]
    assert logged(where="id = 77") == []


def test_commits(snapshots: list[int]) -> None:
    first, second, third = snapshots
    assert [row[0] for row in logged(columns=["id"], until=first)] == [1, 2]
    assert [row[0] for row in logged(columns=["id"], since=first, until=second)] == [1, 1, 3]
    assert logged(since=second, until=second) == []
    assert len(logged(until=third)) == 6
    assert len(logged(since=first, until=third, where="id > 1")) == 2


def test_bad_input(snapshots: list[int]) -> None:
    first, second, _ = snapshots
    with pytest.raises(UsageError, match=r"since\) is later than .*until") as raised:
        opened().changes(since=second, until=first)
    assert raised.value.hint
    with pytest.raises(NotFound, match="neither store"):
        opened().changes(until=7)
    with pytest.raises(UsageError, match="no such column: txet") as raised:
        opened().changes(columns=["txet"])
    assert "'text'" in str(raised.value.hint)
    with pytest.raises(UsageError, match="condition is not understood"):
        opened().changes(where="action = 'INSERT'")


def test_a_key_opens_few_files() -> None:
    table = made()
    for start in range(0, 1_000, 100):
        table.write(many(range(start, start + 100), "a"), "upsert")
    with opening() as paths:
        assert [row[0] for row in logged(columns=["id"], where="id = 555")] == [555, 555]
    assert len(paths) == 2
    with opening() as paths:
        assert len(logged(columns=["id"], where="_transaction_id <= 2")) == 400
    assert len(paths) == 4


def test_a_transaction_of_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than are open at a time, and more rows than are held."""
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    table = pyarctic.create_table("lake.db.t", schema, ["id"], partition_by=["bucket(8, id)"])
    assert isinstance(table, KeyedTable)
    table.write(many(range(3_000), "a"), "upsert")
    before = opened().changes().to_arrow()
    assert before["id"].to_pylist() == [number for number in range(3_000) for _ in range(2)]
    (tmp_path / "spill").mkdir()
    monkeypatch.setenv("ARCTIC_SPILL_DIR", str(tmp_path / "spill"))
    monkeypatch.setattr(merge_sorted, "MAX_OPEN", 5)
    for memory in (1 << 10, 64 << 10):
        monkeypatch.setattr(change_log, "MEMORY_BYTES", memory)
        assert opened().changes().to_arrow().equals(before)
    assert not [*(tmp_path / "spill").iterdir()]


def test_a_table_without_changes(lake: Catalog) -> None:
    made(IDS)
    assert logged() == logged(where="id = 1 and _transaction_id = 1", columns=["id"]) == []
    table = opened()
    table.write(rows(_1="a"), "overwrite")
    assert logged() == []
