"""The keyed tables of the benchmarks, created once under .cache/bench: base rows, and changes on top of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

import pyarctic
from benchmarks.tables import prepare_table, properties
from pyarctic.tables.format import BASE_BUCKETS, CHANGE_BUCKETS

CATALOG = "bench"
TABLE = f"{CATALOG}.b.t"
_BATCH = 1 << 18
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("k", pa.int64()),
        ("price", pa.float64()),
        ("name", pa.string()),
        ("kind", pa.string()),
        ("at", pa.timestamp("us")),
    ]
)
LONG_KEYS = pa.schema([pa.field("id", pa.string(), nullable=False), ("amount", pa.int64())])


def rows_of(ids: np.ndarray, seed: int) -> pa.Table:
    """Rows with these ids and random values."""
    rng = np.random.default_rng(seed)
    count = len(ids)
    names = pa.array(np.char.add("customer-", np.arange(500_000).astype(str)))
    kinds = pa.array(["open", "paid", "shipped", "returned"])
    return pa.table(
        [
            pa.array(ids),
            pa.array(rng.integers(0, 1 << 40, count)),
            pa.array(rng.random(count)),
            names.take(pa.array(rng.integers(0, len(names), count))),
            kinds.take(pa.array(rng.integers(0, 4, count))),
            pa.array(ids * 1_000_000).cast(pa.timestamp("us")),
        ],
        schema=SCHEMA,
    )


def keyed(rows: int, changed: float) -> Path:
    """Table b.t with this many base rows, of which a fraction has been upserted since, in ten commits."""

    def make(_: SqlCatalog, folder: Path) -> None:
        pyarctic.catalog(CATALOG, **properties(folder))
        table = pyarctic.create_table(TABLE, SCHEMA, primary_key=["id"])
        rng = np.random.default_rng(7)
        ids = rng.permutation(rows)
        table.write((rows_of(ids[at : at + _BATCH], at) for at in range(0, rows, _BATCH)), mode="overwrite")
        for number, part in enumerate(np.array_split(rng.choice(rows, int(rows * changed), replace=False), 10)):
            if len(part):
                table.write(rows_of(part, rows + number), mode="upsert")

    return prepare_table(f"keyed-{rows}-{changed:g}", make)


def changes_in_one_commit(rows: int) -> Path:
    """Table b.t with this many rows upserted in one commit: twice as many changes."""

    def make(_: SqlCatalog, folder: Path) -> None:
        pyarctic.catalog(CATALOG, **properties(folder))
        table = pyarctic.create_table(TABLE, SCHEMA, primary_key=["id"])
        ids = np.random.default_rng(7).permutation(rows)
        table.write((rows_of(ids[at : at + _BATCH], at) for at in range(0, rows, _BATCH)), mode="upsert")

    return prepare_table(f"changes-{rows}", make)


def one_row_commits(commits: int) -> Path:
    """Table b.t with so many commits of one upserted row, each in a partition of its own."""

    def make(_: SqlCatalog, folder: Path) -> None:
        pyarctic.catalog(CATALOG, **properties(folder))
        table = pyarctic.create_table(TABLE, SCHEMA, primary_key=["id"], partition_by=["k"])
        for number in range(commits):
            table.write(rows_of(np.array([number]), number), mode="upsert")

    return prepare_table(f"one-row-commits-{commits}", make)


def clean_files(files: int) -> Path:
    """Table b.t with so many base files, each in a partition of its own, and no changes."""

    def make(_: SqlCatalog, folder: Path) -> None:
        pyarctic.catalog(CATALOG, **properties(folder))
        table = pyarctic.create_table(TABLE, SCHEMA, primary_key=["id"], partition_by=["k"])
        rows = rows_of(np.arange(files), 0)
        numbers = pa.array(np.arange(files)).cast(SCHEMA.field("k").type)
        table.write(rows.set_column(rows.schema.get_field_index("k"), "k", numbers), mode="overwrite")

    return prepare_table(f"clean-files-{files}", make)


def long_keys(rows: int) -> Path:
    """Table b.t with keys of 60 letters: this many base rows, and half as many changes, one delete for two inserts."""

    def make(_: SqlCatalog, folder: Path) -> None:
        pyarctic.catalog(CATALOG, **properties(folder))
        table = pyarctic.create_table(TABLE, LONG_KEYS, primary_key=["id"])
        table.write(_long(np.arange(rows), 0), mode="overwrite")
        # Every third key of the first half is deleted, others change, and some are new.
        table.write(_long(np.arange(0, rows // 2, 3), 1), mode="delete")
        table.write(_long(np.arange(1, rows + rows // 2, 9)[: rows // 6], 2), mode="insert")
        table.write(_long(np.arange(rows, rows + rows // 6), 3), mode="insert")

    return prepare_table(f"long-keys-{rows}", make)


def many_deletes(count: int) -> Path:
    """Table b.t with keys of 60 letters, in one node: twice as many base rows as keys that are deleted."""

    def make(_: SqlCatalog, folder: Path) -> None:
        pyarctic.catalog(CATALOG, **properties(folder))
        one_node = {BASE_BUCKETS: "1", CHANGE_BUCKETS: "1", "self-optimizing.fragment-size": "1"}
        table = pyarctic.create_table(TABLE, LONG_KEYS, primary_key=["id"], properties=one_node)
        table.write(_long(np.arange(2 * count), 0), mode="overwrite")
        table.write(_long(np.arange(0, 2 * count, 2), 1), mode="delete")

    return prepare_table(f"many-deletes-{count}", make)


def long_key_rows(rows: int) -> tuple[int, int]:
    """The number of rows of `long_keys`, and the sum of their amounts."""
    amounts = dict.fromkeys(range(rows), 0)
    for key in range(0, rows // 2, 3):
        amounts.pop(key, None)
    for key in range(1, rows + rows // 2, 9)[: rows // 6]:
        amounts[key] = 2
    for key in range(rows, rows + rows // 6):
        amounts[key] = 3
    return len(amounts), sum(amounts.values())


def _long(keys: np.ndarray, amount: int) -> Iterator[pa.RecordBatch]:
    for at in range(0, len(keys), _BATCH):
        part = keys[at : at + _BATCH]
        texts = pa.array([f"{key:060d}" for key in part.tolist()])
        yield pa.record_batch([texts, pa.array(np.full(len(part), amount))], schema=LONG_KEYS)


def committed(commits: int) -> Path:
    """Table b.t after this many commits of one upserted row each, none of them merged."""

    def make(_: SqlCatalog, folder: Path) -> None:
        pyarctic.catalog(CATALOG, **properties(folder))
        table = pyarctic.create_table(TABLE, SCHEMA, primary_key=["id"])
        rows = rows_of(np.arange(commits), 7)
        for number in range(commits):
            table.write(rows.slice(number, 1), mode="upsert")

    return prepare_table(f"commits-{commits}", make)
