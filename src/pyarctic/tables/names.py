"""Tables by name: open, create and drop them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyiceberg.schema import Schema

from pyarctic.config import parse_table_name
from pyarctic.config.table_properties import check_properties
from pyarctic.errors import Damaged, NotFound, Rejected, UsageError
from pyarctic.iceberg.catalog import load_table, open_catalog, translate_catalog_errors
from pyarctic.tables.create import EXISTS, MIXED_ICEBERG, TableDefinition, create_stores, drop_stores
from pyarctic.tables.format.store_properties import change_store_identifier, kind_of, store_of
from pyarctic.tables.keyed_table import KeyedTable
from pyarctic.tables.table import Table

_CREATE_SECONDS = 10.0


def open_table(name: str) -> Table:
    """Open a table by its full name."""
    parsed = parse_table_name(name)
    base = load_table(parsed)
    if kind_of(base.metadata.properties) != "keyed":
        return Table(parsed, base)
    identifier = change_store_identifier(base.metadata.properties)
    try:
        with translate_catalog_errors(parsed.catalog, f"{parsed.catalog}.{'.'.join(identifier)}"):
            change = base.catalog.load_table(identifier)
    except NotFound as cause:
        raise Damaged(
            f"{name}: its change store {'.'.join(identifier)} does not exist",
            hint="Register its last metadata file again, or read the base store as an Iceberg table.",
            table=name,
        ) from cause
    return KeyedTable(parsed, base, change)


def create_table(
    name: str,
    schema: pa.Schema | Schema,
    primary_key: Sequence[str] = (),
    partition_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    *,
    format: str = MIXED_ICEBERG,  # noqa: A002
    format_version: int | None = None,
    if_not_exists: bool = False,
) -> Table:
    """Create a table: keyed with a primary key, unkeyed without, native with the format "iceberg". Its database is created
    if it does not exist. With `if_not_exists` a table that exists is returned as it is, if kind and key are the same."""
    parsed = parse_table_name(name)
    texts = {str(key): str(value) for key, value in (properties or {}).items()}
    check_properties(texts)
    definition = TableDefinition(
        schema=schema,
        primary_key=primary_key,
        partition_by=partition_by,
        properties=texts,
        format=format,
        format_version=format_version,
    )
    deadline = time.monotonic() + _CREATE_SECONDS
    while True:
        try:
            create_stores(open_catalog(parsed.catalog), parsed, definition)
            return open_table(name)
        except Rejected as refusal:
            if not if_not_exists or refusal.facts.get("reason") != EXISTS:
                raise
        table = _open_existing(name, deadline)
        if table is not None:
            _check_same(table, definition)
            return table


def _open_existing(name: str, deadline: float) -> Table | None:
    """Open a table that another process may be creating at this moment: its change store comes last. None: the other process
    has failed and dropped it again."""
    while True:
        try:
            return open_table(name)
        except (Damaged, NotFound) as error:
            if time.monotonic() > deadline:
                raise
            if isinstance(error, NotFound):
                return None
        time.sleep(0.1)


def _check_same(table: Table, definition: TableDefinition) -> None:
    """Refuse a table of another kind, key or format version than was asked for."""
    if table.store == "change":
        raise Rejected(f"{table.name} is the change store of a table", hint="Choose another name.")
    differences = []
    if table.kind != definition.kind:
        differences.append(f"it is {table.kind}, not {definition.kind}")
    elif table.kind == "keyed" and table.primary_key != tuple(definition.primary_key):
        differences.append(f"its primary key is {', '.join(table.primary_key)}")
    if definition.format_version not in (None, table.format_version):
        differences.append(f"its format version is {table.format_version}")
    if differences:
        raise Rejected(
            f"table {table.name} exists already, and is another one: {'; '.join(differences)}",
            hint="Drop it, or choose another name.",
        )


def drop_table(name: str, *, purge: bool = False) -> None:
    """Drop a table with all its stores; its files stay unless `purge`."""
    parsed = parse_table_name(name)
    base = load_table(parsed)
    if store_of(base.metadata.properties) == "change":
        raise UsageError(f"{name} is the change store of a table", hint="Drop the table itself.")
    with translate_catalog_errors(parsed.catalog, name):
        drop_stores(base.catalog, base, purge=purge)
