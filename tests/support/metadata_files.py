"""Metadata that no client of ours writes: what other engines do to a table in an SQL catalog."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import fastavro
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


def without_last_snapshot(told: Told) -> Told:
    """As a catalog leaves it that has dropped the last snapshot in favour of a writer."""
    [last] = [one for one in told["snapshots"] if one["snapshot-id"] == told["current-snapshot-id"]]
    kept = [one for one in told["snapshots"] if one is not last]
    return told | {
        "snapshots": kept,
        "snapshot-log": [one for one in told["snapshot-log"] if one["snapshot-id"] != last["snapshot-id"]],
        "current-snapshot-id": last["parent-snapshot-id"],
        "refs": {"main": {"snapshot-id": last["parent-snapshot-id"], "type": "branch"}},
        "last-sequence-number": max(one["sequence-number"] for one in kept),
    }


def rewritten(path: str, edit: Callable[[Told, list[Told]], None]) -> int:
    """Write an Avro file of the metadata again; `edit` gets its schema and its records. Gives the new length."""
    file = Path(local(path))
    reader = fastavro.reader(io.BytesIO(file.read_bytes()))
    records: list[Any] = list(reader)
    schema: Any = json.loads(reader.metadata["avro.schema"])
    edit(schema, records)
    own = {name: value for name, value in reader.metadata.items() if not name.startswith("avro.")}
    written = io.BytesIO()
    fastavro.writer(written, schema, records, codec="deflate", metadata=own)
    return file.write_bytes(written.getvalue())


def edit_manifests(table: Table, edit: Callable[[Told, list[Told]], None]) -> None:
    """Edit all manifests of the current snapshot in place; the manifest list gets their new lengths."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    lengths = {one.manifest_path: rewritten(one.manifest_path, edit) for one in snapshot.manifests(table.io)}

    def tell(_: Told, manifests: list[Told]) -> None:
        for one in manifests:
            one["manifest_length"] = lengths[one["manifest_path"]]

    rewritten(snapshot.manifest_list, tell)


def lose_partition_values(table: Table, name: str) -> None:
    """As a writer leaves it that does not know the type of a partition field any more: all values are null, without type."""

    def lose(schema: Told, entries: list[Told]) -> None:
        data_file = next(field["type"] for field in schema["fields"] if field["name"] == "data_file")
        partition = next(field["type"] for field in data_file["fields"] if field["name"] == "partition")
        for field in partition["fields"]:
            if field["name"] == name:
                field["type"] = "null"
        for entry in entries:
            if name in entry["data_file"]["partition"]:
                entry["data_file"]["partition"][name] = None

    edit_manifests(table, lose)
