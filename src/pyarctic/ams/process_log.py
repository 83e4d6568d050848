"""What is stored of the commits of a process, in the database of the service."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from pyarctic.ams.core import Core
from pyarctic.ams.rows import CommitRow, ProcessRow, ResultRow, TableRow, TaskRow, UnitRow
from pyarctic.ams.states import COMMITS, ENDED_TASKS, CommitState, ProcessState, TaskState
from pyarctic.ams.store import Transaction
from pyarctic.ams.tasks import Cancel, GiveUp, Land, Refuse, Send, TaskEvent, step_task
from pyarctic.optimizing.commit import CommitLog, CommitRecord, FinishedTask
from pyarctic.optimizing.plan import CommitPlan
from pyarctic.optimizing.protocol import TaskResult, unpack
from pyarctic.units import format_quantity


class ProcessLog:
    """The log of a process in the database of the service, with the states of its tasks."""

    def __init__(self, core: Core, process: ProcessRow) -> None:
        self._core = core
        self._process = process

    def load(self) -> CommitLog:
        """What was stored."""
        with self._core.store.read() as view:
            commits = view.find(CommitRow, process_id=self._process.id)
            units = view.find(UnitRow, process_id=self._process.id)
        ordered = sorted(commits, key=lambda row: row.position)
        log = CommitLog(records=tuple(CommitRecord.from_json(row.record) for row in ordered))
        log = log.with_dropped({row.unit: row.dropped for row in units if row.dropped is not None})
        return log.with_found([row.unit for row in units if row.dropped is None])

    def save_record(self, record: CommitRecord) -> None:
        """Store a record, or its new state, before anything is done about it."""
        now, state = self._core.clock.now(), CommitState(record.state)
        with self._core.store.begin() as transaction:
            known = transaction.get(CommitRow, record.snapshot_id)
            before = None if known is None else known.state
            earlier = transaction.find(CommitRow, process_id=self._process.id)
            row = CommitRow(
                snapshot_id=record.snapshot_id,
                process_id=self._process.id,
                table_uuid=self._process.table_uuid,
                state=state,
                record=record.to_json(),
                position=max((row.position for row in earlier), default=0) + 1,
                changed_at=now,
            )
            (transaction.insert if known is None else transaction.update)(row)
            if before is state:
                return
            why = record.reason or f"{record.step} of {format_quantity(len(record.units), 'unit')}"
            key, table = str(record.snapshot_id), self._process.table
            transaction.record([COMMITS.move(key, before, state, why, now, table=table)])
            self._move_units(transaction, record.units, lambda task: _commit_event(task, record), now)
            table_row = transaction.get(TableRow, self._process.table_uuid)
            if state is CommitState.LANDED and table_row is not None:
                transaction.update(replace(table_row, committed_at=now))

    def save_dropped(self, reasons: Mapping[int, str]) -> None:
        """Store that units are given up, before their files are removed."""
        self._save_units(reasons)

    def save_found(self, units: Sequence[int]) -> None:
        """Store that units were found in the table."""
        self._save_units(dict.fromkeys(units))

    def _save_units(self, units: Mapping[int, str | None]) -> None:
        if not units:
            return
        now = self._core.clock.now()
        is_cancelled = self._process.state is ProcessState.CANCELLING

        def event(task: TaskRow) -> TaskEvent | None:
            reason = units[task.unit]
            if reason is None:
                return Land(why="it was found in the table")
            return Cancel(by="service", why=reason) if is_cancelled else GiveUp(why=reason)

        with self._core.store.begin() as transaction:
            transaction.insert(
                *(UnitRow(process_id=self._process.id, unit=unit, dropped=reason) for unit, reason in units.items())
            )
            self._move_units(transaction, units, event, now)

    def _move_units(
        self, transaction: Transaction, units: Iterable[int], event: Callable[[TaskRow], TaskEvent | None], now: datetime
    ) -> None:
        for task in transaction.find(TaskRow, process_id=self._process.id, unit=set(units)):
            happened = None if task.state in ENDED_TASKS else event(task)
            if happened is not None:
                step = step_task(task, happened, now, self._process.table)
                transaction.update(step.row)
                transaction.record(step.transitions)


def _commit_event(task: TaskRow, record: CommitRecord) -> TaskEvent | None:
    match record.state:
        case "open":
            return Send(snapshot_id=record.snapshot_id) if task.state is TaskState.PREPARED else None
        case "landed":
            return Land(why=f"snapshot {record.snapshot_id}")
        case "refused":
            return Refuse(why=record.reason or record.code or "refused") if task.state is TaskState.COMMITTING else None


def load_results(view: Transaction, process_id: str, plan: CommitPlan, tasks: Sequence[TaskRow]) -> dict[int, FinishedTask]:
    """The results of a process that were stored, by task."""
    by_number = {task.id: task for task in plan.tasks}
    rows = {task.number: task for task in tasks}
    results: dict[int, FinishedTask] = {}
    for stored in view.find(ResultRow, process_id=process_id):
        row = rows[stored.number]
        result = TaskResult.from_json(unpack(stored.data), plan.job.metadata)
        received_at = row.prepared_at or row.created_at
        results[stored.number] = FinishedTask(task=by_number[stored.number], result=result, received_at=received_at)
    return results
