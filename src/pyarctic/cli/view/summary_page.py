"""The tables that close `arctic table explain` and `optimize` for several tables: one row for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyarctic.cli.view.columns import Column
from pyarctic.cli.view.facts import format_span
from pyarctic.cli.view.report_page import describe_outcome

if TYPE_CHECKING:
    from pyarctic.cli.several import Outcome
    from pyarctic.optimizing import Report
    from pyarctic.optimizing.plan import Explanation

_TABLE = Column("table", "Table", priority=0, identity=True, fit="middle")
_ERROR = Column("error", "Error", priority=0, optional=True)
REPORT_COLUMNS = (
    _TABLE,
    Column("outcome", "Outcome", priority=0, fit="wrap"),
    Column("files_before", "Files", "count", priority=1),
    Column("files_after", "After", "count", priority=1),
    Column("health_before", "Health", "number", priority=2),
    Column("health_after", "After", "number", priority=2),
    Column("duration", "Duration", "number", priority=3),
    _ERROR,
)
EXPLANATION_COLUMNS = (
    _TABLE,
    Column("health", "Health", "number", priority=0),
    Column("partitions_due", "Due", "count", priority=1),
    Column("tasks", "Tasks", "count", priority=0),
    Column("files_in", "Files in", "count", priority=1),
    Column("files_out", "Out", "count", priority=1),
    Column("read_bytes", "Read", "bytes", priority=2),
    _ERROR,
)


def report_rows(outcomes: Sequence[Outcome[Report]]) -> Iterator[dict[str, Any]]:
    """One row for each table that was to be optimized."""
    for outcome in outcomes:
        report = outcome.result
        if report is None:
            yield {"table": outcome.table, "outcome": "failed", "error": error_code(outcome)}
            continue
        yield {
            "table": outcome.table,
            "outcome": describe_outcome(report, brief=True),
            "files_before": report.before.data_files + report.before.change_files,
            "files_after": report.after.data_files + report.after.change_files,
            "health_before": f"{report.health_before.score:g}",
            "health_after": f"{report.health_after.score:g}",
            "duration": format_span(report.wall_seconds),
            "error": report.failures[0].code if report.failures else None,
        }


def explanation_rows(outcomes: Sequence[Outcome[Explanation]]) -> Iterator[dict[str, Any]]:
    """One row for each table that was explained."""
    for outcome in outcomes:
        explanation = outcome.result
        if explanation is None:
            yield {"table": outcome.table, "error": error_code(outcome)}
            continue
        expected = explanation.expected
        yield {
            "table": outcome.table,
            "health": f"{explanation.health.score:g}",
            "partitions_due": explanation.partitions_needy,
            "tasks": len(explanation.tasks),
            "files_in": expected.get("data_files_in", 0) + expected.get("change_files_in", 0),
            "files_out": expected.get("data_files_out", 0),
            "read_bytes": expected.get("read_bytes", 0),
        }


def error_code(outcome: Outcome[Any]) -> str | None:
    """The code of the error of a table; its text has been printed before."""
    return None if outcome.problem is None else str(outcome.problem["code"])
