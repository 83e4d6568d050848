"""The management service: watches tables, plans, hands out tasks, collects results, commits, and cleans up.

Knows tables and how they are optimized; keeps everything that must survive a crash in its database. Decisions are pure steps
of state machines; loops store what was decided before they act on it. Knows neither HTTP nor optimizers: `pyarctic.server`
offers its functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.ams.core import Bell, Bells, Catalogs, ConfiguredCatalogs
    from pyarctic.ams.crews import Crew
    from pyarctic.ams.handing import HandedTask, Registration, find_task
    from pyarctic.ams.leading import Leadership
    from pyarctic.ams.looks import ReportedCommit
    from pyarctic.ams.machine import InvalidTransition
    from pyarctic.ams.rows import CommitRow, EventRow, OptimizerRow, ProcessRow, Row, TableRow, TaskRow, UnitRow
    from pyarctic.ams.service import Ams
    from pyarctic.ams.settings import ServiceSettings
    from pyarctic.ams.states import (
        ENDED_PROCESSES,
        WORKING_OPTIMIZERS,
        CommitState,
        OptimizerState,
        ProcessState,
        TableState,
        TaskState,
    )
    from pyarctic.ams.tasks import AttemptPolicy

__all__ = [
    "ENDED_PROCESSES",
    "WORKING_OPTIMIZERS",
    "Ams",
    "AttemptPolicy",
    "Bell",
    "Bells",
    "Catalogs",
    "CommitRow",
    "CommitState",
    "ConfiguredCatalogs",
    "Crew",
    "EventRow",
    "HandedTask",
    "InvalidTransition",
    "Leadership",
    "OptimizerRow",
    "OptimizerState",
    "ProcessRow",
    "ProcessState",
    "Registration",
    "ReportedCommit",
    "Row",
    "ServiceSettings",
    "TableRow",
    "TableState",
    "TaskRow",
    "TaskState",
    "UnitRow",
    "find_task",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "core": ("Bell", "Bells", "Catalogs", "ConfiguredCatalogs"),
        "crews": ("Crew",),
        "handing": ("HandedTask", "Registration", "find_task"),
        "leading": ("Leadership",),
        "looks": ("ReportedCommit",),
        "machine": ("InvalidTransition",),
        "rows": ("CommitRow", "EventRow", "OptimizerRow", "ProcessRow", "Row", "TableRow", "TaskRow", "UnitRow"),
        "service": ("Ams",),
        "settings": ("ServiceSettings",),
        "states": (
            "ENDED_PROCESSES",
            "WORKING_OPTIMIZERS",
            "CommitState",
            "OptimizerState",
            "ProcessState",
            "TableState",
            "TaskState",
        ),
        "tasks": ("AttemptPolicy",),
    },
)
