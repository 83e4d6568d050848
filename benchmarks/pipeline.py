"""The data paths on Spark: what a merged read, an ingested batch and a micro-batch cost, beside what Spark's users do today.

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
from benchmarks.healtables import CATALOG, SCHEMA, Rot, lineitems, make_table, open_catalog
from benchmarks.javaside import JavaSide, started
from benchmarks.processes import cpu_seconds
from benchmarks.tables import CACHE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CASES = ("read", "ingest", "stream")
ROWS_A_FILE = 70_312
_ROUNDS = 3
_WARM_UP = 6
_COMMITS = 10
_BATCHES = 12


def pipeline(scale: float, cases: tuple[str, ...] = ()) -> list[Figure]:
    figures: list[Figure] = []
    with opened(max(int(143 * scale), 4)) as site:
        for case, measure in (("read", _reads), ("ingest", _ingest), ("stream", _micro_batches)):
            if not cases or case in cases:
                figures += measure(site)
    return figures


@dataclass(frozen=True, kw_only=True)
class Site:
    """A warm session, and the data files of lineitems to fill tables with."""

    java: JavaSide
    folder: Path
    data: Path
    files: int

    @property
    def spark(self) -> SparkSession:
        return self.java.spark

    @property
    def rows(self) -> int:
        return self.files * ROWS_A_FILE

    def paths(self, files: int | None = None) -> list[Path]:
        return sorted(self.data.glob("*.parquet"))[:files]

    def keyed(self, name: str, files: int | None = None) -> str:
        """A keyed table of these rows, loaded into Base."""
        full = f"{CATALOG}.b.{name}"
        schema = pa.schema([pa.field("id", pa.int64(), nullable=False), *list(pq.read_schema(self.paths()[0]))[1:]])
        table = pyarctic.create_table(full, schema.remove_metadata(), primary_key=["id"])
        table.write((pq.read_table(path) for path in self.paths(files)), mode="overwrite")
        return full

    def changes(self, count: int, seed: int) -> pa.Table:
        """Rows with ids of the table, each once, and other values."""
        rng = np.random.default_rng(seed)
        ids = rng.choice(self.rows, count, replace=False)
        rows = pa.concat_tables([pq.read_table(path) for path in self.paths(-(-count // ROWS_A_FILE) + 1)])
        return rows.slice(seed % 1000, count).set_column(0, rows.schema.field("id"), pa.array(ids))

    def spent(self, run: Callable[[], Any]) -> tuple[float, Any]:
        start = cpu_seconds(os.getpid())
        result = run()
        return cpu_seconds(os.getpid()) - start, result


@contextmanager
def opened(files: int) -> Iterator[Site]:
    with console.status("making data files"):
        data = lineitems(files, ROWS_A_FILE)
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="pipeline-") as temporary:
        folder = Path(temporary)
        open_catalog(folder).create_namespace("b")
        with started(folder) as java:
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
        _compared(site, name, "10 % of the keys changed", columns, promised)
        for columns, promised in (("two", 2.5), ("all", 2.0))
    ]


def _aggregates(frame: DataFrame, columns: str) -> list[Any]:
    if columns == "two":
        return frame.groupBy("returnflag").agg({"quantity": "sum"}).orderBy("returnflag").collect()
    return frame.selectExpr(*(f"max({field.name})" for field in SCHEMA.fields), "count(*)").collect()


def _compared(site: Site, name: str, state: str, columns: str, promised: float) -> Figure:
    spark, table = site.spark, pyarctic.table(name)
    base = table.files(content="data")["file_path"].to_list()
    change = table.files(store="change")
    inserted = change.filter(change["kind"] == "I")["file_path"].to_list()
    asked = ["returnflag", "quantity"] if columns == "two" else None

    def ours() -> Any:
        return _aggregates(arctic_spark.read(spark, name, asked), columns)

    def plain(paths: list[str]) -> Callable[[], Any]:
        return lambda: _aggregates(spark.read.parquet(*paths), columns)

    with console.status(f"reading {columns} columns, {state}"):
        sides = [ours, plain(base + inserted), plain(base)]
        spent: list[list[float]] = [[], [], []]
        for _ in range(1 + _ROUNDS):  # the first does not count
            answers = [site.spent(side) for side in sides]
            for costs, (cost, _answer) in zip(spent, answers, strict=True):
                costs.append(cost)
    merged, same, alone = (min(costs[1:]) for costs in spent)
    _check_answer(site, name, columns, answers[0][1])
    return Figure(
        name=f"merged read of {site.rows:,} rows, {columns} columns, {state}, CPU against spark.read.parquet",
        measured=merged / same,
        promised=promised,
        unit="×",
        detail=f"{merged:.2f} s to {same:.2f} s CPU; {merged / alone:.2f} × of the base files alone",
    )


def _check_answer(site: Site, name: str, columns: str, answer: list[Any]) -> None:
    """The same by PyArctic without Spark."""
    table = pyarctic.table(name)
    if columns == "all":
        assert answer[0]["count(1)"] == table.scan(["id"]).count() == site.rows
        return
    rows = table.scan(["returnflag", "quantity"]).to_arrow()
    sums = rows.group_by("returnflag").aggregate([("quantity", "sum")]).sort_by("returnflag")
    assert [(row[0], row[1]) for row in answer] == [(row["returnflag"], row["quantity_sum"]) for row in sums.to_pylist()], (
        "another answer than expected"
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
        "merged": partial(_written_and_merged, merged),
        **{mode: partial(merge_into, site, mode) for mode in modes},
    }
    # In turns, so that Java's compiler has seen as much of everybody. Whoever rewrites half the table has fewer of them.
    turns = {who: batches[-3:] if who == "copy-on-write" else batches for who in writers}
    spent = _in_turns(site, batches, writers, turns)
    tables = {"large": large, "merged": merged, **{mode: f"{CATALOG}.b.{table_name(mode)}" for mode in modes}}
    for who, name in tables.items():
        found = checksum(arctic_spark.read(site.spark, name, ["id", "partkey"]))
        assert found == rows_after(site, turns[who]), f"other rows in {name}"
    ours = spent["large"]
    figures = [
        Figure(
            name=f"ingest of {count:,} changes into {site.rows:,} rows, CPU against MERGE INTO, {mode}",
            measured=ours / spent[mode],
            promised=promised,
            unit="×",
            detail=f"{ours:.2f} s to {spent[mode]:.2f} s CPU a batch",
        )
        for mode, promised in zip(modes, (1 / 8, 1 / 25), strict=True)
    ]
    both = spent["merged"]
    figures.append(
        Figure(
            name="the same with a minor after every batch, CPU against MERGE INTO, merge-on-read",
            measured=both / spent["merge-on-read"],
            promised=1 / 3,
            unit="×",
            detail=f"{both:.2f} s to {spent['merge-on-read']:.2f} s CPU a batch",
        )
    )
    figures.append(
        Figure(
            name="the same against a table of a tenth of the rows, CPU",
            measured=ours / spent["small"],
            promised=1.2,
            unit="×",
            detail=f"{ours:.2f} s to {spent['small']:.2f} s CPU a batch",
        )
    )
    return figures


def _written_and_merged(name: str, rows: DataFrame) -> None:
    arctic_spark.write(rows, name, "upsert")
    report = pyarctic.optimize(name, kind="minor")
    assert report.changed, report


def _in_turns(
    site: Site, batches: list[Path], writers: dict[str, Callable[[DataFrame], Any]], turns: dict[str, list[Path]]
) -> dict[str, float]:
    """CPU seconds of everybody's cheapest batch among the last ones."""
    spent: dict[str, list[float]] = {who: [] for who in writers}
    for path in batches:
        for who, write in writers.items():
            if path in turns[who]:
                with console.status(f"{path.stem}: {who}"):
                    spent[who].append(site.spent(partial(_written, site, path, write))[0])
    return {who: min(costs[-_ROUNDS + (who == "copy-on-write") :]) for who, costs in spent.items()}


def _written(site: Site, path: Path, write: Callable[[DataFrame], Any]) -> None:
    write(site.spark.read.parquet(path.as_uri()))


def table_name(mode: str) -> str:
    return mode.replace("-", "_")


def make_merged(site: Site, mode: str) -> None:
    name = f"b.{table_name(mode)}"
    make_table(pyarctic.catalog(CATALOG), name, Rot(data=site.data))
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
    """The rows that all of them must have, by nobody's merge: of every id the last value."""
    values = np.empty(site.rows, np.int64)
    for path in [*site.paths(), *batches]:
        rows = pq.read_table(path, columns=["id", "partkey"])
        values[rows["id"].to_numpy()] = rows["partkey"].to_numpy()
    told = site.folder / "expected.parquet"
    pq.write_table(pa.table({"id": np.arange(site.rows), "partkey": values}), told)
    return checksum(site.spark.read.parquet(told.as_uri()))


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
    times = [each["durationMs"]["triggerExecution"] / 1000 for each in progress if each["batchId"] >= _BATCHES]
    assert pyarctic.table(name).scan().count() >= 1000 * _BATCHES
    return [
        Figure(
            name="a micro-batch of 1,000 upserted rows, from trigger to trigger",
            measured=statistics.median(times),
            promised=0.6,
            unit="s",
            detail=f"the middle of {len(times)} batches, between {min(times):.2f} and {max(times):.2f} s",
        )
    ]
