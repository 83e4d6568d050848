"""`arctic table check`: exit codes, the page, JSON, and repairs only when they are confirmed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

import pyarctic
from pyarctic.tables.check import ALL_KINDS
from tests.support.cli_library import Arctic
from tests.support.cli_orders import new_catalog
from tests.support.keyed_tables import add_file

NAME = "demo.shop.orders"
CHECK = ("table", "check", NAME)
DOCS = Path(__file__).parents[3] / "docs" / "guides" / "checking-tables.md"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[SqlCatalog]:
    catalog = new_catalog(tmp_path)
    yield catalog
    catalog.close()


@pytest.fixture
def orders(arctic: Arctic, lake: SqlCatalog, tmp_path: Path) -> Arctic:
    """A keyed table with two rows in Base."""
    words = ("--column", "id long required", "--column", "city string", "--key", "id")
    assert arctic("table", "create", NAME, *words).code == 0
    (tmp_path / "rows.csv").write_text("id,city\n1,Oslo\n2,Rome\n", encoding="utf-8")
    assert arctic("table", "write", NAME, "rows.csv", "--mode", "overwrite").code == 0
    return arctic


def add_again() -> None:
    """A file of the format with a key that is there already."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("city", pa.string())])
    add_file(pyarctic.table(NAME), pa.table({"id": [2], "city": ["Bern"]}, schema=schema), "1-B-1-00000-0-77-00001")


def cities(arctic: Arctic) -> list[tuple[int, str]]:
    return [(row["id"], row["city"]) for row in arctic("table", "scan", NAME, "--json").json]


def test_a_sound_table(orders: Arctic) -> None:
    ran = orders(*CHECK)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        f"Table     {NAME}",
        "Result    sound",
        "Checked   2 files of the current snapshot, with their rows",
    ]
    assert "2 files of all snapshots, without their rows" in orders(*CHECK, "--no-rows", "--all-snapshots").out
    document = orders(*CHECK, "--json").json
    assert (document["damaged"], document["findings"], document["kind"]) == (False, [], "keyed")
    assert orders(*CHECK, "--format", "name").out == f"{NAME}\n"


def test_damage_has_an_exit_code(orders: Arctic, tmp_path: Path) -> None:
    path = next(tmp_path.rglob("*-B-*.parquet"))
    path.unlink()
    ran = orders(*CHECK)
    assert ran.code == 1
    for text in ("damaged (1 × damage)", "files are missing", "missing-file", "What to do", path.name, "Restore the files"):
        assert text in ran.out
    document = orders(*CHECK, "--json").json
    [finding] = document["findings"]
    assert (finding["code"], finding["severity"], finding["store"]) == ("missing-file", "damage", "base")
    assert finding["problems"][0]["file_path"].endswith(path.name)


def test_repairs_are_shown_and_need_confirmation(orders: Arctic) -> None:
    add_again()
    ran = orders(*CHECK)
    assert (ran.code, ran.err) == (1, "1 of 1 finding can be repaired: --repair --dry-run shows how\n")
    ran = orders(*CHECK, "--repair", "--dry-run")
    assert (ran.code, ran.err) == (1, "dry run: nothing was changed\n")
    assert "would be done" in ran.out
    assert "delete all rows of a key but the one that was committed last" in ran.out
    ran = orders(*CHECK, "--repair")
    assert ran.code == 2
    assert "needs confirmation" in ran.err
    assert len(cities(orders)) == 3
    ran = orders(*CHECK, "--repair", "--yes")
    assert (ran.code, ran.err) == (0, "")
    assert "repaired (1 × damage)" in ran.out
    assert sorted(cities(orders)) == [(1, "Oslo"), (2, "Bern")]
    ran = orders(*CHECK, "--repair", "--yes", "--json")
    assert (ran.code, ran.json["findings"], ran.err) == (0, [], "nothing to repair\n")


def test_what_cannot_be_repaired_is_said(orders: Arctic, tmp_path: Path) -> None:
    next(tmp_path.rglob("*-B-*.parquet")).unlink()
    ran = orders(*CHECK, "--repair", "--yes")
    assert (ran.code, ran.err) == (1, "nothing of this can be repaired without losing rows\n")


def test_a_dry_run_is_for_repairs(orders: Arctic) -> None:
    ran = orders(*CHECK, "--dry-run")
    assert (ran.code, ran.out) == (2, "")
    assert "--dry-run is for --repair" in ran.err


def test_many_details_are_limited(orders: Arctic, tmp_path: Path) -> None:
    for path in tmp_path.rglob("*-B-*.parquet"):
        path.unlink()
    ran = orders(*CHECK, "--limit", "1")
    assert ran.err == "1 of 2 details; --limit 0 shows all\n"
    assert orders(*CHECK, "--limit", "0").err == ""


def test_a_table_that_does_not_exist(orders: Arctic) -> None:
    assert orders("table", "check", "demo.shop.nope").code == 1


def test_metadata_that_is_damaged(orders: Arctic, lake: SqlCatalog) -> None:
    Path(lake.load_table("shop.orders").metadata_location.removeprefix("file://")).unlink()
    ran = orders(*CHECK)
    assert ran.code == 1
    assert ran.err.startswith("error[damaged]")


def test_every_kind_of_problem_is_documented() -> None:
    lines = [line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("| `") and "`--" not in line]
    documented = {line.split("`")[1]: line for line in lines}
    assert documented.keys() == ALL_KINDS.keys()
    for code, kind in ALL_KINDS.items():
        assert kind.severity in documented[code], code
        assert ("repaired" in documented[code]) == (kind.repair is not None), code
