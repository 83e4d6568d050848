"""Job, task and result as data: what planner, engines and committers exchange, in JSON too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.optimizing.protocol.tasks import (
        Job,
        Progress,
        ProgressListener,
        Task,
        TaskFailure,
        TaskOutcome,
        TaskResult,
    )

__all__ = ["Job", "Progress", "ProgressListener", "Task", "TaskFailure", "TaskOutcome", "TaskResult"]

__getattr__ = lazy_exports(
    __name__,
    {
        "tasks": ("Job", "Progress", "ProgressListener", "Task", "TaskFailure", "TaskOutcome", "TaskResult"),
    },
)
