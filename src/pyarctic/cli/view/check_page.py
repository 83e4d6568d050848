"""The page of `arctic table check`, and its progress bar."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyarctic.cli.session import shows_progress
from pyarctic.cli.view.columns import Column
from pyarctic.cli.view.facts import facts_section
from pyarctic.cli.view.output import Frame, Section
from pyarctic.units import format_quantity

if TYPE_CHECKING:
    from rich.progress import Progress

    from pyarctic.iceberg.check import CheckListener
    from pyarctic.tables.check import CheckReport, Repair

FINDING_COLUMNS = (
    Column("severity", "Severity", "state", priority=0),
    Column("store", "Store", priority=2),
    Column("title", "What", priority=0, fit="wrap"),
    Column("files", "Files", "count", priority=1),
    Column("rows", "Rows", "count", priority=1),
    Column("code", "Code", priority=3, identity=True),
)
PROBLEM_COLUMNS = (
    Column("code", "Code", priority=0, fit="keep"),
    Column("detail", "Detail", priority=0, fit="wrap"),
    Column("rows", "Rows", "count", priority=2, optional=True),
    Column("file_path", "File", priority=1, fit="middle", optional=True),
)
REPAIR_COLUMNS = (
    Column("code", "Code", priority=0, fit="keep"),
    Column("store", "Store", priority=2),
    Column("action", "Action", priority=0, fit="wrap"),
    Column("files", "Files", "count", priority=2),
    Column("rows", "Rows", "count", priority=2),
    Column("outcome", "Outcome", priority=0),
)


def render_check(report: CheckReport, max_rows: int) -> Iterator[Section]:
    """Yield the result, the findings, their files, what to do about them, and repairs; at most `max_rows` files unless it
    is 0."""
    findings = [finding.to_dict() for finding in report.findings]
    yield facts_section(None, _header_facts(report))
    # A finding without files concerns no file: 0 would look like a count.
    rows = [finding | {"files": finding["files"] or None} for finding in findings]
    yield Section(title="Findings", frame=Frame(columns=FINDING_COLUMNS, rows=rows))
    problems = [{"code": finding["code"], **problem} for finding in findings for problem in finding["problems"]]
    yield Section(title="Details", frame=Frame(columns=PROBLEM_COLUMNS, rows=problems[: max_rows or None]))
    yield facts_section("What to do", {finding["code"]: finding["hint"] for finding in findings}.items())
    repairs = [repair.to_dict() | {"outcome": _outcome(repair)} for repair in report.repairs]
    yield Section(title="Repairs", frame=Frame(columns=REPAIR_COLUMNS, rows=repairs))


def closing_notes(report: CheckReport, *, repairable: int, repair: bool, dry_run: bool, max_rows: int) -> Iterator[str]:
    """Yield closing notes: details that were left out, and what can or cannot be repaired."""
    problems = sum(finding.problems.height for finding in report.findings)
    if max_rows and problems > max_rows:
        yield f"{max_rows} of {problems:,} details; --limit 0 shows all"
    if dry_run:
        yield "dry run: nothing was changed"
    elif repair and not repairable:
        yield "nothing of this can be repaired without losing rows" if report.findings else "nothing to repair"
    elif repairable and not repair:
        findings = format_quantity(len(report.findings), "finding")
        yield f"{repairable} of {findings} can be repaired: --repair --dry-run shows how"


def _header_facts(report: CheckReport) -> Iterator[tuple[str, str]]:
    yield "Table", report.table
    counts = {severity: sum(f.severity == severity for f in report.findings) for severity in ("damage", "warning", "note")}
    parts = [f"{count} × {severity}" for severity, count in counts.items() if count]
    state = "damaged" if report.is_damaged else "repaired" if counts["damage"] else "sound"
    yield "Result", state + (f" ({', '.join(parts)})" if parts else "")
    snapshots = "all snapshots" if report.all_snapshots else "the current snapshot"
    rows = "with their rows" if report.rows_read else "without their rows"
    yield "Checked", f"{format_quantity(report.files_checked, 'file')} of {snapshots}, {rows}"


def _outcome(repair: Repair) -> str:
    return "would be done" if repair.snapshot_id is None else f"snapshot {repair.snapshot_id}"


@contextmanager
def watch_check(table: str) -> Iterator[CheckListener | None]:
    """Yield a listener that shows a progress bar on a terminal; else None."""
    if not shows_progress():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, expand=True) as display:
        yield _CheckBar(display, table)


class _CheckBar:
    """A bar that starts again with every step of the check."""

    def __init__(self, display: Progress, table: str) -> None:
        self._display = display
        self._table = table
        self._bar: Any = display.add_task(f"checking {table}", total=None)

    def started(self, what: str, files: int) -> None:
        self._display.reset(self._bar, description=f"checking {what} of {self._table}", total=files)

    def advanced(self, files: int) -> None:
        self._display.advance(self._bar, files)
