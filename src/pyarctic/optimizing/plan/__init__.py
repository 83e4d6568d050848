"""Planning: from an evaluation to tasks, and explaining them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.optimizing.plan.commit_plan import CommitPlan
    from pyarctic.optimizing.plan.explain import Explanation, PartitionRow, RuleRow, TaskRow, format_measure
    from pyarctic.optimizing.plan.explain_tree import TreeRow
    from pyarctic.optimizing.plan.plan import KeyedPlan, NativePlan, Plan
    from pyarctic.optimizing.plan.recheck import Replacement, TrackedTask, choose_recheck, replace_waiting
    from pyarctic.optimizing.plan.start_files import StartFiles, load_start

__all__ = [
    "CommitPlan",
    "Explanation",
    "KeyedPlan",
    "NativePlan",
    "PartitionRow",
    "Plan",
    "Replacement",
    "RuleRow",
    "StartFiles",
    "TaskRow",
    "TrackedTask",
    "TreeRow",
    "choose_recheck",
    "format_measure",
    "load_start",
    "replace_waiting",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "commit_plan": ("CommitPlan",),
        "explain": ("Explanation", "PartitionRow", "RuleRow", "TaskRow", "format_measure"),
        "explain_tree": ("TreeRow",),
        "plan": ("KeyedPlan", "NativePlan", "Plan"),
        "recheck": ("Replacement", "TrackedTask", "choose_recheck", "replace_waiting"),
        "start_files": ("StartFiles", "load_start"),
    },
)
