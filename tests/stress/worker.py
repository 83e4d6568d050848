"""One writer as a process of its own: `python -m tests.stress.worker FOLDER ROLE NUMBER`.

It waits for the start, works until the end is signalled, and keeps a diary of what it knows to be in the table.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from pyarctic.iceberg.catalog.pyiceberg_patches import apply_patches
from pyarctic.iceberg.commit import Change, Committed, Conflict, ManifestRewrite, Outcome, Rejected, Unknown, commit
from pyarctic.iceberg.storage import remove_quietly
from tests.stress.arena import RANGE, Arena, may_be_deleted, partition_of, rows_of
from tests.support import changes

_STARTER = os.getppid()
_SMALL_FILES = 12
_CONFLICTS = 3
"""So often a change that others kept out is tried once more."""


class Worker:
    def __init__(self, arena: Arena, catalog: Catalog, role: str, number: int) -> None:
        self.random = Random(number)
        self._arena = arena
        self._catalog = catalog
        self._number = number
        self._diary = arena.diary(f"{role}-{number}")
        self._act: Callable[[Table], float] = getattr(self, role)
        self._made = 0
        self._mine: set[int] = set()

    def work(self) -> None:
        while self._arena.has("go") and not self._arena.has("stop") and not _is_orphan():
            begin = time.monotonic()
            pause = self._act(self._catalog.load_table(self._arena.table))
            # On a slow machine all of them rest longer: those whose commits take longest would never get one in.
            pause = max(pause, 2 * (time.monotonic() - begin))
            time.sleep(self.random.uniform(0.5, 1.5) * min(pause, 10))

    def appender(self, table: Table) -> float:
        values = self._new_values(self.random.randint(10, 40))
        self._commit(table, changes.append(table, rows_of(values)), put=values)
        return 0.8

    def position_deleter(self, table: Table) -> float:
        chosen = self._some_rows(table, self.random.randint(1, 6))
        change = changes.position_delete_of(table, chosen.select(changes.ORIGIN))
        if change is not None:
            self._commit(table, change, dead=chosen["id"].to_pylist())
        return 0.6

    def equality_deleter(self, table: Table) -> float:
        chosen = self._some_rows(table, self.random.randint(1, 6))["id"].to_pylist()
        if chosen:
            self._commit(table, Change(start=changes.head(table), add=_equality_deletes(table, chosen)), dead=chosen)
        return 1.0

    def upserter(self, table: Table) -> float:
        """New values for some of sixty rows; now and then some of them go instead."""
        keys = [self._number * RANGE + place for place in self.random.sample(range(60), 5)]
        deletes = _equality_deletes(table, keys)
        if self._mine.issuperset(keys) and self.random.random() < 0.3:
            if self._commit(table, Change(start=changes.head(table), add=deletes), dead=keys):
                self._mine -= set(keys)
            return 1.0
        self._made += 1
        values = dict.fromkeys(keys, f"change {self._made}")
        written = changes.write_data(table, rows_of(values))
        if self._commit(table, Change(start=changes.head(table), add=(*written, *deletes)), put=values):
            self._mine |= set(keys)
        return 1.0

    def compactor(self, table: Table) -> float:
        data = changes.files(table).filter(pl.col("content") == 0)
        data = data.filter(pl.col("partition") == self.random.choice(data["partition"].to_list() or [""]))
        chosen = data.sort("record_count").head(self.random.randint(2, 10))
        if chosen.height > 1:
            change = changes.rewrite(table, chosen, hashed=True)
            # Real ones take longer: let others delete from the files meanwhile.
            time.sleep(self.random.uniform(0, 0.8))
            self._commit(table, change)
        return 0.2

    def manifest_rewriter(self, table: Table) -> float:
        manifests = frozenset(changes.files(table)["manifest_path"])
        if manifests:
            # Those of now, so that a lost race does not make all of the work anew; or all, whatever comes.
            self._commit(table, ManifestRewrite(manifests=manifests if self.random.random() < 0.7 else None))
        return 4.0

    def _new_values(self, count: int) -> dict[int, str]:
        first = self._number * RANGE + self._made
        self._made += count
        return {key: f"row {key}" for key in range(first, first + count)}

    def _some_rows(self, table: Table, count: int) -> pa.Table:
        """Living rows that may be deleted: of the smallest files, which the compactor is likely at work on, or any."""
        found = changes.rows(table, ["id", *changes.ORIGIN])
        rows_of_file = Counter(found["_file"].to_pylist())
        small = set(sorted(rows_of_file, key=lambda file: rows_of_file[file])[:_SMALL_FILES])
        only_small = self.random.random() < 0.7
        keys = zip(found["id"].to_pylist(), found["_file"].to_pylist(), strict=True)
        places = [at for at, (key, file) in enumerate(keys) if may_be_deleted(key) and (file in small or not only_small)]
        return found.take(pa.array(self.random.sample(places, min(count, len(places))), pa.int64()))

    def _commit(
        self,
        table: Table,
        change: Change | ManifestRewrite,
        *,
        put: Mapping[int, str] | None = None,
        dead: list[int] | None = None,
    ) -> bool:
        """Until it is certain what became of the change; the diary is told. True when it is in the table."""
        known = changes.file_list(table) if self.random.random() < 0.3 else None
        conflicts = unknown = 0
        while True:
            outcome: Outcome = commit(table, change, known=known)
            conflicts += isinstance(outcome, Conflict)
            unknown += isinstance(outcome, Unknown)
            if isinstance(outcome, Committed | Rejected) or conflicts > _CONFLICTS:
                break
        told: dict[str, Any] = {"conflicts": conflicts, "unknown": unknown}
        if isinstance(outcome, Committed):
            for path in outcome.unused_files:
                table.io.delete(path)
            told |= {"attempts": outcome.attempts, "rebased": outcome.rebased_rows}
            self._diary.write("committed", put=put, dead=dead, **told)
            return True
        if isinstance(change, Change):
            remove_quietly(table.io, {file.path for file in change.add})
        if isinstance(outcome, Rejected):
            told |= {"code": outcome.code, "reason": outcome.reason}
        self._diary.write(type(outcome).__name__.lower(), **told)
        return False


def _is_orphan() -> bool:
    """Whoever started it died without a word."""
    return os.getppid() != _STARTER


def _equality_deletes(table: Table, keys: list[int]) -> tuple[Any, ...]:
    """One delete file for each partition."""
    parts: dict[int, list[int]] = {}
    for key in keys:
        parts.setdefault(partition_of(key), []).append(key)
    written = [
        changes.equality_delete(table, pa.table({"id": pa.array(some, pa.int64())}), (partition,))
        for partition, some in parts.items()
    ]
    return tuple(file for change in written for file in change.add)


def _main(folder: str, role: str, number: str) -> None:
    apply_patches()
    arena = Arena.load(Path(folder))
    with arena.open() as catalog:
        worker = Worker(arena, catalog, role, int(number))
        arena.signal(f"{role}-{number}.ready")
        while not arena.has("go") and not _is_orphan():
            time.sleep(0.02)
        worker.work()


if __name__ == "__main__":
    _main(*sys.argv[1:])
