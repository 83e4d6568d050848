"""One optimizing process over one table: plan, execute, commit, report."""

from __future__ import annotations

import resource
import time
import uuid
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Protocol, cast

import polars as pl

from pyarctic.errors import about
from pyarctic.iceberg.predicate import parse_condition, prune_partitions, with_optional_parents
from pyarctic.optimizing.commit.committer import CommitLog, Committer, FinishedTask
from pyarctic.optimizing.commit.keyed import KeyedCommitter
from pyarctic.optimizing.commit.native import NativeCommitter
from pyarctic.optimizing.evaluate.evaluation import Evaluation, evaluate_table
from pyarctic.optimizing.execute.engines import Engine
from pyarctic.optimizing.observe.observation import check_optimizable
from pyarctic.optimizing.options import Options
from pyarctic.optimizing.plan.plan import KeyedPlan, NativePlan, Plan
from pyarctic.optimizing.plan.planner import make_plan
from pyarctic.optimizing.protocol.result import Progress, TaskFailure, TaskOutcome
from pyarctic.optimizing.protocol.task import Task
from pyarctic.optimizing.report import Report
from pyarctic.tables import KeyedTable, Table


class ProcessListener(Protocol):
    """Is notified of the steps of a process."""

    def planned(self, plan: Plan) -> None:
        """A plan was made. A process may make more than one."""

    def progress(self, progress: Progress) -> None:
        """A task has made progress."""

    def ended(self, task: int, failure: TaskFailure | None) -> None:
        """A task has succeeded, or failed."""

    def said(self, text: str) -> None:
        """There is a message for people."""


class SilentListener:
    """Ignores all notifications."""

    def planned(self, plan: Plan) -> None: ...
    def progress(self, progress: Progress) -> None: ...
    def ended(self, task: int, failure: TaskFailure | None) -> None: ...
    def said(self, text: str) -> None: ...


def plan_table(table: Table, options: Options, first_task: int = 0) -> NativePlan | KeyedPlan | None:
    """Plan what a process would do now; None for a table without data."""
    check_optimizable(table)
    evaluation = evaluate_table(table)
    if evaluation is None:
        return None
    with about(table=table.name):
        return make_plan(
            evaluation,
            kind=None if options.kind == "auto" else options.kind,
            only=None if options.where is None else _matching_partitions(evaluation, options.where),
            ignore_writers=options.ignore_writers,
            first_task=first_task,
        )


def _matching_partitions(evaluation: Evaluation, where: str) -> pl.DataFrame:
    """The partitions that may hold rows for which a condition is true."""
    metadata = evaluation.observation.metadata
    schema = metadata.schema()
    condition = parse_condition(schema, where)
    partitions = prune_partitions(evaluation.partitions, metadata, with_optional_parents(schema), condition)
    return partitions.select("spec_id", "partition")


@dataclass(kw_only=True)
class _TaskStatistics:
    """What the tasks of a process used, and which of them failed."""

    failures: list[TaskFailure] = field(default_factory=list)
    cpu_seconds: float = 0.0
    peak_bytes: int = 0


class OptimizingProcess:
    """Optimizes one table once: `OptimizingProcess(table, engine, options, listener).run()`."""

    def __init__(self, table: Table, engine: Engine, options: Options, listener: ProcessListener) -> None:
        self._table = table
        self._engine = engine
        self._options = options
        self._listener = listener
        self._process_id = str(uuid.uuid4())
        self._statistics = _TaskStatistics()
        self._start_seconds = time.monotonic()
        self._start_cpu_seconds = _own_cpu_seconds()

    def run(self) -> Report:
        """Plan, execute and commit."""
        report = Report.empty(
            table=self._table.name,
            engine=self._engine.name,
            dry_run=self._options.dry_run,
            process_id=self._process_id,
        )
        plan = plan_table(self._table, self._options)
        if plan is None:
            return report
        plans, log = [plan], CommitLog()
        self._listener.planned(plan)
        if not self._options.dry_run:
            log = self._execute(plan)
            if any(_changes_spec(task) for task in plan.tasks) and log.commits:
                # Rows of former partition specs were moved to partitions that have files of their own: merge them.
                second_plan = plan_table(self._table.refresh(), self._options, first_task=len(plan.tasks))
                if second_plan is not None and second_plan.tasks:
                    plans.append(second_plan)
                    self._listener.planned(second_plan)
                    log.extend(self._execute(second_plan))
        after = evaluate_table(self._table.refresh()) if log.commits else None
        report = report.with_plans(plans).with_commits(log).with_table(plan.evaluation, after or plan.evaluation)
        return self._with_statistics(report)

    def _execute(self, plan: NativePlan | KeyedPlan) -> CommitLog:
        with self._committer(plan) as committer:
            self._run_tasks(plan, committer)
        return committer.log

    def _committer(self, plan: NativePlan | KeyedPlan) -> Committer:
        if isinstance(plan, NativePlan):
            return NativeCommitter(self._table, plan, self._process_id, self._listener.said)
        table = cast("KeyedTable", self._table)  # no other table has a keyed plan
        return KeyedCommitter(table, plan, self._process_id, self._listener.said)

    def _run_tasks(self, plan: Plan, committer: Committer) -> None:
        job = plan.make_job(memory_bytes=self._options.memory_bytes, verify=self._options.verify)
        tasks = {task.id: task for task in plan.tasks}
        # The largest tasks first, so that the last ones are short. Conversions are committed after merges anyway.
        merges = sorted(plan.tasks_of("merge"), key=lambda task: task.input_bytes, reverse=True)
        ordered = [*merges, *plan.tasks_of("convert")]
        with closing(self._engine.run(job, self._table.view.io, ordered, self._listener.progress)) as outcomes:
            for outcome in outcomes:
                self._handle_outcome(tasks[outcome.task], outcome, committer)
        committer.finish()

    def _handle_outcome(self, task: Task, outcome: TaskOutcome, committer: Committer) -> None:
        if isinstance(outcome, TaskFailure):
            failure = replace(outcome, partition=task.partition)
            self._statistics.failures.append(failure)
            self._listener.ended(task.id, failure)
            committer.fail(task)
            return
        # First of all: until the committer has it, nobody removes its files if this is interrupted.
        committer.accept(FinishedTask(task=task, result=outcome))
        self._listener.ended(task.id, None)
        self._statistics.cpu_seconds += outcome.cpu_seconds
        self._statistics.peak_bytes = max(self._statistics.peak_bytes, outcome.peak_bytes)

    def _with_statistics(self, report: Report) -> Report:
        own_cpu_seconds = _own_cpu_seconds() - self._start_cpu_seconds
        return replace(
            report,
            failures=tuple(self._statistics.failures),
            cpu_seconds=round(self._statistics.cpu_seconds + own_cpu_seconds, 3),
            wall_seconds=round(time.monotonic() - self._start_seconds, 3),
            peak_task_bytes=self._statistics.peak_bytes,
        )


def _changes_spec(task: Task) -> bool:
    return task.action == "merge" and bool((task.data["spec_id"] != task.spec_id).any())


def _own_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
