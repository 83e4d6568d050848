"""Commands on several tables: names and patterns, one after the other, whatever fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

import pyarctic
from tests.support.cli_library import Arctic
from tests.support.cli_orders import new_catalog

SETTINGS = {"self-optimizing.minor.trigger.file-count": "3", "self-optimizing.writers-first": "false"}


@pytest.fixture
def lake(arctic: Arctic, tmp_path: Path) -> Iterator[SqlCatalog]:
    """`shop.many` has four small files, `shop.one` has one, `shop.none` none; the metadata of `shop.broken` is gone."""
    catalog = new_catalog(tmp_path)
    rows = pa.table({"id": [1]})
    for name, count in {"many": 4, "one": 1, "none": 0, "broken": 1}.items():
        table = pyarctic.create_table(f"demo.shop.{name}", rows.schema, properties=SETTINGS, format="iceberg")
        for _ in range(count):
            table.write(rows)
    for path in (tmp_path / "warehouse" / "shop" / "broken" / "metadata").glob("*.json"):
        path.unlink()
    yield catalog
    catalog.close()


def test_optimize_goes_on_after_a_failure(arctic: Arctic, lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = arctic("table", "optimize", "demo.shop.*")
    assert ran.code == 1
    assert max(map(len, ran.out.splitlines())) <= 80
    shown = {line.split()[0]: line.split()[1:] for line in ran.out.splitlines()[2:]}
    assert shown["demo.shop.many"][:4] == ["optimized:", "minor", "4", "1"]
    assert shown["demo.shop.one"][:3] == ["nothing", "to", "do"]
    assert shown["demo.shop.broken"] == ["failed", "damaged"]
    assert "error[damaged]: demo.shop.broken: its metadata file is missing" in " ".join(ran.err.split())
    assert ran.err.endswith("4 tables\n1 of 4 tables failed\n")
    assert "demo.shop.many (2 of 4)\n" in ran.err


def test_json_is_a_list(arctic: Arctic, lake: SqlCatalog) -> None:
    ran = arctic("table", "optimize", "demo.shop.broken", "demo.shop.many", "--json")
    assert ran.code == 1
    broken, many = ran.json
    assert (broken["table"], broken["error"]["code"]) == ("demo.shop.broken", "damaged")
    assert (many["table"], many["tasks_committed"]) == ("demo.shop.many", 1)
    assert "error[" not in ran.err
    assert [each["table"] for each in arctic("table", "explain", "demo.shop.[mo]*", "--json").json] == [
        "demo.shop.many",
        "demo.shop.one",
    ]
    assert arctic("table", "explain", "demo.shop.m*", "--json").json[0]["table"] == "demo.shop.many"
    assert arctic("table", "explain", "demo.shop.many", "--json").json["table"] == "demo.shop.many"


def test_explain_shows_pages_and_a_summary(arctic: Arctic, lake: SqlCatalog) -> None:
    ran = arctic("table", "explain", "demo.shop.many", "demo.shop.o*", "demo.shop.many")
    assert ran.code == 0
    assert ran.out.count("Health     ") == 2
    summary = ran.out.partition("\nSummary\n")[2].splitlines()
    assert [line.split()[0] for line in summary[2:]] == ["demo.shop.many", "demo.shop.one"]
    assert arctic("table", "explain", "demo.shop.*").code == 1
    dry = arctic("table", "optimize", "demo.shop.[mo]*", "--dry-run")
    assert (dry.code, dry.err.splitlines()[-1]) == (0, "dry run: nothing was changed")
    names = arctic("table", "optimize", "demo.shop.[mo]*", "--dry-run", "--format", "name").out
    assert names == "demo.shop.many\ndemo.shop.one\n"


def test_patterns_without_a_match(arctic: Arctic, lake: SqlCatalog) -> None:
    ran = arctic("table", "optimize", "demo.shop.one", "demo.nothing.*", "--json")
    assert (ran.code, ran.out) == (1, "")
    assert json.loads(ran.err)["facts"]["pattern"] == "demo.nothing.*"


def test_health_is_worst_first(arctic: Arctic, lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = arctic("table", "health")
    assert ran.code == 1  # for the broken one
    assert max(map(len, ran.out.splitlines())) <= 80
    rows = [line.split() for line in ran.out.splitlines()[2:] if line.startswith("demo.")]
    assert [row[0].rpartition(".")[2] for row in rows] == ["broken", "many", "none", "one"]
    assert "4 → 1" in ran.out
    assert "4 tables; 1 needs optimizing (" in ran.err
    assert "1 could not be evaluated" in ran.err
    assert "error[damaged]: demo.shop.broken: its metadata file is missing" in " ".join(ran.err.split())


def test_health_has_exit_codes_for_schedulers(arctic: Arctic, lake: SqlCatalog) -> None:
    assert arctic("table", "health", "demo.shop.[mo]*").code == 0
    assert arctic("table", "health", "demo.shop.o*", "demo.shop.none", "--fail-below", "100").code == 0
    ran = arctic("table", "health", "demo.shop.[mo]*", "--fail-below", "90")
    assert ran.code == 1
    assert ran.err.endswith("1 table below 90\n")
    assert arctic("table", "health", "demo.nothing.*").code == 1
    assert arctic("table", "health", "demo.shop.onne").code == 1
    assert arctic("table", "health", "--fail-below", "101").code == 2


def test_health_as_json(arctic: Arctic, lake: SqlCatalog) -> None:
    broken, many, *_ = arctic("table", "health", "--json").json
    assert (broken["score"], broken["error"]["code"]) == (None, "damaged")
    assert many["deductions"][0]["cause"] == "small-files"
    assert (many["files_in"], many["files_out"], many["tasks"]) == (4, 1, 1)
    assert len(arctic("table", "health", "--json", "--limit", "2").json) == 2


def test_a_catalog_that_fails_does_not_stop_the_others(arctic: Arctic, lake: SqlCatalog, tmp_path: Path) -> None:
    with (tmp_path / "arctic.yaml").open("a", encoding="utf-8") as file:
        file.write("  down: {type: sql, uri: 'sqlite:///nowhere/catalog.db'}\n")
    ran = arctic("table", "health", "*", "--json")
    assert [(table["table"], table["error"]["code"]) for table in ran.json if table["error"]] == [
        ("demo.shop.broken", "damaged"),
        ("down", "config"),
    ]
    outcomes = arctic("table", "optimize", "*.shop.m*", "--json").json
    assert [(each["table"], "error" in each) for each in outcomes] == [("down", True), ("demo.shop.many", False)]
