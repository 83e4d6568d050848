"""Optimizing: how well a table is, what it needs, and doing it. Evaluate → plan → execute → commit → explain.

Knows tables and their files; decides purely (evaluate, plan) and acts at the edge (observe, engines, commits). Knows no
service and no Spark: an engine is whatever runs tasks.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyarctic.optimizing.engines import Engine, LocalEngine
    from pyarctic.optimizing.explain import Explanation, PartitionRow, RuleRow, TaskRow, measure_text
    from pyarctic.optimizing.explaintree import TreeRow
    from pyarctic.optimizing.plan import Plan
    from pyarctic.optimizing.report import Amounts, Health, Report
    from pyarctic.optimizing.run import KindChoice, Options, Watcher, explain_table, optimize_table
    from pyarctic.optimizing.tasks import Job, Progress, Task, TaskFailure, TaskOutcome, TaskResult
    from pyarctic.optimizing.undo import Undone, undo_runs

__all__ = [
    "Amounts",
    "Engine",
    "Explanation",
    "Health",
    "Job",
    "KindChoice",
    "LocalEngine",
    "Options",
    "PartitionRow",
    "Plan",
    "Progress",
    "Report",
    "RuleRow",
    "Task",
    "TaskFailure",
    "TaskOutcome",
    "TaskResult",
    "TaskRow",
    "TreeRow",
    "Undone",
    "Watcher",
    "explain_table",
    "measure_text",
    "optimize_table",
    "undo_runs",
]

# Loaded when asked for: a worker process needs a few of them and is started often.
_PLACES = {
    "Amounts": "report",
    "Engine": "engines",
    "Explanation": "explain",
    "Health": "report",
    "Job": "tasks",
    "KindChoice": "run",
    "LocalEngine": "engines",
    "Options": "run",
    "PartitionRow": "explain",
    "Plan": "plan",
    "Progress": "tasks",
    "Report": "report",
    "RuleRow": "explain",
    "Task": "tasks",
    "TaskFailure": "tasks",
    "TaskOutcome": "tasks",
    "TaskResult": "tasks",
    "TaskRow": "explain",
    "TreeRow": "explaintree",
    "Undone": "undo",
    "Watcher": "run",
    "explain_table": "run",
    "measure_text": "explain",
    "optimize_table": "run",
    "undo_runs": "undo",
}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
