"""Sets of files that are sorted by many executors at once: the rows stay, and no two files hold the same keys."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DoubleType,
    FixedType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimeType,
    UUIDType,
)

import pyarctic
from pyarctic import config
from pyarctic.optimizing.api import Options, plan_table
from pyarctic.optimizing.execute import AttemptFuture
from pyarctic.optimizing.protocol import Task, TaskResult
from pyarctic.spark import SparkEngine
from tests.faults import spoiled
from tests.faults.test_optimize_faults import wait_until
from tests.oracle.session import Oracle
from tests.support import changes
from tests.support.integrity import leftovers_of_ours, local, missing, on_disk, row_ids_differ

pytestmark = pytest.mark.jvm

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "x", IntegerType()),
    NestedField(3, "y", DoubleType()),
    NestedField(4, "text", StringType()),
    NestedField(5, "at", TimeType()),
    NestedField(6, "code", FixedType(3)),
    NestedField(7, "own", UUIDType()),
    NestedField(8, "deep", StructType(NestedField(9, "list", ListType(10, IntegerType(), element_required=False)))),
)
ORDER = SortOrder(
    SortField(2, IdentityTransform(), SortDirection.DESC, NullOrder.NULLS_LAST),
    SortField(4, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_FIRST),
)
PROPERTIES = {
    "commit.retry.min-wait-ms": "1",
    "self-optimizing.writers-first": "false",
    "self-optimizing.target-size": "32KiB",
    "self-optimizing.max-task-size-bytes": "64KiB",
    "self-optimizing.minor.trigger.file-count": "100",
}
ROWS, FILES = 1500, 8


@pytest.fixture(autouse=True)
def no_catalogs_after() -> Iterator[None]:
    yield
    config.reset()


def rows_of(number: int, first: int) -> pa.Table:
    rng = np.random.default_rng(first)
    ids = np.arange(first, first + number)
    columns: dict[str, Any] = {
        "id": ids,
        "x": pa.array(rng.integers(0, 100_000, number), pa.int32(), mask=rng.random(number) < 0.05),
        "y": np.where(rng.random(number) < 0.05, np.nan, rng.random(number)),
        "text": [f"{n:x}" for n in rng.integers(0, 50, number)],
        "at": [time(int(n) % 24, 1) for n in ids],
        "code": pa.array([int(n).to_bytes(3, "big") for n in ids], pa.binary(3)),
        "own": pa.array([UUID(int=int(n)).bytes for n in ids], pa.binary(16)).cast(pa.uuid()),
        "deep": [{"list": [int(n), None]} if n % 3 else None for n in ids],
    }
    return pa.table(columns)


def made(oracle: Oracle, version: int, **properties: str) -> Table:
    """Files that all hold keys of the whole range, and some deletes."""
    url, warehouse = str(oracle.catalog.engine.url), oracle.catalog.properties["warehouse"]
    pyarctic.catalog(oracle.name, type="sql", uri=url, warehouse=warehouse)
    told = {"format-version": str(version), **PROPERTIES, **properties}
    table = oracle.catalog.create_table(f"{oracle.namespace()}.t", SCHEMA, sort_order=ORDER, properties=told)
    for number in range(FILES):
        table = changes.apply(table, partial(changes.append, data=rows_of(ROWS, number * ROWS)))
    table = changes.apply(table, lambda t: changes.position_delete(t, "id < 40"))
    keys = pa.table({"id": pa.array([3, ROWS + 5, 2 * ROWS + 7], pa.int64())})
    return changes.apply(table, partial(changes.equality_delete, keys=keys))


def full_name(oracle: Oracle, table: Table) -> str:
    return ".".join([oracle.name, *table.name()])


def loaded(table: Table) -> Table:
    return table.catalog.load_table(table.name())


def content(table: Table) -> list[str]:
    columns = [field.name for field in SCHEMA.fields] + (changes.LINEAGE if table.format_version > 2 else [])
    return sorted(map(repr, changes.rows(table, columns).to_pylist()))


def ranges(table: Table, column: str) -> list[tuple[Any, Any]]:
    """What each file holds of a column, from its rows."""
    read = pl.DataFrame(pl.from_arrow(changes.rows(table, ["_file", column])))
    grouped = read.group_by("_file").agg(low=pl.col(column).min(), high=pl.col(column).max())
    return sorted(grouped.select("low", "high").drop_nulls().rows())


def is_divided(oracle: Oracle, table: Table) -> bool:
    plan = plan_table(pyarctic.table(full_name(oracle, table)), Options())
    assert plan is not None
    return [task.ranges > 1 for task in plan.tasks] == [True]


@pytest.mark.parametrize("version", [2, 3])
def test_a_set_is_sorted_by_many_executors(oracle: Oracle, version: int) -> None:
    table = made(oracle, version)
    assert is_divided(oracle, table)
    before = content(table)

    def others() -> None:
        changes.apply(loaded(table), lambda t: changes.position_delete(t, "id > 4000 and id < 4100"))

    engine = _Meanwhile(oracle, others)
    report = pyarctic.optimize(full_name(oracle, table), "auto", engine, verify=True)
    assert not report.failures, report.failures
    assert (report.tasks_planned, report.tasks_committed) == (1, 1)
    assert report.rebased_rows == 99
    assert report.removed.data_files == FILES
    found = loaded(table)
    gone = {f"{{'id': {number}," for number in range(4001, 4100)}
    assert content(found) == [row for row in before if not any(row.startswith(start) for start in gone)]
    assert report.after.data_files > 4
    bounds = ranges(found, "x")
    assert all(high <= low for (_, high), (low, _) in pairwise(bounds)), bounds
    listed = changes.files(found).filter(pl.col("content") == 0)
    assert set(listed["sort_order_id"]) == {1}
    assert missing(found) == leftovers_of_ours(found) == []
    assert version < 3 or row_ids_differ(found)
    again = plan_table(pyarctic.table(full_name(oracle, table)), Options())
    assert again is not None
    assert not [task for task in again.tasks if task.reasons and "overlap-depth" in task.reasons]


def test_z_order_by_many_executors(oracle: Oracle) -> None:
    table = made(oracle, 2, **{"self-optimizing.z-order": "x, y"})
    assert is_divided(oracle, table)
    before = content(table)
    report = pyarctic.optimize(full_name(oracle, table), "auto", oracle.spark, verify=True)
    assert not report.failures, report.failures
    found = loaded(table)
    assert content(found) == before
    assert set(changes.files(found).filter(pl.col("content") == 0)["sort_order_id"]) <= {None, 0}
    files = report.after.data_files
    for column, value in (("x", 50_000), ("y", 0.5)):
        touched = [1 for low, high in ranges(found, column) if low <= value <= high]
        assert len(touched) <= files * 0.8, column
    assert missing(found) == leftovers_of_ours(found) == []
    again = plan_table(pyarctic.table(full_name(oracle, table)), Options())
    assert again is not None
    assert not again.tasks


def test_a_broken_file_fails_the_task_and_leaves_nothing(oracle: Oracle) -> None:
    table = made(oracle, 2)
    path = changes.files(table).filter(pl.col("content") == 0)["file_path"][2]
    Path(local(path)).write_bytes(b"PAR1 no more")
    before = on_disk(table)
    report = pyarctic.optimize(full_name(oracle, table), "auto", oracle.spark)
    [failure] = report.failures
    assert (failure.code, report.changed) == ("damaged", False)
    assert path in failure.detail
    assert on_disk(loaded(table)) == before


def spoil(oracle: Oracle, signs: Path, **more: str) -> None:
    oracle.spark.sparkContext.addPyFile(spoiled.__file__)
    url, warehouse = str(oracle.catalog.engine.url), oracle.catalog.properties["warehouse"]
    told = {"py-io-impl": "spoiled.SpoiledFileIO", spoiled.SIGNS: str(signs), **more}
    pyarctic.catalog(oracle.name, type="sql", uri=url, warehouse=warehouse, **told)


def test_what_cannot_be_written_is_tried_again(oracle: Oracle, tmp_path: Path) -> None:
    table = made(oracle, 2)
    before = content(table)
    spoil(oracle, tmp_path, **{spoiled.WRITE_ONCE: r"00001\.parquet$"})
    report = pyarctic.optimize(full_name(oracle, table), "auto", oracle.spark)
    assert not report.failures
    assert report.tasks_committed == 1
    assert (tmp_path / "write").exists()
    assert content(loaded(table)) == before
    assert missing(loaded(table)) == leftovers_of_ours(loaded(table)) == []


def test_a_killed_writer_leaves_nothing(oracle: Oracle, tmp_path: Path) -> None:
    """Without another attempt, because this session has one only: what it left is found by the ids of attempts."""
    table = made(oracle, 2)
    files = on_disk(table)
    spoil(oracle, tmp_path, **{spoiled.HANG: r"00001\.parquet$"})
    with ThreadPoolExecutor() as pool:
        running = pool.submit(pyarctic.optimize, full_name(oracle, table), "auto", oracle.spark)
        wait_until(lambda: any(tmp_path.glob("*.parquet")))
        os.kill(int(next(tmp_path.glob("*.parquet")).read_text()), signal.SIGKILL)
        report = running.result(timeout=60)
    [failure] = report.failures
    assert failure.code == "spark"
    assert not report.changed
    assert on_disk(loaded(table)) == files


class _Meanwhile:
    """Lets others write when the tasks are done and not committed."""

    name = "spark"
    parallelism = 1

    def __init__(self, oracle: Oracle, others: Any) -> None:
        self._engine = SparkEngine(oracle.spark)
        self._others = others
        self._left = 0

    def prepare(self, tasks: Sequence[Task]) -> None:
        self._engine.prepare(tasks)
        self._left = len(tasks)

    def submit(self, *arguments: Any) -> AttemptFuture:
        future = self._engine.submit(*arguments)
        assert isinstance(future.result(), TaskResult), future.result()
        self._left -= 1
        if not self._left:
            self._others()
        return future
