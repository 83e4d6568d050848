"""Sorting: how many files a point read opens, and what it costs to keep the table sorted when more data arrives."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

import pyarctic
from benchmarks.figures import Figure, console
from pyarctic import config
from pyarctic.iceberg.read import Scan
from pyarctic.tables import Table

_SCHEMA = Schema(
    NestedField(1, "x", LongType()),
    NestedField(2, "y", DoubleType()),
    NestedField(3, "pad", StringType()),
)
_ORDER = SortOrder(SortField(1, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_FIRST))
_FILES, _ROWS, _MAX_VALUE = 64, 50_000, 1 << 40
_COLUMNS = {"x": f"x = {_MAX_VALUE // 3}", "y": f"y = {_MAX_VALUE / 3}"}
_TARGETS = 24
"""The approximate number of files at the end."""


def sorting(scale: float) -> list[Figure]:
    """Sort order by one column, and z-order by two."""
    rows = max(int(_ROWS * scale), 500)
    folder = Path(tempfile.mkdtemp(prefix="arctic-bench-"))
    try:
        catalog = pyarctic.catalog("sorting", type="sql", uri=f"sqlite:///{folder}/c.db", warehouse=folder.as_uri())
        catalog.create_namespace("db")
        return [*_figures("sorted", rows, ["x"], {}), *_figures("z", rows, ["x", "y"], {"self-optimizing.z-order": "x, y"})]
    finally:
        config.reset()
        shutil.rmtree(folder, ignore_errors=True)


def _figures(name: str, rows: int, columns: list[str], properties: dict[str, str]) -> list[Figure]:
    table_properties = {
        "self-optimizing.target-size": str(_FILES * rows * 42 // _TARGETS),
        "self-optimizing.writers-first": "false",
        **properties,
    }
    created = pyarctic.catalog("sorting").create_table(f"db.{name}", _SCHEMA, sort_order=_ORDER, properties=table_properties)
    table = pyarctic.table(f"sorting.{'.'.join(created.name())}")
    with console.status(f"sorting a table of {_FILES * rows:,} rows"):
        for number in range(_FILES):
            table.write(_rows(number, rows, 0, _MAX_VALUE))
        before = [_count_opened_files(table, column) for column in columns]
        full = pyarctic.optimize(table.name, "auto", "local")
        after = [_count_opened_files(table, column) for column in columns]
        for number in range(_FILES, _FILES + 4):
            table.write(_rows(number, rows, _MAX_VALUE // 3, _MAX_VALUE // 3 + _MAX_VALUE // 100))
        part = pyarctic.optimize(table.name, "auto", "local")
    how = "z-order" if properties else "sort order"
    files_opened = Figure(
        name=f"{how}: files opened for one key, after against before",
        measured=max(b / a for a, b in zip(before, after, strict=True)),
        target=0.35 if properties else 0.1,
        unit="×",
        detail=f"by {', '.join(columns)}: {before} before, {after} of {full.after.data_files} after",
    )
    cost = Figure(
        name=f"{how}: sorting new data for a hundredth of the keys, CPU against sorting all",
        measured=part.cpu_seconds / full.cpu_seconds,
        target=0.5,
        unit="×",
        detail=f"{part.cpu_seconds:.2f} s to {full.cpu_seconds:.2f} s; {part.removed.data_files} of "
        f"{part.before.data_files} files rewritten",
    )
    return [files_opened, cost]


def _count_opened_files(table: Table, column: str) -> int:
    scan = table.refresh().scan(["x"], _COLUMNS[column])
    assert isinstance(scan, Scan)
    return scan.plan.data.height


def _rows(number: int, rows: int, low: int, high: int) -> pa.Table:
    rng = np.random.default_rng(number)
    pads = [rng.bytes(12).hex() for _ in range(rows)]
    return pa.table({"x": rng.integers(low, high, rows), "y": rng.uniform(low, high, rows), "pad": pads})
