"""Job, task and result as data: what planner, engines and committers exchange, also as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.optimizing.protocol.job import Job
    from pyarctic.optimizing.protocol.result import Progress, ProgressListener, TaskFailure, TaskOutcome, TaskResult
    from pyarctic.optimizing.protocol.task import Task

__all__ = ["Job", "Progress", "ProgressListener", "Task", "TaskFailure", "TaskOutcome", "TaskResult"]

__getattr__ = lazy_exports(
    __name__,
    {
        "job": ("Job",),
        "result": ("Progress", "ProgressListener", "TaskFailure", "TaskOutcome", "TaskResult"),
        "task": ("Task",),
    },
)
