"""Optimizing tables: observe → evaluate → plan → execute → commit, and explain.

Knows tables and their files. Evaluating and planning are pure functions of an observation; engines and committers act. Knows
neither a service nor Spark: an engine is anything that runs tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.optimizing.api import KindChoice, Options, explain_table, optimize_table, plan_table
    from pyarctic.optimizing.evaluate.health import Deduction, Health
    from pyarctic.optimizing.events import (
        CommitLanded,
        ConditionUseless,
        Planned,
        ProcessEvent,
        ProcessListener,
        TaskDropped,
        TaskEnded,
        TaskFound,
        TaskProgressed,
        WritersAwaited,
    )
    from pyarctic.optimizing.many_tables import ListenerFactory, Outcomes, TableOutcome, optimize_tables
    from pyarctic.optimizing.report import Amounts, Report
    from pyarctic.optimizing.table_health import HealthListener, HealthReport, TableHealth, evaluate_tables

__all__ = [
    "Amounts",
    "CommitLanded",
    "ConditionUseless",
    "Deduction",
    "Health",
    "HealthListener",
    "HealthReport",
    "KindChoice",
    "ListenerFactory",
    "Options",
    "Outcomes",
    "Planned",
    "ProcessEvent",
    "ProcessListener",
    "Report",
    "TableHealth",
    "TableOutcome",
    "TaskDropped",
    "TaskEnded",
    "TaskFound",
    "TaskProgressed",
    "WritersAwaited",
    "evaluate_tables",
    "explain_table",
    "optimize_table",
    "optimize_tables",
    "plan_table",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "api": ("KindChoice", "Options", "explain_table", "optimize_table", "plan_table"),
        "events": (
            "CommitLanded",
            "ConditionUseless",
            "Planned",
            "ProcessEvent",
            "ProcessListener",
            "TaskDropped",
            "TaskEnded",
            "TaskFound",
            "TaskProgressed",
            "WritersAwaited",
        ),
        "evaluate.health": ("Deduction", "Health"),
        "many_tables": ("ListenerFactory", "Outcomes", "TableOutcome", "optimize_tables"),
        "report": ("Amounts", "Report"),
        "table_health": ("HealthListener", "HealthReport", "TableHealth", "evaluate_tables"),
    },
)
