"""The life of a keyed table on every kind of catalog."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pyarctic
from pyarctic.errors import Damaged, NotFound, Rejected
from pyarctic.tables import KeyedTable, list_tables
from tests.services.catalogs import FreshCatalog

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("v", pa.int32())])


def rows(*values: tuple[int, str, int]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in values], schema=SCHEMA)


def new_table(fresh: FreshCatalog, **properties: str) -> KeyedTable:
    pyarctic.catalog(fresh.name, **fresh.properties)
    name = f"{fresh.name}.{fresh.namespace}.t"
    made = pyarctic.create_table(name, SCHEMA, ["region", "id"], ["region"], properties)
    assert isinstance(made, KeyedTable)
    return made


def read(table: KeyedTable, **options: Any) -> list[tuple[Any, ...]]:
    """As somebody sees it who opens it now."""
    again = pyarctic.table(table.name)
    assert isinstance(again, KeyedTable)
    return sorted(tuple(row.values()) for row in again.scan(**options).to_arrow().to_pylist())


def files_of(table: KeyedTable) -> set[Path]:
    homes = [Path(re.sub("^file:/*", "/", store.location)) for store in (table, table.change_store)]
    return {path for home in homes for path in home.rglob("*") if path.is_file()}


def test_rows_are_written_and_read(any_catalog: FreshCatalog) -> None:
    table = new_table(any_catalog, owner="me")
    assert (table.kind, table.primary_key, table.format_version) == ("keyed", ("region", "id"), 2)
    table.write(rows((1, "a b", 1), (2, "a b", 2), (3, "c", 3)))
    table.write(rows((1, "a b", 10), (4, "c", 4)), mode="upsert")
    table.write(rows((2, "a b", 0)), mode="delete")
    assert read(table) == [(1, "a b", 10), (3, "c", 3), (4, "c", 4)]
    table.write(rows((9, "a b", 9), (9, "a b", 99)), mode="overwrite", replace="partitions")
    assert read(table) == [(3, "c", 3), (4, "c", 4), (9, "a b", 99)]
    assert read(table, store="base") == [(9, "a b", 99)]
    assert len(read(table, store="change")) == 8
    assert pyarctic.table(table.name).summary()["merged_sequences"] == {"region=a+b": 4}
    table.write(rows((9, "a b", 100)), mode="upsert")
    assert read(table, where="region = 'a b'") == [(9, "a b", 100)]
    # Both tables are ordinary ones for every other client.
    client = any_catalog.client()
    names = [f"{any_catalog.namespace}.{store}" for store in ("t", "t_change_")]
    assert [client.load_table(name).scan().to_arrow().num_rows for name in names] == [1, 10]


def test_changes_are_merged(any_catalog: FreshCatalog) -> None:
    table = new_table(any_catalog)
    table.write(rows((1, "a", 1), (2, "a", 2), (3, "c", 3)))
    table.write(rows((1, "a", 10), (4, "c", 4)), mode="upsert")
    table.write(rows((2, "a", 0)), mode="delete")
    report = pyarctic.optimize(table.name, "full")
    assert (report.engine, report.failures, report.after.change_files) == ("local", (), 0)
    assert read(table) == read(table, store="base") == [(1, "a", 10), (3, "c", 3), (4, "c", 4)]


def test_schema_and_properties_change_on_both_stores(any_catalog: FreshCatalog) -> None:
    table = new_table(any_catalog, owner="me")
    table.write(rows((1, "a", 1)), mode="overwrite")
    table.evolve(add={"w": "string"}, rename={"v": "value"})
    table.evolve(widen={"value": "long"})
    table.set({"owner": "you", "change.file-index.hash-bucket": "8"})
    table.unset("owner", "not there")
    again = pyarctic.table(table.name)
    assert isinstance(again, KeyedTable)
    for store in (again, again.change_store):
        assert [(field.name, str(field.field_type)) for field in store.schema.fields][2:] == [
            ("value", "long"),
            ("w", "string"),
        ]
        assert store.properties["change.file-index.hash-bucket"] == "8"
        assert "owner" not in store.properties
    again.write(pa.table({"id": [2], "region": ["a"], "value": [1 << 40], "w": ["x"]}), mode="upsert")
    assert read(table) == [(1, "a", 1, None), (2, "a", 1 << 40, "x")]


def test_an_old_handle_writes_on(any_catalog: FreshCatalog) -> None:
    """Two handles of one table, each without the other's commits."""
    table = new_table(any_catalog)
    other = pyarctic.table(table.name)
    for number in range(3):
        table.write(rows((number, "a", 1)), mode="upsert")
        other.write(rows((number, "a", 2)), mode="upsert")
    other.write(rows((7, "a", 7)), mode="overwrite")
    table.write(rows((8, "a", 8)))
    assert read(table) == [(7, "a", 7), (8, "a", 8)]


def test_tables_are_listed_and_dropped(any_catalog: FreshCatalog) -> None:
    table = new_table(any_catalog)
    table.write(rows((1, "a", 1)))
    assert list_tables(f"{any_catalog.name}.{any_catalog.namespace}.*") == [table.name]
    with pytest.raises(Rejected, match="exists already"):
        new_table(any_catalog)
    assert read(table) == [(1, "a", 1)]
    pyarctic.drop_table(table.name)
    assert any_catalog.catalog.list_tables(any_catalog.namespace) == []
    with pytest.raises(NotFound):
        pyarctic.table(table.name)
    left = files_of(table)
    assert left
    again = new_table(any_catalog)
    again.write(rows((2, "a", 2), (2, "a", 3)), mode="overwrite")
    again.write(rows((2, "a", 2)))
    pyarctic.drop_table(again.name, purge=True)
    assert any_catalog.catalog.list_tables(any_catalog.namespace) == []
    assert files_of(again) == left


def test_a_lost_change_store_is_told(any_catalog: FreshCatalog) -> None:
    table = new_table(any_catalog)
    any_catalog.catalog.drop_table(f"{any_catalog.namespace}.t_change_")
    with pytest.raises(Damaged, match=r"its change store .* does not exist"):
        pyarctic.table(table.name)
    pyarctic.drop_table(table.name)
    assert any_catalog.catalog.list_tables(any_catalog.namespace) == []
