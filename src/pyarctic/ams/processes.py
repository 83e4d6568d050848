"""The machines of processes, tables and optimizers. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta

from pyarctic.ams.machine import Step
from pyarctic.ams.rows import OptimizerRow, ProcessRow, TableRow, TaskRow
from pyarctic.ams.states import (
    ENDED_TASKS,
    OPTIMIZERS,
    PROCESSES,
    TABLES,
    OptimizerState,
    ProcessState,
    TableState,
    TaskState,
)
from pyarctic.ams.times import begun

_FIRST_PAUSE = timedelta(minutes=1)
LONGEST_PAUSE = timedelta(hours=1)
_MAX_FAILED = 5
"""After so many failed processes in a row a table is paused."""


# ---- processes ----------------------------------------------------------------------------------------------------------


def start_process(process: ProcessRow, now: datetime) -> Step[ProcessRow]:
    """Let its tasks be executed."""
    move = PROCESSES.move(process.id, process.state, ProcessState.RUNNING, "the queue has room", now, table=process.table)
    return Step(row=replace(process, state=ProcessState.RUNNING, started_at=now), transitions=(move,))


def cancel_process(process: ProcessRow, why: str, by: str, now: datetime) -> Step[ProcessRow]:
    """Give up what has not landed."""
    move = PROCESSES.move(process.id, process.state, ProcessState.CANCELLING, why, now, table=process.table, by=by)
    return Step(row=replace(process, state=ProcessState.CANCELLING, outcome=why), transitions=(move,))


def end_process(process: ProcessRow, tasks: Collection[TaskRow], now: datetime) -> Step[ProcessRow] | None:
    """The process after its last task has ended; None: some have not."""
    if any(task.state not in ENDED_TASKS for task in tasks):
        return None
    committed = sum(task.state is TaskState.COMMITTED for task in tasks)
    counted = [task for task in tasks if task.state is not TaskState.REPLACED]
    if process.state is ProcessState.CANCELLING:
        state, outcome = ProcessState.CANCELLED, f"{process.outcome}; {committed} of {len(counted)} tasks are in the table"
    elif tasks and not counted:
        state, outcome = ProcessState.SUCCEEDED, "a newer plan has taken its place"
    elif committed == len(counted):
        state, outcome = ProcessState.SUCCEEDED, f"{_of_all(committed)} in the table"
    else:
        state = ProcessState.PARTIAL if committed else ProcessState.FAILED
        outcome = f"{committed} of {len(counted)} tasks are in the table: {_first_reason(counted)}"
    move = PROCESSES.move(process.id, process.state, state, outcome, now, table=process.table)
    return Step(row=replace(process, state=state, outcome=outcome, ended_at=now, clean_at=now), transitions=(move,))


def _of_all(tasks: int) -> str:
    return "its task is" if tasks == 1 else f"all {tasks} tasks are"


def _first_reason(tasks: Collection[TaskRow]) -> str:
    failures = [failure for task in tasks for failure in task.failures[-1:]]
    return str(failures[0].get("detail") or failures[0].get("code")) if failures else "they were given up"


# ---- tables -------------------------------------------------------------------------------------------------------------


def move_table(table: TableRow, after: TableState, why: str, by: str, now: datetime) -> Step[TableRow]:
    """The table in another state. What a pause needs is forgotten when it ends: a table that is gone stays paused."""
    move = TABLES.move(table.name, table.state, after, why, now, table=table.name, by=by)
    row = replace(table, state=after, next_look_at=now)
    if after in (TableState.ACTIVE, TableState.DISABLED):
        row = replace(row, paused_by=None, pause_reason=None, paused_until=None)
    return Step(row=row, transitions=(move,))


def find_again(table: TableRow, name: str, now: datetime) -> Step[TableRow]:
    """A table that was gone."""
    after = TableState.ACTIVE if table.paused_by is None else TableState.PAUSED
    step = move_table(table, after, f"it is there again, as {name}", "service", now)
    return replace(step, row=replace(step.row, name=name, catalog=name.partition(".")[0]))


def pause_table(table: TableRow, why: str, by: str, until: datetime | None, now: datetime) -> Step[TableRow]:
    """Plan nothing for it."""
    paused = move_table(table, TableState.PAUSED, why, by, now)
    return replace(paused, row=replace(paused.row, paused_by=by, pause_reason=why, paused_until=until))


def note_outcome(table: TableRow, process: ProcessRow, now: datetime) -> Step[TableRow]:
    """The table after a process of it has ended. It is evaluated again: looks have left out what was in work. A failed
    process is followed by a pause, longer each time, and five of them by one that somebody should look at. It is tried again
    every hour."""
    if process.state is ProcessState.CANCELLED:
        return Step(row=replace(table, plan_after=now + _FIRST_PAUSE, next_look_at=now + _FIRST_PAUSE, must_plan=True))
    if process.state is not ProcessState.FAILED:
        return Step(row=replace(table, failed_in_a_row=0, plan_after=None, next_look_at=now, must_plan=True))
    failed = table.failed_in_a_row + 1
    pause = min(_FIRST_PAUSE * 2 ** (failed - 1), LONGEST_PAUSE)
    row = replace(table, failed_in_a_row=failed, plan_after=now + pause, next_look_at=now + pause, must_plan=True)
    if failed < _MAX_FAILED or table.state is not TableState.ACTIVE:
        return Step(row=row)
    why = f"{failed} processes in a row failed, the last one: {process.outcome}"
    return pause_table(row, why, "service", now + LONGEST_PAUSE, now)


# ---- optimizers ---------------------------------------------------------------------------------------------------------


def is_silent(optimizer: OptimizerRow, least: timedelta, now: datetime, since: datetime) -> bool:
    """Whether an optimizer has not been heard of for too long. `least`: the least time-out; `since`: when the service
    started, or took over."""
    return now - begun(optimizer.heard_at, since, now) >= optimizer.heartbeat_timeout(least)


def move_optimizer(optimizer: OptimizerRow, after: OptimizerState, why: str, by: str, now: datetime) -> Step[OptimizerRow]:
    """The optimizer in another state."""
    move = OPTIMIZERS.move(optimizer.id, optimizer.state, after, why, now, table=None, by=by)
    has_ended = after in (OptimizerState.LOST, OptimizerState.STOPPED)
    return Step(row=replace(optimizer, state=after, ended_at=now if has_ended else None), transitions=(move,))
