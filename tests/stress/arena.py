"""The table that all write to, how its writers find it, and what they tell of themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

PARTITIONS = 3
SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "p", IntegerType()), NestedField(3, "v", StringType()))
SPEC = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"))
PROPERTIES = {
    # All of them commit all the time: whoever loses must be allowed to lose often.
    "commit.retry.num-retries": "30",
    "commit.retry.min-wait-ms": "20",
    "commit.retry.max-wait-ms": "1000",
    # The log of metadata files names all of them, so that any other one is known to be left over.
    "write.metadata.previous-versions-max": "100000",
    "write.parquet.compression-codec": "zstd",
    # Java: deletes beside the data; others may add rows while it works. Without shuffles it is faster.
    "write.delete.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "write.delete.isolation-level": "snapshot",
    "write.merge.isolation-level": "snapshot",
    "write.distribution-mode": "none",
    "write.delete.distribution-mode": "none",
    "write.merge.distribution-mode": "none",
}
RANGE = 1_000_000
"""Ids of one worker: `number * RANGE` and on. Those of even numbers may be deleted by all, of odd ones by nobody else."""


@dataclass(frozen=True, kw_only=True)
class Arena:
    """A folder in which the workers find all they need, and into which they write their diaries."""

    folder: Path
    catalog: str
    properties: Mapping[str, str]
    table: str

    def open(self) -> AbstractContextManager[Catalog]:
        return load_catalog(self.catalog, **self.properties)

    def save(self) -> None:
        told = {"catalog": self.catalog, "properties": dict(self.properties), "table": self.table}
        (self.folder / "arena.json").write_text(json.dumps(told))

    @classmethod
    def load(cls, folder: Path) -> Arena:
        return cls(folder=folder, **json.loads((folder / "arena.json").read_text()))

    def create(self, catalog: Catalog, version: int) -> Table:
        properties = {"format-version": str(version), **PROPERTIES}
        return catalog.create_table(self.table, SCHEMA, partition_spec=SPEC, properties=properties)

    def has(self, signal: str) -> bool:
        return (self.folder / signal).exists()

    def signal(self, name: str) -> None:
        (self.folder / name).touch()

    def diary(self, worker: str) -> Diary:
        return Diary(self.folder / f"{worker}.diary")

    def diaries(self) -> dict[str, list[dict[str, Any]]]:
        files = sorted(self.folder.glob("*.diary"))
        return {file.stem: [json.loads(line) for line in file.read_text().splitlines()] for file in files}


class Diary:
    """What a worker did, a line for each commit that it is certain of."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def write(
        self, outcome: str, *, put: Mapping[int, str] | None = None, dead: list[int] | None = None, **more: Any
    ) -> None:
        line = {"outcome": outcome, "put": list((put or {}).items()), "dead": dead or [], **more}
        with self._file.open("a") as diary:
            diary.write(json.dumps(line) + "\n")


def rows_of(values: Mapping[int, str]) -> pa.Table:
    """Rows with these ids and values, in the partitions of their ids."""
    ids = list(values)
    partitions = [partition_of(key) for key in ids]
    return pa.table({"id": pa.array(ids, pa.int64()), "p": pa.array(partitions, pa.int32()), "v": list(values.values())})


def partition_of(key: int) -> int:
    return key % PARTITIONS


def may_be_deleted(key: int) -> bool:
    return key // RANGE % 2 == 0


def expected(diaries: Mapping[str, list[dict[str, Any]]]) -> dict[int, str]:
    """The rows that must be there. A worker's own ids are changed by nobody else, except that they die; and dead ones of
    those never come back."""
    alive: dict[int, str] = {}
    dead: set[int] = set()
    for lines in diaries.values():
        for line in lines:
            alive.update((int(key), value) for key, value in line["put"])
            for key in line["dead"]:
                if may_be_deleted(key):
                    dead.add(key)
                else:
                    alive.pop(key)
    return {key: value for key, value in alive.items() if key not in dead}
