"""The tables that all work on, and the configuration of the service."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa

import pyarctic
from pyarctic.tables import KeyedTable
from pyarctic.tables.create import TableAdvice

PARTITIONS = 3
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("part", pa.int32()), ("text", pa.string())])
NATIVE = {"lake.db.native2": 2, "lake.db.native3": 3}
KEYED = ("lake.db.keyed",)
NAMES = (*NATIVE, *KEYED)
_PROPERTIES = {
    # All of them commit all the time: whoever loses must be allowed to lose often.
    "commit.retry.num-retries": "30",
    "commit.retry.min-wait-ms": "20",
    "commit.retry.max-wait-ms": "500",
    # The log of metadata files names all of them, so that any other one is known to be left over.
    "write.metadata.previous-versions-max": "100000",
    "self-optimizing.writers-first": "false",
    # Work never ends.
    "self-optimizing.minor.trigger.file-count": "3",
    "self-optimizing.minor.trigger.interval": "5s",
}
_CONFIG = """\
catalogs:
  lake: {{type: sql, uri: 'sqlite:///{folder}/catalog.db', warehouse: '{uri}'}}
service:
  database: {{url: '{database}'}}
  refresh-tables: {{interval: 1s, min-interval: 1s, max-interval: 2s, discover-interval: 10s, threads: 2}}
  planning: {{min-plan-interval: 3s}}
  optimizer: {{heart-beat-timeout: 3s, task-ack-timeout: 3s, task-progress-timeout: 60s}}
  retry: {{scan: 1s, interval: 1s, max: 10}}
  commit: {{interval: {commit_interval}, threads: 2}}
http: {{token: '{token}'}}
"""
TOKEN = "the token of everybody here"
HEARTBEAT_TIMEOUT_SECONDS = 3


def declare(folder: Path) -> None:
    """Let this process find the catalog."""
    # Writers in threads of their own wait for each other at the catalog's file.
    pyarctic.catalog("lake", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=(folder / "warehouse").as_uri())


def create(folder: Path, commit_interval: str, database: str) -> None:
    """The catalog, its tables, and `arctic.yaml`."""
    (folder / "warehouse").mkdir()
    uri = (folder / "warehouse").as_uri()
    values = {"folder": folder, "uri": uri, "commit_interval": commit_interval, "database": database, "token": TOKEN}
    (folder / "arctic.yaml").write_text(_CONFIG.format(**values))
    declare(folder)
    pyarctic.catalog("lake").create_namespace("db")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableAdvice)
        for name, version in NATIVE.items():
            pyarctic.create_table(name, SCHEMA, (), ("part",), _PROPERTIES, format="iceberg", format_version=version)
        for name in KEYED:
            buckets = {"base.file-index.hash-bucket": "2", "change.file-index.hash-bucket": "2"}
            pyarctic.create_table(name, SCHEMA, ["id"], ("part",), _PROPERTIES | buckets)


def stores_of(name: str) -> list[Any]:
    """The Iceberg tables of a table, as they are now."""
    table = pyarctic.table(name)
    return [table._loaded, *([table.change_store._loaded] if isinstance(table, KeyedTable) else [])]


def rows_of(values: dict[int, str]) -> pa.Table:
    """Rows with these ids and texts, in the partitions of their ids."""
    columns = {"id": [*values], "part": [number % PARTITIONS for number in values], "text": [*values.values()]}
    return pa.table(columns, schema=SCHEMA)


def read(name: str) -> dict[int, str]:
    """All rows, merged."""
    found = pyarctic.table(name).scan().to_arrow().to_pylist()
    if len({row["id"] for row in found}) != len(found):
        raise AssertionError(f"{name} has rows twice")
    if wrong := [row for row in found if row["part"] != row["id"] % PARTITIONS]:
        raise AssertionError(f"{name} has rows in wrong partitions: {wrong[:3]}")
    return {row["id"]: row["text"] for row in found}
