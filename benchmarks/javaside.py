"""Iceberg Java on Spark, in one warm session: it rewrites tables as its users do today, and it reads what came out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.healtables import CATALOG, Rot, data_files, dead_ids
from benchmarks.processes import Cost, MemoryWatch, cpu_seconds
from benchmarks.tables import properties
from pyarctic.spark import session
from tests.support import jars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Sums in any order; 64-bit sums would overflow.
CHECKSUM = "count(*), bit_xor(xxhash64(*)), sum(xxhash64(*) >> 32)"


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaSide:
    """A session over the tables of one folder. Table names are `namespace.table`."""

    spark: SparkSession
    folder: Path

    def cpu_seconds(self) -> float:
        """What the JVM has spent so far."""
        return cpu_seconds(self._pid)

    @property
    def _pid(self) -> int:
        gateway: Any = self.spark.sparkContext._gateway
        return int(gateway.proc.pid)

    def rewrite(self, table: str, rot: Rot) -> Cost:
        """`rewrite_data_files` of everything in one commit, sorted if the table wants that."""
        options = {"rewrite-all": "true", "min-input-files": "1", "target-file-size-bytes": str(rot.target_bytes)}
        entries = ", ".join(f"'{key}', '{value}'" for key, value in options.items())
        strategy = ", strategy => 'sort', sort_order => 'id'" if rot.sorted_by_id else ""
        call = f"call {CATALOG}.system.rewrite_data_files(table => '{table}', options => map({entries}){strategy})"
        jvm: Any = self.spark.sparkContext._jvm
        jvm.java.lang.System.gc()
        start, spent = time.monotonic(), self.cpu_seconds()
        with MemoryWatch(self._pid) as watch:
            [row] = self.spark.sql(call).collect()
        cpu, wall = self.cpu_seconds() - spent, time.monotonic() - start
        assert row["rewritten_data_files_count"] == len(data_files(rot)), row
        assert not row["failed_data_files_count"], row
        # The JVM alone: for a moment each program it starts (Hadoop sets permissions so) has the same memory once more.
        return Cost(cpu_seconds=cpu, wall_seconds=wall, peak_mb=watch.own_mb, worker_mb=watch.own_mb)

    def checksum(self, table: str) -> tuple[Any, ...]:
        """Rows and a hash of their contents, in any order."""
        return tuple(self.spark.sql(f"select {CHECKSUM} from {CATALOG}.{table}").collect()[0])

    def expected(self, rot: Rot) -> tuple[Any, ...]:
        """The checksum of a table with that rot, from its data files and the deleted ids: Iceberg plays no part."""
        rows: DataFrame = self.spark.read.parquet(*(file.path for file in data_files(rot)))
        dead = self.folder / "dead.parquet"
        pq.write_table(pa.table({"id": dead_ids(rot).cast(pa.int64())}), dead)
        alive = rows.join(self.spark.read.parquet(dead.as_uri()), "id", "left_anti")
        return tuple(alive.selectExpr(*CHECKSUM.split(", ")).collect()[0])


@contextmanager
def started(folder: Path) -> Iterator[JavaSide]:
    spark = session("pyarctic-bench", **settings(folder))
    try:
        yield JavaSide(spark=spark, folder=folder)
    finally:
        spark.stop()


def settings(folder: Path) -> dict[str, str]:
    """Spark's and Iceberg's defaults, but for two cores, four gigabytes and the folder's catalog."""
    catalog = f"spark.sql.catalog.{CATALOG}"
    known = properties(folder)
    return {
        "spark.master": "local[2]",
        "spark.driver.memory": "4g",
        "spark.jars": ",".join(map(str, jars.ORACLE.paths())),
        "spark.local.dir": str(folder / "scratch"),
        "spark.sql.warehouse.dir": (folder / "spark-warehouse").as_uri(),
        "spark.sql.session.timeZone": "UTC",
        # Two hundred by default; on two cores the empty ones would be most of what a small query costs.
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "jdbc",
        f"{catalog}.uri": known["uri"].replace("sqlite:///", "jdbc:sqlite:", 1),
        f"{catalog}.jdbc.schema-version": "V1",
        f"{catalog}.warehouse": known["warehouse"],
        # Otherwise a table is kept for 30 s, and what PyArctic commits meanwhile is not seen.
        f"{catalog}.cache-enabled": "false",
    }
