"""Rows in the forms of other libraries: scans give them, and tables take them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import pyarctic
from pyarctic import config
from pyarctic.cli.errors import exit_code
from pyarctic.errors import MissingExtra, UsageError
from pyarctic.iceberg.read import RowScan
from pyarctic.tables import ScanStore, WriteMode

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("text", pa.string()), pa.field("amount", pa.int32())])
DICTS: list[dict[str, Any]] = [
    {"id": 1, "text": "a", "amount": 10},
    {"id": 2, "text": None, "amount": 20},
    {"id": 3, "text": "c", "amount": None},
]
ROWS = pa.Table.from_pylist(DICTS, schema=SCHEMA)
PANDAS = ROWS.to_pandas(types_mapper=pd.ArrowDtype)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("lake")
    pyarctic.catalog("demo", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=folder.as_uri())
    keyed = pyarctic.create_table("demo.shop.keyed", SCHEMA, primary_key=["id"])
    keyed.write(ROWS, "overwrite")
    keyed.write(ROWS, "upsert")
    unkeyed = pyarctic.create_table("demo.shop.unkeyed", SCHEMA)
    unkeyed.write(ROWS)
    yield folder
    config.reset()


SCANS = ["unkeyed", "merged", "base", "change", "changes"]


def scan(kind: str) -> RowScan:
    if kind == "unkeyed":
        return pyarctic.table("demo.shop.unkeyed").scan()
    table = pyarctic.table("demo.shop.keyed")
    return table.changes() if kind == "changes" else table.scan(store=cast("ScanStore", kind))


@pytest.mark.parametrize("kind", SCANS)
def test_scans_give_rows_to_other_libraries(lake: Path, kind: str) -> None:
    read = scan(kind)
    expected = read.to_arrow()
    assert expected.num_rows == read.count() >= 3
    assert pa.Table.from_batches(list(read), schema=read.schema) == expected
    assert pa.Table.from_batches(list(read.to_batches()), schema=read.schema) == expected
    assert read.to_reader().read_all() == expected
    assert pa.table(read) == expected, "a reader of Arrow streams"
    assert read.to_polars().to_dicts() == pl.DataFrame(read).to_dicts() == expected.to_pylist()
    assert read.to_pandas(types_mapper=pd.ArrowDtype)["id"].tolist() == expected["id"].to_pylist()


@pytest.mark.parametrize("kind", SCANS)
def test_relations_of_duckdb_can_be_read_again(lake: Path, kind: str) -> None:
    read = scan(kind)
    ids = sorted(read.to_arrow()["id"].to_pylist())
    with duckdb.connect() as connection:
        relation = read.to_duckdb(connection)
        for _ in range(2):
            assert [row[0] for row in relation.order("id").fetchall()] == ids
    assert read.to_duckdb().filter("id > 1").count("*").fetchall() == [(sum(id_ > 1 for id_ in ids),)]
    assert duckdb.sql("select count(*) from read").fetchall() == [(len(ids),)]


@pytest.mark.parametrize("kind", SCANS)
def test_limits(lake: Path, kind: str) -> None:
    read = scan(kind)
    total = read.count()
    for rows in (0, 1, 2, total, total + 10):
        limited = read.limit(rows)
        assert limited.count() == limited.to_arrow().num_rows == limited.to_polars().height == min(rows, total)
        assert limited.schema == read.schema
    assert read.limit(2).limit(1).count() == 1
    assert "limit 2" in repr(read.limit(2))
    assert "id" in repr(read)
    assert "<table>" in read._repr_html_()


def test_a_limit_stops_reading_early(lake: Path) -> None:
    read = scan("unkeyed")
    closed = []

    class Watched(RowScan):
        schema = read.schema

        def batches(self) -> Iterator[pa.RecordBatch]:
            try:
                while True:
                    yield from read.batches()
            finally:
                closed.append(True)

    assert Watched().limit(10).to_arrow().num_rows == 10
    assert closed == [True]


@pytest.mark.parametrize("rows", [-1, 1.5, "2", None, True])
def test_wrong_limits(lake: Path, rows: Any) -> None:
    with pytest.raises(UsageError, match="a limit is a number of rows"):
        scan("unkeyed").limit(rows)


@pytest.mark.parametrize(("module", "method"), [("pandas", "to_pandas"), ("duckdb", "to_duckdb")])
def test_a_library_that_is_not_installed(lake: Path, monkeypatch: pytest.MonkeyPatch, module: str, method: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=f"pip install 'pyarctic\\[{module}\\]'") as caught:
        getattr(scan("unkeyed"), method)()
    assert exit_code(caught.value.code) == 2
    assert caught.value.facts["extra"] == module


def sources() -> dict[str, Any]:
    return {
        "table": ROWS,
        "batch": ROWS.to_batches()[0],
        "batches": ROWS.to_batches(),
        "reader": ROWS.to_reader(),
        "dataset": ds.dataset(ROWS),
        "scanner": ds.dataset(ROWS).scanner(),
        "polars": pl.DataFrame(ROWS),
        "lazy": pl.DataFrame(ROWS).lazy(),
        "frames": [pl.DataFrame(ROWS)],
        "pandas": PANDAS,
        "pandas, filtered": pd.concat([PANDAS, PANDAS]).reset_index(drop=True).iloc[[2, 0, 4]].sort_values("id"),
        "pandas, indexed": PANDAS.set_index("id"),
        "duckdb": duckdb.from_arrow(ROWS),
        "dicts": DICTS,
        "dicts without nulls": [{key: value for key, value in row.items() if value is not None} for row in DICTS],
        "generator": (row for row in DICTS),
        "columns": {name: ROWS[name].to_pylist() for name in ROWS.column_names},
        "arrays": {"id": ROWS["id"], "text": pl.Series(["a", None, "c"]), "amount": [10, 20, None]},
        "scan": pyarctic.table("demo.shop.unkeyed").scan(),
    }


@pytest.mark.parametrize("form", [
    "table", "batch", "batches", "reader", "dataset", "scanner", "polars", "lazy", "frames", "pandas", "pandas, filtered",
    "pandas, indexed", "duckdb", "dicts", "dicts without nulls", "generator", "columns", "arrays", "scan",
])  # fmt: skip
@pytest.mark.parametrize("mode", ["overwrite", "upsert"])
def test_tables_take_rows_of_any_form(lake: Path, form: str, mode: WriteMode) -> None:
    name = "demo.shop.target"
    table = pyarctic.create_table(name, SCHEMA, primary_key=["id"])
    try:
        assert table.write(sources()[form], mode) is not None
        assert sorted(pyarctic.table(name).scan().to_arrow().to_pylist(), key=lambda row: row["id"]) == DICTS
    finally:
        pyarctic.drop_table(name)


@pytest.mark.parametrize("data", [[], {}, iter(()), ROWS.slice(0, 0), {"id": [], "text": []}])
def test_nothing_to_write(lake: Path, data: Any) -> None:
    assert pyarctic.table("demo.shop.unkeyed").write(data) is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (7, "cannot write rows from int"),
        (None, "cannot write rows from NoneType"),
        ("rows.parquet", "cannot write rows from str"),
        (Path("rows.parquet"), "cannot write rows from pathlib"),
        ([1, 2], "an iterable of int"),
        ([DICTS[0], 7], "dicts mixed with int"),
        ([ROWS, 7], "an iterable of int"),
        ({"id": 1}, "column 'id' is int, not a list of values"),
        ({"id": [1, "x"]}, "column 'id' cannot be converted"),
        ([{"id": 1}, {"id": "x"}], "column 'id' cannot be converted"),
        ({"id": [1], "text": ["a", "b"]}, "different lengths: id: 1, text: 2"),
        ([{"id": 1, "txet": "a"}], "unknown txet"),
        ({"id": ["not a number"]}, "does not fit long"),
    ],
)
def test_what_cannot_be_written(lake: Path, data: Any, message: str) -> None:
    table = pyarctic.table("demo.shop.unkeyed")
    before = table.snapshots().height
    with pytest.raises(UsageError, match=message) as caught:
        table.write(data)
    assert caught.value.hint
    assert table.refresh().snapshots().height == before


@pytest.mark.parametrize("name", ["keyed", "unkeyed"])
def test_tables_show_what_is_for_users(lake: Path, name: str) -> None:
    table = pyarctic.table(f"demo.shop.{name}")
    shown = [attribute for attribute in dir(table) if not attribute.startswith("__")]
    assert {"scan", "write", "files", "snapshots", "schema", "refresh", "set"} <= set(shown)
    assert not {"view", "reader", "file_list", "load_newest", "last_step", "try_commit", "keep_up"} & set(shown)
    assert not [attribute for attribute in shown if attribute.startswith("_")]
    view = table._repr_html_()
    assert f"demo.shop.{name}" in view
    assert "<td" in view
    assert (">key<" in view) == (name == "keyed")


def test_explanations_and_reports_are_readable(lake: Path) -> None:
    explained = pyarctic.explain("demo.shop.unkeyed")
    assert repr(explained) == str(explained)
    assert repr(explained).startswith("demo.shop.unkeyed: health 100 of 100")
    assert "health 100 of 100" in explained._repr_html_()
    report = pyarctic.optimize("demo.shop.unkeyed", dry_run=True)
    assert repr(report) == str(report)
    assert "demo.shop.unkeyed" in report._repr_html_()


def test_top_level_names() -> None:
    assert pyarctic.Table.__name__ == "Table"
    assert issubclass(pyarctic.KeyedTable, pyarctic.Table)
    assert pyarctic.errors.UsageError is UsageError
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = pyarctic.no_such_name
