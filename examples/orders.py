"""A table of orders as a change-data pipeline leaves it: every batch of upserts adds small files and equality deletes."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

import pyarctic
from pyarctic.iceberg.commit import Change
from pyarctic.iceberg.write import FileNames, FileTarget, NewFile, write_equality_deletes, write_position_deletes
from pyarctic.iceberg.write.parquet import DataFileWriter
from pyarctic.optimizing import ProcessEvent, TaskEnded
from pyarctic.tables import Table

NAME = "demo.shop.orders"
REGIONS = ("apac", "emea", "latam", None)
COMMITS, CHANGES, KEYS = 100, 60, 2_000
ARROW_SCHEMA = pa.schema({"id": pa.int64(), "region": pa.string(), "amount": pa.int64()})


def create() -> Table:
    return pyarctic.create_table(NAME, ARROW_SCHEMA, partition_by=["region"], format="iceberg")


def stream(table: Table, seed: int = 7, commits: int = COMMITS) -> Iterator[dict[int, int]]:
    """Write upserts in small batches; yields the changed rows of each."""
    rng = random.Random(seed)
    for _ in range(commits):
        batch = {rng.randrange(KEYS): rng.randrange(1_000) for _ in range(CHANGES)}
        added: list[NewFile] = []
        for number, region in enumerate(REGIONS):
            rows = [{"id": key, "region": region, "amount": amount} for key, amount in batch.items() if key % 4 == number]
            if rows:
                data = pa.Table.from_pylist(rows, schema=ARROW_SCHEMA)
                key = table.schema.find_field("id")
                added.append(write_equality_deletes(_target(table, region), data.select(["id"]), [key]))
                added += _write_data_files(table, region, data)
        table.commit(Change(start=table.view.snapshot_id, add=tuple(added)))
        yield batch


def delete_one(table: Table, region: str) -> int:
    """Delete a row by its position, as a concurrent statement would, and return its id."""
    row = table.scan(["id", "_file", "_pos"], where=f"region = '{region}'").to_arrow().slice(0, 1).to_pylist()[0]
    deletes = write_position_deletes(_target(table, region), {row["_file"]: np.array([row["_pos"]])})
    table.commit(Change(start=table.view.snapshot_id, add=(deletes,)))
    return int(row["id"])


class ConcurrentWriter:
    """Watches while the table is optimized, and deletes a row when the first task has ended."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.deleted_id = -1

    def __call__(self, event: ProcessEvent) -> None:
        if isinstance(event, TaskEnded) and self.deleted_id < 0:
            self.deleted_id = delete_one(self._table, "emea")


def read_amounts(table: Table) -> dict[int, int]:
    """All rows by their ids. A repeated id is an error."""
    rows = table.scan().to_arrow().to_pylist()
    amounts = {row["id"]: row["amount"] for row in rows}
    if len(amounts) != len(rows):
        raise AssertionError(f"{len(rows) - len(amounts)} rows of {table.name} have an id that another row has")
    return amounts


def read_cpu_seconds(name: str) -> float:
    """What it costs to plan a read of all rows and to execute it, best of three."""
    costs = []
    for _ in range(3):
        start = time.process_time()
        pyarctic.table(name).scan().to_arrow()
        costs.append(time.process_time() - start)
    return min(costs)


def _write_data_files(table: Table, region: str | None, rows: pa.Table) -> list[NewFile]:
    with DataFileWriter(_target(table, region)) as writer:
        for batch in rows.to_batches():
            writer.write(batch)
    return writer.files


def _target(table: Table, region: str | None) -> FileTarget:
    view = table.view
    return FileTarget(metadata=view.metadata, io=view.io, spec_id=0, partition=(region,), names=FileNames())
