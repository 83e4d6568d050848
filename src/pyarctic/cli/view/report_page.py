"""The pages of `arctic table optimize` and `arctic table rollback`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyarctic.cli.view.columns import Column
from pyarctic.cli.view.facts import facts_section, format_health, format_span, partition_label
from pyarctic.cli.view.output import Frame, Section
from pyarctic.units import format_bytes, format_count, format_quantity

if TYPE_CHECKING:
    from pyarctic.optimizing import Report
    from pyarctic.optimizing.commit import Rollback

CHANGE_COLUMNS = (
    Column("what", "", priority=0),
    Column("before", "Before", "number", priority=0),
    Column("after", "After", "number", priority=0),
)
PREDICTION_COLUMNS = (
    Column("what", "", priority=0),
    Column("predicted", "Predicted", "number", priority=0),
    Column("actual", "Actual", "number", priority=0),
)
FAILURE_COLUMNS = (
    Column("task", "Task", "count", priority=0),
    Column("partition", "Partition", priority=2),
    Column("code", "Code", priority=3),
    Column("detail", "Error", priority=0, fit="wrap"),
    Column("hint", "Hint", priority=0, fit="wrap", optional=True),
)
_MAX_PARTITIONS_NAMED = 10


def render_report(report: Report, failed: Sequence[str]) -> Iterator[Section]:
    """Yield what was done and its cost, the table before and after, prediction and actual figures, and failed tasks.

    `failed` are the partitions of the failed tasks.
    """
    yield facts_section(None, _header_facts(report))
    if report.changed:
        yield Section(title="Table", frame=Frame(columns=CHANGE_COLUMNS, rows=list(_change_rows(report))))
    if report.changed and report.predicted.get("data_files_in"):
        yield Section(title="Rewriting", frame=Frame(columns=PREDICTION_COLUMNS, rows=list(_prediction_rows(report))))
    failures = [
        {
            "task": failure.task,
            "partition": partition_label(partition),
            "code": failure.code,
            "detail": failure.detail,
            "hint": failure.hint,
        }
        for failure, partition in zip(report.failures, failed, strict=True)
    ]
    yield Section(title="Failed", frame=Frame(columns=FAILURE_COLUMNS, rows=failures))


def idle_notes(report: Report, *, kind: str) -> Iterator[str]:
    """Yield what to do if the table is not at its best, but no rule asks for anything; nothing if a `kind` was given."""
    is_idle = not (report.tasks_planned or report.changed or report.held_back or report.waiting_changes)
    if kind == "auto" and is_idle and report.health_before.score < 100:
        yield f"no rule is met yet: see `arctic table explain {report.table}`; --kind minor, major or full needs no rule"


def closing_notes(report: Report) -> Iterator[str]:
    """Yield closing notes: partitions held back or left out, commits rolled back, manifests merged, files removed, tasks
    dropped or failed."""
    if report.held_back:
        partitions = ", ".join(partition_label(path) for path in report.held_back[:_MAX_PARTITIONS_NAMED])
        more = len(report.held_back) - _MAX_PARTITIONS_NAMED
        text = f"{format_quantity(len(report.held_back), 'partition')} held back for concurrent writers: {partitions}"
        yield text + (f" and {more:,} more" if more > 0 else "")
    if report.rolled_back:
        commits = format_quantity(len(report.rolled_back), "commit")
        yield f"{commits} rolled back in favour of another writer; optimize again"
    if report.change_manifests_merged:
        yield f"{format_quantity(report.change_manifests_merged, 'manifest')} of the change store merged"
    if report.leftovers_removed:
        yield f"{format_quantity(report.leftovers_removed, 'file')} of killed processes removed"
    if report.left_out:
        yield f"{format_quantity(report.left_out, 'partition')} left for the next process"
    if report.foreign_files:
        yield f"{format_quantity(report.foreign_files, 'file')} of Base written by another engine"
    if report.waiting_changes:
        yield str(report.waiting_changes)
    if report.tasks_dropped:
        yield f"{format_quantity(report.tasks_dropped, 'task')} dropped: others replaced or still need their files"
    if report.failures:
        rest = "the other tasks are committed" if report.changed else "nothing was changed"
        yield f"{len(report.failures):,} of {format_quantity(report.tasks_planned, 'task')} failed; {rest}"


def render_rollback(rollback: Rollback) -> Section:
    """The target of a rollback, and the snapshots that leave the history of the table."""
    facts = (
        ("Table", rollback.table),
        ("From snapshot", str(rollback.from_snapshot_id)),
        ("To snapshot", str(rollback.to_snapshot_id)),
        ("Undone snapshots", ", ".join(str(snapshot) for snapshot in rollback.snapshots)),
        ("Outcome", "would be rolled back" if rollback.dry_run else "rolled back"),
    )
    return facts_section(None, facts)


def _header_facts(report: Report) -> Iterator[tuple[str, str]]:
    yield "Table", report.table
    yield "Outcome", describe_outcome(report)
    if not report.changed:
        yield "Health", format_health(report.health_before)
    if report.tasks_planned:
        parts = [f"{format_count(report.tasks_committed)} of {format_count(report.tasks_planned)} committed"]
        parts += [f"{report.tasks_dropped:,} dropped"] if report.tasks_dropped else []
        parts += [f"{len(report.failures):,} failed"] if report.failures else []
        yield "Tasks", ", ".join(parts)
    if report.snapshot_ids:
        yield "Snapshots", ", ".join(str(snapshot) for snapshot in report.snapshot_ids)
    if report.removed.change_files:
        files, rows = report.removed.change_files, report.removed.change_rows
        yield "Changes merged", f"{format_quantity(files, 'file')} with {format_quantity(rows, 'row')}"
    if report.removed.data_files or report.rebased_rows:
        copied = f"{format_count(report.rows_copied)} of them copied without decoding"
        yield "Rows rewritten", f"{format_count(report.added.rows)}, {copied}"
        yield "Deleted rows removed", format_count(report.rows_deleted)
        yield "Rows rebased", f"{format_count(report.rebased_rows)} deleted by concurrent writers"
    if report.tasks_planned:
        peak = f", peak memory of a task {format_bytes(report.peak_task_bytes)}" if report.peak_task_bytes else ""
        yield "Duration", f"{_format_seconds(report.wall_seconds)}, {_format_seconds(report.cpu_seconds)} of CPU{peak}"


def describe_outcome(report: Report, *, brief: bool = False) -> str:
    """What the process did, in a few words."""
    if not report.tasks_planned and not report.changed:
        return "nothing possible now" if report.held_back or report.waiting_changes else "nothing to do"
    how = ", ".join(report.kinds) or "dangling deletes"
    if not brief:
        how += f" on engine {report.engine}"
    if not report.changed:
        return f"not changed: {how}"
    return f"{'partly optimized' if report.failures else 'optimized'}: {how}"


def _change_rows(report: Report) -> Iterator[dict[str, Any]]:
    before, after = report.before, report.after
    yield _change_row("Data files", format_count(before.data_files), format_count(after.data_files))
    yield _change_row("Data", format_bytes(before.data_bytes), format_bytes(after.data_bytes))
    for field, label in (
        ("change_files", "Unmerged change files"),
        ("equality_delete_files", "Equality delete files"),
        ("position_delete_files", "Position delete files"),
        ("deletion_vectors", "Deletion vectors"),
    ):
        old, new = getattr(before, field), getattr(after, field)
        if old or new:
            yield _change_row(label, format_count(old), format_count(new))
    yield _change_row("Health", f"{report.health_before.score:g}", f"{report.health_after.score:g}")


def _change_row(what: str, before: str, after: str) -> dict[str, Any]:
    return {"what": what, "before": before, "after": after}


def _prediction_rows(report: Report) -> Iterator[dict[str, Any]]:
    predicted, removed, added = report.predicted, report.removed, report.added
    for label, key, actual, format_value in (
        ("Data files read", "data_files_in", removed.data_files, format_count),
        ("Data read", "read_bytes", removed.data_bytes, format_bytes),
        ("Data files written", "data_files_out", added.data_files, format_count),
        ("Data written", "written_bytes", added.data_bytes, format_bytes),
        ("Rows written", "rows_out", added.rows, format_count),
    ):
        yield {"what": label, "predicted": format_value(predicted[key]), "actual": format_value(actual)}
    yield {"what": "Commits", "predicted": predicted["commits"], "actual": len(report.snapshot_ids)}


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else format_span(seconds)
