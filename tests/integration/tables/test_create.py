"""New tables of every format and version, and tables that are there already."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic.errors import Rejected, Unavailable, UsageError
from pyarctic.tables import KeyedTable, TableAdvice, names

pytestmark = pytest.mark.usefixtures("lake")

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
NAME = "lake.db.orders"
ROWS = pa.table({"id": [1], "text": ["a"]})


@pytest.mark.parametrize("version", [1, 2, 3])
def test_native_tables_of_every_version(version: int) -> None:
    table = pyarctic.create_table(
        NAME, SCHEMA, (), ["bucket(4, id)"], {"owner": "me"}, format="iceberg", format_version=version
    )
    assert (table.kind, table.format_version, table.store) == ("native", version, None)
    assert table.properties == {"owner": "me"}
    table.write(ROWS)
    table.write(ROWS)
    assert pyarctic.table(NAME).scan().count() == 2
    pyarctic.optimize(NAME)


def test_the_defaults_are_as_before() -> None:
    assert pyarctic.create_table("lake.db.n", SCHEMA, format="iceberg").format_version == 2
    assert pyarctic.create_table("lake.db.u", SCHEMA, format_version=2).kind == "unkeyed"
    assert pyarctic.create_table("lake.db.k", SCHEMA, ["id"], format="mixed-iceberg").kind == "keyed"


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"format": "delta"}, "unknown table format: 'delta'"),
        ({"format": "iceberg", "primary_key": ["id"]}, "a table with a primary key has the format"),
        ({"format": "iceberg", "format_version": 4}, "format version 4 does not exist"),
        ({"format": "iceberg", "format_version": "3"}, "format version '3' does not exist"),
        ({"format_version": 3}, "format version 3 does not exist"),
        ({"format": "iceberg", "properties": {"format-version": "3"}}, "format-version"),
    ],
)
def test_formats_that_do_not_exist(lake: Catalog, options: dict[str, Any], fault: str) -> None:
    with pytest.raises(UsageError, match=fault):
        pyarctic.create_table(NAME, SCHEMA, **options)
    assert not lake.namespace_exists("db")


def test_a_keyed_table_that_exists_is_named_as_its_users_know_it() -> None:
    pyarctic.create_table(NAME, SCHEMA, ["id"])
    with pytest.raises(Rejected, match=r"table lake\.db\.orders exists already") as refusal:
        pyarctic.create_table(NAME, SCHEMA, ["id"])
    assert "change" not in str(refusal.value)


def test_a_change_store_without_its_table_is_named(lake: Catalog) -> None:
    lake.create_namespace("db")
    lake.create_table("db.orders_change_", SCHEMA)
    for if_not_exists in (False, True):
        with pytest.raises(Rejected, match=r"orders_change_ exists already, where the changes of lake\.db\.orders would go"):
            pyarctic.create_table(NAME, SCHEMA, ["id"], if_not_exists=if_not_exists)
    assert not lake.table_exists("db.orders")


@pytest.mark.parametrize("options", [{}, {"primary_key": ["id"]}, {"format": "iceberg", "format_version": 3}])
def test_a_table_that_exists_is_returned_as_it_is(options: dict[str, Any]) -> None:
    created = pyarctic.create_table(NAME, SCHEMA, **options, if_not_exists=True)
    created.write(ROWS)
    wider = SCHEMA.append(pa.field("more", pa.int64()))
    again = pyarctic.create_table(NAME, wider, **options, partition_by=["text"], if_not_exists=True)
    assert (again.uuid, again.scan().count(), again.schema) == (created.uuid, 1, created.schema)


def test_a_table_of_another_kind_or_key_is_refused() -> None:
    both = pa.schema([("id", pa.int64()), ("text", pa.string())])
    made: list[dict[str, Any]] = [
        {"primary_key": ["id", "text"]},
        {"primary_key": ["text", "id"]},
        {},
        {"format": "iceberg", "format_version": 3},
        {"format": "iceberg", "format_version": 1},
    ]
    for number, existing in enumerate(made):
        name = f"lake.db.t{number}"
        pyarctic.create_table(name, both, **existing)
        for wanted in made:
            if wanted is not existing:
                with pytest.raises(Rejected, match=f"table {name} exists already, and is another one"):
                    pyarctic.create_table(name, both, **wanted, if_not_exists=True)
    with pytest.raises(Rejected, match="is the change store of a table"):
        pyarctic.create_table("lake.db.t0_change_", both, format="iceberg", if_not_exists=True)


def test_many_may_create_a_table_at_once(lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some find it half made: the base store is there and the change store is not."""
    create: Any = type(lake).create_table
    half_made, go_on = threading.Event(), threading.Event()

    def create_slowly(catalog: Any, identifier: Any, *rest: Any, **options: Any) -> Any:
        if "change" in identifier[-1]:
            half_made.set()
            assert go_on.wait(60)
        return create(catalog, identifier, *rest, **options)

    monkeypatch.setattr(type(lake), "create_table", create_slowly)
    with ThreadPoolExecutor() as creators:
        first = creators.submit(pyarctic.create_table, NAME, SCHEMA, ["id"], if_not_exists=True)
        assert half_made.wait(60)
        second = creators.submit(pyarctic.create_table, NAME, SCHEMA, ["id"], if_not_exists=True)
        threading.Timer(0.5, go_on.set).start()
        tables = [first.result(60), second.result(60)]
    assert all(isinstance(table, KeyedTable) for table in tables)
    assert tables[0].uuid == tables[1].uuid


def test_a_creator_that_fails_after_another_has_found_its_table(lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """It drops the base store again; the other one creates the table."""
    create: Any = type(lake).create_table
    half_made, found, failures = threading.Event(), threading.Event(), iter([True])

    def create_and_fail(catalog: Any, identifier: Any, *rest: Any, **options: Any) -> Any:
        if "change" in identifier[-1] and next(failures, False):
            half_made.set()
            assert found.wait(60)
            raise OSError("the catalog went away")
        return create(catalog, identifier, *rest, **options)

    open_table = names.open_table

    def open_half_made(name: str) -> Any:
        try:
            return open_table(name)
        finally:
            found.set()

    monkeypatch.setattr(type(lake), "create_table", create_and_fail)
    monkeypatch.setattr(names, "open_table", open_half_made)
    with ThreadPoolExecutor() as creators:
        first = creators.submit(pyarctic.create_table, NAME, SCHEMA, ["id"], if_not_exists=True)
        assert half_made.wait(60)
        second = creators.submit(pyarctic.create_table, NAME, SCHEMA, ["id"], if_not_exists=True)
        assert isinstance(second.result(60), KeyedTable)
        with pytest.raises(Unavailable, match="went away"):
            first.result(60)
    assert pyarctic.table(NAME).kind == "keyed"


@pytest.mark.usefixtures("lake")
def test_advice_names_the_line_of_the_caller() -> None:
    with pytest.warns(TableAdvice) as advice:
        pyarctic.create_table(NAME, SCHEMA, ["id"], [next(name for name in SCHEMA.names if name != "id")])
    assert advice[0].filename == __file__
