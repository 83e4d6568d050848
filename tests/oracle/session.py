"""One Spark session with Iceberg Java and one PyIceberg catalog, both over the same SQLite file and warehouse.

Whatever one side commits the other sees at once. The catalog's name is part of the key in that file: both use `NAME`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog.sql import SqlCatalog

from pyarctic.spark import session
from tests.support import jars

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

NAME = "lab"


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle:
    """Iceberg Java and PyIceberg side by side. Table names are `namespace.table`, without the catalog."""

    spark: SparkSession
    catalog: SqlCatalog
    name: str = NAME
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def namespace(self) -> str:
        """Make a namespace that no other test uses."""
        namespace = f"ns{next(self._numbers)}"
        self.catalog.create_namespace(namespace)
        return namespace

    def sql(self, text: str) -> DataFrame:
        """Run one statement in Spark; unqualified names are looked up in this catalog."""
        return self.spark.sql(text)

    def rows(self, table: str, columns: str = "*", *, snapshot_id: int | None = None, ref: str | None = None) -> pa.Table:
        """Read with Iceberg Java: the current state, a snapshot, or a branch or tag. `columns` is the select list."""
        if snapshot_id is not None and ref is not None:
            raise ValueError("give a snapshot id or a ref, not both")
        version = f"'{ref}'" if ref is not None else snapshot_id
        travel = "" if version is None else f" version as of {version}"
        return self.spark.sql(f"select {columns} from {self.name}.{table}{travel}").toArrow()

    def java_table(self, table: str) -> Any:
        """Java's `org.apache.iceberg.Table`, freshly loaded."""
        # The session's own Java object is the only way to Spark3Util.
        return self.java.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            self.spark._jsparkSession, f"{self.name}.{table}"
        )

    @property
    def java(self) -> Any:
        """The Java side by name: `oracle.java.org.apache.iceberg.DataFiles`."""
        return self.spark.sparkContext._jvm


@contextmanager
def start(folder: Path) -> Iterator[Oracle]:
    """Start both sides on an empty catalog in this folder, and stop them at the end."""
    database, warehouse = folder / "catalog.db", (folder / "warehouse").as_uri()
    catalog = SqlCatalog(NAME, uri=f"sqlite:///{database}", warehouse=warehouse)
    spark = session("pyarctic-oracle", **_settings(database, warehouse, folder))
    try:
        yield Oracle(spark=spark, catalog=catalog)
    finally:
        spark.stop()
        catalog.close()


def _settings(database: Path, warehouse: str, folder: Path) -> dict[str, str]:
    catalog = f"spark.sql.catalog.{NAME}"
    return {
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        # Compile fast rather than well: a test's queries run once.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.jars": ",".join(map(str, jars.ORACLE.paths())),
        "spark.local.dir": str(folder / "scratch"),
        "spark.sql.warehouse.dir": (folder / "spark-warehouse").as_uri(),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.defaultCatalog": NAME,
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "jdbc",
        f"{catalog}.uri": f"jdbc:sqlite:{database}",
        f"{catalog}.jdbc.schema-version": "V1",
        f"{catalog}.warehouse": warehouse,
        # By default Spark keeps a loaded table for 30 s and would not see PyIceberg's commits.
        f"{catalog}.cache-enabled": "false",
        # Iceberg 1.12 keeps parsed delete files by path. After a key column was promoted it compares the kept ints with
        # longs, and deleted rows come back for as long as the entry lives.
        "spark.sql.iceberg.executor-cache.enabled": "false",
    }
