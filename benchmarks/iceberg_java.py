"""Iceberg Java on Spark, in one warm session: it rewrites tables as its users do today, and reads the results."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.processes import Cost, MemoryWatch, cpu_seconds
from benchmarks.tables import properties
from benchmarks.unoptimized_tables import CATALOG, TableSetup, data_files, deleted_ids
from pyarctic.spark import session
from tests.support import jars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Sums in any order; 64-bit sums would overflow.
CHECKSUM = "count(*), bit_xor(xxhash64(*)), sum(xxhash64(*) >> 32)"


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergJava:
    """A session for the tables of one folder. Table names are `namespace.table`."""

    spark: SparkSession
    folder: Path

    def cpu_seconds(self) -> float:
        """The CPU seconds of the JVM so far."""
        return cpu_seconds(self._pid)

    @property
    def _pid(self) -> int:
        gateway: Any = self.spark.sparkContext._gateway
        return int(gateway.proc.pid)

    def rewrite(self, table: str, setup: TableSetup) -> Cost:
        """Run `rewrite_data_files` for all files in one commit, sorted if the table has a sort order."""
        options = {"rewrite-all": "true", "min-input-files": "1", "target-file-size-bytes": str(setup.target_bytes)}
        entries = ", ".join(f"'{key}', '{value}'" for key, value in options.items())
        strategy = ", strategy => 'sort', sort_order => 'id'" if setup.sorted_by_id else ""
        call = f"call {CATALOG}.system.rewrite_data_files(table => '{table}', options => map({entries}){strategy})"
        jvm: Any = self.spark.sparkContext._jvm
        jvm.java.lang.System.gc()
        start, cpu_before = time.monotonic(), self.cpu_seconds()
        with MemoryWatch(self._pid) as watch:
            [row] = self.spark.sql(call).collect()
        cpu, wall = self.cpu_seconds() - cpu_before, time.monotonic() - start
        assert row["rewritten_data_files_count"] == len(data_files(setup)), row
        assert not row["failed_data_files_count"], row
        # The JVM alone: each program it starts (Hadoop's chmod) briefly has a copy of its memory.
        return Cost(cpu_seconds=cpu, wall_seconds=wall, peak_mb=watch.own_mb, worker_mb=watch.own_mb)

    def checksum(self, table: str) -> tuple[Any, ...]:
        """The row count and a hash of the content, independent of order."""
        return tuple(self.spark.sql(f"select {CHECKSUM} from {CATALOG}.{table}").collect()[0])

    def expected(self, setup: TableSetup) -> tuple[Any, ...]:
        """The expected checksum, from the data files and the deleted ids, without Iceberg."""
        rows: DataFrame = self.spark.read.parquet(*(file.path for file in data_files(setup)))
        deleted = self.folder / "deleted.parquet"
        pq.write_table(pa.table({"id": deleted_ids(setup).cast(pa.int64())}), deleted)
        live = rows.join(self.spark.read.parquet(deleted.as_uri()), "id", "left_anti")
        return tuple(live.selectExpr(*CHECKSUM.split(", ")).collect()[0])


@contextmanager
def start_session(folder: Path) -> Iterator[IcebergJava]:
    spark = session("pyarctic-bench", **settings(folder))
    try:
        yield IcebergJava(spark=spark, folder=folder)
    finally:
        spark.stop()


def settings(folder: Path) -> dict[str, str]:
    """The defaults of Spark and Iceberg, except for two cores, four gigabytes and the catalog of the folder."""
    catalog = f"spark.sql.catalog.{CATALOG}"
    catalog_properties = properties(folder)
    return {
        "spark.master": "local[2]",
        "spark.driver.memory": "4g",
        "spark.jars": ",".join(map(str, jars.ORACLE.paths())),
        "spark.local.dir": str(folder / "scratch"),
        "spark.sql.warehouse.dir": (folder / "spark-warehouse").as_uri(),
        "spark.sql.session.timeZone": "UTC",
        # The default is 200; on two cores empty partitions would be most of the cost of a small query.
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "jdbc",
        f"{catalog}.uri": catalog_properties["uri"].replace("sqlite:///", "jdbc:sqlite:", 1),
        f"{catalog}.jdbc.schema-version": "V1",
        f"{catalog}.warehouse": catalog_properties["warehouse"],
        # Otherwise tables are cached for 30 s, and commits of PyArctic are not seen.
        f"{catalog}.cache-enabled": "false",
    }
