"""Many tables by glob: listing, health and optimizing; broken ones do not stop the others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import pyarctic
from pyarctic import config
from pyarctic.errors import NotFound, UsageError
from pyarctic.optimizing import TableHealth
from pyarctic.tables import find_tables

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "text": ["a", "b", "c"]})


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Path]:
    """A healthy table, one with many small files, an empty and a keyed one."""
    pyarctic.catalog("demo", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    for name in ("fresh", "ragged", "empty"):
        pyarctic.create_table(f"demo.shop.{name}", ROWS.schema)
    pyarctic.create_table("demo.shop.people", ROWS.schema, primary_key=["id"]).write(ROWS, "upsert")
    pyarctic.table("demo.shop.fresh").write(ROWS)
    ragged = pyarctic.table("demo.shop.ragged")
    for _ in range(14):
        ragged.write(ROWS)
    yield tmp_path
    config.reset()


def break_table(folder: Path, name: str) -> None:
    [*metadata] = folder.rglob(f"{name}/metadata/*.metadata.json")
    for path in metadata:
        path.write_text("not json", encoding="utf-8")


def break_catalog(folder: Path) -> None:
    (folder / "broken.db").write_text("this is no database", encoding="utf-8")
    config.declare_catalog("broken", {"type": "sql", "uri": f"sqlite:///{folder}/broken.db"})


class Listener:
    def __init__(self) -> None:
        self.total = 0
        self.tables: list[str] = []

    def found(self, tables: int) -> None:
        self.total = tables

    def evaluated(self, health: TableHealth) -> None:
        self.tables.append(health.table)


def test_names_by_glob_without_change_stores(lake: Path) -> None:
    everything = ["demo.shop.empty", "demo.shop.fresh", "demo.shop.people", "demo.shop.ragged"]
    assert pyarctic.list_tables() == pyarctic.list_tables("*") == pyarctic.list_tables("demo.*") == everything
    assert pyarctic.list_tables("demo.shop.fresh") == ["demo.shop.fresh"]
    assert pyarctic.list_tables(["*.f*", "demo.shop.fresh", "*.r*"]) == ["demo.shop.fresh", "demo.shop.ragged"]
    assert pyarctic.list_tables("demo.none.*") == []


@pytest.mark.parametrize(
    ("pattern", "message", "hint"),
    [
        ("demo.shop.frsh", "table demo.shop.frsh does not exist", "demo.shop.fresh"),
        ("demo.shop.xyz", "does not exist", "arctic table ls"),
        ("demi.shop.fresh", "catalog 'demi' is not configured", "Did you mean demo"),
        ("other.shop.fresh", "catalog 'other' is not configured", "Configured: demo"),
        ("demo.shop", "demo.shop is not a table", "'demo.shop.*'"),
        ("demo", "demo is not a table", "'demo.*'"),
    ],
)
def test_a_name_that_does_not_exist(lake: Path, pattern: str, message: str, hint: str) -> None:
    for call in (pyarctic.list_tables, pyarctic.health, pyarctic.optimize_many):
        with pytest.raises(NotFound, match=message) as caught:
            call(pattern)
        assert hint in str(caught.value.hint)


@pytest.mark.parametrize("pattern", ["", ["demo.*", ""], [1], [None]])
def test_wrong_patterns(pattern: str) -> None:
    with pytest.raises(UsageError, match="a pattern is a text"):
        pyarctic.list_tables(pattern)


def test_health_of_all_tables_worst_first(lake: Path) -> None:
    listener = Listener()
    found = pyarctic.health(listener=listener)
    assert [health.table for health in found] == [
        "demo.shop.ragged", "demo.shop.empty", "demo.shop.fresh", "demo.shop.people",
    ]  # fmt: skip
    assert (len(found), listener.total, sorted(listener.tables)) == (4, 4, sorted(health.table for health in found))
    worst = found[0]
    assert worst.score < 70
    assert worst.deductions[0].cure == "minor optimizing merges 14 files into 1"
    assert (worst.kind, worst.data_files, worst.tasks, worst.files_in, worst.files_out) == ("unkeyed", 14, 1, 14, 1)
    assert worst.read_bytes == worst.bytes > 0
    assert [health.score for health in found[1:]] == [100, 100, 100]
    assert {health.table: health.change_files for health in found}["demo.shop.people"] > 0
    assert json.loads(json.dumps(found.to_dict()))["tables"][0]["deductions"][0]["cause"] == "small-files"
    assert repr(found).startswith("4 tables, 3 with full health\n")
    assert "14 of 14 data files are small" in repr(found)
    assert "<td" in found._repr_html_()


def test_what_cannot_be_read_is_reported_first(lake: Path) -> None:
    break_table(lake, "fresh")
    break_catalog(lake)
    found = pyarctic.health(workers=1)
    assert [health.table for health in found.failures] == [health.table for health in found][:2]
    catalog, table = found.failures
    assert (catalog.table, catalog.score) == ("broken", None)
    assert catalog.error is not None
    assert catalog.error["code"] == "unavailable"
    assert table.error is not None
    assert (table.table, table.error["code"]) == ("demo.shop.fresh", "damaged")
    assert "demo.shop.fresh" in str(table)
    assert len(found) == 5
    assert "2 could not be evaluated" in repr(found)
    assert found.to_dict()["failures"] == 2
    assert find_tables("demo.*").failures == {}
    with pytest.raises(UsageError):
        pyarctic.health(workers=0)


def test_optimizing_many(lake: Path) -> None:
    break_table(lake, "fresh")
    dry = pyarctic.optimize_many("demo.*", dry_run=True)
    assert dry.summary()["changed"] == 0
    outcomes = pyarctic.optimize_many(["demo.shop.r*", "demo.shop.f*", "demo.shop.e*"])
    assert [outcome.table for outcome in outcomes] == ["demo.shop.empty", "demo.shop.fresh", "demo.shop.ragged"]
    assert [outcome.table for outcome in outcomes.failures] == ["demo.shop.fresh"]
    figures = outcomes.summary()
    assert (figures["tables"], figures["changed"], figures["failed"]) == (3, 1, 1)
    assert (figures["data_files_before"], figures["data_files_after"]) == (14, 1)
    told = json.loads(json.dumps(outcomes.to_dict()))
    assert [bool(entry["error"]) for entry in told["tables"]] == [False, True, False]
    assert "3 tables: 1 optimized, 1 failed; data files 14 → 1" in repr(outcomes)
    assert "demo.shop.fresh" in outcomes._repr_html_()
    assert pyarctic.health("demo.shop.ragged")[0].score == 100
    rolled = pyarctic.rollback("demo.shop.ragged", dry_run=True)
    assert rolled.dry_run
    pyarctic.rollback("demo.shop.ragged", rolled.to_snapshot_id)
    assert pyarctic.table("demo.shop.ragged").scan().count() == 42
    assert pyarctic.health("demo.shop.ragged")[0].data_files == 14
