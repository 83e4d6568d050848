"""The machine of tasks: hand-out, attempts, retries and results. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from pyarctic.ams.machine import Step
from pyarctic.ams.rows import TaskRow
from pyarctic.ams.states import TASKS, TaskState
from pyarctic.ams.times import begun
from pyarctic.errors import StaleAttempt

_MAX_FAILURES = 20
"""So many failures of a task are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPolicy:
    """How long attempts may take, and how often a task is tried."""

    acknowledge_timeout: timedelta = timedelta(seconds=30)
    progress_timeout: timedelta = timedelta(hours=1)
    execute_timeout: timedelta = timedelta(hours=12)
    retry_interval: timedelta = timedelta(seconds=30)
    max_retries: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Let optimizers have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOut:
    """Give it to an optimizer, as a new attempt."""

    optimizer_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge:
    """The optimizer has got it."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The optimizer tells how far it is."""

    attempt: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """The attempt has a result, which is stored with the new state."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """The attempt failed."""

    attempt: int
    failure: Mapping[str, Any]
    """The failure as a document."""
    policy: AttemptPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveBack:
    """Nobody executes it any more, which is not its fault: this is no retry."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The retry interval is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """A commit of its unit is stored."""

    snapshot_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """The commit of its unit was refused."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Land:
    """Its result is in the table."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """Its unit is not committed any more."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace:
    """A newer plan has a task in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Its process is cancelled."""

    by: str
    why: str


TaskEvent = (
    Queue
    | HandOut
    | Acknowledge
    | Progress
    | Complete
    | Fail
    | GiveBack
    | Retry
    | Send
    | Refuse
    | Land
    | GiveUp
    | Replace
    | Cancel
)


def step_task(task: TaskRow, event: TaskEvent, now: datetime, table: str) -> Step[TaskRow]:  # long: a case for each event
    """The task after an event; raises StaleAttempt for reports that do not count any more, and InvalidTransition for moves
    that the machine does not have."""
    match event:
        case Queue():
            return _move(task, TaskState.PENDING, "its process runs", now, table, queued_at=task.queued_at or now)
        case HandOut():
            return _hand_out(task, event, now, table)
        case Acknowledge():
            check_attempt(task, event.attempt)
            return _change(task, acknowledged_at=task.acknowledged_at or now, progressed_at=now)
        case Progress():
            check_attempt(task, event.attempt)
            acknowledged_at = task.acknowledged_at or now
            return _change(
                task, acknowledged_at=acknowledged_at, progressed_at=now, rows_done=event.rows, bytes_done=event.bytes
            )
        case Complete():
            check_attempt(task, event.attempt)
            return _move(task, TaskState.PREPARED, f"attempt {event.attempt} has a result", now, table, prepared_at=now)
        case Fail():
            return _fail(task, event, now, table)
        case GiveBack():
            return _move(task, TaskState.PENDING, event.why, now, table, optimizer_id=None, queued_at=task.queued_at)
        case Retry():
            return _move(task, TaskState.PENDING, f"retry {task.retries}", now, table, retry_at=None)
        case Send():
            return _move(task, TaskState.COMMITTING, f"commit of snapshot {event.snapshot_id}", now, table)
        case Refuse():
            return _move(task, TaskState.PREPARED, event.why, now, table)
        case Land():
            return _move(task, TaskState.COMMITTED, event.why, now, table, ended_at=now)
        case GiveUp():
            if task.state is TaskState.INIT:  # the machine has no such move: it was never queued
                return _move(task, TaskState.CANCELLED, event.why, now, table, ended_at=now)
            return _move(task, TaskState.ABANDONED, event.why, now, table, ended_at=now)
        case Replace():
            return _move(task, TaskState.REPLACED, "a newer plan covers its node", now, table, ended_at=now)
        case Cancel():
            return _move(task, TaskState.CANCELLED, event.why, now, table, by=event.by, ended_at=now)


def overdue(task: TaskRow, policy: AttemptPolicy, now: datetime, since: datetime) -> str | None:
    """Why an attempt takes too long; None: it does not. `since`: when the service started, or took over. Every attempt has
    its full time from then on."""
    if task.state is not TaskState.EXECUTING or task.handed_out_at is None:
        return None
    handed_out = begun(task.handed_out_at, since, now)
    if task.acknowledged_at is None:
        return None if now < handed_out + policy.acknowledge_timeout else "it was not acknowledged in time"
    if now >= handed_out + policy.execute_timeout:
        return f"it was executed for more than {policy.execute_timeout}"
    progressed = begun(task.progressed_at or handed_out, since, now)
    return None if now < progressed + policy.progress_timeout else f"no progress for {policy.progress_timeout}"


def _hand_out(task: TaskRow, event: HandOut, now: datetime, table: str) -> Step[TaskRow]:
    attempt = 0 if task.attempt is None else task.attempt + 1
    return _move(
        task,
        TaskState.EXECUTING,
        f"attempt {attempt}",
        now,
        table,
        attempt=attempt,
        optimizer_id=event.optimizer_id,
        handed_out_at=now,
        acknowledged_at=None,
        progressed_at=None,
        rows_done=0,
        bytes_done=0,
    )


def _fail(task: TaskRow, event: Fail, now: datetime, table: str) -> Step[TaskRow]:
    """One run and some retries, whatever the reason: another optimizer may have more memory, or another version."""
    check_attempt(task, event.attempt)
    failure = {**event.failure, "attempt": event.attempt, "at": now.isoformat(), "optimizer_id": task.optimizer_id}
    failed = _move(
        task,
        TaskState.FAILED,
        f"attempt {event.attempt}: {event.failure.get('detail') or event.failure.get('code')}",
        now,
        table,
        failures=(*task.failures, failure)[-_MAX_FAILURES:],
    )
    if task.retries < event.policy.max_retries:
        retries = task.retries + 1
        return replace(failed, row=replace(failed.row, retries=retries, retry_at=now + event.policy.retry_interval))
    why = f"no retry is left after {task.retries + 1} runs"
    abandoned = _move(failed.row, TaskState.ABANDONED, why, now, table, ended_at=now)
    row = replace(abandoned.row, version=failed.row.version)
    return Step(row=row, transitions=(*failed.transitions, *abandoned.transitions))


def check_attempt(task: TaskRow, attempt: int) -> None:
    """Raise StaleAttempt for an attempt that does not count any more."""
    if task.state is not TaskState.EXECUTING or task.attempt != attempt:
        raise StaleAttempt(
            f"task {task.key} is {task.state}, and attempt {attempt} at it does not count any more",
            hint="Stop working on it, and remove what it wrote unless its result was reported.",
            task=task.key,
            attempt=attempt,
        )


def _change(task: TaskRow, **changes: Any) -> Step[TaskRow]:
    return Step(row=replace(task, version=task.version + 1, **changes))


def _move(
    task: TaskRow, after: TaskState, why: str, now: datetime, table: str, *, by: str = "service", **changes: Any
) -> Step[TaskRow]:
    transition = TASKS.move(task.key, task.state, after, why, now, table=table, by=by)
    return Step(row=replace(task, state=after, version=task.version + 1, **changes), transitions=(transition,))
