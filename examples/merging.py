"""A keyed table under a stream of updates: how much a merged read has to do, round by round of optimizing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import pyarctic

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("sensor", pa.string()), ("value", pa.int64())])
SENSORS = pa.array([f"sensor-{number:03d}" for number in range(300)])
ROWS, COMMITS, CHANGES = 600_000, 40, 3_000
SMALL_FILES = {"self-optimizing.target-size": "2MB"}
"""So that a table of some megabytes behaves as one of gigabytes does."""


@dataclass(frozen=True)
class Seen:
    """What a merged read found, and what it took."""

    rows: int
    total: int
    seconds: float
    base_files: int
    delete_files: int
    change_files: int

    def __str__(self) -> str:
        files = f"{self.base_files} base, {self.delete_files} delete and {self.change_files} unmerged files"
        return f"{self.rows:,} rows in {self.seconds:.2f} s, from {files}"


class Readings:
    """Latest values of sensors: loaded once, and updated or deleted ever since."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._random = np.random.default_rng(7)
        self._values = self._random.integers(0, 1000, ROWS)
        self._alive = np.ones(ROWS, bool)
        self.table = pyarctic.create_table(name, SCHEMA, primary_key=["id"], properties=SMALL_FILES)

    def load(self) -> None:
        self.table.write(self._rows(np.arange(ROWS)), mode="overwrite")

    def changes(self) -> Iterator[int]:
        """A commit after the other, each of updates and some deletes."""
        for number in range(COMMITS):
            keys = self._random.choice(ROWS, CHANGES, replace=False)
            self._values[keys] = self._random.integers(0, 1000, CHANGES)
            self.table.write(self._rows(keys), mode="upsert")
            self._alive[keys] = True
            if number % 8 == 0:
                self.table.write(self._rows(keys[:500]), mode="delete")
                self._alive[keys[:500]] = False
            yield number

    def _rows(self, keys: np.ndarray) -> pa.Table:
        columns = [pa.array(keys), SENSORS.take(pa.array(keys % len(SENSORS))), pa.array(self._values[keys])]
        return pa.table(columns, schema=SCHEMA)

    def read(self) -> Seen:
        """All rows, and how the table is."""
        table = pyarctic.table(self.name)
        start = time.perf_counter()
        rows = table.scan().to_arrow()
        seconds = time.perf_counter() - start
        facts = table.summary()["change_store"]
        return Seen(
            rows=rows.num_rows,
            total=pc.sum(rows["value"]).as_py(),
            seconds=seconds,
            base_files=table.files(content="data").height,
            delete_files=table.files(content="position-deletes").height,
            change_files=facts["unmerged_files"],
        )

    def is_right(self, seen: Seen) -> bool:
        """Whether that is what was written."""
        return (seen.rows, seen.total) == (int(self._alive.sum()), int(self._values[self._alive].sum()))
