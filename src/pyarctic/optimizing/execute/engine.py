"""What an engine is: something that executes single attempts at tasks.

An engine neither repeats an attempt nor decides what becomes of its task: `execute.task_runs` does so for one process, a
service for all of its tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from importlib.metadata import entry_points
from typing import Protocol, Self, cast

from pyiceberg.io import FileIO

from pyarctic.errors import ConfigError, UsageError
from pyarctic.optimizing.protocol.job import Job
from pyarctic.optimizing.protocol.result import ProgressListener, TaskFailure, TaskOutcome
from pyarctic.optimizing.protocol.task import Task

Storage = FileIO
"""Where a table's files are, and with which credentials. They may be renewed meanwhile: each attempt takes those of its
start."""
_ENTRY_POINTS = "pyarctic.engines"
CANCELLED = "cancelled"
"""The code of the failure of an attempt that was stopped."""


class AttemptFuture(Future[TaskOutcome]):
    """The outcome of an attempt at a task. Errors of the attempt are outcomes, too: an exception is a fault of the engine or
    of a listener.

    If the outcome is a result, its files belong to whoever holds this. Of any other outcome there are no files."""

    def __init__(self, stop: Callable[[AttemptFuture], None]) -> None:
        super().__init__()
        self._stop = stop

    def cancel(self) -> bool:
        """Stop the attempt, also while it is executed: within seconds it fails with the code `cancelled`, unless it has an
        outcome before. Does not wait for that."""
        if not self.done():
            self._stop(self)
        return not self.done()

    @classmethod
    def of(cls, outcome: TaskOutcome) -> Self:
        """The future of an attempt that has ended."""
        ended = cls(lambda _: None)
        ended.set_result(outcome)
        return ended


class Engine(Protocol):
    """Executes attempts, several at a time, at tasks of any jobs and tables."""

    @property
    def name(self) -> str:
        """The name of the engine, for people."""
        ...

    @property
    def parallelism(self) -> int:
        """How many attempts are executed at the same time, if there is enough work. Others wait."""
        ...

    def prepare(self, tasks: Sequence[Task]) -> None:
        """Tells which tasks are going to be submitted, so that no more is started than they justify. It may be left out."""
        ...

    def submit(self, job: Job, io: Storage, task: Task, attempt: int, listen: ProgressListener) -> AttemptFuture:
        """Execute an attempt at a task. No other attempt at it has had that number. Other threads may
        call `listen`."""
        ...


def open_engine(name: str, workers: int | None = None) -> Engine:
    """The engine with that name: `local`, `spark`, or one of an installed package. Packages register theirs as entry points
    of the group `pyarctic.engines`: something that is called with the number of workers, or None, and gives an `Engine`."""
    found = entry_points(group=_ENTRY_POINTS)
    named = [each for each in found if each.name == name]
    if not named:
        raise UsageError(f"unknown engine: {name!r}", hint=f"One of: {', '.join(sorted(found.names))}, or a Spark session.")
    if len(named) > 1:
        raise ConfigError(
            f"several packages have an engine {name!r}: {', '.join(sorted(each.value for each in named))}",
            hint="Uninstall all but one of them.",
        )
    try:
        factory = named[0].load()
    except ImportError as cause:
        raise ConfigError(
            f"the engine {name!r} cannot be imported: {cause}",
            hint=f"It is {named[0].value}; install the package again.",
        ) from cause
    return cast("Engine", factory(workers))


def cancelled(job: Job, task: Task, attempt: int) -> TaskFailure:
    """The outcome of an attempt that was stopped."""
    return TaskFailure(job=job.id, task=task.id, attempt=attempt, code=CANCELLED, detail="the attempt was stopped")
