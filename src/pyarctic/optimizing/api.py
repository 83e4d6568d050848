"""The entry points of this package: plan, explain and optimize one table."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from pyarctic.optimizing.events import ProcessListener, ignore_events
from pyarctic.optimizing.execute.engine import Engine
from pyarctic.optimizing.execute.local_engine import LocalEngine
from pyarctic.optimizing.options import KindChoice, Options
from pyarctic.optimizing.plan.explain import Explanation, explain_empty_table, explain_plan
from pyarctic.optimizing.process import OptimizingProcess, find_useless_condition, plan_table
from pyarctic.optimizing.report import Report
from pyarctic.tables import Table
from pyarctic.termination import end_by_sigterm

__all__ = ["KindChoice", "Options", "explain_table", "optimize_table", "plan_table"]


def explain_table(table: Table, options: Options) -> Explanation:
    """Explain what `optimize_table` would do now, and why. Nothing is changed."""
    plan = plan_table(table, options, LocalEngine().parallelism)
    if plan is None:
        return explain_empty_table(table.name, datetime.now(UTC))
    explanation = explain_plan(plan)
    useless = find_useless_condition(plan, options.where)
    return explanation if useless is None else replace(explanation, notes=(*explanation.notes, str(useless)))


def optimize_table(table: Table, engine: Engine, options: Options, listener: ProcessListener | None = None) -> Report:
    """Optimize a table, and report what was done. SIGTERM is handled like Ctrl-C, unless the caller has a handler for it:
    files that are not committed are removed, and then this process ends.

    For example `optimize_table(table, LocalEngine(workers=4), Options(kind="major"))`."""
    with end_by_sigterm():
        return OptimizingProcess(table, engine, options, listener or ignore_events).run()
