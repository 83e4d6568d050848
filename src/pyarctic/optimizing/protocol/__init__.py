"""Job, task and result as data: what planner, engines and committers exchange, also as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.optimizing.protocol.acceptance import accept_failure, accept_result
    from pyarctic.optimizing.protocol.job import Job
    from pyarctic.optimizing.protocol.result import Progress, ProgressListener, TaskFailure, TaskOutcome, TaskResult
    from pyarctic.optimizing.protocol.task import KeyedTask, Task
    from pyarctic.optimizing.protocol.wire import PROTOCOL_VERSION, pack, unpack

__all__ = [
    "PROTOCOL_VERSION",
    "Job",
    "KeyedTask",
    "Progress",
    "ProgressListener",
    "Task",
    "TaskFailure",
    "TaskOutcome",
    "TaskResult",
    "accept_failure",
    "accept_result",
    "pack",
    "unpack",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "acceptance": ("accept_failure", "accept_result"),
        "job": ("Job",),
        "result": ("Progress", "ProgressListener", "TaskFailure", "TaskOutcome", "TaskResult"),
        "task": ("KeyedTask", "Task"),
        "wire": ("PROTOCOL_VERSION", "pack", "unpack"),
    },
)
