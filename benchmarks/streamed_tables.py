"""Tables as a stream of upserts leaves them: each commit adds a small data file and the equality deletes of its keys.

Created by the reference writer of the tests, without its quadratic parts: the metadata is written once, and the manifest
lists of older snapshots are empty. Nothing that reads the current snapshot can tell the difference from real commits.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog

from benchmarks.tables import prepare_table
from tests.models.spec.table import DATA, EQUALITY_DELETES, Manifest, SpecFile, SpecTable, metrics

ROWS_PER_COMMIT = 20
_COLUMNS = [
    ("id", "long"),
    ("k", "long"),
    ("price", "double"),
    ("name", "string"),
    ("kind", "string"),
    ("at", "timestamp"),
]
_PARQUET = {"compression": "zstd", "store_schema": False, "write_page_checksum": True}
_PROPERTIES = {"write.parquet.compression-codec": "zstd", "self-optimizing.writers-first": "false"}


def upserts(commits: int, *, version: int = 2, partitions: int = 0) -> Path:
    """Table b.t after this many commits, which upsert 20 rows each; every key is written about five times. `partitions`: the
    number of partitions that the commits take turns in."""

    def make(catalog: SqlCatalog, folder: Path) -> None:
        columns = [*_COLUMNS, ("p", "int")] if partitions else _COLUMNS
        table = _StreamedTable(
            catalog,
            "b.t",
            folder / "table",
            columns,
            version=version,
            partition=[("p", "identity")] if partitions else [],
            properties=_PROPERTIES,
        )
        rng = np.random.default_rng(7)
        keys = max(commits * ROWS_PER_COMMIT // 5, ROWS_PER_COMMIT)
        for number in range(commits):
            ids = rng.choice(keys, ROWS_PER_COMMIT, replace=False).astype(np.int64)
            partition = (number % partitions,) if partitions else ()
            table.upsert(_rows(table, rng, ids, number, partition), partition)
        table.finish()

    return prepare_table(f"upserts-{commits}-v{version}-{partitions}", make)


def _rows(table: SpecTable, rng: np.random.Generator, ids: np.ndarray, number: int, partition: tuple[int, ...]) -> pa.Table:
    count = len(ids)
    columns = [
        pa.array(ids),
        pa.array(rng.integers(0, 1 << 40, count)),
        pa.array(rng.random(count)),
        pa.array(np.char.add("customer-", rng.integers(0, 500_000, count).astype(str))),
        pa.array(np.array(["open", "paid", "shipped", "returned"])[rng.integers(0, 4, count)]),
        pa.array(np.full(count, number * 1_000_000)).cast(pa.timestamp("us")),
        *(pa.array(np.full(count, value, np.int32)) for value in partition),
    ]
    return pa.Table.from_arrays(columns, schema=table.arrow_schema())


class _StreamedTable(SpecTable):
    """A table that is registered when all its commits are made."""

    _is_finished = False

    def upsert(self, rows: pa.Table, partition: tuple[int, ...]) -> None:
        """One commit: rows, and deletes of all older rows with their ids."""
        data = self._file(DATA, rows, partition)
        deletes = self._file(EQUALITY_DELETES, rows.select(["id"]), partition)
        self.commit(data, deletes, operation="overwrite")
        snapshot = self.metadata["snapshots"][-1]
        total = len(self.metadata["snapshots"])
        snapshot["summary"] |= {
            "flink.max-committed-checkpoint-id": str(total),
            "added-records": str(rows.num_rows),
            "added-equality-deletes": str(rows.num_rows),
            "total-data-files": str(total),
            "total-delete-files": str(total),
            "total-equality-deletes": str(total * rows.num_rows),
            "total-position-deletes": "0",
        }

    def finish(self) -> None:
        """Write the last manifest list and the metadata."""
        self._is_finished = True
        last = self.metadata["snapshots"].pop()
        self.metadata["snapshot-log"].pop()
        self.metadata["last-updated-ms"] -= 1000
        self.metadata["current-snapshot-id"] = last["parent-snapshot-id"]
        rows = last.get("first-row-id", 0), last.get("first-row-id", 0) + last.get("added-rows", 0)
        self._snapshot(last["snapshot-id"], last["sequence-number"], last["summary"], *rows)

    def _file(self, content: int, rows: pa.Table, partition: tuple[int, ...]) -> SpecFile:
        path = self.path(".parquet")
        pq.write_table(rows, path, **_PARQUET)
        fields = [field for field in self.fields if field["name"] in rows.column_names]
        return self.file(
            content=content,
            path=path.as_uri(),
            records=rows.num_rows,
            size=path.stat().st_size,
            partition=partition,
            equality_ids=(self.field_id("id"),) if content == EQUALITY_DELETES else None,
            **metrics(fields, rows.to_pylist(), 16),
        )

    def _snapshot(self, snapshot_id: int, sequence: int, *facts: object) -> None:
        if self._is_finished:
            super()._snapshot(snapshot_id, sequence, *facts)  # type: ignore[arg-type]
            return
        manifests: list[Manifest] = self.manifests
        self.manifests = []
        super()._snapshot(snapshot_id, sequence, *facts)  # type: ignore[arg-type]
        self.manifests = manifests

    def register(self) -> Path:
        if self._is_finished or not self.metadata["snapshots"]:
            return super().register()
        return self.folder


@contextmanager
def unchanged(folder: Path) -> Iterator[None]:
    """Restore a catalog of a cached table at the end, and remove the files that commits have added to the table."""
    catalog, copy = folder / "catalog.db", folder / "catalog.before"
    before = set(_files(folder))
    shutil.copy(catalog, copy)
    try:
        yield
    finally:
        copy.replace(catalog)
        for path in set(_files(folder)) - before:
            path.unlink()


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
