"""The page that `arctic table explain` gives people."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyarctic.cli.view.columns import Column
from pyarctic.cli.view.output import Frame, Section
from pyarctic.units import format_bytes, format_count

if TYPE_CHECKING:
    from pyarctic.optimizing import Health
    from pyarctic.optimizing.plan import Explanation, PartitionRow, RuleRow, TreeRow

FACT = (Column("field", "Field", priority=0), Column("value", "Value", "time", priority=0))
NOTE = (Column("note", "Note", priority=0),)
RULE_COLUMNS = (
    Column("rule", "Rule", priority=0),
    Column("kind", "Leads to", priority=2),
    Column("measured", "Measured", "number", priority=0),
    Column("threshold", "Threshold", "number", priority=0),
    Column("met", "Met", priority=0),
    Column("next", "Next", "time", priority=1),
    Column("doc", "Measures", priority=4),
)
PARTITION_COLUMNS = (
    Column("partition", "Partition", priority=0),
    Column("kind", "Kind", priority=0),
    Column("because", "Because", priority=1),
    Column("waits", "Waits", priority=1),
    Column("health", "Health", "number", priority=2),
    Column("data_files", "Files", "count", priority=3),
    Column("data_bytes", "Data", "bytes", priority=5),
    Column("change_files", "Changes", "count", priority=2),
    Column("fragments", "Fragments", "count", priority=2),
    Column("undersized", "Undersized", "count", priority=3),
    Column("equality_delete_files", "Equality deletes", "count", priority=4),
    Column("position_delete_files", "Position deletes", "count", priority=4),
    Column("dead_rows", "Dead rows", "count", priority=6),
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
SORTED = Column("sorted", "Sorted", priority=5)
KEYED = (Column("node", "Node", "count", priority=0), Column("change_files", "Changes in", "count"))
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
_SPANS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def explained(found: Explanation, most: int) -> Iterator[Section]:
    """How the table is, the rules, the partitions chosen, the tasks, what they come to, and what else is worth knowing."""
    yield facts(None, _header(found))
    if found.partitions:
        worst = found.partitions[0]
        title = f"Rules for {place(worst.partition)}" if found.partitions_total > 1 else "Rules"
        yield Section(title=title, frame=Frame(columns=RULE_COLUMNS, rows=[_rule(rule) for rule in worst.rules]))
    needy = [row for row in found.partitions if row.kind]
    yield Section(title="Partitions", frame=Frame(columns=PARTITION_COLUMNS, rows=[_partition(row) for row in needy]))
    tasks = found.tasks[:most] if most else found.tasks
    rows = [
        {
            "id": task.id,
            "action": task.action,
            "kind": task.kind,
            "partition": place(task.partition),
            "data_files": task.data_files,
            "files_out": task.files_out if task.action == "merge" else None,
            "input_bytes": task.input_bytes,
            "delete_files": task.delete_files,
            "sorted": "yes" if task.sort else None,
            "node": task.node,
            "change_files": task.change_files,
        }
        for task in tasks
    ]
    columns = (*TASK_COLUMNS, SORTED) if any(task.sort for task in tasks) else TASK_COLUMNS
    if found.tree:
        columns = (*columns, *KEYED)
        nodes = found.tree[:most] if most else found.tree
        yield Section(title="Tree", frame=Frame(columns=TREE_COLUMNS, rows=[_node(row) for row in nodes]))
    yield Section(title="Tasks", frame=Frame(columns=columns, rows=rows))
    yield facts("Expected", _expected(found))
    waiting = [(place(row.partition), row.waits) for row in needy if row.waits]
    yield facts("Waiting", iter(waiting))
    yield Section(title="Notes", plain=True, frame=Frame(columns=NOTE, rows=[{"note": text} for text in found.notes]))


def facts(title: str | None, pairs: Iterator[tuple[str, Any]]) -> Section:
    """Pairs of a word and what there is to say about it."""
    rows = [{"field": field, "value": value} for field, value in pairs]
    return Section(title=title, plain=True, frame=Frame(columns=FACT, rows=rows))


def place(partition: str) -> str:
    """A partition as people call it."""
    return partition or "(whole table)"


def health_text(health: Health) -> str:
    """The score, and what each part takes away."""
    parts = (("small files", health.small_files), ("equality deletes", health.equality_deletes))
    losses = [f"{word} −{loss:g}" for word, loss in (*parts, ("position deletes", health.position_deletes)) if loss]
    return f"{health.score:g}/100" + (f" ({', '.join(losses)})" if losses else "")


def span(seconds: float) -> str:
    """How long, in its two largest units: `1 h 30 min`."""
    rest = round(seconds)
    words: list[tuple[int, str]] = []
    for length, unit in _SPANS:
        amount, rest = divmod(rest, length)
        if amount or words:
            words.append((amount, unit))
    return " ".join(f"{amount} {unit}" for amount, unit in words[:2] if amount) or "0 s"


def _header(found: Explanation) -> Iterator[tuple[str, str]]:
    yield "Table", found.table
    yield "Health", health_text(found.health)
    yield "Snapshot", str(found.snapshot_id or "none yet")
    if found.partitions_total > 1:
        yield "Partitions", f"{format_count(found.partitions_total)}, {_needing(found.partitions_needy)}"
    yield "Now", _verdict(found)


def _needing(needy: int) -> str:
    return f"{format_count(needy) if needy else 'none'} need{'s' if needy == 1 else ''} something"


def _verdict(found: Explanation) -> str:
    if found.tasks:
        count = len(found.tasks)
        return f"{format_count(count)} task{'' if count == 1 else 's'}"
    if found.expected.get("dangling_delete_files"):
        return "only deletes that hit nothing would be removed"
    return "nothing can be done" if any(row.kind for row in found.partitions) else "nothing to do"


def _rule(rule: RuleRow) -> dict[str, Any]:
    measured = None if rule.measured is None else _amount(rule.measured, rule)
    row = {"rule": rule.name, "kind": rule.kind, "measured": measured, "doc": rule.doc}
    if rule.threshold is None:
        return {**row, "threshold": "off", "met": "off", "next": None}
    reached = rule.measured is not None and rule.measured >= rule.threshold
    met = "met" if rule.met else "reached, nothing to gain" if reached else "not met"
    return {**row, "threshold": _amount(rule.threshold, rule), "met": met, "next": _next(rule, reached=reached)}


def _next(rule: RuleRow, *, reached: bool) -> str | datetime | None:
    if rule.met:
        return "now"
    if reached:
        return None
    return rule.next_at or "not by waiting"


def _amount(value: float, rule: RuleRow) -> str:
    from pyarctic.optimizing.plan import format_measure

    return span(value) if rule.unit == "seconds" else format_measure(value, rule.unit)


def _node(row: TreeRow) -> dict[str, Any]:
    names = [*map(str, row.targets[:4]), *(["…"] if len(row.targets) > 4 else [])]
    targets = "itself" if row.targets == (row.node,) else f"{', '.join(names)} of {row.buckets}"
    return {**row.to_dict(), "partition": place(row.partition), "targets": targets}


def _partition(row: PartitionRow) -> dict[str, Any]:
    return {
        "partition": place(row.partition),
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


def _expected(found: Explanation) -> Iterator[tuple[str, str]]:
    figures = found.expected
    if figures.get("data_files_in") or figures.get("change_files_in"):
        yield (
            "Data files",
            f"{format_count(figures['data_files_in'])} → about {format_count(figures['data_files_out'])}",
        )
        yield "Data", f"{format_bytes(figures['read_bytes'])} → about {format_bytes(figures['written_bytes'])}"
        yield "Rows", f"about {format_count(figures['rows_out'])} written"
    if figures.get("change_files_in"):
        yield "Changes", f"{format_count(figures['change_files_in'])} files merged into Base"
    if figures.get("data_files_converted"):
        yield "Converted", f"equality deletes of {format_count(figures['data_files_converted'])} data files to positions"
    if figures.get("dangling_delete_files"):
        yield "Removed", f"{format_count(figures['dangling_delete_files'])} delete files that hit nothing"
