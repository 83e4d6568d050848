"""SQL functions: `SELECT * FROM arctic_explain('demo.shop.orders')`, `SELECT * FROM arctic_optimize('demo.shop.orders')`.

Spark runs them in a separate Python process that cannot reach the driver, so tasks run in local worker processes there.
The catalogs are those known when the functions were registered; their properties are sent with the functions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyarctic import config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPTIMIZE_COLUMNS = (
    "table string, changed boolean, kinds array<string>, snapshot_ids array<bigint>, tasks_planned int, "
    "tasks_committed int, tasks_failed int, data_files_before bigint, data_files_after bigint, delete_files_before bigint, "
    "delete_files_after bigint, health_before double, health_after double, cpu_seconds double, report string"
)
EXPLAIN_COLUMNS = (
    "partition string, health double, kind string, rule string, leads_to string, threshold double, measured double, "
    "unit string, met boolean, next_at timestamp, waits string"
)


def register_functions(spark: SparkSession) -> None:
    """Register the functions with a session."""
    from pyspark.sql.functions import udtf

    catalogs = config.known_catalogs()

    # Local classes are pickled by value, with the catalogs in their closure; module-level classes would find no catalogs.
    class Optimize:
        def eval(
            self, table: str, kind: str = "auto", where: str | None = None, dry_run: bool = False
        ) -> Iterator[tuple[Any, ...]]:
            from pyarctic.spark.sql_functions import optimize_row

            yield optimize_row(catalogs, table, kind, where, dry_run)

    class Explain:
        def eval(self, table: str, kind: str = "auto", where: str | None = None) -> Iterator[tuple[Any, ...]]:
            from pyarctic.spark.sql_functions import explain_rows

            yield from explain_rows(catalogs, table, kind, where)

    functions: dict[str, tuple[type[Any], str]] = {
        "arctic_optimize": (Optimize, OPTIMIZE_COLUMNS),
        "arctic_explain": (Explain, EXPLAIN_COLUMNS),
    }
    for name, (function, columns) in functions.items():
        table_function: Any = udtf(function, returnType=columns)
        spark.udtf.register(name, table_function)


def optimize_row(
    catalogs: Mapping[str, Mapping[str, str]], table: str, kind: Any, where: str | None, dry_run: bool
) -> tuple[Any, ...]:
    """Optimize a table and return the report as one row of OPTIMIZE_COLUMNS."""
    import pyarctic

    declare_catalogs(catalogs)
    report = pyarctic.optimize(table, kind=kind, where=where, dry_run=dry_run)
    return (
        report.table,
        report.changed,
        list(report.kinds),
        list(report.snapshot_ids),
        report.tasks_planned,
        report.tasks_committed,
        len(report.failures),
        report.before.data_files,
        report.after.data_files,
        report.before.delete_files,
        report.after.delete_files,
        report.health_before.score,
        report.health_after.score,
        report.cpu_seconds,
        json.dumps(report.to_dict()),
    )


def explain_rows(
    catalogs: Mapping[str, Mapping[str, str]], table: str, kind: Any, where: str | None
) -> Iterator[tuple[Any, ...]]:
    """Yield every rule of every partition as a row of EXPLAIN_COLUMNS."""
    import pyarctic

    declare_catalogs(catalogs)
    for row in pyarctic.explain(table, kind=kind, where=where).partitions:
        for rule in row.rules:
            yield (
                row.partition,
                row.health,
                row.kind,
                rule.name,
                rule.kind,
                rule.threshold,
                rule.measured,
                rule.unit,
                rule.met,
                rule.next_at,
                row.waits,
            )


def declare_catalogs(catalogs: Mapping[str, Mapping[str, str]]) -> None:
    """In a Python process of Spark: declare the catalogs that the driver knew."""
    for name, properties in catalogs.items():
        config.declare_catalog(name, properties)
