"""Committing the results of processes, and ending processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pyarctic.ams.core import Core, TableLocks
from pyarctic.ams.handing import Plans
from pyarctic.ams.process_log import ProcessLog, load_results
from pyarctic.ams.processes import cancel_process, end_process, note_outcome
from pyarctic.ams.rows import ClaimRow, CommitRow, ProcessRow, TableRow, TaskRow
from pyarctic.ams.states import ENDED_TASKS, WITH_RESULT, CommitState, ProcessState, TableState, TaskState
from pyarctic.ams.store import Transaction
from pyarctic.ams.times import is_due
from pyarctic.errors import NotFound, ProtocolError, Rejected
from pyarctic.iceberg.manifest import ReadManifests
from pyarctic.logs import get_logger
from pyarctic.optimizing.commit import (
    TABLE_GONE,
    CommitPolicy,
    Committer,
    FinishedTask,
    NotBefore,
    close_process,
)
from pyarctic.optimizing.plan import CommitPlan, load_start
from pyarctic.tables import KeyedTable, Table, merge_many_manifests

_log = get_logger(__name__)
_AT_ONCE = CommitPolicy(interval=timedelta(0), batch=None)
"""The service decides when a table is committed to: then everything that is finished is."""
_LONGEST_WAIT = timedelta(minutes=1)
"""Committers never wait for longer."""
_CANCELLING = ProcessState.CANCELLING
_ACTIVE = (ProcessState.RUNNING, _CANCELLING)
_TELLING = (*WITH_RESULT, *(ENDED_TASKS - {TaskState.COMMITTED}))
"""States of tasks after which there may be something to commit, to give up or to end. After a commit it is done at once."""
_FULL_LOOK_SECONDS = 20.0
"""How often processes are looked at of which no task tells anything."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Work:
    """The processes of one table."""

    table: TableRow
    processes: Sequence[ProcessRow]
    tasks: Mapping[str, Sequence[TaskRow]]
    """Of each process."""
    open_commits: frozenset[str]
    """Processes with an open commit."""


class Commits:
    """Commits what is finished, one table after the other, several tables at a time."""

    def __init__(self, core: Core, plans: Plans) -> None:
        self._core = core
        self._plans = plans
        self._locks = TableLocks()
        self._not_before: dict[str, datetime] = {}
        """When to try processes again whose commits wait, or whose catalog did not answer."""
        self._idle: dict[str, frozenset[tuple[int, TaskState]]] = {}
        """The states of tasks in which nothing of a process could be committed: it waits for more results."""
        self._failures: Counter[str] = Counter()
        """How often in a row the commits of a process have failed."""
        self._next_full_look: float | None = None

    def due(self) -> list[str]:
        """The tables with something to commit, or to end."""
        now, everything = self._core.clock.now(), self._looks_at_everything()
        with self._core.store.read() as view:
            processes = view.find(ProcessRow, state=_ACTIVE)
            told = {row.process_id for row in view.find(CommitRow, state=CommitState.OPEN)}
            told |= {row.process_id for row in view.find(TaskRow, state=_TELLING, process_id=[row.id for row in processes])}
            wanted = [row for row in processes if everything or row.id in told or not row.tasks or row.state is _CANCELLING]
            tables = {process.table_uuid for process in wanted}
            works = [work for uuid in sorted(tables) if (work := _work_of(view, uuid)) is not None]
        return [work.table.uuid for work in works if any(self._is_due(work, process, now) for process in work.processes)]

    def _looks_at_everything(self) -> bool:
        """Whether to look also at processes that no task tells of: somebody may have been killed before their end."""
        seconds = self._core.clock.monotonic()
        if self._next_full_look is not None and seconds < self._next_full_look:
            return False
        self._next_full_look = seconds + _FULL_LOOK_SECONDS
        return True

    def _may_try(self, process_id: str, now: datetime) -> bool:
        not_before = self._not_before.get(process_id)
        return not_before is None or is_due(not_before, now, max(self._core.settings.commit_retry, _LONGEST_WAIT))

    def _is_due(self, work: _Work, process: ProcessRow, now: datetime) -> bool:
        if not self._may_try(process.id, now):
            return False
        if work.table.state is TableState.GONE and self._has_changed(work, process):
            return True
        tasks = work.tasks[process.id]
        if process.state is ProcessState.CANCELLING or process.id in work.open_commits:
            return True
        if all(task.state in ENDED_TASKS for task in tasks) or _has_lost_unit(tasks):
            return True
        has_result = any(task.state in WITH_RESULT for task in tasks) and self._has_changed(work, process)
        interval = timedelta(0) if process.commits_at_once else self._interval(work.table)
        committed_at = work.table.committed_at
        return has_result and (committed_at is None or is_due(committed_at + interval, now, interval))

    def _has_changed(self, work: _Work, process: ProcessRow) -> bool:
        """Whether there is more than when nothing could be committed."""
        return self._idle.get(process.id) != _states(work.tasks[process.id])

    def _interval(self, table: TableRow) -> timedelta:
        seconds = table.figures.get("commit_interval_seconds")
        return self._core.settings.commit_interval if seconds is None else timedelta(seconds=seconds)

    def commit(self, table_uuid: str) -> None:
        """Commit what is finished of a table's processes, and end those of which nothing is left."""
        with self._locks.try_hold(table_uuid) as is_free:
            if not is_free:
                return
            with self._core.store.read() as view:
                work = _work_of(view, table_uuid)
            opened = OpenedTable(self._core)
            for process in () if work is None else work.processes:
                if not self._may_try(process.id, self._core.clock.now()):
                    continue
                self._not_before.pop(process.id, None)
                try:
                    self._commit(process, opened)
                except Exception as error:  # noqa: BLE001  # of a catalog or storage: it is tried again
                    reason = f"{type(error).__name__}: {error}"
                    _log.warning("commit_failed", table=process.table, process_id=process.id, reason=reason)
                    self._not_before[process.id] = self._core.clock.now() + self._wait_after(self._failures[process.id])
                    self._failures[process.id] += 1
                else:
                    self._failures.pop(process.id, None)

    def _wait_after(self, failures: int) -> timedelta:
        """How long to wait after so many failures before this one."""
        return min(self._core.settings.commit_retry * float(1 << min(failures, 10)), _LONGEST_WAIT)

    def _commit(self, process: ProcessRow, opened: OpenedTable) -> None:
        with self._core.store.read() as view:
            tasks = view.find(TaskRow, process_id=process.id)
            is_open = bool(view.find(CommitRow, process_id=process.id, state=CommitState.OPEN))
            plan = self._plan_of(view, process, is_open=is_open)
            results = {} if plan is None else load_results(view, process.id, plan, tasks)
        if plan is None:
            self._give_up(process, process.outcome or "it was cancelled")
            return
        if tasks and not is_open and all(task.state in ENDED_TASKS for task in tasks):
            self._end(process)
            return
        table = opened.newest(process)
        if table is None:
            self._cancel(process, "the table does not exist any more", None, plan, results)
            return
        if process.state is ProcessState.CANCELLING:
            self._close(process, table, plan, results)
            return
        self._commit_results(process, table, plan, tasks, results)

    def _plan_of(self, view: Transaction, process: ProcessRow, *, is_open: bool) -> CommitPlan | None:
        """The plan of a process. None: it cannot be read, and is not needed to give up the process."""
        try:
            return self._plans.get(view, process.id)
        except ProtocolError:  # of a newer release
            if process.state is _CANCELLING and not is_open:
                return None
            raise

    def _commit_results(
        self,
        process: ProcessRow,
        table: Table,
        plan: CommitPlan,
        tasks: Sequence[TaskRow],
        results: Mapping[int, FinishedTask],
    ) -> None:
        log = ProcessLog(self._core, process)
        try:
            start = load_start(table, plan)
        except Rejected as gone:  # its results cannot be committed any more
            self._cancel(process, str(gone), table, plan, results)
            return
        committer = Committer(table, plan, start, log=log.load(), store=log, policy=_AT_ONCE, clock=self._core.clock)
        by_number = {task.id: task for task in plan.tasks}
        for row in tasks:
            if row.state in WITH_RESULT or row.state is TaskState.COMMITTED:
                committer.accept(results[row.number])
            elif row.state in ENDED_TASKS:
                committer.fail(by_number[row.number])
        decision = committer.commit_due()
        if isinstance(decision, NotBefore):
            self._not_before[process.id] = decision.at
            return
        if all(task.state in ENDED_TASKS for task in self._tasks(process)):
            if isinstance(table, KeyedTable):
                merge_many_manifests(table.change_store)
            self._end(process)
        else:
            self._idle[process.id] = _states(tasks)  # as they were before: more results may have come since then

    def _cancel(
        self,
        process: ProcessRow,
        why: str,
        table: Table | None,
        plan: CommitPlan,
        results: Mapping[int, FinishedTask],
    ) -> None:
        if process.state is not ProcessState.CANCELLING:
            with self._core.store.begin() as transaction:
                current = transaction.get(ProcessRow, process.id) or process
                step = cancel_process(current, why, "service", self._core.clock.now())
                transaction.update(step.row)
                transaction.record(step.transitions)
            process = step.row
        if table is not None:
            self._close(process, table, plan, results)
        else:
            self._give_up(process, why)

    def _give_up(self, process: ProcessRow, why: str) -> None:
        """End a process without its table, or its plan."""
        log = ProcessLog(self._core, process)
        if (record := log.load().open) is not None:  # nobody can tell what becomes of it, and its files stay
            now, code = self._core.clock.now(), TABLE_GONE if record.was_sent else "not-sent"
            log.save_record(replace(record, state="refused", code=code, reason=why, changed_at=now))
        log.save_dropped(dict.fromkeys({task.unit for task in self._tasks(process) if task.state not in ENDED_TASKS}, why))
        self._end(process)

    def _close(self, process: ProcessRow, table: Table, plan: CommitPlan, results: Mapping[int, FinishedTask]) -> None:
        """Give up everything of a process that has not landed. An open commit is settled first."""
        log = ProcessLog(self._core, process)
        close_process(table, plan, log.load(), results, log, process.outcome or "it was cancelled", self._core.clock)
        self._end(process)

    def _tasks(self, process: ProcessRow) -> Sequence[TaskRow]:
        with self._core.store.read() as view:
            return view.find(TaskRow, process_id=process.id)

    def _end(self, process: ProcessRow) -> None:
        """End a process: what it had in work is free again, its files are looked through, and the table is looked at."""
        now = self._core.clock.now()
        with self._core.store.begin() as transaction:
            current = transaction.get(ProcessRow, process.id)
            if current is None:
                return
            tasks = transaction.find(TaskRow, process_id=process.id)
            is_open = bool(transaction.find(CommitRow, process_id=process.id, state=CommitState.OPEN))
            step = None if is_open else end_process(current, tasks, now)
            if step is None:
                return
            transaction.update(step.row)
            transaction.delete(ClaimRow, process_id=process.id)
            transaction.record(step.transitions)
            row = transaction.get(TableRow, process.table_uuid)
            is_replaced = bool(tasks) and all(task.state is TaskState.REPLACED for task in tasks)
            if row is not None and row.state is not TableState.GONE and not is_replaced:
                noted = note_outcome(row, step.row, now)
                transaction.update(noted.row)
                transaction.record(noted.transitions)
        for of_processes in (self._idle, self._not_before, self._failures):
            of_processes.pop(process.id, None)
        self._core.bells.ring("cleaning")
        self._core.bells.ring("looks")


class OpenedTable:
    """The table of several processes, opened once: what it has read of its history serves all of them."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._table: Table | None = None

    def newest(self, process: ProcessRow) -> Table | None:
        """The table as it is now, by the name that it has now; None: it does not exist any more."""
        with self._core.store.read() as view:
            row = view.get(TableRow, process.table_uuid)
        name, table = process.table if row is None else row.name, self._table
        try:
            if table is None or table.name != name:
                table = self._core.catalogs.open(name)
                table.kept_manifests = ReadManifests()
            else:
                table.refresh()
        except NotFound:
            return None
        self._table = table
        return table if table.uuid == process.table_uuid else None


def _work_of(view: Transaction, table_uuid: str) -> _Work | None:
    table = view.get(TableRow, table_uuid)
    if table is None:
        return None
    processes = sorted(view.find(ProcessRow, table_uuid=table_uuid, state=_ACTIVE), key=lambda row: row.created_at)
    open_commits = view.find(CommitRow, table_uuid=table_uuid, state=CommitState.OPEN)
    return _Work(
        table=table,
        processes=processes,
        tasks={process.id: view.find(TaskRow, process_id=process.id) for process in processes},
        open_commits=frozenset(row.process_id for row in open_commits),
    )


def _states(tasks: Sequence[TaskRow]) -> frozenset[tuple[int, TaskState]]:
    return frozenset((task.number, task.state) for task in tasks)


def _has_lost_unit(tasks: Sequence[TaskRow]) -> bool:
    """Whether a task was given up while others of its unit are not."""
    abandoned = {task.unit for task in tasks if task.state is TaskState.ABANDONED}
    return any(task.unit in abandoned and task.state not in ENDED_TASKS for task in tasks)
