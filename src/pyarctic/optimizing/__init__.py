"""Optimizing tables: observe → evaluate → plan → execute → commit, and explain.

Knows tables and their files. Evaluating and planning are pure functions of an observation; engines and commits act. Knows no
service and no Spark: an engine is whatever runs tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.optimizing.api import KindChoice, Options, ProcessListener, explain_table, optimize_table
    from pyarctic.optimizing.report import Amounts, Health, Report

__all__ = ["Amounts", "Health", "KindChoice", "Options", "ProcessListener", "Report", "explain_table", "optimize_table"]

__getattr__ = lazy_exports(
    __name__,
    {
        "api": ("KindChoice", "Options", "ProcessListener", "explain_table", "optimize_table"),
        "report": ("Amounts", "Health", "Report"),
    },
)
