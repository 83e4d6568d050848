"""Metadata that no client of ours writes: what other engines do to a table in an SQL catalog."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.table import Table
from sqlalchemy import update

from tests.support.integrity import local

Told = dict[str, Any]


def edited(table: Table, edit: Callable[[Told], Told]) -> None:
    """Commit other metadata than there is; `edit` gets and gives it as JSON."""
    told = edit(json.loads(Path(local(table.metadata_location)).read_bytes()))
    told.setdefault("metadata-log", []).append(
        {"timestamp-ms": table.metadata.last_updated_ms, "metadata-file": table.metadata_location}
    )
    number = int(Path(table.metadata_location).name.split("-")[0]) + 1
    location = f"{table.location()}/metadata/{number:05}-{uuid4()}.metadata.json"
    Path(local(location)).write_text(json.dumps(told))
    point(table, location)


def point(table: Table, location: str) -> None:
    """Let the catalog have the table's metadata there."""
    assert isinstance(table.catalog, SqlCatalog)
    rows = update(IcebergTables).where(IcebergTables.table_name == table.name()[-1])
    with table.catalog.engine.begin() as connection:
        connection.execute(rows.values(metadata_location=location))


def upgraded(told: Told) -> Told:
    """Format version 3; PyIceberg cannot do that."""
    return told | {"format-version": 3, "next-row-id": 0}


def cleaned(told: Told) -> Told:
    """As an expiry that cleans metadata leaves it: one snapshot, and no schema that it does not use."""
    snapshots = [one for one in told["snapshots"] if one["snapshot-id"] == told["current-snapshot-id"]]
    used = {one.get("schema-id") for one in snapshots} | {told["current-schema-id"]}
    schemas = [schema for schema in told["schemas"] if schema["schema-id"] in used]
    return told | {"snapshots": snapshots, "snapshot-log": told["snapshot-log"][-1:], "schemas": schemas}
