"""How a keyed or unkeyed table lies in a catalog: two ordinary Iceberg tables, tied together by their properties.

Names and values are those of the mixed-iceberg format, so that its connectors for Flink, Spark and Trino share the tables.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Literal

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata

from pyarctic.errors import Damaged, Unsupported, UsageError
from pyarctic.tables.format.file_names import Store
from pyarctic.tables.format.tree import bucket_mask

TableKind = Literal["keyed", "unkeyed", "native"]

FORMAT = "table-format"
MIXED = "MIXED_ICEBERG"
STORE = "mixed-format.table-store"
PRIMARY_KEY = "mixed-format.primary-key-fields"
CHANGE_STORE = "mixed-format.change.identifier"
SEPARATOR = "mixed-format.table-store.separator"
CREATED = "table.create-timestamp"
BASE_BUCKETS = "base.file-index.hash-bucket"
CHANGE_BUCKETS = "change.file-index.hash-bucket"
DEFAULT_BUCKETS = 4
SERVICE_CHANGE_STORE = "@change"
"""How the names of change stores end in the catalog of the format's own management service."""

_RESERVED = {
    FORMAT,
    STORE,
    PRIMARY_KEY,
    CHANGE_STORE,
    CREATED,
    "base.table.max-transaction-id",
    "max-txId",
    "location",
    "table.partition-properties",
    "schema.name-mapping.default",
    "format-version",
    "flink.max-continuous-empty-commits",
    "watermark.table",
    "watermark.base",
}
"""Properties that the format itself writes."""


def store_of(properties: Mapping[str, str]) -> Store | None:
    """Which store of a table this Iceberg table is; None if it is a table of its own."""
    if properties.get(FORMAT, "").upper() != MIXED:
        return None
    store = properties.get(STORE, "").lower()
    return "base" if store == "base" else "change" if store == "change" else None


def kind_of(properties: Mapping[str, str]) -> TableKind:
    """What kind of table has a base store, or is a table, with these properties."""
    if store_of(properties) != "base":
        return "native"
    return "keyed" if properties.get(PRIMARY_KEY) else "unkeyed"


def key_names(metadata: TableMetadata) -> tuple[str, ...]:
    """The primary key in the order of its declaration, in which it is hashed."""
    told = [name.strip() for name in metadata.properties.get(PRIMARY_KEY, "").split(",")]
    names = tuple(name for name in told if name)
    known = {field.name for field in metadata.schema().fields}
    if missing := [name for name in names if name not in known]:
        raise Damaged(
            f"the primary key names columns that the table does not have: {', '.join(missing)}",
            hint=f"Table property {PRIMARY_KEY} is wrong; the columns are {', '.join(sorted(known))}.",
        )
    return names


def key_ids(metadata: TableMetadata) -> tuple[int, ...]:
    """The field ids of the primary key, in the same order."""
    schema = metadata.schema()
    return tuple(schema.find_field(name).field_id for name in key_names(metadata))


def check_spec(base: TableMetadata, change: TableMetadata) -> None:
    """A key is unique within its partition, in both stores alike: they keep the spec that they were made with."""
    for store, metadata in (("base", base), ("change", change)):
        if metadata.default_spec_id != min(metadata.specs()):
            raise Unsupported(
                f"the partition spec of the {store} store was changed to {metadata.spec()}",
                hint="Keyed tables keep theirs. Change it back, or make a new table and write the rows there.",
            )
    if base.spec() != change.spec():  # files are compared by the number of their spec, too
        raise Unsupported(
            f"base and change store are partitioned differently: {base.spec()} and {change.spec()}",
            hint="Somebody changed one of them. Change it back.",
        )


def change_store_identifier(properties: Mapping[str, str]) -> tuple[str, ...]:
    """The name of the change store, as the base store tells it."""
    told = properties.get(CHANGE_STORE)
    if not told:
        raise Damaged(
            "the table has a primary key and names no change store", hint=f"Table property {CHANGE_STORE} must name it."
        )
    return tuple(told.split("."))


def change_store_name(table: str, catalog_properties: Mapping[str, str]) -> str:
    """The name to give to the change store of a new table."""
    separator = catalog_properties.get(SEPARATOR, "_")
    return f"{table}{separator}change{separator}"


def check_user_properties(properties: Mapping[str, str]) -> None:
    """Refuse what a user must not set, and values that no writer could work with."""
    if taken := sorted(_RESERVED & properties.keys()):
        raise UsageError(f"table property {taken[0]} is set by the format itself", hint="Leave it out.", key=taken[0])
    for name in (BASE_BUCKETS, CHANGE_BUCKETS):
        tree_mask(properties, name)


def tree_mask(properties: Mapping[str, str], name: str) -> int:
    """The mask of the tree's level that files are written at."""
    text = properties.get(name, str(DEFAULT_BUCKETS))
    if not text.strip().isdigit():
        raise UsageError(
            f"table property {name} = {text!r} is not valid", hint="It is a power of two: 1, 2, 4, 8 …", key=name, value=text
        )
    return bucket_mask(int(text), f"table property {name}")


def store_properties(
    store: Store, user: Mapping[str, str], primary_key: Sequence[str], change_store: tuple[str, ...] | None
) -> dict[str, str]:
    """All properties of a new store."""
    properties = {
        **user,
        FORMAT: MIXED,
        STORE: store,
        CREATED: str(time.time_ns() // 1_000_000),
        "format-version": "2",
        "write.metadata.delete-after-commit.enabled": "true",
        "flink.max-continuous-empty-commits": "2147483647",
    }
    if primary_key:
        properties[PRIMARY_KEY] = ",".join(primary_key)
    if store == "base" and change_store is not None:
        properties[CHANGE_STORE] = ".".join(change_store)
    return properties


def required_key(schema: Schema, primary_key: Sequence[str]) -> Schema:
    """The schema with its key columns required and told as identifier fields, as other engines make it."""
    ids = {schema.find_field(name).field_id for name in primary_key}
    fields = [f.model_copy(update={"required": True}) if f.field_id in ids else f for f in schema.fields]
    return Schema(*fields, schema_id=schema.schema_id, identifier_field_ids=sorted(ids))
