"""What optimizers ask for: registration, tasks, and taking their reports."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import re
import secrets
import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyarctic._version import __version__
from pyarctic.ams.core import Core
from pyarctic.ams.processes import move_optimizer
from pyarctic.ams.rows import OptimizerRow, PlanRow, ProcessRow, ResultRow, TableRow, TaskRow
from pyarctic.ams.states import OPTIMIZERS, OptimizerState, TaskState
from pyarctic.ams.store import Query, Transaction
from pyarctic.ams.tasks import Acknowledge, Complete, Fail, GiveBack, HandOut, Progress, TaskEvent, check_attempt, step_task
from pyarctic.errors import NotFound, ProtocolError, Unauthorized, UnknownOptimizer, UsageError
from pyarctic.logs import get_logger
from pyarctic.optimizing.plan import CommitPlan
from pyarctic.optimizing.protocol import PROTOCOL_VERSION, accept_failure, accept_result, pack

_log = get_logger(__name__)
_KEPT_PLANS = 32
_NUMBER = re.compile(r"[0-9]{1,9}")
"""Numbers of tasks are not larger."""
_REPORTED = frozenset({TaskState.PREPARED, TaskState.COMMITTING, TaskState.COMMITTED})
_LONGEST_TEXT = 4000
_MIN_HEARTBEAT, _MAX_HEARTBEAT = 1.0, 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What an optimizer tells of itself."""

    group: str = "default"
    parallelism: int
    protocol_version: int = PROTOCOL_VERSION
    heartbeat_seconds: float = 10.0
    memory_bytes: int | None = None
    version: str = __version__
    host: str = ""
    container: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedTask:
    """A task in the hands of an optimizer."""

    row: TaskRow
    plan: CommitPlan
    """That it belongs to."""

    @property
    def attempt(self) -> int:
        """The number of the attempt."""
        if self.row.attempt is None:
            raise UsageError(f"task {self.row.key} was not handed out")
        return self.row.attempt

    def to_json(self) -> dict[str, Any]:
        """What an optimizer needs to execute it, without credentials."""
        task = next(task for task in self.plan.tasks if task.id == self.row.number)
        return {
            "task_id": self.row.key,
            "attempt": self.attempt,
            "table": self.plan.job.table,
            "table_uuid": self.row.table_uuid,
            "created_at": self.row.created_at.isoformat(),
            "job": self.plan.job.to_json(),
            "task": task.to_json(),
        }


class Plans:
    """The plans of processes. Those that were needed last are kept in memory."""

    def __init__(self) -> None:
        self._plans: OrderedDict[str, CommitPlan] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, view: Transaction, process_id: str) -> CommitPlan:
        """The plan of a process; raises NotFound if it is not kept any more."""
        with self._lock:
            plan = self._plans.get(process_id)
        if plan is None:
            row = view.get(PlanRow, process_id)
            if row is None:
                raise NotFound(f"the plan of process {process_id} is not kept any more")
            plan = CommitPlan.from_bytes(row.data)
        with self._lock:
            self._plans[process_id] = plan
            self._plans.move_to_end(process_id)
            while len(self._plans) > _KEPT_PLANS:
                self._plans.popitem(last=False)
        return plan


class Optimizers:
    """Serves optimizers. Every method is one transaction, and may be asked for again."""

    def __init__(self, core: Core, plans: Plans) -> None:
        self._core = core
        self._plans = plans

    # ---- optimizers -----------------------------------------------------------------------------------------------------

    def register(self, given: Registration) -> tuple[OptimizerRow, str]:
        """A new optimizer, and the secret that its requests must have."""
        if given.protocol_version != PROTOCOL_VERSION:
            raise UsageError(
                f"the optimizer speaks version {given.protocol_version} of the task protocol, this service version "
                f"{PROTOCOL_VERSION}",
                hint="Install the same version of PyArctic on both.",
            )
        if given.parallelism < 1:
            raise UsageError("an optimizer executes one task at a time at least", hint="Set its parallelism to 1 or more.")
        if not _MIN_HEARTBEAT <= given.heartbeat_seconds <= _MAX_HEARTBEAT:
            raise UsageError(
                f"a heartbeat interval of {given.heartbeat_seconds:g} s is not allowed",
                hint=f"It must be between {_MIN_HEARTBEAT:g} and {_MAX_HEARTBEAT:g} s.",
            )
        now, secret = self._core.clock.now(), secrets.token_urlsafe(24)
        row = OptimizerRow(
            id=str(uuid.uuid4()),
            group=given.group,
            container=given.container,
            state=OptimizerState.ACTIVE,
            parallelism=given.parallelism,
            memory_bytes=given.memory_bytes,
            version=given.version,
            host=given.host,
            token_hash=_hash(secret),
            heartbeat_seconds=given.heartbeat_seconds,
            registered_at=now,
            heard_at=now,
        )
        why = f"{given.parallelism} at a time on {given.host or 'an unnamed host'}"
        with self._core.store.begin() as transaction:
            transaction.insert(row)
            transaction.record([OPTIMIZERS.move(row.id, None, row.state, why, now, table=None)])
        return row, secret

    def check_secret(self, optimizer_id: str, secret: str, *, may_have_stopped: bool = False) -> None:
        """Refuse requests of an optimizer that does not work, or with another secret."""
        with self._core.store.read() as view:
            row = view.get(OptimizerRow, optimizer_id)
            if row is None or not (may_have_stopped and row.state is OptimizerState.STOPPED):
                row = _working(view, optimizer_id)
        _check_secret(row, secret)

    def check_reporter(self, key: str, attempt: int, secret: str) -> None:
        """Refuse reports about an attempt that are not from the optimizer which has it, or had it: one that has ended may
        repeat what it has told. Attempts that do not count any more are refused by the report itself."""
        with self._core.store.read() as view:
            task = _task(view, key)
            if task.attempt != attempt or task.optimizer_id is None:
                return
            row = view.get(OptimizerRow, task.optimizer_id)
        if row is not None:
            _check_secret(row, secret)

    def heartbeat(
        self, optimizer_id: str, attempts: Sequence[tuple[str, int]]
    ) -> tuple[OptimizerState, list[tuple[str, int]]]:
        """Note that an optimizer is there. Gives its state, and those of the attempts that it executes which it has to
        stop."""
        now = self._core.clock.now()
        with self._core.store.begin() as transaction:
            row = _working(transaction, optimizer_id)
            transaction.update(replace(row, heard_at=now))
            stop = [(key, attempt) for key, attempt in attempts if not _counts(find_task(transaction, key), attempt)]
        return row.state, stop

    def drain(self, optimizer_id: str, by: str) -> None:
        """Let an optimizer finish what it executes, and take nothing more."""
        self._move(optimizer_id, OptimizerState.DRAINING, "it is asked for", by)

    def stop(self, optimizer_id: str) -> None:
        """An optimizer ends. What it has not finished goes to others. The same request may come again."""
        self._move(optimizer_id, OptimizerState.STOPPED, "it ends", optimizer_id)

    def _move(self, optimizer_id: str, after: OptimizerState, why: str, by: str) -> None:
        with self._core.store.begin() as transaction:
            row = transaction.get(OptimizerRow, optimizer_id)
            if row is None:
                raise UnknownOptimizer(f"there is no optimizer {optimizer_id}")
            if row.state is not after:
                end_optimizer(transaction, row, after, why, by, self._core)
        self._core.bells.ring("tasks")  # others may have its tasks

    # ---- tasks ----------------------------------------------------------------------------------------------------------

    def poll(self, optimizer_id: str, slots: int) -> list[HandedTask]:
        """The next tasks for an optimizer, in the order in which they were queued. They have to be acknowledged soon."""
        now = self._core.clock.now()
        with self._core.store.read() as view:
            group = _working(view, optimizer_id).group
            if not view.find(TaskRow, Query(limit=1), state=TaskState.PENDING, group=group):
                return []  # most polls: no writer is kept waiting
        handed: list[HandedTask] = []
        with self._core.store.begin() as transaction:
            optimizer = _working(transaction, optimizer_id)
            if optimizer.state is not OptimizerState.ACTIVE:
                return []
            for task, plan in itertools.islice(self._waiting(transaction, optimizer.group, slots), slots):
                step = step_task(task, HandOut(optimizer_id=optimizer_id), now, _table_of(transaction, task))
                transaction.update(step.row)
                transaction.record(step.transitions)
                handed.append(HandedTask(row=step.row, plan=plan))
            transaction.update(replace(optimizer, heard_at=now))
        return handed

    def _waiting(self, view: Transaction, group: str, some: int) -> Iterator[tuple[TaskRow, CommitPlan]]:
        """The tasks of a group that wait, in the order in which they were queued. `some`: how many are probably needed."""
        limit = some
        while True:
            waiting = view.find(TaskRow, Query(order="queued_at", limit=limit), state=TaskState.PENDING, group=group)
            plans: list[tuple[TaskRow, CommitPlan]] = []
            for task in waiting:
                try:
                    plans.append((task, self._plans.get(view, task.process_id)))
                except ProtocolError as error:  # of a newer release, whose service runs again some day: others go on
                    _log.warning("plan_not_read", process_id=task.process_id, reason=str(error))
            if len(plans) >= some or len(waiting) < limit:
                yield from plans
                return
            limit *= 4

    def acknowledge(self, key: str, attempt: int) -> None:
        """An optimizer has got a task."""
        self._step(key, Acknowledge(attempt=attempt))

    def progress(self, key: str, attempt: int, rows: int, size: int) -> None:
        """An attempt goes on."""
        self._step(key, Progress(attempt=attempt, rows=rows, bytes=size))

    def complete(self, key: str, attempt: int, document: Mapping[str, Any]) -> None:
        """Take the result of an attempt. From now on its files belong to the service. The same report may come again."""
        with self._core.store.read() as view:
            task = _task(view, key)
            if _is_reported(task, attempt):
                return
            check_attempt(task, attempt)  # its plan may not be kept any more
            plan = self._plans.get(view, task.process_id)
        described = next(each for each in plan.tasks if each.id == task.number)
        result = accept_result(plan.job, described, attempt, document)
        now = self._core.clock.now()
        with self._core.store.begin() as transaction:
            task = _task(transaction, key)
            if _is_reported(task, attempt):
                return
            step = step_task(task, Complete(attempt=attempt), now, _table_of(transaction, task))
            row = ResultRow(process_id=task.process_id, number=task.number, data=pack(result.to_json()))
            transaction.delete(ResultRow, process_id=task.process_id, number=task.number)
            transaction.insert(row)
            transaction.update(step.row)
            transaction.record(step.transitions)
        self._core.bells.ring("commits")

    def fail(self, key: str, attempt: int, document: Mapping[str, Any]) -> None:
        """Take the failure of an attempt. The same report may come again."""
        with self._core.store.read() as view:
            task = _task(view, key)
            if any(each.get("attempt") == attempt for each in task.failures):
                return
            check_attempt(task, attempt)
            plan = self._plans.get(view, task.process_id)
        described = next(each for each in plan.tasks if each.id == task.number)
        failure = accept_failure(plan.job, described, attempt, document)
        texts = {"code": failure.code, "detail": _cut(failure.detail), "hint": _cut(failure.hint)}
        facts = {**texts, "retryable": failure.retryable}
        self._step(key, Fail(attempt=attempt, failure=facts, policy=self._core.settings.attempts))
        self._core.bells.ring("commits")  # its unit may be given up

    def table_of(self, key: str, attempt: int) -> TableRow:
        """The table of an attempt that counts."""
        with self._core.store.read() as view:
            task = _task(view, key)
            row = view.get(TableRow, task.table_uuid)
        check_attempt(task, attempt)
        if row is None:
            raise NotFound(f"the table of task {key} is not watched any more")
        return row

    def storage_of(self, key: str, attempt: int) -> dict[str, str]:
        """The properties of the storage of a task's table, with credentials, for whoever executes it. Asks the catalog."""
        from pyarctic.iceberg import storage_properties

        return storage_properties(self._core.catalogs.open(self.table_of(key, attempt).name).view.io)

    def _step(self, key: str, event: TaskEvent) -> None:
        now = self._core.clock.now()
        with self._core.store.begin() as transaction:
            task = _task(transaction, key)
            step = step_task(task, event, now, _table_of(transaction, task))
            transaction.update(step.row)
            transaction.record(step.transitions)


def end_optimizer(transaction: Transaction, row: OptimizerRow, after: OptimizerState, why: str, by: str, core: Core) -> None:
    """Move an optimizer. If it has ended, its tasks go back into the queue at once: ring for them when that is stored."""
    now = core.clock.now()
    step = move_optimizer(row, after, why, by, now)
    transaction.update(step.row)
    transaction.record(step.transitions)
    if step.row.ended_at is None:
        return
    for task in transaction.find(TaskRow, optimizer_id=row.id, state=TaskState.EXECUTING):
        given_back = step_task(task, GiveBack(why=f"its optimizer is {after}"), now, _table_of(transaction, task))
        transaction.update(given_back.row)
        transaction.record(given_back.transitions)


def _working(view: Transaction, optimizer_id: str) -> OptimizerRow:
    row = view.get(OptimizerRow, optimizer_id)
    if row is None or row.ended_at is not None:
        state = "not known" if row is None else str(row.state)
        raise UnknownOptimizer(f"optimizer {optimizer_id} is {state}", hint="Stop its tasks, and register again.")
    return row


def _task(view: Transaction, key: str) -> TaskRow:
    row = find_task(view, key)
    if row is None:
        raise NotFound(f"there is no task {key}")
    return row


def find_task(view: Transaction, key: str) -> TaskRow | None:
    """The task with that id of the API."""
    process_id, _, number = key.rpartition(".")
    return view.get(TaskRow, process_id, int(number)) if _NUMBER.fullmatch(number) else None


def _table_of(view: Transaction, task: TaskRow) -> str:
    process = view.get(ProcessRow, task.process_id)
    return "" if process is None else process.table


def _cut(text: str | None) -> str | None:
    """A text of a report, as long as somebody may read it."""
    return text if text is None or len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} …"


def _counts(task: TaskRow | None, attempt: int) -> bool:
    return task is not None and task.state is TaskState.EXECUTING and task.attempt == attempt


def _is_reported(task: TaskRow, attempt: int) -> bool:
    return task.attempt == attempt and task.state in _REPORTED


def _check_secret(row: OptimizerRow, secret: str) -> None:
    if not hmac.compare_digest(row.token_hash, _hash(secret)):
        raise Unauthorized(f"the secret is not that of optimizer {row.id}", hint="It is in the answer to its registration.")


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
