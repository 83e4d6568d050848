"""Planning partitions of a keyed table anew whose tasks all wait, because changes have come since they were planned.

The tasks of the newer plan take the place of those that wait: they are queued where those were, and their attempts are
numbered on. The older process goes on with its other partitions. A process that waits for room in the queue keeps its plan,
as it keeps its turn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import polars as pl

from pyarctic.ams.handing import Plans
from pyarctic.ams.rows import ClaimRow, ProcessRow, TaskRow, UnitRow
from pyarctic.ams.states import WAITING_TASKS, ProcessState
from pyarctic.ams.store import Broken, Transaction
from pyarctic.ams.tasks import Replace, step_task
from pyarctic.errors import ProtocolError
from pyarctic.iceberg.delete import PARTITION_KEY
from pyarctic.optimizing.commit import CommitUnit, units_of
from pyarctic.optimizing.plan import CommitPlan, KeyedPlan, Replacement, TrackedTask, choose_recheck, replace_waiting
from pyarctic.optimizing.protocol import KeyedTask, Task
from pyarctic.tables import KeyedTable

Partition = tuple[int, str]


@dataclass(frozen=True, kw_only=True, eq=False)
class WaitingUnit:
    """A partition whose tasks all wait."""

    process: ProcessRow
    unit: int
    partition: Partition
    tasks: Sequence[TaskRow]
    tracked: Sequence[TrackedTask]
    sequence: int
    """The sequence number that it would be merged up to."""
    claims: frozenset[str]
    """What it has in work."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ReplacedUnit:
    """A partition whose waiting tasks are replaced by those of a newer plan."""

    waiting: WaitingUnit
    by: Replacement


def claims_of(tasks: Iterable[Task]) -> set[str]:
    """Data files of a native table, of which each is in one unfinished process at most; and partitions of a keyed table,
    with all files that are read."""
    keys: set[str] = set()
    for task in tasks:
        keys.update(task.data["file_path"])
        if isinstance(task, KeyedTask):
            keys.update(task.changes["file_path"])
            keys.add(f"partition {task.spec_id} {task.partition_key}")
    return keys


def waiting_units(view: Transaction, plans: Plans, table_uuid: str) -> list[WaitingUnit]:
    """The partitions of a keyed table whose tasks all wait."""
    found: list[WaitingUnit] = []
    for process in view.find(ProcessRow, table_uuid=table_uuid, state=ProcessState.RUNNING):
        try:
            plan = plans.get(view, process.id)
        except ProtocolError:  # of a newer release: its partitions stay as they are
            continue
        rows = {task.number: task for task in view.find(TaskRow, process_id=process.id)}
        for unit in units_of(plan).values():
            tasks = [rows[task.id] for task in unit.tasks]
            if unit.partition is not None and all(task.state in WAITING_TASKS for task in tasks):
                found.append(_waiting_unit(process, plan, unit, unit.partition, tasks))
    return found


def _waiting_unit(
    process: ProcessRow, plan: CommitPlan, unit: CommitUnit, partition: Partition, tasks: Sequence[TaskRow]
) -> WaitingUnit:
    seen = 0 if plan.keyed is None else plan.keyed.change_sequence_number
    tracked = [
        TrackedTask(id=task.id, node_id=task.node_id, state=row.state.value)
        for task, row in zip(unit.keyed_tasks, tasks, strict=True)
    ]
    return WaitingUnit(
        process=process,
        unit=unit.id,
        partition=partition,
        tasks=tasks,
        tracked=tracked,
        sequence=seen if unit.merge is None else unit.merge.sequence,
        claims=frozenset(claims_of(unit.tasks)),
    )


def with_newer_changes(waiting: Sequence[WaitingUnit], table: KeyedTable) -> list[WaitingUnit]:
    """Those with newer changes, whether they can be merged or not."""
    if not waiting:
        return []
    changes = table.change_store.file_list.frame()
    newest = changes.group_by(PARTITION_KEY).agg(pl.col("data_sequence_number").max())
    newest_of: Mapping[Partition, int] = {(spec_id, key): number for spec_id, key, number in newest.iter_rows()}
    return [each for each in waiting if choose_recheck(each.tracked, each.sequence, newest_of.get(each.partition)) == "plan"]


def replaced_by(plan: KeyedPlan, waiting: Iterable[WaitingUnit]) -> list[ReplacedUnit]:
    """Those that the tasks of a newer plan cover, and that it merges further."""
    merges = plan.merges.select(*PARTITION_KEY, "sequence").iter_rows()
    planned: Mapping[Partition, int] = {(spec_id, key): sequence for spec_id, key, sequence in merges}
    replaced: list[ReplacedUnit] = []
    for each in waiting:
        tasks = [task for task in plan.tasks if _partition_of(task) == each.partition]
        replacement = replace_waiting(each.tracked, tasks) if planned.get(each.partition, -1) > each.sequence else None
        if replacement is not None:
            replaced.append(ReplacedUnit(waiting=each, by=replacement))
    return replaced


def store_replacements(transaction: Transaction, replaced: Collection[ReplacedUnit], now: datetime) -> Mapping[int, TaskRow]:
    """Give up the waiting tasks, and what they have in work. Gives them by the numbers of the tasks that take their place.
    Raises Broken if one does not wait any more."""
    places: dict[int, TaskRow] = {}
    for each in replaced:
        process = transaction.get(ProcessRow, each.waiting.process.id)
        if process is None or process.state is not ProcessState.RUNNING:
            raise Broken(f"process {each.waiting.process.id} does not run any more")
        for seen in each.waiting.tasks:
            task = transaction.get(TaskRow, seen.process_id, seen.number)
            if task is None or task.version != seen.version:
                raise Broken(f"task {seen.key} has changed meanwhile")
            step = step_task(task, Replace(), now, process.table)
            transaction.update(step.row)
            transaction.record(step.transitions)
            places[each.by.in_place[seen.number].id] = task
        dropped = "a newer plan has its partition"
        transaction.insert(UnitRow(process_id=process.id, unit=each.waiting.unit, dropped=dropped))
        transaction.delete(ClaimRow, process_id=process.id, key=each.waiting.claims)
    return places


def in_place_of(task: TaskRow, replaced: TaskRow | None) -> TaskRow:
    """A new task with the turn of the one that it replaces, whose attempts and retries count on."""
    if replaced is None:
        return task
    return replace(
        task,
        queued_at=replaced.queued_at,
        attempt=replaced.attempt,
        retries=replaced.retries,
        failures=replaced.failures,
    )


def _partition_of(task: KeyedTask) -> Partition:
    return task.spec_id, task.partition_key
