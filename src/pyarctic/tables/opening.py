"""Tables by name: opened as what they are, made, and dropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyiceberg.schema import Schema

from pyarctic.config import parse_table_name
from pyarctic.config.properties import check_properties
from pyarctic.errors import Damaged, NotFound, UsageError
from pyarctic.iceberg.catalog import load_table, open_catalog, reaching
from pyarctic.tables import layout
from pyarctic.tables.creating import create_stores, drop_stores
from pyarctic.tables.handle import Table
from pyarctic.tables.keyed import KeyedTable


def open_table(name: str) -> Table:
    """Open a table by its full name."""
    parsed = parse_table_name(name)
    base = load_table(parsed)
    if layout.kind_of(base.metadata.properties) != "keyed":
        return Table(parsed, base)
    identifier = layout.change_store_identifier(base.metadata.properties)
    try:
        with reaching(parsed.catalog, f"{parsed.catalog}.{'.'.join(identifier)}"):
            change = base.catalog.load_table(identifier)
    except NotFound as cause:
        raise Damaged(
            f"{name}: its change store {'.'.join(identifier)} is gone",
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
) -> Table:
    """Make a table: keyed with a primary key, unkeyed without. Its database is made if there is none."""
    parsed = parse_table_name(name)
    told = {str(key): str(value) for key, value in (properties or {}).items()}
    check_properties(told)
    create_stores(open_catalog(parsed.catalog), parsed, schema, primary_key, partition_by, told)
    return open_table(name)


def drop_table(name: str, *, purge: bool = False) -> None:
    """Drop a table with all its stores; its files stay unless `purge`."""
    parsed = parse_table_name(name)
    base = load_table(parsed)
    if layout.store_of(base.metadata.properties) == "change":
        raise UsageError(f"{name} is the change store of a table", hint="Drop the table itself.")
    with reaching(parsed.catalog, name):
        drop_stores(base.catalog, base, purge=purge)
