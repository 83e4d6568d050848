"""Where tables are made, healed by either side, and checked.

Whatever either side made of a table is read by Spark and must hold the rows that its data files and deletes say.
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
from benchmarks.healtables import Rot, lineitems, make_table, open_catalog
from benchmarks.healwork import HEALER, HealingFailed, run_ours
from benchmarks.javaside import JavaSide, started
from benchmarks.processes import Cost
from benchmarks.tables import CACHE

ROUNDS = 2
"""How often either side heals the same table, in turns: a shared machine is faster in one minute than in the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What a table consists of, as its snapshot tells."""

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
class Healed:
    """A table after healing, and what that took."""

    table: str
    cost: Cost
    before: Size
    after: Size
    report: dict[str, Any]
    """What the healer tells; nothing of Java's."""


@dataclass(frozen=True, kw_only=True)
class Ward:
    """Where tables are made, healed by either side, and checked. What was healed once is not healed again."""

    scale: float
    folder: Path
    catalog: Catalog
    java: JavaSide
    healer: str
    _done: dict[tuple[Rot, str, int], Healed] = field(default_factory=dict)
    _checksums: dict[Rot, tuple[Any, ...]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def plain(self) -> Rot:
        """256 files of 2.3 MB, 18 million rows."""
        with console.status("making data files"):
            return Rot(data=lineitems(max(int(256 * self.scale), 16), 70_312))

    @property
    def keys(self) -> Rot:
        """Two million deleted keys; each file is asked about all of them."""
        return replace(self.plain, dead_keys=int(2_000_000 * self.scale))

    def table(self, rot: Rot) -> str:
        name = f"b.t{next(self._numbers)}"
        make_table(self.catalog, name, rot)
        return name

    def both(self, rot: Rot, kind: str) -> tuple[Healed, Healed]:
        """Healed by us and by Java, in turns; of each the time that took least."""
        rounds = ROUNDS if self.scale >= 1 else 1
        done = [(self.ours(rot, kind, again=number), self.by_java(rot, again=number)) for number in range(rounds)]
        ours, java = (min(side, key=lambda healed: healed.cost.cpu_seconds) for side in zip(*done, strict=True))
        return ours, java

    def ours(self, rot: Rot, kind: str, engine: str = "local", *, again: int = 0) -> Healed:
        def heal(table: str) -> tuple[Cost, dict[str, Any]]:
            warm = self.table(replace(rot, files=8)) if engine == "spark" else None
            return run_ours(self.folder, table, kind, engine, warm, self.healer)

        healed = self._healed(rot, f"PyArctic, {kind}, {engine}", heal, again)
        _check_healed(healed, rot, kind)
        return healed

    def by_java(self, rot: Rot, *, again: int = 0) -> Healed:
        return self._healed(rot, "Iceberg Java", lambda table: (self.java.rewrite(table, rot), {}), again)

    def done(self, engine: str) -> list[tuple[str, Healed]]:
        """What was healed by us on that engine so far, in words."""
        return [(f"{rot}, {how}", healed) for (rot, how, _), healed in self._done.items() if how.endswith(f", {engine}")]

    def _healed(self, rot: Rot, how: str, heal: Callable[[str], tuple[Cost, dict[str, Any]]], again: int) -> Healed:
        if (rot, how, again) in self._done:
            return self._done[rot, how, again]
        with console.status(f"{rot}, {how}"):
            name = self.table(rot)
            before = Size.of(self.catalog.load_table(name))
            cost, report = heal(name)
            table = self.catalog.load_table(name)
            healed = Healed(table=name, cost=cost, before=before, after=Size.of(table), report=report)
            self._check_rows(name, rot)
        if rot.sorted_by_id:
            _check_order(table)
        console.print(f"[dim]{rot}, {how}: {before} → {healed.after}; {cost}[/]", highlight=False, soft_wrap=True)
        self._done[rot, how, again] = healed
        return healed

    def _check_rows(self, table: str, rot: Rot) -> None:
        if rot not in self._checksums:
            self._checksums[rot] = self.java.expected(rot)
        found, expected = self.java.checksum(table), self._checksums[rot]
        if found != expected:
            raise HealingFailed(f"other rows in {table} ({rot}) after healing: {found}, not {expected}")


def _check_healed(healed: Healed, rot: Rot, kind: str) -> None:
    """To do nothing would be quickest."""
    # Whoever turns equality deletes into others may leave the data as it is.
    only_deletes = rot.dead_keys and kind == "minor"
    merged = healed.after.data_files < healed.before.data_files
    if (rot.dead_keys and healed.after.equality_deletes) or not (merged or only_deletes):
        raise HealingFailed(f"{rot}, {kind}: not healed, {healed.before} → {healed.after}; it reports {healed.report}")


def _check_order(table: Table) -> None:
    for task in table.scan().plan_files():
        ids = pq.read_table(re.sub("^file:/+", "/", task.file.file_path), columns=["id"])["id"].to_numpy()
        if (ids[1:] <= ids[:-1]).any():
            raise HealingFailed(f"not sorted: {task.file.file_path}")


@contextmanager
def opened(scale: float, healer: str = HEALER) -> Iterator[Ward]:
    """An empty ward with a warm session; everything in it goes at the end."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="heal-") as temporary:
        folder = Path(temporary)
        catalog = open_catalog(folder)
        catalog.create_namespace("b")
        with started(folder) as java:
            ward = Ward(scale=scale, folder=folder, catalog=catalog, java=java, healer=healer)
            _warm_up(ward)
            yield ward


def _warm_up(ward: Ward) -> None:
    """All of the plain table and a little of the others: on eight files alone Java's compiler is not done, and the first
    table that is measured would pay a fifth more."""
    few = replace(ward.plain, files=8)
    others = ({"dead_rows": 0.05}, {"dead_rows": 0.05, "version": 3}, {"dead_keys": 1_000}, {"sorted_by_id": True})
    with console.status("warming up Iceberg Java"):
        for rot in (ward.plain, *(replace(few, **more) for more in others)):
            ward.java.rewrite(ward.table(rot), rot)
