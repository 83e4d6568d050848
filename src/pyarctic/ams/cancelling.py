"""Cancelling processes and what waits of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pyarctic.ams.processes import cancel_process
from pyarctic.ams.rows import ProcessRow, TaskRow
from pyarctic.ams.states import ENDED_PROCESSES, ENDED_TASKS, WAITING_TASKS, ProcessState, TaskState
from pyarctic.ams.store import Transaction
from pyarctic.ams.tasks import Cancel, step_task


def cancel(transaction: Transaction, process: ProcessRow, why: str, by: str, now: datetime) -> ProcessRow:
    """Give up what has not landed of a process. Results are given up later: a commit of them may be open."""
    step = cancel_process(process, why, by, now)
    transaction.update(step.row)
    transaction.record(step.transitions)
    tasks = transaction.find(TaskRow, process_id=process.id, state={*WAITING_TASKS, TaskState.EXECUTING})
    _cancel_tasks(transaction, step.row, tasks, why, by, now)
    return step.row


def cancel_waiting(transaction: Transaction, table_uuid: str, why: str, by: str, now: datetime) -> None:
    """Give up what nobody has begun of a table: processes, and commit units of others. What is executed is finished."""
    unfinished = set(ProcessState) - ENDED_PROCESSES - {ProcessState.CANCELLING}
    for process in transaction.find(ProcessRow, table_uuid=table_uuid, state=unfinished):
        tasks = transaction.find(TaskRow, process_id=process.id)
        if all(task.state in WAITING_TASKS for task in tasks):
            cancel(transaction, process, why, by, now)
            continue
        begun = {task.unit for task in tasks if task.state not in WAITING_TASKS | ENDED_TASKS}
        waiting = [task for task in tasks if task.state in WAITING_TASKS and task.unit not in begun]
        _cancel_tasks(transaction, process, waiting, why, by, now)


def _cancel_tasks(
    transaction: Transaction, process: ProcessRow, tasks: Sequence[TaskRow], why: str, by: str, now: datetime
) -> None:
    for task in tasks:
        step = step_task(task, Cancel(by=by, why=why), now, process.table)
        transaction.update(step.row)
        transaction.record(step.transitions)
