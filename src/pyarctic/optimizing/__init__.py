"""Optimizing: how well a table is, what it needs, and doing it. Evaluate → plan → execute → commit → explain.

Knows tables and their files; decides purely (evaluate, plan) and acts at the edge (observe, engines, commits). Knows no
service and no Spark: an engine is whatever runs tasks."""

from pyarctic.optimizing.engines import Engine, LocalEngine
from pyarctic.optimizing.explain import Explanation, PartitionRow, RuleRow, TaskRow, measure_text
from pyarctic.optimizing.plan import Plan
from pyarctic.optimizing.report import Amounts, Health, Report
from pyarctic.optimizing.run import KindChoice, Options, Watcher, explain_table, optimize_table
from pyarctic.optimizing.tasks import Job, Progress, Task, TaskFailure, TaskOutcome, TaskResult
from pyarctic.optimizing.undo import Undone, undo

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
    "Undone",
    "Watcher",
    "explain_table",
    "measure_text",
    "optimize_table",
    "undo",
]
