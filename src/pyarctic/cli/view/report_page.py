"""The pages that `arctic table optimize` and `arctic table rollback` give people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyarctic.cli.view.columns import Column
from pyarctic.cli.view.explain_page import facts, health_text, place, span
from pyarctic.cli.view.output import Frame, Section
from pyarctic.units import format_bytes, format_count

if TYPE_CHECKING:
    from pyarctic.optimizing import Report
    from pyarctic.optimizing.commit import Rollback

CHANGE_COLUMNS = (
    Column("what", "", priority=0),
    Column("before", "Before", "number", priority=0),
    Column("after", "After", "number", priority=0),
)
FIGURE_COLUMNS = (
    Column("what", "", priority=0),
    Column("predicted", "Predicted", "number", priority=0),
    Column("actual", "Actual", "number", priority=0),
)
FAILURE_COLUMNS = (
    Column("task", "Task", "count", priority=0),
    Column("partition", "Partition", priority=2),
    Column("code", "Code", priority=3),
    Column("detail", "What happened", priority=0),
    Column("hint", "Hint", priority=0),
)
_MOST_PLACES = 10


def reported(report: Report, failed: Sequence[str]) -> Iterator[Section]:
    """What was done and what it cost; the table before and after; how well that was foreseen; what did not work out.

    `failed` are the partitions of the tasks that failed."""
    yield facts(None, _header(report))
    if report.changed:
        yield Section(title="Table", frame=Frame(columns=CHANGE_COLUMNS, rows=list(_changes(report))))
    if report.changed and report.predicted.get("data_files_in"):
        yield Section(title="Rewriting", frame=Frame(columns=FIGURE_COLUMNS, rows=list(_figures(report))))
    failures = [
        {
            "task": failure.task,
            "partition": place(partition),
            "code": failure.code,
            "detail": failure.detail,
            "hint": failure.hint,
        }
        for failure, partition in zip(report.failures, failed, strict=True)
    ]
    yield Section(title="Failed", frame=Frame(columns=FAILURE_COLUMNS, rows=failures))


def closing(report: Report) -> Iterator[str]:
    """What is left to say: what was held back, dropped or failed."""
    if report.held_back:
        shown = ", ".join(place(path) for path in report.held_back[:_MOST_PLACES])
        more = len(report.held_back) - _MOST_PLACES
        text = f"{_count(len(report.held_back), 'partition')} held back, because others change rows there: {shown}"
        yield text + (f" and {more:,} more" if more > 0 else "")
    if report.left_out:
        yield f"{_count(report.left_out, 'partition')} left for the next run"
    if report.tasks_dropped:
        yield f"{_count(report.tasks_dropped, 'task')} in vain: others replaced or still need their files"
    if report.failures:
        rest = "what the others did is in the table" if report.changed else "nothing was changed"
        yield f"{len(report.failures):,} of {_count(report.tasks_planned, 'task')} failed; {rest}"


def undone(done: Rollback) -> Iterator[Section]:
    """Where a table goes, and what leaves its history."""

    def pairs() -> Iterator[tuple[str, str]]:
        yield "Table", done.table
        yield "From snapshot", str(done.from_snapshot_id)
        yield "To snapshot", str(done.to_snapshot_id)
        yield "Leave its history", ", ".join(str(snapshot) for snapshot in done.snapshots)
        yield "Outcome", "would be rolled back" if done.dry_run else "rolled back"

    yield facts(None, pairs())


def _header(report: Report) -> Iterator[tuple[str, str]]:
    yield "Table", report.table
    yield "Outcome", _outcome(report)
    if not report.changed:
        yield "Health", health_text(report.health_before)
    if report.tasks_planned:
        # A run that went round again has done more than it planned at first.
        planned = f" of {format_count(report.tasks_planned)}" if report.tasks_committed <= report.tasks_planned else ""
        parts = [f"{format_count(report.tasks_committed)}{planned} committed"]
        parts += [f"{report.tasks_dropped:,} in vain"] if report.tasks_dropped else []
        parts += [f"{len(report.failures):,} failed"] if report.failures else []
        yield "Tasks", ", ".join(parts)
    if report.snapshot_ids:
        yield "Snapshots", ", ".join(str(snapshot) for snapshot in report.snapshot_ids)
    if report.removed.change_files:
        files, rows = format_count(report.removed.change_files), format_count(report.removed.change_rows)
        yield "Changes merged", f"{files} files with {rows} rows"
    if report.removed.data_files or report.rebased_rows:
        copied = f"{format_count(report.rows_copied)} of them copied undecoded"
        yield "Rows rewritten", f"{format_count(report.added.rows)}, {copied}"
        yield "Dead rows removed", format_count(report.rows_deleted)
        yield "Rows rebased", f"{format_count(report.rebased_rows)} that others deleted meanwhile"
    if report.tasks_planned:
        peak = f", {format_bytes(report.peak_task_bytes)} of memory for a task at most" if report.peak_task_bytes else ""
        yield "Took", f"{_seconds(report.wall_seconds)}, {_seconds(report.cpu_seconds)} of CPU{peak}"


def _outcome(report: Report) -> str:
    if not report.tasks_planned and not report.changed:
        return "nothing can be done now" if report.held_back else "nothing to do"
    how = f"{', '.join(report.kinds) or 'idle deletes'} on engine {report.engine}"
    if not report.changed:
        return f"not changed: {how}"
    return f"{'partly optimized' if report.failures else 'optimized'}: {how}"


def _changes(report: Report) -> Iterator[dict[str, Any]]:
    before, after = report.before, report.after
    yield _change("Data files", format_count(before.data_files), format_count(after.data_files))
    yield _change("Data", format_bytes(before.data_bytes), format_bytes(after.data_bytes))
    for field, word in (
        ("change_files", "Files of changes not merged"),
        ("equality_delete_files", "Equality delete files"),
        ("position_delete_files", "Position delete files"),
        ("deletion_vectors", "Deletion vectors"),
    ):
        old, new = getattr(before, field), getattr(after, field)
        if old or new:
            yield _change(word, format_count(old), format_count(new))
    yield _change("Health", f"{report.health_before.score:g}", f"{report.health_after.score:g}")


def _change(what: str, before: str, after: str) -> dict[str, Any]:
    return {"what": what, "before": before, "after": after}


def _figures(report: Report) -> Iterator[dict[str, Any]]:
    predicted, removed, added = report.predicted, report.removed, report.added
    for what, key, actual, shown in (
        ("Data files read", "data_files_in", removed.data_files, format_count),
        ("Data read", "read_bytes", removed.data_bytes, format_bytes),
        ("Data files written", "data_files_out", added.data_files, format_count),
        ("Data written", "written_bytes", added.data_bytes, format_bytes),
        ("Rows written", "rows_out", added.rows, format_count),
    ):
        yield {"what": what, "predicted": shown(predicted[key]), "actual": shown(actual)}


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else span(seconds)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
