"""Explaining why a table would be optimized or not, from the same plan that a process executes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import polars as pl

from pyarctic._html import html_page, html_text
from pyarctic.config.table_properties import unknown_properties
from pyarctic.iceberg.manifest import PartitionDecoder
from pyarctic.iceberg.read import is_decodable
from pyarctic.iceberg.write.parquet import file_schema, ignored_properties
from pyarctic.optimizing.evaluate.health import Health
from pyarctic.optimizing.evaluate.rules import RULES, Rule, Unit
from pyarctic.optimizing.plan.explain_tree import TreeRow, keyed_notes, tree_rows
from pyarctic.optimizing.plan.plan import KeyedPlan, Plan, WaitingChanges, expected_files
from pyarctic.optimizing.protocol.task import KeyedTask, Task
from pyarctic.optimizing.settings import Settings
from pyarctic.units import format_age, format_bytes, format_count, format_timestamp

_MAX_PARTITIONS = 50
_SURE = 0.25
"""A number that may be wrong by a larger share is shown with its range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRow:
    """One rule for one partition."""

    name: str
    kind: str
    unit: Unit
    doc: str
    threshold: float | None
    """None: the rule is switched off."""
    measured: float | None
    met: bool
    gains: bool
    """Whether the partition would gain by it; if not, it is not met whatever was measured."""
    next_at: datetime | None
    """When it could be met if nothing more is written; None: not by waiting."""

    def to_dict(self) -> dict[str, Any]:
        """This row as a JSON document."""
        return asdict(self) | {"next_at": None if self.next_at is None else format_timestamp(self.next_at)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """One partition: what was measured, what follows, and what it waits for."""

    partition: str
    spec_id: int
    kind: str | None
    causes: tuple[str, ...]
    waits: str | None
    """Why its data files are not rewritten now, or its changes not merged."""
    busy_until: datetime | None
    health: float
    data_files: int
    data_bytes: int
    records: int
    fragments: int
    undersized: int
    equality_delete_files: int
    position_delete_files: int
    dead_rows: int
    change_files: int
    """The number of change files of a keyed table that can be merged now."""
    rules: tuple[RuleRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """This row as a JSON document."""
        return {
            **asdict(self),
            "causes": list(self.causes),
            "busy_until": None if self.busy_until is None else format_timestamp(self.busy_until),
            "rules": [rule.to_dict() for rule in self.rules],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """One task of the plan."""

    id: int
    action: str
    kind: str
    partition: str
    data_files: int
    delete_files: int
    input_bytes: int
    files_out: int
    sort: bool
    reasons: tuple[str, ...]
    node: int | None = None
    """The node of a keyed table's tree that is written."""
    change_files: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Explanation:
    """What `optimize` would do now, and why."""

    table: str
    snapshot_id: int | None
    observed_at: datetime
    health: Health
    expected: dict[str, int]
    partitions: tuple[PartitionRow, ...]
    """The most urgent ones first, at most fifty."""
    partitions_total: int
    partitions_needy: int
    partitions_left_out: int
    tasks: tuple[TaskRow, ...]
    notes: tuple[str, ...]
    waiting_changes: WaitingChanges | None = None
    """Changes of a keyed table that cannot be merged yet."""
    tree: tuple[TreeRow, ...] = ()
    """The nodes of a keyed table whose files take part, at most two hundred."""

    def to_dict(self) -> dict[str, Any]:
        """This explanation as a JSON document."""
        return {
            **asdict(self),
            "snapshot_id": None if self.snapshot_id is None else str(self.snapshot_id),
            "observed_at": format_timestamp(self.observed_at),
            "health": self.health.to_dict(),
            "partitions": [row.to_dict() for row in self.partitions],
            "tasks": [asdict(row) | {"reasons": list(row.reasons)} for row in self.tasks],
            "notes": list(self.notes),
            "waiting_changes": None if self.waiting_changes is None else self.waiting_changes.to_dict(),
            "tree": [row.to_dict() for row in self.tree],
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    __repr__ = __str__
    __rich__ = __str__

    def _repr_html_(self) -> str:
        return html_page(f"{self.table}: health {self.health.score:g} of 100", html_text(str(self).partition("\n")[2]))

    def _lines(self) -> Iterator[str]:
        yield f"{self.table}: health {self.health}"
        if not self.partitions_needy:
            yield "  nothing to do now" if self.waiting_changes is None else "  nothing can be done now: changes wait"
        for row in self.partitions:
            yield from self._partition_lines(row)
        if self.tasks:
            yield f"  {self._summary()}"
        yield from (f"  {note}" for note in self.notes)

    def _partition_lines(self, row: PartitionRow) -> Iterator[str]:
        causes = f" because of {', '.join(row.causes)}" if row.causes else ""
        yield f"  {row.partition or '(whole table)'}: {row.kind or 'nothing'}{causes}"
        if row.waits:
            yield f"    waits: {row.waits}"
        yield from (f"    {_format_rule(rule, self.observed_at)}" for rule in row.rules)
        yield from (f"    {node}" for node in self.tree if node.partition == row.partition)

    def _summary(self) -> str:
        figures = self.expected
        changes = f" and {format_count(figures['change_files_in'])} of changes" if figures["change_files_in"] else ""
        read, commits = format_bytes(figures["read_bytes"]), format_count(figures["commits"])
        return (
            f"{len(self.tasks)} tasks: {format_count(figures['data_files_in'])} data files{changes} "
            f"({read}) → {self.format_files_out()}, {commits} commits"
        )

    def format_files_out(self) -> str:
        """How many data files are written, and how sure that is."""
        least, expected, most = (self.expected[f"data_files_out{end}"] for end in ("_least", "", "_most"))
        is_sure = (1 - _SURE) * expected <= least and most <= (1 + _SURE) * expected
        about = f"about {format_count(expected)}"
        return about if is_sure else f"{about} ({format_count(least)} to {format_count(most)})"


def explain_plan(plan: Plan) -> Explanation:
    """Explain a plan."""
    observation = plan.observation
    decoder = PartitionDecoder(observation.metadata)
    most_urgent = plan.partitions.sort(pl.col("kind").is_null(), "health").head(_MAX_PARTITIONS)
    return Explanation(
        table=observation.table,
        snapshot_id=observation.snapshot_id,
        observed_at=observation.now,
        health=plan.evaluation.health,
        expected=plan.figures(),
        partitions=tuple(_partition_row(row, plan, decoder) for row in most_urgent.iter_rows(named=True)),
        partitions_total=plan.partitions.height,
        partitions_needy=int(plan.partitions["kind"].is_not_null().sum()),
        partitions_left_out=plan.left_out,
        tasks=tuple(_task_row(task) for task in plan.tasks),
        notes=tuple(_notes(plan)),
        waiting_changes=plan.waiting_changes,
        tree=tuple(tree_rows(plan)) if isinstance(plan, KeyedPlan) else (),
    )


def explain_empty_table(table: str, now: datetime) -> Explanation:
    """Explain that a table has no data."""
    return Explanation(
        table=table,
        snapshot_id=None,
        observed_at=now,
        health=Health.perfect(),
        expected={},
        partitions=(),
        partitions_total=0,
        partitions_needy=0,
        partitions_left_out=0,
        tasks=(),
        notes=("the table has no data yet",),
    )


def _partition_row(row: dict[str, Any], plan: Plan, decoder: PartitionDecoder) -> PartitionRow:
    settings = plan.observation.settings
    path = decoder.path(row["spec_id"], row["partition"])
    is_waiting = row["kind"] is not None and row["is_busy"]
    held_files = row.get("held_files", 0)  # only keyed tables have it
    return PartitionRow(
        partition=path,
        spec_id=row["spec_id"],
        kind=row["kind"],
        causes=tuple(row["causes"]) if row["kind"] else (),
        waits=_format_wait(row, plan.observation.now)
        if is_waiting
        else f"changes wait for a transaction that is not committed (files: {format_count(held_files)})"
        if held_files
        else None,
        busy_until=row["busy_until"] if is_waiting else None,
        health=round(row["health"], 1),
        data_files=row["data_files"],
        data_bytes=row["data_bytes"],
        records=row["records"],
        fragments=row["fragments"],
        undersized=row["small_files"] - row["fragments"],
        equality_delete_files=row["equality_files"] - row["change_files"],
        position_delete_files=row["position_files"],
        dead_rows=row["deleted_rows"],
        change_files=row["change_files"],
        rules=tuple(_rule_row(rule, row, settings) for rule in RULES),
    )


def _rule_row(rule: Rule, row: dict[str, Any], settings: Settings) -> RuleRow:
    threshold = rule.threshold(settings)
    return RuleRow(
        name=rule.name,
        kind=rule.kind,
        unit=rule.unit,
        doc=rule.doc,
        threshold=None if threshold is None else float(threshold),
        measured=row[f"{rule.name}_measured"],
        met=row[f"{rule.name}_met"],
        gains=row[f"{rule.name}_gains"],
        next_at=row[f"{rule.name}_next_at"],
    )


def _format_wait(row: dict[str, Any], now: datetime) -> str:
    last = format_age(row["last_statement_at"], now)
    seconds = row["cadence_seconds"]
    cadence = f", about every {seconds:.0f} s" if seconds and row["statements"] > 2 else ""
    until = format_timestamp(row["busy_until"])
    return (
        f"others change rows here (last {last}{cadence}); its data files are left alone until {until}, deletes are converted"
    )


def _task_row(task: Task) -> TaskRow:
    return TaskRow(
        id=task.id,
        action=task.action,
        kind=task.kind,
        partition=task.partition,
        data_files=task.data.height if task.action == "convert" else task.replaced.height,
        delete_files=task.deletes.height,
        input_bytes=task.input_bytes,
        files_out=expected_files(task) if task.action == "merge" else 0,
        sort=task.sort,
        reasons=task.reasons,
        node=task.node_id if isinstance(task, KeyedTask) else None,
        change_files=task.changes.height if isinstance(task, KeyedTask) else 0,
    )


def _notes(plan: Plan) -> Iterator[str]:
    if isinstance(plan, KeyedPlan):
        yield from keyed_notes(plan)
    yield from _spec_notes(plan)
    if plan.dangling_deletes.height:
        yield f"{plan.dangling_deletes.height} delete files apply to nothing and would be removed"
    if plan.left_out:
        limits = "self-optimizing.max-file-count and max-plan-size"
        yield f"{plan.left_out} partitions are left for the next process: a plan is limited by {limits}"
    if plan.observation.order is not None:
        yield from plan.observation.order.notes
    for name, similar in unknown_properties(plan.observation.metadata.properties).items():
        yield f"table property {name} is not known" + (f"; did you mean {similar}?" if similar else "")
    fields = plan.observation.metadata.schema().fields
    if all(is_decodable(field.field_type) for field in fields):  # else files are copied, not encoded
        for name, reason in ignored_properties(plan.observation.metadata.properties, file_schema(fields)):
            yield f"table property {name} has no effect: {reason}"


def _spec_notes(plan: Plan) -> Iterator[str]:
    former = plan.partitions.filter(~pl.col("is_current_spec"))
    moving = former.filter("moves")
    if moving.filter((pl.col("kind") != "full").fill_null(value=True)).height:
        yield f"{format_count(moving.height)} partitions have a former partition spec: full optimizing would move their rows"
    if staying := former.height - moving.height:
        yield (
            f"{format_count(staying)} partitions keep a former partition spec: under the current one their rows would make "
            "more files"
        )


def format_measure(value: float | None, unit: Unit) -> str:
    """Format a measured value for people."""
    if value is None:
        return "–"
    match unit:
        case "bytes":
            return format_bytes(int(value))
        case "ratio":
            return f"{value:.1%}"
        case "seconds":
            return f"{value:,.0f} s"
    return format_count(int(value))


def _format_rule(rule: RuleRow, now: datetime) -> str:
    if rule.threshold is None:
        return f"{rule.name}: off"
    is_reached = rule.measured is not None and rule.measured >= rule.threshold
    verdict = "met" if rule.met else "reached, but there is nothing to gain" if is_reached and not rule.gains else "not met"
    next_at = f", {format_age(rule.next_at, now)}" if rule.next_at and not rule.met and rule.next_at > now else ""
    measured, threshold = format_measure(rule.measured, rule.unit), format_measure(rule.threshold, rule.unit)
    return f"{rule.name}: {measured} of {threshold}, {verdict}{next_at}"
