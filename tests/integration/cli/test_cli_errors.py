"""Bad inputs, with the complete text of their errors in tests/snapshots/errors: what, why, what to do."""

from __future__ import annotations

import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pyarctic
from pyarctic import config
from tests.support import snapshots
from tests.support.cli_library import Arctic

CASES = {
    "command": "tabel",
    "command-of-a-group": "table optimise demo.shop.orders",
    "command-without-its-group": "optimize demo.shop.orders",
    "option": "table ls --jsn",
    "option-unlike-any": "table ls --xyzzy",
    "option-value": "table ls --format jsn",
    "option-value-store": "table files demo.shop.orders --store bas",
    "option-without-value": "table files demo.shop.orders --store",
    "flag-with-value": "table ls --json=yes",
    "number": "table files demo.shop.orders --limit many",
    "number-too-small": "table files demo.shop.orders --limit -1",
    "number-too-large": "table health --fail-below 101",
    "snapshot-number": "table files demo.shop.orders --snapshot latest",
    "argument-missing": "table show",
    "file-missing": "table write demo.shop.orders",
    "arguments-too-many": "table show demo.shop.orders demo.shop.people",
    "two-formats": "table ls --json --format csv",
    "config-without-file": "table ls --config",
    "config-gone": "table ls --config gone.yaml",
    "config-broken": "table ls --config broken.yaml",
    "config-key": "table ls --config key.yaml",
    "config-variable": "table ls --config variable.yaml",
    "config-folder": "table ls --config folder",
    "catalog-folder-missing": "table ls --config nowhere.yaml",
    "catalog-not-sqlite": "table ls --config notsqlite.yaml",
    "catalog-down": "table ls --config down.yaml",
    "catalog-type": "table ls --config type.yaml",
    "warehouse-is-a-file": "table create demo.shop.x --column 'id long' --config filewarehouse.yaml",
    "catalog": "table show dmo.shop.orders",
    "database": "table show demo.shp.orders",
    "table": "table show demo.shop.oders",
    "table-name-short": "table show orders",
    "table-name-empty-part": "table show demo..orders",
    "pattern": "table explain 'demo.nothing.*'",
    "snapshot": "table scan demo.shop.orders --snapshot 1",
    "ref": "table files demo.shop.native --ref mian",
    "as-of": "table scan demo.shop.orders --as-of yesterday",
    "as-of-too-early": "table scan demo.shop.native --as-of 2001-01-01",
    "two-points-in-time": "table scan demo.shop.native --snapshot 1 --ref main",
    "columns": "table scan demo.shop.orders --columns id,ctiy",
    "where-column": "table scan demo.shop.orders --where 'ctiy = 1'",
    "where-syntax": "table scan demo.shop.orders --where 'city ='",
    "where-quotes": """table scan demo.shop.orders --where 'city = "Oslo"'""",
    "where-null": "table scan demo.shop.orders --where 'city = null'",
    "where-type": "table scan demo.shop.orders --where \"id = 'x'\"",
    "store": "table files demo.shop.native --store change",
    "changes-of-a-native-table": "table changes demo.shop.native",
    "upgrade-of-a-native-table": "table upgrade demo.shop.native",
    "mode-without-key": "table write demo.shop.native rows.csv --mode upsert",
    "replace-without-overwrite": "table write demo.shop.native rows.csv --replace partitions",
    "cdc-without-action": "table write demo.shop.orders rows.csv --mode cdc",
    "once": "table write demo.shop.orders rows.csv --once job",
    "input-gone": "table write demo.shop.orders gone.csv",
    "input-folder": "table write demo.shop.orders folder",
    "input-format": "table write demo.shop.orders rows.txt",
    "csv-value": "table write demo.shop.orders value.csv",
    "csv-time": "table write demo.shop.times times.csv",
    "csv-semicolons": "table write demo.shop.orders semicolons.csv",
    "csv-tabs": "table write demo.shop.orders tabs.csv",
    "csv-short-line": "table write demo.shop.orders short.csv",
    "csv-empty": "table write demo.shop.orders empty.csv",
    "csv-column": "table write demo.shop.orders column.csv",
    "json-value": "table write demo.shop.orders value.jsonl",
    "json-syntax": "table write demo.shop.orders syntax.jsonl",
    "json-array": "table write demo.shop.orders array.json",
    "parquet": "table write demo.shop.orders not.parquet",
    "parquet-type": "table write demo.shop.orders type.parquet",
    "required-null": "table write demo.shop.orders null.csv",
    "create-without-columns": "table create demo.shop.x",
    "create-column": "table create demo.shop.x --column id",
    "create-type": "table create demo.shop.x --column 'id integer'",
    "create-key": "table create demo.shop.x --column 'id long' --key di",
    "create-partition": "table create demo.shop.x --column 'id long' --partition-by 'buckets(id)'",
    "create-partition-type": "table create demo.shop.x --column 'id long' --column 'at date' --partition-by 'day(id)'",
    "create-like-csv": "table create demo.shop.x --like rows.csv",
    "create-exists": "table create demo.shop.orders --column 'id long'",
    "create-like-gone": "table create demo.shop.x --like gone.parquet",
    "create-format-version": "table create demo.shop.x --column 'id long' --format-version 7 --table-format iceberg",
    "property": "table set demo.shop.orders self-optimizing.target-sise=1MB",
    "property-near-miss": "table set demo.shop.orders self-optimising.target-size=1MB",
    "property-value": "table set demo.shop.orders self-optimizing.target-size=big",
    "property-form": "table set demo.shop.orders owner",
    "property-twice": "table set demo.shop.orders owner=a owner=b",
    "evolve-nothing": "table evolve demo.shop.orders",
    "evolve-column": "table evolve demo.shop.orders --drop ctiy",
    "evolve-key": "table evolve demo.shop.orders --drop id",
    "evolve-widen": "table evolve demo.shop.orders --widen id=int",
    "drop-unconfirmed": "table drop demo.shop.orders",
    "rollback-nothing": "table rollback demo.shop.native --dry-run",
    "check-dry-run": "table check demo.shop.orders --dry-run",
    "init-exists": "init",
    "init-name": "init new --catalog a.b",
    "completion-shell": "completion tcsh",
}
_BAD_FILES = {
    "broken.yaml": "catalogs: [",
    "key.yaml": "catalog: {}",
    "variable.yaml": "catalogs: {demo: {uri: '${NOT_SET_ANYWHERE}'}}",
    "nowhere.yaml": "catalogs: {demo: {type: sql, uri: 'sqlite:///gone/catalog.db'}}",
    "notsqlite.yaml": "catalogs: {demo: {type: sql, uri: 'sqlite:///big.txt'}}",
    "down.yaml": "catalogs: {demo: {type: rest, uri: 'http://127.0.0.1:9'}}",
    "type.yaml": "catalogs: {demo: {type: sqll, uri: x}}",
    "filewarehouse.yaml": "catalogs: {demo: {type: sql, uri: 'sqlite:///other.db', warehouse: 'file://FOLDER/big.txt'}}",
    "big.txt": "neither a database nor a folder\n" * 100,
    "rows.csv": "id,city\n1,Oslo\n",
    "rows.txt": "id,city\n1,Oslo\n",
    "value.csv": "id,city\n1,Oslo\nx2,Rome\n",
    "times.csv": "ts\n2026-01-01T00:00:00Z\n31.12.2026\n",
    "semicolons.csv": "id;city\n1;Oslo\n",
    "tabs.csv": "id\tcity\n1\tOslo\n",
    "short.csv": "id,city\n1,Oslo\n2\n",
    "empty.csv": "",
    "column.csv": "id,ctiy\n1,Oslo\n",
    "null.csv": "id,city\n,Oslo\n",
    "value.jsonl": '{"id": 1}\n{"id": "x"}\n',
    "syntax.jsonl": '{"id": 1}\n{"id": 2,}\n',
    "array.json": '[{"id": 1}]\n',
    "not.parquet": "this is not Parquet\n",
}


@pytest.fixture
def lake(arctic: Arctic, tmp_path: Path) -> None:
    """A keyed, a native and an unkeyed table, and files that cannot be used."""
    assert arctic("init", "-q").code == 0
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("city", pa.string())])
    pyarctic.create_table("demo.shop.orders", schema, primary_key=["id"])
    pyarctic.create_table("demo.shop.native", schema, format="iceberg").write(pa.table({"id": [1], "city": ["Oslo"]}))
    pyarctic.create_table("demo.shop.times", pa.schema([pa.field("ts", pa.timestamp("us", "UTC"))]))
    (tmp_path / "folder").mkdir()
    for name, text in _BAD_FILES.items():
        (tmp_path / name).write_text(text.replace("FOLDER", str(tmp_path)), encoding="utf-8")
    pq.write_table(pa.table({"id": ["a"], "city": ["b"]}), tmp_path / "type.parquet")


def test_errors(arctic: Arctic, lake: None, tmp_path: Path) -> None:
    """One test for all: making the tables takes longer than the errors. Lines are not wrapped, because that would depend on
    the length of temporary paths."""
    unclear = {}
    for name, words in CASES.items():
        config.reset()  # the file of another case
        ran = arctic(*shlex.split(words))
        if ran.out or ran.code not in (1, 2, 3, 4) or "internal" in ran.err or "hint" not in ran.err:
            unclear[name] = ran
        snapshots.compare(f"errors/{name}", snapshots.mask(f"$ arctic {words}\n{ran.err}exit code {ran.code}\n", tmp_path))
    assert unclear == {}


def test_no_snapshot_is_left_over() -> None:
    assert {path.stem for path in (snapshots.FOLDER / "errors").iterdir()} == set(CASES)
