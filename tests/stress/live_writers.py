"""Live writers: Spark deletes and merges rows in one partition at a fixed cadence while the table is optimized in a loop.

Iceberg Java does not repeat a statement whose data file was replaced. So every statement that fails here fails because of
us.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import pyarctic
from pyarctic.optimizing.evaluate.evaluation import evaluate_table
from tests.support import changes

PARTITIONS = 8
BUSY = 0
CADENCE_SECONDS = 2.0
_FILES, _ROWS = 12, 400
_SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "p", IntegerType()), NestedField(3, "v", StringType()))
_SPEC = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"))


@dataclass(kw_only=True)
class Result:
    """What happened."""

    title: str
    statements: int = 0
    failed: list[str] = field(default_factory=list)
    rounds: int = 0
    commits: int = 0
    health: dict[int, float] = field(default_factory=dict)
    wrong_rows: int = 0
    busy_delete_files: int = 0

    @property
    def worst_other(self) -> float:
        return min(health for partition, health in self.health.items() if partition != BUSY)

    def __str__(self) -> str:
        return (
            f"{self.title}: {len(self.failed)} of {self.statements} statements failed, {self.rounds} processes with "
            f"{self.commits} commits, health of the other partitions from {self.worst_other:.0f}, of the busy one "
            f"{self.health[BUSY]:.0f}, {self.wrong_rows} wrong rows" + "".join(f"\n  {reason}" for reason in self.failed[:3])
        )


def run(
    title: str,
    folder: Path,
    spark: SparkSession,
    catalog: str,
    properties: Mapping[str, str],
    *,
    version: int,
    mode: str,
    statements: int,
) -> Result:
    """Run the statements while a table that keeps getting small files is optimized."""
    result = Result(title=title)
    pyarctic.catalog(catalog, **properties)
    name = f"live_writers.{title.replace('-', '_')}"
    rows = _make(catalog, name, version, mode)
    statement = _Statements(spark, f"{catalog}.{name}", rows)
    statement.run()  # the first one takes seconds
    statement.run()
    stop, told = folder / "stop", folder / "rounds.json"
    orders = json.dumps(
        {"catalog": catalog, "properties": dict(properties), "table": name, "stop": str(stop), "told": str(told)}
    )
    with subprocess.Popen([sys.executable, "-m", "tests.stress.live_writers", orders]) as optimizer:
        try:
            _run_statements(statement, statements, result)
            time.sleep(CADENCE_SECONDS)
        finally:
            stop.touch()
        optimizer.wait(120)
    rounds = json.loads(told.read_text())
    result.rounds, result.commits = rounds["rounds"], rounds["commits"]
    _look(f"{catalog}.{name}", rows, result)
    return result


def _run_statements(statement: _Statements, statements: int, result: Result) -> None:
    for number in range(statements):
        due = time.monotonic() + CADENCE_SECONDS
        try:
            statement.run()
        except (PySparkException, Py4JJavaError) as error:
            result.failed.append(f"statement {number}: " + _reason(error))
        result.statements += 1
        time.sleep(max(due - time.monotonic(), 0))


def _reason(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if "Exception" in line]
    return next(iter(lines), str(error))[:300]


def _make(catalog: str, name: str, version: int, mode: str) -> dict[int, str]:
    opened = pyarctic.catalog(catalog)
    opened.create_namespace_if_not_exists("live_writers")
    modes = {f"write.{verb}.mode": mode for verb in ("delete", "update", "merge")}
    table = opened.create_table(
        name,
        _SCHEMA,
        partition_spec=_SPEC,
        properties={
            **modes,
            "format-version": str(version),
            "commit.retry.num-retries": "8",
            "self-optimizing.minor.trigger.file-count": "4",
        },
    )
    rows: dict[int, str] = {}
    for number in range(_FILES):
        ids = range(number * _ROWS, (number + 1) * _ROWS)
        table = changes.apply(table, lambda current, ids=ids: changes.append(current, _rows(ids)))  # type: ignore[misc]
        rows |= {key: f"v{key}" for key in ids if key % PARTITIONS == BUSY}
    return rows


def _rows(ids: range) -> pa.Table:
    keys = list(ids)
    columns = {"id": keys, "p": [key % PARTITIONS for key in keys], "v": [f"v{key}" for key in keys]}
    return pa.table(columns, schema=pa.schema([("id", pa.int64()), ("p", pa.int32()), ("v", pa.string())]))


class _Statements:
    """DELETE and MERGE in turns, each on a few rows of the busy partition; `rows` is what must be in it."""

    def __init__(self, spark: SparkSession, table: str, rows: dict[int, str]) -> None:
        self._spark = spark
        self._table = table
        self._rows = rows
        self._random = Random(5)
        self._turns = count()

    def run(self) -> None:
        turn = next(self._turns)
        chosen = self._random.sample(sorted(self._rows), 5)
        if turn % 2:
            listed = ", ".join(map(str, chosen))
            self._spark.sql(f"delete from {self._table} where p = {BUSY} and id in ({listed})")
            for key in chosen:
                del self._rows[key]
            return
        new = dict.fromkeys([*chosen, (10000000 + turn) * PARTITIONS + BUSY], f"m{turn}")
        source = ", ".join(f"({key}L, {BUSY}, '{value}')" for key, value in new.items())
        self._spark.sql(
            f"merge into {self._table} t using (select * from values {source} as x(id, p, v)) s on t.id = s.id and "
            f"t.p = {BUSY} "
            "when matched then update set * when not matched then insert *"
        )
        self._rows |= new


def _look(name: str, rows: dict[int, str], result: Result) -> None:
    table = pyarctic.table(name)
    found = dict(pl.DataFrame(table.scan(columns=["id", "v"], where=f"p = {BUSY}").to_arrow()).iter_rows())
    # Of a statement that failed the model does not know the rows, but nothing of it may be there: its rows are as before.
    result.wrong_rows = sum(found.get(key) != rows.get(key) for key in found.keys() | rows.keys())
    evaluation = evaluate_table(table)
    assert evaluation is not None
    for partition, health in evaluation.partitions.select("partition", "health").iter_rows():
        result.health[int(json.loads(partition)[0])] = health


def _optimize(orders: Mapping[str, Any]) -> None:
    """In a process of its own: fragment the other partitions a little, optimize, repeat."""
    pyarctic.catalog(orders["catalog"], **orders["properties"])
    stop, rounds, commits = Path(orders["stop"]), 0, 0
    name = f"{orders['catalog']}.{orders['table']}"
    first = 1_000_000
    while True:
        ending = stop.exists()
        if not ending:
            table = pyarctic.catalog(orders["catalog"]).load_table(orders["table"])
            others = [key for key in range(first, first + 80) if key % PARTITIONS != BUSY]
            first += 80
            changes.apply(table, lambda current, keys=others: changes.append(current, _listed(keys)))  # type: ignore[misc]
        # The last round takes also what is too little to call for one by itself.
        report = pyarctic.optimize(name, kind="minor" if ending else "auto", workers=1)
        rounds += 1
        commits += len(report.snapshot_ids)
        if ending:
            break
    Path(orders["told"]).write_text(json.dumps({"rounds": rounds, "commits": commits}))


def _listed(keys: list[int]) -> pa.Table:
    return pa.concat_tables([_rows(range(key, key + 1)) for key in keys])


if __name__ == "__main__":
    _optimize(json.loads(sys.argv[1]))
