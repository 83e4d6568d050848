"""PyArctic creates, writes, reads and optimizes Iceberg tables.

    import pyarctic as arctic

    arctic.catalog("demo", type="sql", uri="sqlite:///warehouse/catalog.db", warehouse="file:///data/warehouse")
    arctic.table("demo.shop.orders").scan(columns=["id"], where="amount > 10").to_arrow()
    print(arctic.explain("demo.shop.orders"))
    arctic.optimize("demo.shop.orders")

Importing this package is cheap; Arrow and PyIceberg are imported by the first call that needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

from pyarctic._version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import Schema
    from pyspark.sql import SparkSession

    from pyarctic.iceberg.check import CheckListener
    from pyarctic.optimizing import (
        HealthListener,
        HealthReport,
        KindChoice,
        ListenerFactory,
        Outcomes,
        ProcessListener,
        Report,
    )
    from pyarctic.optimizing.commit import Rollback
    from pyarctic.optimizing.execute import Engine
    from pyarctic.optimizing.plan import Explanation
    from pyarctic.tables import KeyedTable, Table
    from pyarctic.tables.check import CheckReport

__all__ = [
    "KeyedTable",
    "Table",
    "__version__",
    "catalog",
    "check",
    "create_table",
    "drop_table",
    "errors",
    "explain",
    "health",
    "list_tables",
    "optimize",
    "optimize_many",
    "rollback",
    "table",
]


def __getattr__(name: str) -> Any:
    if name in ("KeyedTable", "Table"):
        from pyarctic import tables

        return getattr(tables, name)
    if name == "errors":
        from importlib import import_module

        return import_module("pyarctic.errors")
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return sorted(__all__)


def catalog(name: str, **properties: Any) -> Catalog:
    """Open a catalog; with properties, declare it for this process first.

        arctic.catalog("demo", type="sql", uri="sqlite:///warehouse/catalog.db", warehouse="file:///data/warehouse")
        arctic.catalog("prod")  # declared in arctic.yaml or in PyIceberg's configuration

    Args:
        name: the name of the catalog, the first part of table names.
        properties: PyIceberg catalog properties. They take precedence over configuration files.
    """
    from pyarctic.config import declare_catalog
    from pyarctic.iceberg.catalog import open_catalog

    if properties:
        declare_catalog(name, properties)
    return open_catalog(name)


def table(name: str) -> Table:
    """Open a table.

        arctic.table("demo.shop.orders").scan(where="amount > 10").to_arrow()

    Args:
        name: the full name, `catalog.database.table`.
    """
    from pyarctic.tables import open_table

    return open_table(name)


def list_tables(pattern: str | Sequence[str] = "*") -> list[str]:
    """List the full names of tables, over all configured catalogs. Change stores of keyed tables are not listed.

        arctic.list_tables("demo.*.orders*")

    Args:
        pattern: a glob over `catalog.database.table`, or several. A name without wildcards that does not exist is an error
            that names similar ones.
    """
    from pyarctic.tables import list_tables as list_tables_

    return list_tables_(pattern)


def create_table(
    name: str,
    schema: pa.Schema | Schema,
    primary_key: Sequence[str] = (),
    partition_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    *,
    format: Literal["mixed-iceberg", "iceberg"] = "mixed-iceberg",  # noqa: A002
    format_version: int | None = None,
    if_not_exists: bool = False,
) -> Table:
    """Create a table and return it.

        schema = pa.schema([pa.field("id", pa.int64()), pa.field("ts", pa.timestamp("us", "UTC"))])
        arctic.create_table("demo.shop.orders", schema, primary_key=["id"], partition_by=["day(ts)"])

    Args:
        name: the full name, `catalog.database.table`. The database is created if it does not exist.
        schema: an Arrow schema or a PyIceberg schema.
        primary_key: key columns, in order. With a key the table is keyed: it accepts upserts and deletes and reads as one
            row per key.
        partition_by: partition fields such as "region", "day(ts)" or "bucket(16, id)".
        properties: table properties.
        format: "mixed-iceberg" for keyed and unkeyed tables, "iceberg" for an ordinary Iceberg table, without a key.
        format_version: 2 by default; an Iceberg table may also have 1 or 3.
        if_not_exists: return a table that exists as it is, if its kind and key are those asked for. Columns, partitions and
            properties are not compared.
    """
    from pyarctic import tables

    return tables.create_table(
        name,
        schema,
        primary_key,
        partition_by,
        properties,
        format=format,
        format_version=format_version,
        if_not_exists=if_not_exists,
    )


def drop_table(name: str, *, purge: bool = False) -> None:
    """Drop a table with all its stores.

        arctic.drop_table("demo.shop.orders", purge=True)

    Args:
        name: the full name, `catalog.database.table`.
        purge: delete the files of the table too.
    """
    from pyarctic import tables

    tables.drop_table(name, purge=purge)


def check(
    name: str,
    *,
    rows: bool = True,
    all_snapshots: bool = False,
    repair: bool = False,
    dry_run: bool = False,
    listener: CheckListener | None = None,
) -> CheckReport:
    """Check that a table is sound: every file is there and is what the metadata says; keys, totals and deletes agree.

        report = arctic.check("demo.shop.orders")
        print(report.is_damaged, [finding.title for finding in report.findings])

    Args:
        name: the full name, `catalog.database.table`.
        rows: read all rows: page checksums, positions of deletes; keys and tree nodes of a keyed table. Without them only
            metadata and footers are read.
        all_snapshots: check all snapshots, not only the current one.
        repair: repair what can be repaired without losing a row: duplicate keys, dangling deletes, wrong totals.
        dry_run: with `repair`, only report what would be done.
        listener: is notified of progress.
    """
    from pyarctic.tables.check import check_table

    return check_table(name, rows=rows, all_snapshots=all_snapshots, repair=repair, dry_run=dry_run, listener=listener)


def health(
    pattern: str | Sequence[str] = "*", *, workers: int | None = None, listener: HealthListener | None = None
) -> HealthReport:
    """Evaluate the health of tables, the worst first: what costs points, what cures it, and what that would take.

        for table in arctic.health("demo.*"):
            print(table.table, table.score, [deduction.cure for deduction in table.deductions])

    Nothing is changed. A table or catalog that cannot be read is reported, and does not stop the others.

    Args:
        pattern: as in `list_tables`.
        workers: the number of tables that are evaluated at the same time.
        listener: is notified of every table.
    """
    from pyarctic.optimizing import evaluate_tables

    return evaluate_tables(pattern, workers=workers, listener=listener)


def explain(name: str, kind: KindChoice = "auto", where: str | None = None, *, ignore_writers: bool = False) -> Explanation:
    """Explain what `optimize` would do and why: rules with thresholds and measures, partitions, tasks and cost.

        print(arctic.explain("demo.shop.orders"))

    Nothing is changed.

    Args:
        name: the full name, `catalog.database.table`.
        kind: as in `optimize`.
        where: as in `optimize`.
        ignore_writers: as in `optimize`.
    """
    from pyarctic.optimizing import Options, explain_table
    from pyarctic.tables import open_table

    return explain_table(open_table(name), Options(kind=kind, where=where, ignore_writers=ignore_writers))


def optimize(
    name: str,
    kind: KindChoice = "auto",
    engine: Literal["local", "spark"] | Engine | SparkSession = "local",
    where: str | None = None,
    dry_run: bool = False,
    *,
    verify: bool = False,
    ignore_writers: bool = False,
    workers: int | None = None,
    listener: ProcessListener | None = None,
) -> Report:
    """Optimize a table as far as it needs it: merge small files, apply deletes, convert equality deletes.

        report = arctic.optimize("demo.shop.orders", where="day >= '2026-01-01'")
        print(report.before.data_files, report.after.data_files)

    Args:
        name: the full name, `catalog.database.table`.
        kind: "auto" follows the rules; "minor", "major" or "full" is applied to every partition that gains by it.
        engine: "local" (worker processes), "spark" (the active Spark session, or a new one), or a Spark session.
        where: only partitions that may contain matching rows.
        dry_run: plan only; nothing is changed.
        verify: compare the content of all rows read and written, by hash.
        ignore_writers: do not hold back partitions in which other writers are changing rows.
        workers: the number of concurrent tasks.
        listener: is notified of plans, progress and finished tasks.
    """
    from pyarctic.optimizing import Options, optimize_table
    from pyarctic.tables import open_table

    options = Options(kind=kind, where=where, dry_run=dry_run, verify=verify, ignore_writers=ignore_writers)
    return optimize_table(open_table(name), _resolve_engine(engine, workers, dry_run=dry_run), options, listener)


def optimize_many(
    pattern: str | Sequence[str],
    kind: KindChoice = "auto",
    engine: Literal["local", "spark"] | Engine | SparkSession = "local",
    dry_run: bool = False,
    *,
    verify: bool = False,
    ignore_writers: bool = False,
    workers: int | None = None,
    listener_for: ListenerFactory | None = None,
) -> Outcomes:
    """Optimize many tables, one after the other, each as far as it needs it. An error of one does not stop the others.

        outcomes = arctic.optimize_many("demo.shop.*")
        print(outcomes.summary(), [outcome.table for outcome in outcomes.failures])

    Args:
        pattern: as in `list_tables`.
        kind: as in `optimize`.
        engine: as in `optimize`.
        dry_run: as in `optimize`.
        verify: as in `optimize`.
        ignore_writers: as in `optimize`.
        workers: as in `optimize`.
        listener_for: gives the listener of a table by its name.
    """
    from pyarctic.optimizing import Options, optimize_tables

    options = Options(kind=kind, dry_run=dry_run, verify=verify, ignore_writers=ignore_writers)
    return optimize_tables(pattern, _resolve_engine(engine, workers, dry_run=dry_run), options, listener_for)


def rollback(name: str, to: int | None = None, dry_run: bool = False) -> Rollback:
    """Undo the last `optimize` of a table. Rows do not change. Refused if anything else was written since.

        arctic.rollback("demo.shop.orders", dry_run=True)

    Args:
        name: the full name, `catalog.database.table`.
        to: the snapshot to return to; without it, the one before the last `optimize`.
        dry_run: only report what would be rolled back.
    """
    from pyarctic.optimizing.commit import roll_back
    from pyarctic.tables import open_table

    return roll_back(open_table(name), to, dry_run=dry_run)


def _resolve_engine(engine: str | Engine | SparkSession, workers: int | None, *, dry_run: bool) -> Engine:
    from pyarctic.optimizing.execute import LocalEngine, open_engine

    if engine == "local" or (engine == "spark" and dry_run):  # a dry run needs no Spark
        return LocalEngine(workers)
    if isinstance(engine, str):
        return open_engine(engine, workers)
    if hasattr(engine, "submit"):
        return cast("Engine", engine)
    from pyarctic.spark import SparkEngine

    return SparkEngine(engine, workers)
