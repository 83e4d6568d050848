"""The CPU that Spark spends on reading a table through Iceberg Java."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.iceberg_java import IcebergJava
from benchmarks.unoptimized_tables import CATALOG

ALL, GROUPS, POINTS = "all columns", "group by two", "point reads"
QUERIES = (ALL, GROUPS, POINTS)


def compare(java: IcebergJava, tables: Sequence[str], ids: Sequence[int], rounds: int) -> list[dict[str, float]]:
    """CPU seconds by query for tables with the same rows: run in turns, the median of several rounds after a warm-up
    round."""
    cpu_costs: list[dict[str, float]] = [{} for _ in tables]
    for query in QUERIES:
        results = [[_run_query(java, query, table, ids) for table in tables] for _ in range(1 + rounds)]
        answers = {repr(answer) for round_ in results for answer, _ in round_}
        assert len(answers) == 1, f"{query}: not the same rows in {tables}: {answers}"
        for number, costs in enumerate(cpu_costs):
            costs[query] = median(round_[number][1] for round_ in results[1:])
    return cpu_costs


def _run_query(java: IcebergJava, query: str, table: str, ids: Sequence[int]) -> tuple[list[Any], float]:
    cpu_before = java.cpu_seconds()
    if query == ALL:  # no checksum: hashing every value would cost more than reading it
        java.spark.table(f"{CATALOG}.{table}").write.format("noop").mode("overwrite").save()
        return [], java.cpu_seconds() - cpu_before
    answer = [
        row for text in _statements(query, f"{CATALOG}.{table}", ids) for row in sorted(java.spark.sql(text).collect())
    ]
    return answer, java.cpu_seconds() - cpu_before


def _statements(query: str, table: str, ids: Sequence[int]) -> list[str]:
    return {
        GROUPS: [f"select returnflag, shipmode, count(*), sum(quantity) from {table} group by all"],
        POINTS: [f"select * from {table} where id = {key}" for key in ids],
    }[query]
