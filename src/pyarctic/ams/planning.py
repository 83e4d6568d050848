"""Storing plans: a process with its tasks, and what it has in work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

import polars as pl

from pyarctic.ams.core import Core
from pyarctic.ams.processes import start_process
from pyarctic.ams.rechecking import ReplacedUnit, claims_of, in_place_of, store_replacements
from pyarctic.ams.rows import ClaimRow, PlanRow, ProcessRow, TableRow, TaskRow
from pyarctic.ams.states import ENDED_PROCESSES, ENDED_TASKS, PROCESSES, TASKS, ProcessState, TaskState
from pyarctic.ams.store import Broken, Transaction
from pyarctic.ams.tasks import Queue, step_task
from pyarctic.optimizing import Amounts
from pyarctic.optimizing.commit import units_of
from pyarctic.optimizing.plan import CommitPlan, KeyedPlan, NativePlan
from pyarctic.optimizing.protocol import KeyedTask


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedProcess:
    """A plan that is about to be stored."""

    table: TableRow
    plan: NativePlan | KeyedPlan
    trigger: str
    by: str
    group: str
    replaces: Sequence[ReplacedUnit] = ()
    """Partitions of older plans whose tasks wait, and make room for its tasks."""


def store_plan(core: Core, planned: PlannedProcess, now: datetime) -> ProcessRow:
    """Store a plan with its tasks, and let them be executed if the queue has room. Raises Broken if another process has
    some of it in work."""
    table, plan = planned.table, planned.plan
    commit_plan = plan.to_commit_plan(memory_bytes=core.settings.task_memory_bytes)
    process = ProcessRow(
        id=plan.process_id,
        table_uuid=table.uuid,
        table=table.name,
        group=planned.group,
        kinds=tuple(sorted({task.kind for task in plan.tasks})),
        state=ProcessState.WAITING,
        trigger=planned.trigger,
        job_id=plan.job_id,
        commits_at_once=planned.trigger == "demanded",
        reasons=tuple(_reasons(plan)),
        expected=plan.figures(),
        tasks=len(plan.tasks),
        created_at=now,
    )
    why = f"{planned.trigger}: {', '.join(process.kinds) or 'delete files that apply to nothing'}"
    moves = [PROCESSES.move(process.id, None, process.state, why, now, table=table.name, by=planned.by)]
    tasks = list(_task_rows(process, commit_plan, now))
    claims = claims_of(plan.tasks)
    moves += [TASKS.move(task.key, None, task.state, "it is planned", now, table=table.name) for task in tasks]
    with core.store.begin() as transaction:
        current = transaction.get(TableRow, table.uuid)
        if current is None or current.state is not table.state:
            raise Broken(f"{table.name} is not {table.state} any more")
        replaced = store_replacements(transaction, planned.replaces, now)
        transaction.insert(process, PlanRow(process_id=process.id, data=commit_plan.to_bytes()))
        transaction.insert(*(in_place_of(task, replaced.get(task.number)) for task in tasks))
        transaction.insert(*(ClaimRow(table_uuid=table.uuid, key=key, process_id=process.id) for key in sorted(claims)))
        transaction.update(replace(current, planned_at=now))
        transaction.record(moves)
        return admit(transaction, process, core.settings.queue_capacity, now)


def admit(transaction: Transaction, process: ProcessRow, capacity: int, now: datetime) -> ProcessRow:
    """Queue all tasks of a waiting process, if the queue of its group is not full."""
    waiting = transaction.find(TaskRow, group=process.group, state=TaskState.PENDING)
    if len(waiting) >= capacity:
        return process
    started = start_process(process, now)
    tasks = transaction.find(TaskRow, process_id=process.id, state=TaskState.INIT)
    steps = [step_task(task, Queue(), now, process.table) for task in tasks]
    transaction.update(started.row, *(step.row for step in steps))
    transaction.record([*started.transitions, *(move for step in steps for move in step.transitions)])
    return started.row


def move_to_group(transaction: Transaction, table: TableRow) -> None:
    """Let optimizers of the group that a table has now execute what its processes have left."""
    for process in transaction.find(ProcessRow, table_uuid=table.uuid, state=set(ProcessState) - ENDED_PROCESSES):
        transaction.update(replace(process, group=table.group))
        left = transaction.find(TaskRow, process_id=process.id, state=set(TaskState) - ENDED_TASKS)
        transaction.update(*(replace(task, group=table.group, version=task.version + 1) for task in left))


def figures_of(plan: NativePlan | KeyedPlan | None) -> dict[str, Any]:
    """What the last evaluation of a table has measured, and when a rule about time is met next."""
    if plan is None:
        return {"health": 100.0, "next_due_at": None}
    evaluation = plan.evaluation
    times = [name for name in evaluation.partitions.columns if name.endswith("_next_at")]
    next_due_at = evaluation.partitions.select(pl.min_horizontal(pl.col(times).min())).item() if times else None
    return {
        "health": evaluation.health.score,
        "files": asdict(Amounts.of_table(evaluation)),
        "partitions": evaluation.partitions.height,
        "expected": plan.figures(),
        "next_due_at": None if next_due_at is None else next_due_at.isoformat(),
    }


def _task_rows(process: ProcessRow, plan: CommitPlan, now: datetime) -> Iterable[TaskRow]:
    for unit in units_of(plan).values():
        for task in unit.tasks:
            changes = task.changes if isinstance(task, KeyedTask) else task.files.clear()
            yield TaskRow(
                process_id=process.id,
                number=task.id,
                table_uuid=process.table_uuid,
                group=process.group,
                unit=unit.id,
                kind=task.kind,
                partition=task.partition,
                state=TaskState.INIT,
                input_files=task.files.height + changes.height,
                input_bytes=task.input_bytes,
                created_at=now,
            )


def _reasons(plan: NativePlan | KeyedPlan) -> Iterable[Mapping[str, Any]]:
    """The rules that were met, and in how many of the partitions that are planned."""
    due = plan.partitions.filter(pl.col("kind").is_not_null())
    causes = due.select(pl.col("causes").explode()).to_series().value_counts(sort=True)
    for cause, partitions in causes.iter_rows():
        yield {"rule": cause, "partitions": partitions}
