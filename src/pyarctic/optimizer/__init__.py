"""Optimizers: poll a management service for tasks, execute them with an engine, and report what came of them.

`Optimizer` is what `arctic optimizer run` runs. Its parts are public, so that anyone can assemble another one: `TaskPoller`,
`TaskExecutor` and `TaskReporter`, over anything that offers the methods of `TaskService`. Knows the task protocol and
engines, but neither the database of the service nor catalogs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.optimizer.optimizer import Optimizer
    from pyarctic.optimizer.parts import PolledTask, TaskExecutor, TaskPoller, TaskReporter
    from pyarctic.optimizer.port import TaskService

__all__ = ["Optimizer", "PolledTask", "TaskExecutor", "TaskPoller", "TaskReporter", "TaskService"]

__getattr__ = lazy_exports(
    __name__,
    {
        "optimizer": ("Optimizer",),
        "parts": ("PolledTask", "TaskExecutor", "TaskPoller", "TaskReporter"),
        "port": ("TaskService",),
    },
)
