"""Create tables, optimize them with PyArctic or Iceberg Java, and check the result.

The optimized table is read by Spark and must contain the rows that its data files and deletes define.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Self

import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from benchmarks.figures import console
from benchmarks.iceberg_java import IcebergJava, start_session
from benchmarks.optimize_work import OPTIMIZER, OptimizeFailed, run_ours
from benchmarks.processes import Cost
from benchmarks.tables import CACHE
from benchmarks.unoptimized_tables import TableSetup, lineitem_files, make_table, open_catalog

ROUNDS = 2
"""How often each side optimizes the same table, in turns: the speed of a shared machine varies from minute to minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of a table, from the summary of its snapshot."""

    data_files: int
    delete_files: int
    equality_deletes: int
    size_bytes: int

    @classmethod
    def of(cls, table: Table) -> Self:
        snapshot = table.current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        total = snapshot.summary.additional_properties
        names = ("total-data-files", "total-delete-files", "total-equality-deletes", "total-files-size")
        data, deletes, equality, size = (int(total[name]) for name in names)
        return cls(data_files=data, delete_files=deletes, equality_deletes=equality, size_bytes=size)

    def __str__(self) -> str:
        deletes = f" and {self.delete_files} of deletes" if self.delete_files else ""
        return f"{self.data_files} files{deletes}, {self.size_bytes / 1e6:,.0f} MB"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizedTable:
    """A table after optimizing, and the cost."""

    table: str
    cost: Cost
    before: Size
    after: Size
    report: dict[str, Any]
    """The report of PyArctic; empty for Java."""


@dataclass(frozen=True, kw_only=True)
class Workbench:
    """Creates tables, optimizes them with either side, and checks them. Results are cached."""

    scale: float
    folder: Path
    catalog: Catalog
    java: IcebergJava
    optimizer: str
    _done: dict[tuple[TableSetup, str, int], OptimizedTable] = field(default_factory=dict)
    _checksums: dict[TableSetup, tuple[Any, ...]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def plain(self) -> TableSetup:
        """256 files of 2.3 MB, 18 million rows."""
        with console.status("creating data files"):
            return TableSetup(data=lineitem_files(max(int(256 * self.scale), 16), 70_312))

    @property
    def keys(self) -> TableSetup:
        """Two million deleted keys; each file has to be checked against all of them."""
        return replace(self.plain, deleted_keys=int(2_000_000 * self.scale))

    def table(self, setup: TableSetup) -> str:
        name = f"b.t{next(self._numbers)}"
        make_table(self.catalog, name, setup)
        return name

    def both(self, setup: TableSetup, kind: str) -> tuple[OptimizedTable, OptimizedTable]:
        """Optimize with PyArctic and with Java, in turns, and return the cheapest run of each."""
        rounds = ROUNDS if self.scale >= 1 else 1
        runs = [(self.ours(setup, kind, again=number), self.by_java(setup, again=number)) for number in range(rounds)]
        ours, java = (min(side, key=lambda optimized: optimized.cost.cpu_seconds) for side in zip(*runs, strict=True))
        return ours, java

    def ours(self, setup: TableSetup, kind: str, engine: str = "local", *, again: int = 0) -> OptimizedTable:
        def optimize(table: str) -> tuple[Cost, dict[str, Any]]:
            warm = self.table(replace(setup, files=8)) if engine == "spark" else None
            return run_ours(self.folder, table, kind, engine, warm, self.optimizer)

        optimized = self._optimize_once(setup, f"PyArctic, {kind}, {engine}", optimize, again)
        _check_optimized(optimized, setup, kind)
        return optimized

    def by_java(self, setup: TableSetup, *, again: int = 0) -> OptimizedTable:
        return self._optimize_once(setup, "Iceberg Java", lambda table: (self.java.rewrite(table, setup), {}), again)

    def done(self, engine: str) -> list[tuple[str, OptimizedTable]]:
        """The runs of PyArctic on that engine so far, with descriptions."""
        return [
            (f"{setup}, {how}", optimized)
            for (setup, how, _), optimized in self._done.items()
            if how.endswith(f", {engine}")
        ]

    def _optimize_once(
        self, setup: TableSetup, how: str, optimize: Callable[[str], tuple[Cost, dict[str, Any]]], again: int
    ) -> OptimizedTable:
        if (setup, how, again) in self._done:
            return self._done[setup, how, again]
        with console.status(f"{setup}, {how}"):
            name = self.table(setup)
            before = Size.of(self.catalog.load_table(name))
            cost, report = optimize(name)
            table = self.catalog.load_table(name)
            optimized = OptimizedTable(table=name, cost=cost, before=before, after=Size.of(table), report=report)
            self._check_rows(name, setup)
        if setup.sorted_by_id:
            _check_order(table)
        console.print(f"[dim]{setup}, {how}: {before} → {optimized.after}; {cost}[/]", highlight=False, soft_wrap=True)
        self._done[setup, how, again] = optimized
        return optimized

    def _check_rows(self, table: str, setup: TableSetup) -> None:
        if setup not in self._checksums:
            self._checksums[setup] = self.java.expected(setup)
        actual, expected = self.java.checksum(table), self._checksums[setup]
        if actual != expected:
            raise OptimizeFailed(f"other rows in {table} ({setup}) after optimizing: {actual}, not {expected}")


def _check_optimized(optimized: OptimizedTable, setup: TableSetup, kind: str) -> None:
    """Check that something was done: to do nothing would be fastest."""
    # Converting equality deletes may leave the data files unchanged.
    only_deletes = setup.deleted_keys and kind == "minor"
    merged = optimized.after.data_files < optimized.before.data_files
    if (setup.deleted_keys and optimized.after.equality_deletes) or not (merged or only_deletes):
        raise OptimizeFailed(
            f"{setup}, {kind}: not optimized, {optimized.before} → {optimized.after}; it reports {optimized.report}"
        )


def _check_order(table: Table) -> None:
    for task in table.scan().plan_files():
        ids = pq.read_table(re.sub("^file:/+", "/", task.file.file_path), columns=["id"])["id"].to_numpy()
        if (ids[1:] <= ids[:-1]).any():
            raise OptimizeFailed(f"not sorted: {task.file.file_path}")


@contextmanager
def open_workbench(scale: float, optimizer: str = OPTIMIZER) -> Iterator[Workbench]:
    """A workbench with a warm Spark session; everything in it is removed at the end."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="optimize-") as temporary:
        folder = Path(temporary)
        catalog = open_catalog(folder)
        catalog.create_namespace("b")
        with start_session(folder) as java:
            bench = Workbench(scale=scale, folder=folder, catalog=catalog, java=java, optimizer=optimizer)
            _warm_up(bench)
            yield bench


def _warm_up(bench: Workbench) -> None:
    """Rewrite the full plain table and small ones of the other kinds: with eight files alone Java's compiler would not be
    done, and the first measured table would cost a fifth more."""
    few = replace(bench.plain, files=8)
    others = (
        replace(few, deleted_fraction=0.05),
        replace(few, deleted_fraction=0.05, version=3),
        replace(few, deleted_keys=1_000),
        replace(few, sorted_by_id=True),
    )
    with console.status("warming up Iceberg Java"):
        for setup in (bench.plain, *others):
            bench.java.rewrite(bench.table(setup), setup)
