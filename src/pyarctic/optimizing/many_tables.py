"""Optimizing many tables, one after the other. An error of one does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyarctic._html import html_page, html_table
from pyarctic.optimizing.api import optimize_table
from pyarctic.optimizing.events import ProcessListener
from pyarctic.optimizing.execute.engine import Engine
from pyarctic.optimizing.options import Options
from pyarctic.optimizing.report import Report
from pyarctic.optimizing.table_health import describe_error
from pyarctic.tables import find_tables, open_table
from pyarctic.units import format_bytes, format_count

ListenerFactory = Callable[[str], ProcessListener | None]
"""Gives the listener of a table by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOutcome:
    """What came of optimizing one table: a report, or an error."""

    table: str
    """The full name; that of a catalog if its tables could not be listed."""
    report: Report | None = None
    error: dict[str, Any] | None = None
    """As `ArcticError.to_dict()`."""

    @property
    def is_failed(self) -> bool:
        """Whether the table, or a task of it, failed."""
        return self.error is not None or bool(self.report and self.report.failures)

    def to_dict(self) -> dict[str, Any]:
        """This outcome as a JSON document."""
        return {"table": self.table, "report": self.report and self.report.to_dict(), "error": self.error}

    def __str__(self) -> str:
        return f"{self.table}: {self.error['code']}: {self.error['detail']}" if self.error else str(self.report)


class Outcomes(Sequence[TableOutcome]):
    """The outcomes of many tables, in the order in which they were optimized."""

    def __init__(self, outcomes: Sequence[TableOutcome]) -> None:
        self._outcomes = tuple(outcomes)

    def __getitem__(self, index: Any) -> Any:
        return self._outcomes[index]

    def __len__(self) -> int:
        return len(self._outcomes)

    def __iter__(self) -> Iterator[TableOutcome]:
        return iter(self._outcomes)

    @property
    def failures(self) -> tuple[TableOutcome, ...]:
        """Tables that failed, or of which a task failed."""
        return tuple(outcome for outcome in self._outcomes if outcome.is_failed)

    def summary(self) -> dict[str, int]:
        """The sums over all tables."""
        reports = [outcome.report for outcome in self._outcomes if outcome.report is not None]
        return {
            "tables": len(self),
            "changed": sum(report.changed for report in reports),
            "failed": len(self.failures),
            "data_files_before": sum(report.before.data_files for report in reports),
            "data_files_after": sum(report.after.data_files for report in reports),
            "delete_files_before": sum(report.before.delete_files for report in reports),
            "delete_files_after": sum(report.after.delete_files for report in reports),
            "rewritten_bytes": sum(report.removed.data_bytes for report in reports),
        }

    def to_dict(self) -> dict[str, Any]:
        """These outcomes as a JSON document."""
        return {"tables": [outcome.to_dict() for outcome in self._outcomes], "summary": self.summary()}

    def __repr__(self) -> str:
        return "\n".join([*map(str, self._outcomes), self._headline()])

    def _repr_html_(self) -> str:
        rows = [(outcome.table, str(outcome).splitlines()[0]) for outcome in self._outcomes]
        return html_page(self._headline(), html_table(("table", "outcome"), rows))

    def _headline(self) -> str:
        figures = self.summary()
        before, after = (format_count(figures[f"data_files_{when}"]) for when in ("before", "after"))
        failed = f", {format_count(figures['failed'])} failed" if figures["failed"] else ""
        return (
            f"{format_count(len(self))} tables: {format_count(figures['changed'])} optimized{failed}; "
            f"data files {before} → {after}, rewrote {format_bytes(figures['rewritten_bytes'])}"
        )


def optimize_tables(
    pattern: str | Sequence[str], engine: Engine, options: Options, listener_for: ListenerFactory | None = None
) -> Outcomes:
    """Optimize all tables that match, one after the other: each uses all workers."""
    found = find_tables(pattern)
    outcomes = [TableOutcome(table=catalog, error=describe_error(error)) for catalog, error in found.failures.items()]
    for name in found.names:
        try:
            report = optimize_table(open_table(name), engine, options, listener_for(name) if listener_for else None)
            outcomes.append(TableOutcome(table=name, report=report))
        except Exception as error:  # noqa: BLE001  # one broken table must not stop the others
            outcomes.append(TableOutcome(table=name, error=describe_error(error)))
    return Outcomes(outcomes)
