"""Optimizing tables: observe → evaluate → plan → execute → commit, and explain.

Knows tables and their files. Evaluating and planning are pure functions of an observation; engines and committers act. Knows
neither a service nor Spark: an engine is anything that runs tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.optimizing.api import KindChoice, Options, explain_table, optimize_table
    from pyarctic.optimizing.evaluate.health import Health
    from pyarctic.optimizing.process import ProcessListener
    from pyarctic.optimizing.report import Amounts, Report

__all__ = ["Amounts", "Health", "KindChoice", "Options", "ProcessListener", "Report", "explain_table", "optimize_table"]

__getattr__ = lazy_exports(
    __name__,
    {
        "api": ("KindChoice", "Options", "explain_table", "optimize_table"),
        "evaluate.health": ("Health",),
        "process": ("ProcessListener",),
        "report": ("Amounts", "Report"),
    },
)
