"""The output of every command on 80 columns, on tables that are always the same, as it is in tests/snapshots/pages."""

from __future__ import annotations

import shlex
from pathlib import Path

import pyarrow as pa
import pytest

import pyarctic
from pyarctic import config
from tests.support import snapshots
from tests.support.cli_library import Arctic, Ran

SETTINGS = {"self-optimizing.minor.trigger.file-count": "3", "self-optimizing.writers-first": "false"}
PAGES = {
    "version": "version --json",
    "catalog-ls": "catalog ls",
    "catalog-check": "catalog check",
    "table-ls": "table ls",
    "table-create": "table create demo.shop.new --column 'id long required' --column 'note string' --key id",
    "table-write": "table write demo.shop.new rows.csv",
    "table-show": "table show demo.shop.small_files_of_a_long_name",
    "table-show-keyed": "table show demo.shop.orders",
    "table-files": "table files demo.shop.small_files_of_a_long_name",
    "table-files-keyed": "table files demo.shop.orders --store change",
    "table-partitions": "table partitions demo.shop.small_files_of_a_long_name",
    "table-snapshots": "table snapshots demo.shop.small_files_of_a_long_name",
    "table-scan": "table scan demo.shop.small_files_of_a_long_name --limit 2",
    "table-scan-count": "table scan demo.shop.orders --count",
    "table-changes": "table changes demo.shop.orders",
    "table-set": "table set demo.shop.orders owner=anna self-optimizing.quota=0.5",
    "table-unset": "table unset demo.shop.orders owner",
    "table-evolve": "table evolve demo.shop.orders --add 'note string'",
    "table-upgrade": "table upgrade demo.shop.orders --dry-run",
    "table-check": "table check demo.shop.orders",
    "table-rewrite-manifests": "table rewrite-manifests demo.shop.small_files_of_a_long_name --dry-run",
    "table-health": "table health",
    "table-explain": "table explain demo.shop.small_files_of_a_long_name",
    "table-explain-where": """table explain demo.shop.orders --where "city = 'Oslo'" """,
    "table-explain-keyed": "table explain demo.shop.orders --kind full",
    "table-explain-several": "table explain 'demo.shop.*' --quiet",
    "table-optimize": "table optimize demo.shop.small_files_of_a_long_name",
    "table-rollback": "table rollback demo.shop.small_files_of_a_long_name --dry-run",
    "table-optimize-several": "table optimize 'demo.shop.*' demo.shop.gone",
    "table-drop": "table drop demo.shop.small_files_of_a_long_name --dry-run",
    "table-drop-purge": "table drop demo.shop.new --purge --yes",
}


@pytest.fixture
def lake(arctic: Arctic, tmp_path: Path) -> None:
    assert arctic("init", "-q").code == 0
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("city", pa.string()),
            pa.field("a_comment_that_customers_left", pa.string()),
        ]
    )
    text = "It took rather long, but everything arrived in one piece, thank you very much."
    native = pyarctic.create_table(
        "demo.shop.small_files_of_a_long_name", schema, partition_by=["city"], format="iceberg", properties=SETTINGS
    )
    keyed = pyarctic.create_table("demo.shop.orders", schema, primary_key=["id"], properties=SETTINGS)
    for number in range(3):
        rows = {"id": [2 * number, 2 * number + 1], "city": ["Oslo", "Rome"], schema.names[2]: [text, None]}
        native.write(pa.table(rows, schema=schema))
        keyed.write(pa.table(rows, schema=schema))
    keyed.write(pa.table({"id": [1]}), mode="delete")
    (tmp_path / "rows.csv").write_text("id,note\n1,first\n", encoding="utf-8")
    config.reset()


def page(ran: Ran, words: str, folder: Path) -> str:
    notes = f"--- stderr\n{ran.err}" if ran.err else ""
    return snapshots.mask(f"$ arctic {words}\n{ran.out}{notes}exit code {ran.code}\n", folder)


@pytest.mark.timeout(600)
def test_pages(arctic: Arctic, lake: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One test for all: making the tables takes longer than most commands."""
    monkeypatch.setenv("COLUMNS", "80")
    for name, words in PAGES.items():
        ran = arctic(*shlex.split(words))
        assert max(map(len, ran.out.splitlines()), default=0) <= 80, name
        snapshots.compare(f"pages/{name}", page(ran, words, tmp_path))


def test_no_snapshot_is_left_over() -> None:
    assert {path.stem for path in (snapshots.FOLDER / "pages").iterdir()} == set(PAGES)
