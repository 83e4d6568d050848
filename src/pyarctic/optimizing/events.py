"""What happens in a process, as data. `str(event)` is a sentence for people."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyarctic.optimizing.plan.plan import Plan
from pyarctic.optimizing.protocol.result import Progress, TaskFailure
from pyarctic.units import format_quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The plan was made."""

    plan: Plan

    def __str__(self) -> str:
        return f"planned {format_quantity(len(self.plan.tasks), 'task')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProgressed:
    """A task has made progress."""

    progress: Progress

    def __str__(self) -> str:
        return f"task {self.progress.task} has read {self.progress.rows} rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEnded:
    """A task has succeeded, or failed for good."""

    task: int
    failure: TaskFailure | None = None

    def __str__(self) -> str:
        return f"task {self.task} {'done' if self.failure is None else f'failed: {self.failure.detail}'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLanded:
    """A commit is in the table."""

    snapshot_id: int
    units: tuple[int, ...]
    tasks: int

    def __str__(self) -> str:
        return f"committed {format_quantity(self.tasks, 'task')} as snapshot {self.snapshot_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFound:
    """A task was in the table already."""

    task: int

    def __str__(self) -> str:
        return f"task {self.task} is in the table already"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDropped:
    """The result of a task was discarded."""

    task: int
    reason: str

    def __str__(self) -> str:
        return f"task {self.task} was dropped: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WritersAwaited:
    """The next commit waits for a pause of other writers."""

    seconds: float
    """At most."""

    def __str__(self) -> str:
        return f"others change rows in the same partitions: waiting {self.seconds:.0f} s at most for a pause"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionUseless:
    """The condition does not exclude any partition."""

    reason: str

    def __str__(self) -> str:
        return f"the condition does not exclude any partition: {self.reason}"


ProcessEvent = (
    Planned | TaskProgressed | TaskEnded | CommitLanded | TaskFound | TaskDropped | WritersAwaited | ConditionUseless
)

ProcessListener = Callable[[ProcessEvent], None]
"""Is called with every event of a process, also from threads of workers."""


def ignore_events(_event: ProcessEvent) -> None:
    """Nobody listens."""
