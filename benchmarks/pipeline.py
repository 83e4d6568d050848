"""The data paths on Spark: the cost of a merged read, an ingested batch and a micro-batch, against what users do today.

CPU seconds are those of the driver, the JVM and all Python workers together.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import pyarctic
import pyarctic.spark as arctic_spark
from benchmarks.figures import Figure, console
from benchmarks.iceberg_java import IcebergJava, start_session
from benchmarks.processes import cpu_seconds
from benchmarks.tables import CACHE
from benchmarks.unoptimized_tables import CATALOG, SCHEMA, TableSetup, lineitem_files, make_table, open_catalog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CASES = ("read", "ingest", "stream")
ROWS_PER_FILE = 70_312
_ROUNDS = 3
_WARM_UP = 6
_COMMITS = 10
_BATCHES = 12


def pipeline(scale: float, cases: tuple[str, ...] = ()) -> list[Figure]:
    figures: list[Figure] = []
    with open_site(max(int(143 * scale), 4)) as site:
        for case, measure in (("read", _reads), ("ingest", _ingest), ("stream", _micro_batches)):
            if not cases or case in cases:
                figures += measure(site)
    return figures


@dataclass(frozen=True, kw_only=True)
class Site:
    """A warm session, and data files to fill tables with."""

    java: IcebergJava
    folder: Path
    data: Path
    files: int

    @property
    def spark(self) -> SparkSession:
        return self.java.spark

    @property
    def rows(self) -> int:
        return self.files * ROWS_PER_FILE

    def paths(self, files: int | None = None) -> list[Path]:
        return sorted(self.data.glob("*.parquet"))[:files]

    def keyed(self, name: str, files: int | None = None) -> str:
        """Create a keyed table and load these rows into its base store."""
        full = f"{CATALOG}.b.{name}"
        schema = pa.schema([pa.field("id", pa.int64(), nullable=False), *list(pq.read_schema(self.paths()[0]))[1:]])
        table = pyarctic.create_table(full, schema.remove_metadata(), primary_key=["id"])
        table.write((pq.read_table(path) for path in self.paths(files)), mode="overwrite")
        return full

    def changes(self, count: int, seed: int) -> pa.Table:
        """Rows with distinct ids of the table and other values."""
        rng = np.random.default_rng(seed)
        ids = rng.choice(self.rows, count, replace=False)
        rows = pa.concat_tables([pq.read_table(path) for path in self.paths(-(-count // ROWS_PER_FILE) + 1)])
        return rows.slice(seed % 1000, count).set_column(0, rows.schema.field("id"), pa.array(ids))

    def measure_cpu(self, run: Callable[[], Any]) -> tuple[float, Any]:
        start = cpu_seconds(os.getpid())
        result = run()
        return cpu_seconds(os.getpid()) - start, result


@contextmanager
def open_site(files: int) -> Iterator[Site]:
    with console.status("creating data files"):
        data = lineitem_files(files, ROWS_PER_FILE)
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="pipeline-") as temporary:
        folder = Path(temporary)
        open_catalog(folder).create_namespace("b")
        with start_session(folder) as java:
            yield Site(java=java, folder=folder, data=data, files=files)


def _reads(site: Site) -> list[Figure]:
    with console.status("loading a keyed table"):
        name = site.keyed("read")
    figures = [_compared(site, name, "no pending changes", columns, 1.15) for columns in ("two", "all")]
    with console.status("changing a tenth of its keys"):
        table = pyarctic.table(name)
        changed = site.changes(site.rows // 10, 1)
        for part in np.array_split(np.arange(changed.num_rows), _COMMITS):
            table.write(changed.slice(part[0], len(part)), mode="upsert")
    return figures + [
        _compared(site, name, "10 % of the keys changed", columns, target)
        for columns, target in (("two", 2.5), ("all", 2.0))
    ]


def _aggregates(frame: DataFrame, columns: str) -> list[Any]:
    if columns == "two":
        return frame.groupBy("returnflag").agg({"quantity": "sum"}).orderBy("returnflag").collect()
    return frame.selectExpr(*(f"max({field.name})" for field in SCHEMA.fields), "count(*)").collect()


def _compared(site: Site, name: str, state: str, columns: str, target: float) -> Figure:
    spark, table = site.spark, pyarctic.table(name)
    base = table.files(content="data")["file_path"].to_list()
    change = table.files(store="change")
    inserted = change.filter(change["kind"] == "I")["file_path"].to_list()
    selected = ["returnflag", "quantity"] if columns == "two" else None

    def ours() -> Any:
        return _aggregates(arctic_spark.read(spark, name, selected), columns)

    def plain(paths: list[str]) -> Callable[[], Any]:
        return lambda: _aggregates(spark.read.parquet(*paths), columns)

    with console.status(f"reading {columns} columns, {state}"):
        sides = [ours, plain(base + inserted), plain(base)]
        cpu_costs: list[list[float]] = [[], [], []]
        for _ in range(1 + _ROUNDS):  # the first is for warming up
            answers = [site.measure_cpu(side) for side in sides]
            for costs, (cost, _answer) in zip(cpu_costs, answers, strict=True):
                costs.append(cost)
    merged, same, alone = (min(costs[1:]) for costs in cpu_costs)
    _check_answer(site, name, columns, answers[0][1])
    return Figure(
        name=f"merged read of {site.rows:,} rows, {columns} columns, {state}, CPU against spark.read.parquet",
        measured=merged / same,
        target=target,
        unit="×",
        detail=f"{merged:.2f} s to {same:.2f} s CPU; {merged / alone:.2f} × of the base files alone",
    )


def _check_answer(site: Site, name: str, columns: str, answer: list[Any]) -> None:
    """Compare with the result of PyArctic without Spark."""
    table = pyarctic.table(name)
    if columns == "all":
        assert answer[0]["count(1)"] == table.scan(["id"]).count() == site.rows
        return
    rows = table.scan(["returnflag", "quantity"]).to_arrow()
    sums = rows.group_by("returnflag").aggregate([("quantity", "sum")]).sort_by("returnflag")
    assert [(row[0], row[1]) for row in answer] == [(row["returnflag"], row["quantity_sum"]) for row in sums.to_pylist()], (
        "unexpected result"
    )


def _ingest(site: Site) -> list[Figure]:
    count = min(100_000, site.rows // 10)
    batches = [site.folder / f"changes-{number}.parquet" for number in range(_WARM_UP + _ROUNDS)]
    for number, path in enumerate(batches):
        pq.write_table(site.changes(count, 100 + number), path)
    with console.status("loading keyed tables"):
        large, small = site.keyed("ingest"), site.keyed("small", max(site.files // 10, 1))
        merged = site.keyed("merged")
    modes = ("merge-on-read", "copy-on-write")
    for mode in modes:
        make_merged(site, mode)
    writers: dict[str, Callable[[DataFrame], Any]] = {
        "large": lambda rows: arctic_spark.write(rows, large, "upsert"),
        "small": lambda rows: arctic_spark.write(rows, small, "upsert"),
        "merged": partial(_write_and_merge, merged),
        **{mode: partial(merge_into, site, mode) for mode in modes},
    }
    # In turns, so that Java's compiler has seen equally much of each. Copy-on-write has fewer turns, since it is slow.
    turns = {writer: batches[-3:] if writer == "copy-on-write" else batches for writer in writers}
    cpu_costs = _in_turns(site, batches, writers, turns)
    tables = {"large": large, "merged": merged, **{mode: f"{CATALOG}.b.{table_name(mode)}" for mode in modes}}
    for writer, name in tables.items():
        actual = checksum(arctic_spark.read(site.spark, name, ["id", "partkey"]))
        assert actual == rows_after(site, turns[writer]), f"unexpected rows in {name}"
    ours = cpu_costs["large"]
    figures = [
        Figure(
            name=f"ingest of {count:,} changes into {site.rows:,} rows, CPU against MERGE INTO, {mode}",
            measured=ours / cpu_costs[mode],
            target=target,
            unit="×",
            detail=f"{ours:.2f} s to {cpu_costs[mode]:.2f} s CPU a batch",
        )
        for mode, target in zip(modes, (1 / 8, 1 / 25), strict=True)
    ]
    both = cpu_costs["merged"]
    figures.append(
        Figure(
            name="the same with a minor after every batch, CPU against MERGE INTO, merge-on-read",
            measured=both / cpu_costs["merge-on-read"],
            target=1 / 3,
            unit="×",
            detail=f"{both:.2f} s to {cpu_costs['merge-on-read']:.2f} s CPU a batch",
        )
    )
    figures.append(
        Figure(
            name="the same against a table of a tenth of the rows, CPU",
            measured=ours / cpu_costs["small"],
            target=1.2,
            unit="×",
            detail=f"{ours:.2f} s to {cpu_costs['small']:.2f} s CPU a batch",
        )
    )
    return figures


def _write_and_merge(name: str, rows: DataFrame) -> None:
    arctic_spark.write(rows, name, "upsert")
    report = pyarctic.optimize(name, kind="minor")
    assert report.changed, report


def _in_turns(
    site: Site, batches: list[Path], writers: dict[str, Callable[[DataFrame], Any]], turns: dict[str, list[Path]]
) -> dict[str, float]:
    """CPU seconds of the cheapest of the last batches of each writer."""
    cpu_costs: dict[str, list[float]] = {writer: [] for writer in writers}
    for path in batches:
        for writer, write in writers.items():
            if path in turns[writer]:
                with console.status(f"{path.stem}: {writer}"):
                    cpu_costs[writer].append(site.measure_cpu(partial(_write_file, site, path, write))[0])
    return {writer: min(costs[-_ROUNDS + (writer == "copy-on-write") :]) for writer, costs in cpu_costs.items()}


def _write_file(site: Site, path: Path, write: Callable[[DataFrame], Any]) -> None:
    write(site.spark.read.parquet(path.as_uri()))


def table_name(mode: str) -> str:
    return mode.replace("-", "_")


def make_merged(site: Site, mode: str) -> None:
    name = f"b.{table_name(mode)}"
    make_table(pyarctic.catalog(CATALOG), name, TableSetup(data=site.data))
    site.spark.sql(f"alter table {CATALOG}.{name} set tblproperties ('write.merge.mode' = '{mode}')")


def merge_into(site: Site, mode: str, rows: DataFrame) -> None:
    rows.createOrReplaceTempView("changes")
    site.spark.sql(
        f"merge into {CATALOG}.b.{table_name(mode)} t using changes s on t.id = s.id "
        "when matched then update set * when not matched then insert *"
    )


def checksum(frame: DataFrame) -> tuple[Any, ...]:
    return tuple(frame.selectExpr("count(*)", "sum(id)", "sum(partkey)", "bit_xor(xxhash64(id, partkey))").collect()[0])


def rows_after(site: Site, batches: list[Path]) -> tuple[Any, ...]:
    """The checksum of the expected rows, computed without any merge: the last value of every id."""
    values = np.empty(site.rows, np.int64)
    for path in [*site.paths(), *batches]:
        rows = pq.read_table(path, columns=["id", "partkey"])
        values[rows["id"].to_numpy()] = rows["partkey"].to_numpy()
    expected = site.folder / "expected.parquet"
    pq.write_table(pa.table({"id": np.arange(site.rows), "partkey": values}), expected)
    return checksum(site.spark.read.parquet(expected.as_uri()))


def _micro_batches(site: Site) -> list[Figure]:
    spark = site.spark
    columns = "value % 100000 id, value amount, cast(value as string) name, value seq"
    name = f"{CATALOG}.b.stream"
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1000).load().selectExpr(*columns.split(", "))
    arctic_spark.create_table(name, source.drop("seq").schema, primary_key=["id"])
    query = arctic_spark.write_stream(
        source, name, "upsert", ["seq"], (site.folder / "checkpoint").as_uri(), trigger="0 seconds"
    )
    with console.status("streaming"):
        while (query.lastProgress or {"batchId": -1})["batchId"] < 2 * _BATCHES:
            if query.exception() is not None:
                raise RuntimeError(str(query.exception()))
            time.sleep(0.5)
    progress = query.recentProgress
    query.stop()
    times = [batch["durationMs"]["triggerExecution"] / 1000 for batch in progress if batch["batchId"] >= _BATCHES]
    assert pyarctic.table(name).scan().count() >= 1000 * _BATCHES
    return [
        Figure(
            name="a micro-batch of 1,000 upserted rows, from trigger to trigger",
            measured=statistics.median(times),
            target=0.6,
            unit="s",
            detail=f"the median of {len(times)} batches, between {min(times):.2f} and {max(times):.2f} s",
        )
    ]
