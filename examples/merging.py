"""A keyed table under a stream of updates: the cost of a merged read, before and after optimizing."""

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
"""So that a table of some megabytes behaves like one of gigabytes."""


@dataclass(frozen=True)
class ReadResult:
    """The result of a merged read, and its cost."""

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
    """The latest values of sensors: loaded once, then updated and deleted."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._random = np.random.default_rng(7)
        self._values = self._random.integers(0, 1000, ROWS)
        self._is_live = np.ones(ROWS, bool)
        self.table = pyarctic.create_table(name, SCHEMA, primary_key=["id"], properties=SMALL_FILES)

    def load(self) -> None:
        self.table.write(self._rows(np.arange(ROWS)), mode="overwrite")

    def changes(self) -> Iterator[int]:
        """Write commits of updates and some deletes; yields after each."""
        for number in range(COMMITS):
            keys = self._random.choice(ROWS, CHANGES, replace=False)
            self._values[keys] = self._random.integers(0, 1000, CHANGES)
            self.table.write(self._rows(keys), mode="upsert")
            self._is_live[keys] = True
            if number % 8 == 0:
                self.table.write(self._rows(keys[:500]), mode="delete")
                self._is_live[keys[:500]] = False
            yield number

    def _rows(self, keys: np.ndarray) -> pa.Table:
        columns = [pa.array(keys), SENSORS.take(pa.array(keys % len(SENSORS))), pa.array(self._values[keys])]
        return pa.table(columns, schema=SCHEMA)

    def read(self) -> ReadResult:
        """Read all rows, and count the files."""
        table = pyarctic.table(self.name)
        start = time.perf_counter()
        rows = table.scan().to_arrow()
        seconds = time.perf_counter() - start
        facts = table.summary()["change_store"]
        return ReadResult(
            rows=rows.num_rows,
            total=pc.sum(rows["value"]).as_py(),
            seconds=seconds,
            base_files=table.files(content="data").height,
            delete_files=table.files(content="position-deletes").height,
            change_files=facts["unmerged_files"],
        )

    def is_correct(self, result: ReadResult) -> bool:
        """Whether the rows are those that were written."""
        return (result.rows, result.total) == (int(self._is_live.sum()), int(self._values[self._is_live].sum()))
