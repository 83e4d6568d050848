"""A stand-in for the library (one catalog, one table, frames small enough to read), and what a run gives back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pyarrow as pa

from pyarctic.errors import NotFound, Unavailable

NAME = "demo.shop.orders"
SNAPSHOT = 8_131_723_612_345_678_901
COMMITTED = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Ran:
    """How one run of the command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Arctic = Callable[..., Ran]


class Catalog:
    def list_namespaces(self) -> list[tuple[str, ...]]:
        return [("shop",), ("other",)]


class Scan:
    def __init__(self, table: Table, asked: dict[str, Any]) -> None:
        self._table = table
        self._asked = asked

    @property
    def schema(self) -> pa.Schema:
        return self._table.data.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        for batch in self._table.data.to_batches(max_chunksize=2):
            self._table.batches_read += 1
            yield batch

    def count(self) -> int:
        return int(self._table.data.num_rows)


class Table:
    name = NAME
    location = "file:///lake/orders"

    def __init__(self, data: pa.Table | None = None, files: int = 3) -> None:
        rows = {"id": [1, 2, 3], "city": ["Oslo", "Rome", None], "paid": [True, False, None]}
        self.data = pa.table(rows) if data is None else data
        self.file_count = files
        self.asked: dict[str, Any] = {}
        self.batches_read = 0

    def summary(self) -> dict[str, Any]:
        return {
            "name": NAME,
            "kind": "native",
            "uuid": "0b5e",
            "location": "file:///lake/orders",
            "format_version": 2,
            "current_snapshot_id": str(SNAPSHOT),
            "last_updated_at": "2026-01-31T09:30:00Z",
            "schema": [{"id": 1, "name": "id", "type": "long", "required": True, "doc": None}],
            "partition_spec": ["day(ts)"],
            "sort_order": [],
            "refs": [{"name": "main", "type": "branch", "snapshot_id": str(SNAPSHOT)}],
            "properties": {"owner": "anna"},
            "snapshots": 1,
            "data_files": 3,
            "delete_files": 1,
            "position_delete_files": 1,
            "equality_delete_files": 0,
            "deletion_vectors": 0,
            "records": 1200,
            "data_bytes": 3 * 1024**2,
            "delete_bytes": 2048,
        }

    def files(self, **asked: Any) -> pl.DataFrame:
        self.asked = asked
        count = self.file_count
        return pl.DataFrame(
            {
                "content": ["data"] * count,
                "file_path": [f"file:///lake/orders/data/{place:05}.parquet" for place in range(count)],
                "file_format": ["parquet"] * count,
                "partition": ["day=2026-01-31"] * count,
                "spec_id": [0] * count,
                "record_count": [1000 + place for place in range(count)],
                "file_size_bytes": [1024**2] * count,
                "data_sequence_number": [1] * count,
                "file_sequence_number": [1] * count,
                "snapshot_id": [SNAPSHOT] * count,
                "equality_ids": pl.Series([None] * count, dtype=pl.List(pl.Int32)),
            }
        )

    def partitions(self, **asked: Any) -> pl.DataFrame:
        self.asked = asked
        return pl.DataFrame({"partition": ["day=2026-01-31"], "spec_id": [0], "data_files": [3], "data_bytes": [3 << 20]})

    def snapshots(self, **asked: Any) -> pl.DataFrame:
        self.asked = asked
        return pl.DataFrame(
            {
                "snapshot_id": [SNAPSHOT, SNAPSHOT + 1],
                "parent_id": [None, SNAPSHOT],
                "committed_at": [COMMITTED, datetime.now(UTC) - timedelta(minutes=3, seconds=5)],
                "operation": ["append", "overwrite"],
                "summary": ["{}", "{}"],
            }
        )

    def scan(self, **asked: Any) -> Scan:
        self.asked = asked
        return Scan(self, asked)


class Library:
    """What the commands import from `pyarctic.tables` and `pyarctic.iceberg`."""

    KeyedTable = type("KeyedTable", (), {})

    def __init__(self) -> None:
        self.table = Table()
        self.names = [NAME, "demo.shop.people"]
        self.catalogs = ["demo"]
        self.failure: Exception | None = None

    @staticmethod
    def translate_catalog_errors(_: str) -> AbstractContextManager[None]:
        return nullcontext()

    def open_catalog(self, name: str) -> Catalog:
        if name == "down":
            raise Unavailable(
                "catalog down does not answer", hint="is it running?", uri="postgresql://anna:pw@db/x", catalog=name
            )
        if name == "odd":
            raise ValueError("cannot reach postgresql://anna:pw@db/x")
        return Catalog()

    def catalog_names(self) -> list[str]:
        return self.catalogs

    def list_tables(self, pattern: str | None) -> list[str]:
        if self.failure is not None:
            raise self.failure
        return [name for name in self.names if pattern is None or pattern.rstrip("*") in name]

    def open_table(self, name: str) -> Table:
        if name != NAME:
            raise NotFound(f"{name}: no such table", hint="arctic table ls", table=name, catalog="demo")
        return self.table
