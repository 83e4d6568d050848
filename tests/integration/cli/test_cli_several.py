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
