"""PyArctic keeps lakehouse tables healthy.

    import pyarctic as arctic

    arctic.catalog("demo", type="sql", uri="sqlite:///warehouse/catalog.db", warehouse="file:///data/warehouse")
    arctic.table("demo.shop.orders").scan(columns=["id"], where="amount > 10").to_arrow()
    print(arctic.explain("demo.shop.orders"))
    arctic.optimize("demo.shop.orders")

Importing this package is cheap; Arrow and PyIceberg are loaded by the first call that needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pyarctic._version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import Schema
    from pyspark.sql import SparkSession

    from pyarctic.optimizing import KindChoice, ProcessListener, Report
    from pyarctic.optimizing.execute import Engine
    from pyarctic.optimizing.plan import Explanation
    from pyarctic.tables import Table

__all__ = ["__version__", "catalog", "create_table", "drop_table", "explain", "optimize", "table"]


def catalog(name: str, **properties: Any) -> Catalog:
    """A catalog: configured under this name, or by PyIceberg properties and known by the name in this process."""
    from pyarctic.config import declare_catalog
    from pyarctic.iceberg.catalog import open_catalog

    if properties:
        declare_catalog(name, properties)
    return open_catalog(name)


def table(name: str) -> Table:
    """Open `catalog.database.table`."""
    from pyarctic.tables import open_table

    return open_table(name)


def create_table(
    name: str,
    schema: pa.Schema | Schema,
    primary_key: Sequence[str] = (),
    partition_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> Table:
    """Make a table. With a primary key it is keyed: it takes changes and reads as one row per key. `partition_by` are texts
    such as "region", "day(ts)" or "bucket(16, id)". Its database is made if there is none."""
    from pyarctic import tables

    return tables.create_table(name, schema, primary_key, partition_by, properties)


def drop_table(name: str, *, purge: bool = False) -> None:
    """Drop a table with all its stores; its files stay unless `purge`."""
    from pyarctic import tables

    tables.drop_table(name, purge=purge)


def explain(name: str, kind: KindChoice = "auto", where: str | None = None) -> Explanation:
    """Why `optimize` would do what it would do, or nothing: rules with thresholds and measures, partitions, tasks, cost.

    Nothing is changed."""
    from pyarctic.optimizing import Options, explain_table
    from pyarctic.tables import open_table

    return explain_table(open_table(name), Options(kind=kind, where=where))


def optimize(
    name: str,
    kind: KindChoice = "auto",
    engine: str | Engine | SparkSession = "local",
    where: str | None = None,
    dry_run: bool = False,
    *,
    verify: bool = False,
    ignore_writers: bool = False,
    workers: int | None = None,
    watcher: ProcessListener | None = None,
) -> Report:
    """Bring a table into shape: merge small files, apply deletes, convert equality deletes; nothing that is not needed.

    `kind` is "auto", or "minor", "major" or "full" for every partition that gains by it. `engine` is "local" (worker
    processes), "spark" (this process's Spark session, or a new one), or a Spark session. `where` restricts it to partitions
    that may hold matching rows. `verify` compares the content of all rows read and written. `ignore_writers` does not spare
    statements that others run on the same partitions. `workers` is how many tasks run at a time."""
    from pyarctic.optimizing import Options, optimize_table
    from pyarctic.tables import open_table

    options = Options(kind=kind, where=where, dry_run=dry_run, verify=verify, ignore_writers=ignore_writers)
    chosen = _engine(engine, workers, dry_run=dry_run)
    return optimize_table(open_table(name), chosen, options, watcher)


def _engine(engine: str | Engine | SparkSession, workers: int | None, *, dry_run: bool) -> Engine:
    from pyarctic.errors import UsageError
    from pyarctic.optimizing.execute import LocalEngine

    if engine == "local" or (engine == "spark" and dry_run):  # no Spark is started to run nothing
        return LocalEngine(workers)
    if isinstance(engine, str) and engine != "spark":
        raise UsageError(f"unknown engine: {engine!r}", hint="One of: local, spark, or a Spark session.")
    if not isinstance(engine, str) and hasattr(engine, "run"):
        return cast("Engine", engine)
    from pyarctic.spark import SparkEngine, session

    return SparkEngine(session() if isinstance(engine, str) else engine, workers)
