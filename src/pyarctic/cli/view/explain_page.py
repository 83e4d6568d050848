"""The page of `arctic table explain`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyarctic.cli.view.columns import WIDE_ONLY, Column
from pyarctic.cli.view.facts import facts_section, format_health, format_span, partition_label
from pyarctic.cli.view.output import Frame, Section
from pyarctic.units import format_bytes, format_count, format_quantity

if TYPE_CHECKING:
    from pyarctic.optimizing.plan import Explanation, PartitionRow, RuleRow, TaskRow, TreeRow

NOTE_COLUMNS = (Column("note", "Note", priority=0, fit="wrap"),)
RULE_COLUMNS = (
    Column("rule", "Rule", priority=0, fit="keep"),
    Column("kind", "Leads to", priority=2),
    Column("measured", "Measured", "number", priority=0),
    Column("threshold", "Threshold", "number", priority=0),
    Column("met", "Met", priority=0, fit="keep"),
    Column("next", "Next", "time", priority=1),
    Column("doc", "Measures", priority=WIDE_ONLY),
)
PARTITION_COLUMNS = (
    Column("partition", "Partition", priority=0),
    Column("kind", "Kind", priority=0, fit="keep"),
    Column("because", "Reason", priority=1),
    Column("waits", "Waits", priority=1, optional=True),
    Column("health", "Health", "number", priority=2),
    Column("data_files", "Files", "count", priority=3),
    Column("data_bytes", "Data", "bytes", priority=5),
    Column("change_files", "Changes", "count", priority=2, optional=True),
    Column("fragments", "Fragments", "count", priority=2),
    Column("undersized", "Undersized", "count", priority=3),
    Column("equality_delete_files", "Equality deletes", "count", priority=4),
    Column("position_delete_files", "Position deletes", "count", priority=4),
    Column("dead_rows", "Deleted rows", "count", priority=6),
)
TASK_COLUMNS = (
    Column("id", "Task", "count", priority=0),
    Column("action", "Action", priority=1),
    Column("kind", "Kind", priority=3),
    Column("partition", "Partition", priority=0),
    Column("data_files", "Files in", "count"),
    Column("files_out", "Out", "count"),
    Column("input_bytes", "Read", "bytes", priority=2),
    Column("delete_files", "Deletes", "count", priority=4),
)
SORTED_COLUMN = Column("sorted", "Sorted", priority=5)
KEYED_COLUMNS = (Column("node", "Node", "count", priority=0), Column("change_files", "Changes in", "count"))
TREE_COLUMNS = (
    Column("partition", "Partition", priority=3),
    Column("node", "Node", "count", priority=0),
    Column("base_files", "Base", "count", priority=0),
    Column("insert_files", "Inserts", "count", priority=0),
    Column("delete_files", "Deletes", "count", priority=0),
    Column("bytes", "Size", "bytes", priority=2),
    Column("root", "Sub-tree", "count", priority=1),
    Column("groups", "Key ranges", "count", priority=1),
    Column("targets", "Written to", priority=0),
)


def render_explanation(explanation: Explanation, max_rows: int) -> Iterator[Section]:
    """Yield the health of the table, the rules, the partitions that are due, the tasks, what to expect, and notes.

    `max_rows` limits tasks and tree nodes; 0 is all.
    """
    yield facts_section(None, _header_facts(explanation))
    if explanation.partitions:
        worst = explanation.partitions[0]
        title = f"Rules for {partition_label(worst.partition)}" if explanation.partitions_total > 1 else "Rules"
        yield Section(title=title, frame=Frame(columns=RULE_COLUMNS, rows=map(_rule_row, worst.rules)))
    due = [row for row in explanation.partitions if row.kind]
    yield Section(title="Partitions", frame=Frame(columns=PARTITION_COLUMNS, rows=map(_partition_row, due)))
    last = max_rows or None
    if explanation.tree:
        yield Section(title="Tree", frame=Frame(columns=TREE_COLUMNS, rows=map(_node_row, explanation.tree[:last])))
    yield _tasks_section(explanation.tasks[:last], is_keyed=bool(explanation.tree))
    yield facts_section("Expected", _expected_facts(explanation))
    yield facts_section(
        "Waiting", ((partition_label(row.partition), row.waits) for row in explanation.partitions if row.waits)
    )
    notes = [{"note": text} for text in explanation.notes]
    yield Section(title="Notes", plain=True, frame=Frame(columns=NOTE_COLUMNS, rows=notes))


def _tasks_section(tasks: Sequence[TaskRow], *, is_keyed: bool) -> Section:
    columns = [*TASK_COLUMNS]
    if any(task.sort for task in tasks):
        columns.append(SORTED_COLUMN)
    if is_keyed:
        columns += KEYED_COLUMNS
    return Section(title="Tasks", frame=Frame(columns=columns, rows=map(_task_row, tasks)))


def _task_row(task: TaskRow) -> dict[str, Any]:
    return {
        "id": task.id,
        "action": task.action,
        "kind": task.kind,
        "partition": partition_label(task.partition),
        "data_files": task.data_files,
        "files_out": task.files_out if task.action == "merge" else None,
        "input_bytes": task.input_bytes,
        "delete_files": task.delete_files,
        "sorted": "yes" if task.sort else None,
        "node": task.node,
        "change_files": task.change_files,
    }


def _header_facts(explanation: Explanation) -> Iterator[tuple[str, str]]:
    yield "Table", explanation.table
    yield "Health", format_health(explanation.health)
    yield "Snapshot", str(explanation.snapshot_id or "none yet")
    if explanation.partitions_total > 1:
        yield "Partitions", f"{format_count(explanation.partitions_total)}, {_format_due(explanation.partitions_needy)}"
    yield "Now", _summarize(explanation)


def _format_due(count: int) -> str:
    return f"{format_count(count) if count else 'none'} due"


def _summarize(explanation: Explanation) -> str:
    if explanation.tasks:
        return format_quantity(len(explanation.tasks), "task")
    if explanation.expected.get("dangling_delete_files"):
        return "only dangling deletes would be removed"
    is_waiting = explanation.waiting_changes is not None or any(row.kind for row in explanation.partitions)
    return "nothing can be done" if is_waiting else "nothing to do"


def _rule_row(rule: RuleRow) -> dict[str, Any]:
    measured = None if rule.measured is None else _format_amount(rule.measured, rule)
    row = {"rule": rule.name, "kind": rule.kind, "measured": measured, "doc": rule.doc}
    if rule.threshold is None:
        return {**row, "threshold": "off", "met": "off", "next": None}
    reached = rule.measured is not None and rule.measured >= rule.threshold
    met = "met" if rule.met else "reached, no gain" if reached else "not met"
    return {
        **row,
        "threshold": _format_amount(rule.threshold, rule),
        "met": met,
        "next": _next_firing(rule, reached=reached),
    }


def _next_firing(rule: RuleRow, *, reached: bool) -> str | datetime | None:
    if rule.met:
        return "now"
    if reached:
        return None
    return rule.next_at or "not by time"


def _format_amount(value: float, rule: RuleRow) -> str:
    from pyarctic.optimizing.plan import format_measure

    return format_span(value) if rule.unit == "seconds" else format_measure(value, rule.unit)


def _node_row(row: TreeRow) -> dict[str, Any]:
    nodes = [*map(str, row.targets[:4]), *(["…"] if len(row.targets) > 4 else [])]
    targets = "itself" if row.targets == (row.node,) else f"{', '.join(nodes)} of {row.buckets}"
    return {**row.to_dict(), "partition": partition_label(row.partition), "targets": targets}


def _partition_row(row: PartitionRow) -> dict[str, Any]:
    return {
        "partition": partition_label(row.partition),
        "kind": row.kind,
        "because": ", ".join(row.causes) or None,
        "waits": "waits" if row.waits else None,
        "health": f"{row.health:g}",
        "data_files": row.data_files,
        "data_bytes": row.data_bytes,
        "change_files": row.change_files or None,
        "fragments": row.fragments,
        "undersized": row.undersized,
        "equality_delete_files": row.equality_delete_files,
        "position_delete_files": row.position_delete_files,
        "dead_rows": row.dead_rows,
    }


def _expected_facts(explanation: Explanation) -> Iterator[tuple[str, str]]:
    figures = explanation.expected
    if figures.get("data_files_in") or figures.get("change_files_in"):
        yield (
            "Data files",
            f"{format_count(figures['data_files_in'])} → {explanation.format_files_out()}",
        )
        yield "Data", f"{format_bytes(figures['read_bytes'])} → about {format_bytes(figures['written_bytes'])}"
        yield "Rows", f"about {format_count(figures['rows_out'])} written"
    if figures.get("change_files_in"):
        yield "Changes", f"{format_quantity(figures['change_files_in'], 'file')} merged into the base store"
    if figures.get("data_files_converted"):
        yield (
            "Converted",
            f"equality deletes of {format_quantity(figures['data_files_converted'], 'data file')} to position deletes",
        )
    if figures.get("commits"):
        yield "Commits", format_count(figures["commits"])
    if figures.get("dangling_delete_files"):
        yield "Removed", format_quantity(figures["dangling_delete_files"], "dangling delete file")
