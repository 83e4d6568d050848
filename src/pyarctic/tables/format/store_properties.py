"""How a keyed or unkeyed table is stored in a catalog: as Iceberg tables that are linked by their properties.

Names and values are those of the mixed-iceberg format, so that its connectors for Flink, Spark and Trino can use the tables.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Literal

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata

from pyarctic.errors import Damaged, Unsupported, UsageError
from pyarctic.tables.format.file_names import Store
from pyarctic.tables.format.merged_sequence import MERGED_AT, PARTITION_PROPERTIES, initial_properties
from pyarctic.tables.format.tree import bucket_mask

TableKind = Literal["keyed", "unkeyed", "native"]

FORMAT = "table-format"
MIXED = "MIXED_ICEBERG"
STORE = "mixed-format.table-store"
PRIMARY_KEY = "mixed-format.primary-key-fields"
CHANGE_STORE = "mixed-format.change.identifier"
CREATED = "table.create-timestamp"
BASE_BUCKETS = "base.file-index.hash-bucket"
CHANGE_BUCKETS = "change.file-index.hash-bucket"
DEFAULT_BUCKETS = 4

_RESERVED = {
    FORMAT,
    STORE,
    PRIMARY_KEY,
    CHANGE_STORE,
    CREATED,
    "base.table.max-transaction-id",
    "max-txId",
    "location",
    PARTITION_PROPERTIES,
    MERGED_AT,
    "schema.name-mapping.default",
    "format-version",
    "flink.max-continuous-empty-commits",
    "watermark.table",
    "watermark.base",
}
"""Properties that only the format itself sets."""


def store_of(properties: Mapping[str, str]) -> Store | None:
    """Which store of a table this Iceberg table is; None if it is a native Iceberg table."""
    if properties.get(FORMAT, "").upper() != MIXED:
        return None
    store = properties.get(STORE, "").lower()
    return "base" if store == "base" else "change" if store == "change" else None


def kind_of(properties: Mapping[str, str]) -> TableKind:
    """The kind of a table, by the properties of its base store."""
    if store_of(properties) != "base":
        return "native"
    return "keyed" if properties.get(PRIMARY_KEY) else "unkeyed"


def key_names(metadata: TableMetadata) -> tuple[str, ...]:
    """The primary key in the order of its declaration, in which it is hashed."""
    parts = (name.strip() for name in metadata.properties.get(PRIMARY_KEY, "").split(","))
    names = tuple(name for name in parts if name)
    columns = {field.name for field in metadata.schema().fields}
    if missing := [name for name in names if name not in columns]:
        raise Damaged(
            f"the primary key names columns that the table does not have: {', '.join(missing)}",
            hint=f"Table property {PRIMARY_KEY} is wrong; the columns are {', '.join(sorted(columns))}.",
        )
    return names


def key_ids(metadata: TableMetadata) -> tuple[int, ...]:
    """The field ids of the primary key, in the same order."""
    schema = metadata.schema()
    return tuple(schema.find_field(name).field_id for name in key_names(metadata))


def check_spec(base: TableMetadata, change: TableMetadata) -> None:
    """Refuse tables whose partition spec was changed: a key is unique within its partition, in both stores alike."""
    for store, metadata in (("base", base), ("change", change)):
        if metadata.default_spec_id != min(metadata.specs()):
            raise Unsupported(
                f"the partition spec of the {store} store was changed to {metadata.spec()}",
                hint="Keyed tables keep theirs. Change it back, or create a new table and write the rows there.",
            )
    if base.spec() != change.spec():  # files are compared by their spec id, too
        raise Unsupported(
            f"base and change store are partitioned differently: {base.spec()} and {change.spec()}",
            hint="One of them was changed. Change it back.",
        )


def change_store_identifier(properties: Mapping[str, str]) -> tuple[str, ...]:
    """The name of the change store, from the properties of the base store."""
    name = properties.get(CHANGE_STORE)
    if not name:
        raise Damaged("the table has a primary key but no change store", hint=f"Table property {CHANGE_STORE} must name it.")
    return tuple(name.split("."))


def check_user_properties(properties: Mapping[str, str]) -> None:
    """Refuse properties that users must not set, and invalid numbers of buckets."""
    if reserved := sorted(_RESERVED & properties.keys()):
        raise UsageError(f"table property {reserved[0]} is set by the format itself", hint="Leave it out.", key=reserved[0])
    for name in (BASE_BUCKETS, CHANGE_BUCKETS):
        tree_mask(properties, name)


def tree_mask(properties: Mapping[str, str], name: str) -> int:
    """The mask of the tree level at which files are written; `name` is the property."""
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
        properties |= {CHANGE_STORE: ".".join(change_store), **initial_properties()}
    return properties


def required_key(schema: Schema, primary_key: Sequence[str]) -> Schema:
    """The schema with its key columns as required identifier fields, as other engines create it."""
    ids = {schema.find_field(name).field_id for name in primary_key}
    fields = [f.model_copy(update={"required": True}) if f.field_id in ids else f for f in schema.fields]
    return Schema(*fields, schema_id=schema.schema_id, identifier_field_ids=sorted(ids))
