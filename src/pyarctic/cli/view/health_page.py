"""The table of `arctic table health`, its summary, and its progress bar."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyarctic.cli.session import shows_progress
from pyarctic.cli.view.columns import Column
from pyarctic.units import format_bytes, format_count

if TYPE_CHECKING:
    from rich.progress import Progress

    from pyarctic.optimizing import HealthListener, TableHealth

HEALTH_COLUMNS = (
    Column("table", "Table", priority=0, identity=True, fit="middle"),
    Column("score", "Health", "number", priority=0),
    Column("problem", "What hurts", priority=0, fit="wrap", optional=True),
    Column("files", "Files", "number", priority=1),
    Column("read_bytes", "To read", "bytes", priority=1, optional=True),
    Column("tasks", "Tasks", "count", priority=2, optional=True),
    Column("bytes", "Size", "bytes", priority=3),
    Column("kind", "Kind", priority=4),
    Column("cure", "Cure", priority=5, fit="wrap", optional=True),
)


def health_row(health: TableHealth) -> dict[str, Any]:
    """The row of a table: its worst part, and what optimizing would take."""
    if health.error is not None:
        return {"table": health.table, "problem": f"error[{health.error['code']}]"}
    worst = health.deductions[0] if health.deductions else None
    more = len(health.deductions) - 1
    return {
        "table": health.table,
        "score": f"{health.score:g}",
        "problem": worst and worst.detail + (f" (and {more} more)" if more else ""),
        "files": _files(health),
        "read_bytes": health.read_bytes if health.tasks else None,
        "tasks": health.tasks or None,
        "bytes": health.bytes,
        "kind": health.kind,
        "cure": worst and worst.cure,
    }


def _files(health: TableHealth) -> str:
    """The number of data and change files, and how many there would be after `optimize`."""
    count = health.data_files + health.change_files
    return f"{count:,} → {count - health.files_in + health.files_out:,}" if health.tasks else format_count(count)


def summarize(tables: Sequence[TableHealth]) -> str:
    """How many tables need optimizing, and how many could not be evaluated."""
    due = [table for table in tables if table.tasks]
    failed = sum(table.error is not None for table in tables)
    parts = []
    if due:
        verb = "needs" if len(due) == 1 else "need"
        size = format_bytes(sum(table.read_bytes for table in due))
        parts.append(f"{format_count(len(due))} {verb} optimizing ({size} to read)")
    elif tables:
        parts.append("none needs optimizing")
    if failed:
        parts.append(f"{format_count(failed)} could not be evaluated")
    return "; ".join(parts)


def error_notes(tables: Sequence[TableHealth]) -> Iterator[str]:
    """The errors of tables that could not be evaluated."""
    for table in tables:
        if table.error is not None:
            detail, hint = table.error["detail"], table.error["hint"]
            about = "" if table.table in detail else f"{table.table}: "
            yield f"error[{table.error['code']}]: {about}{detail}" + (f" {hint}" if hint else "")


@contextmanager
def watch_health() -> Iterator[HealthListener | None]:
    """Yield a listener that shows a progress bar on a terminal; else None."""
    if not shows_progress():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as display:
        yield _HealthBar(display)


class _HealthBar:
    """A bar over the tables."""

    def __init__(self, display: Progress) -> None:
        self._display = display
        self._bar: Any = display.add_task("listing tables", total=None)

    def found(self, tables: int) -> None:
        self._display.update(self._bar, description="evaluating tables", total=tables)

    def evaluated(self, health: TableHealth) -> None:
        self._display.update(self._bar, description=health.table, advance=1)
