"""Planning: from an evaluation to tasks, and explaining them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.optimizing.plan.explain import Explanation, PartitionRow, RuleRow, TaskRow, format_measure
    from pyarctic.optimizing.plan.explain_tree import TreeRow
    from pyarctic.optimizing.plan.plan import Plan

__all__ = ["Explanation", "PartitionRow", "Plan", "RuleRow", "TaskRow", "TreeRow", "format_measure"]

__getattr__ = lazy_exports(
    __name__,
    {
        "explain": ("Explanation", "PartitionRow", "RuleRow", "TaskRow", "format_measure"),
        "explain_tree": ("TreeRow",),
        "plan": ("Plan",),
    },
)
