"""What Spark spends on reading a table through Iceberg Java."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.healtables import CATALOG
from benchmarks.javaside import JavaSide

ALL, GROUPS, POINTS = "all columns", "group by two", "point reads"
QUERIES = (ALL, GROUPS, POINTS)


def compare(java: JavaSide, tables: Sequence[str], ids: Sequence[int], rounds: int) -> list[dict[str, float]]:
    """CPU seconds by query for each of some tables that hold the same rows: in turns, the middle of some rounds, after a
    first one that does not count."""
    spent: list[dict[str, float]] = [{} for _ in tables]
    for query in QUERIES:
        seen = [[_ask(java, query, table, ids) for table in tables] for _ in range(1 + rounds)]
        answers = {repr(answer) for round_ in seen for answer, _ in round_}
        assert len(answers) == 1, f"{query}: not the same rows in {tables}: {answers}"
        for number, costs in enumerate(spent):
            costs[query] = median(round_[number][1] for round_ in seen[1:])
    return spent


def _ask(java: JavaSide, query: str, table: str, ids: Sequence[int]) -> tuple[list[Any], float]:
    spent = java.cpu_seconds()
    if query == ALL:  # into nothing: hashing every value would cost more than reading it, before and after
        java.spark.table(f"{CATALOG}.{table}").write.format("noop").mode("overwrite").save()
        return [], java.cpu_seconds() - spent
    answer = [
        row for text in _statements(query, f"{CATALOG}.{table}", ids) for row in sorted(java.spark.sql(text).collect())
    ]
    return answer, java.cpu_seconds() - spent


def _statements(query: str, table: str, ids: Sequence[int]) -> list[str]:
    return {
        GROUPS: [f"select returnflag, shipmode, count(*), sum(quantity) from {table} group by all"],
        POINTS: [f"select * from {table} where id = {key}" for key in ids],
    }[query]
