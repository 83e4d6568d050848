"""Why a table is not optimized right now. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pyarctic.ams import OptimizerRow, OptimizerState, ProcessRow, ProcessState, TableRow, TableState, TaskRow, TaskState
from pyarctic.server.documents import Hindrance, ServiceView, WaitingProcess

_WAITS = {
    TaskState.INIT: "room in the queue",
    TaskState.PENDING: "an optimizer",
    TaskState.EXECUTING: "the end of their execution",
    TaskState.FAILED: "the next attempt",
    TaskState.PREPARED: "the next commit",
    TaskState.COMMITTING: "the answer to a commit",
}


@dataclass(frozen=True, kw_only=True)
class TableSituation:
    """A table, and what it has in work."""

    row: TableRow
    processes: Sequence[ProcessRow]
    """Those that have not ended."""
    tasks: Mapping[str, Collection[TaskRow]]
    """Of each process."""
    optimizers: Collection[OptimizerRow]
    """All that are there."""


def describe(situation: TableSituation, now: datetime) -> ServiceView:
    """What the service knows of a table."""
    row = situation.row
    processes = [
        WaitingProcess(id=each.id, state=each.state, kinds=list(each.kinds), waits_for=list(_waits(each, situation.tasks)))
        for each in situation.processes
    ]
    return ServiceView(
        state=row.state,
        group=row.group,
        looked_at=row.looked_at,
        next_look_at=row.next_look_at,
        processes=processes,
        hindrances=list(_hindrances(situation, now)),
    )


def _waits(process: ProcessRow, tasks: Mapping[str, Collection[TaskRow]]) -> Iterable[str]:
    if process.state is ProcessState.CANCELLING:
        yield "the files that it wrote are removed, after an open commit is settled"
    states = Counter(task.state for task in tasks[process.id])
    for state, thing in _WAITS.items():
        if states[state]:
            yield f"{states[state]} of {process.tasks} tasks wait for {thing}"


def _hindrances(situation: TableSituation, now: datetime) -> Iterable[Hindrance]:
    yield from _of_table(situation.row, now)
    yield from _of_work(situation)


def _of_table(row: TableRow, now: datetime) -> Iterable[Hindrance]:
    match row.state:
        case TableState.PAUSED:
            text = f"{row.paused_by or 'somebody'} has paused it: {row.pause_reason}"
            yield Hindrance(code="paused", text=text, until=row.paused_until)
        case TableState.DISABLED:
            yield Hindrance(code="disabled", text="its property self-optimizing.enabled is false")
        case TableState.GONE:
            yield Hindrance(code="gone", text="its catalog does not have it any more")
    if row.plan_after is not None and row.plan_after > now:
        text = f"{row.failed_in_a_row} processes in a row failed; it is tried again later"
        yield Hindrance(code="failed-before", text=text, until=row.plan_after)
    if row.problem is not None:
        yield Hindrance(code="look-failed", text=f"the last look failed: {row.problem}", until=row.next_look_at)


def _of_work(situation: TableSituation) -> Iterable[Hindrance]:
    if situation.processes:
        ids = ", ".join(process.id for process in situation.processes)
        yield Hindrance(code="in-work", text=f"what process {ids} has in work is not planned again")
    for group in sorted({each.group for each in situation.processes if each.state is ProcessState.WAITING}):
        yield Hindrance(code="queue-full", text=f"the queue of group {group} is full")
    tasks = (task for each in situation.tasks.values() for task in each)
    waiting = Counter(task.group for task in tasks if task.state is TaskState.PENDING)
    served = {each.group for each in situation.optimizers if each.state is OptimizerState.ACTIVE}
    for group in sorted(waiting.keys() - served):
        text = f"{waiting[group]} tasks wait, and group {group} has no optimizer: start one, or choose another group"
        yield Hindrance(code="no-optimizer", text=text)
