"""What time brings about: attempts that take too long, optimizers that are lost, retries, pauses that are over."""

from __future__ import annotations

from datetime import datetime

from pyarctic.ams.core import Core
from pyarctic.ams.handing import end_optimizer
from pyarctic.ams.planning import admit
from pyarctic.ams.processes import LONGEST_PAUSE, is_silent, move_table
from pyarctic.ams.rows import OptimizerRow, ProcessRow, TableRow, TaskRow
from pyarctic.ams.states import WORKING_OPTIMIZERS, OptimizerState, ProcessState, TableState, TaskState
from pyarctic.ams.store import Transaction
from pyarctic.ams.tasks import Fail, GiveBack, Retry, TaskEvent, overdue, step_task
from pyarctic.ams.times import is_due


class Keeper:
    """Looks through tasks, optimizers and pauses every few seconds. Each is a transaction of its own."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def keep(self) -> None:
        """Do everything that is due."""
        self._end_silent_optimizers()
        self._end_overdue_attempts()
        self._retry()
        self._end_pauses()
        self._admit()

    def _end_silent_optimizers(self) -> None:
        core, least = self._core, self._core.settings.heartbeat_timeout
        with core.store.read() as view:
            working = view.find(OptimizerRow, state=WORKING_OPTIMIZERS)
        now = core.clock.now()  # after what it is compared with
        silent = [row for row in working if is_silent(row, least, now, core.since)]
        for row in silent:
            with core.store.begin() as transaction:
                current, now = transaction.get(OptimizerRow, row.id), core.clock.now()
                if current is not None and current.ended_at is None and is_silent(current, least, now, core.since):
                    why = f"not heard of for {(now - current.heard_at).total_seconds():.0f} s"
                    end_optimizer(transaction, current, OptimizerState.LOST, why, "service", core)
            core.bells.ring("tasks")

    def _end_overdue_attempts(self) -> None:
        core, policy = self._core, self._core.settings.attempts
        with core.store.read() as view:
            executing = view.find(TaskRow, state=TaskState.EXECUTING)
        for row in executing:
            if overdue(row, policy, core.clock.now(), core.since) is None:
                continue
            with core.store.begin() as transaction:
                task = transaction.get(TaskRow, row.process_id, row.number)
                why = None if task is None else overdue(task, policy, core.clock.now(), core.since)
                if task is None or why is None or task.attempt is None:
                    continue
                failure = {"code": "timeout", "detail": why}
                is_acknowledged = task.acknowledged_at is not None
                fail = Fail(attempt=task.attempt, failure=failure, policy=policy)
                self._step(transaction, task, fail if is_acknowledged else GiveBack(why=why))
            core.bells.ring("tasks")
            core.bells.ring("commits")

    def _retry(self) -> None:
        core, now = self._core, self._core.clock.now()
        with core.store.read() as view:
            rows, wait = view.find(TaskRow, state=TaskState.FAILED), core.settings.attempts.retry_interval
        failed = [row for row in rows if row.retry_at is None or is_due(row.retry_at, now, wait)]
        for row in failed:
            with core.store.begin() as transaction:
                task = transaction.get(TaskRow, row.process_id, row.number)
                if task is not None and task.state is TaskState.FAILED:
                    self._step(transaction, task, Retry())
        if failed:
            core.bells.ring("tasks")

    def _step(self, transaction: Transaction, task: TaskRow, event: TaskEvent) -> None:
        process = transaction.get(ProcessRow, task.process_id)
        step = step_task(task, event, self._core.clock.now(), "" if process is None else process.table)
        transaction.update(step.row)
        transaction.record(step.transitions)

    def _end_pauses(self) -> None:
        core, now = self._core, self._core.clock.now()
        with core.store.read() as view:
            paused = view.find(TableRow, state=TableState.PAUSED)
        over = [row for row in paused if _is_over(row, now)]
        for row in over:
            with core.store.begin() as transaction:
                current = transaction.get(TableRow, row.uuid)
                if current is not None and current.state is TableState.PAUSED and current.paused_until == row.paused_until:
                    step = move_table(current, TableState.ACTIVE, "the pause is over", "service", now)
                    transaction.update(step.row)
                    transaction.record(step.transitions)
        if over:
            core.bells.ring("looks")

    def _admit(self) -> None:
        core, now = self._core, self._core.clock.now()
        with core.store.read() as view:
            waiting = sorted(view.find(ProcessRow, state=ProcessState.WAITING), key=lambda row: row.created_at)
        for row in waiting:
            with core.store.begin() as transaction:
                process = transaction.get(ProcessRow, row.id)
                if process is None or process.state is not ProcessState.WAITING:
                    continue
                admitted = admit(transaction, process, core.settings.queue_capacity, now)
            if admitted.state is ProcessState.RUNNING:
                core.bells.ring("tasks")
                core.bells.ring("commits")


def _is_over(paused: TableRow, now: datetime) -> bool:
    """Whether a pause is over. The service itself never pauses a table for longer than an hour, whatever the clock says."""
    if paused.paused_until is None:
        return False
    by_service = paused.paused_by == "service"
    return is_due(paused.paused_until, now, LONGEST_PAUSE) if by_service else paused.paused_until <= now
