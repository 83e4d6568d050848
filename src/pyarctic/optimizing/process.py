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
from pyarctic.iceberg import keep_small_files
from pyarctic.iceberg.predicate import (
    ALWAYS_TRUE,
    parse_condition,
    prune_partitions,
    restrict_condition,
    with_optional_parents,
)
from pyarctic.optimizing.commit.committer import CommitLog, Committer, FinishedTask
from pyarctic.optimizing.commit.keyed import KeyedCommitter
from pyarctic.optimizing.commit.leftovers import remove_leftovers
from pyarctic.optimizing.commit.native import NativeCommitter
from pyarctic.optimizing.evaluate.evaluation import Evaluation, evaluate_table
from pyarctic.optimizing.execute.engines import Engine, attempts_of, parallelism_of
from pyarctic.optimizing.execute.process_records import ProcessRecord
from pyarctic.optimizing.execute.renewed_storage import RenewedStorage
from pyarctic.optimizing.observe.observation import check_optimizable
from pyarctic.optimizing.options import Options
from pyarctic.optimizing.plan.plan import KeyedPlan, NativePlan, Plan
from pyarctic.optimizing.plan.planner import make_plan
from pyarctic.optimizing.protocol.job import Job
from pyarctic.optimizing.protocol.result import Progress, TaskFailure, TaskOutcome
from pyarctic.optimizing.protocol.task import Task
from pyarctic.optimizing.report import Report
from pyarctic.tables import KeyedTable, Table

_KEPT_BYTES = 32 << 20
"""Manifests in remote storage are read for the plan, and again to write those without the replaced files."""


class ProcessListener(Protocol):
    """Is notified of the steps of a process."""

    def planned(self, plan: Plan) -> None:
        """The plan was made."""

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


def plan_table(table: Table, options: Options, parallelism: int = 1) -> NativePlan | KeyedPlan | None:
    """Plan what a process would do now with so many workers; None for a table without data."""
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
            parallelism=parallelism,
        )


def _matching_partitions(evaluation: Evaluation, where: str) -> pl.DataFrame:
    """The partitions that may hold rows for which a condition is true."""
    metadata = evaluation.observation.metadata
    schema = metadata.schema()
    condition = parse_condition(schema, where)
    partitions = prune_partitions(evaluation.partitions, metadata, with_optional_parents(schema), condition)
    return partitions.select("spec_id", "partition")


def note_about_condition(plan: Plan, where: str | None) -> str | None:
    """That a condition does not exclude any partition, because it has no partition column."""
    if where is None:
        return None
    metadata = plan.observation.metadata
    schema = metadata.schema()
    sources = {field.source_id for spec in metadata.specs().values() for field in spec.fields}
    if restrict_condition(schema, parse_condition(schema, where), sources) != ALWAYS_TRUE:
        return None
    names = [name for source in sorted(sources) if (name := schema.find_column_name(source))]
    reason = f"it has no partition column ({', '.join(names)})" if names else "the table is not partitioned"
    return f"the condition does not exclude any partition: {reason}"


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
        self._statistics = _TaskStatistics()
        self._start_seconds = time.monotonic()
        self._start_cpu_seconds = _own_cpu_seconds()

    def run(self) -> Report:
        """Plan, execute and commit."""
        with keep_small_files(_KEPT_BYTES):
            return self._run()

    def _run(self) -> Report:
        plan = plan_table(self._table, self._options, parallelism_of(self._engine))
        report = Report.empty(
            table=self._table.name,
            engine=self._engine.name,
            dry_run=self._options.dry_run,
            process_id=str(uuid.uuid4()) if plan is None else plan.process_id,
        )
        if plan is None:
            return report
        self._listener.planned(plan)
        if note := note_about_condition(plan, self._options.where):
            self._listener.said(note)
        log = CommitLog()
        if not self._options.dry_run:
            log = self._execute(plan)
            report = replace(report, leftovers_removed=self._remove_leftovers(plan))
        after = evaluate_table(self._table) if log.commits else None  # it was loaded after the last commit
        report = report.with_plan(plan).with_commits(log).with_table(plan.evaluation, after or plan.evaluation)
        return self._with_statistics(report)

    def _execute(self, plan: NativePlan | KeyedPlan) -> CommitLog:
        job = plan.make_job(memory_bytes=self._options.memory_bytes, verify=self._options.verify)
        storage = RenewedStorage(self._table)
        record = ProcessRecord(storage, job)
        committer = self._committer(plan, record)
        log = committer.log
        try:
            with committer:
                record.start(plan.tasks, attempts_of(self._engine))
                self._run_tasks(plan, job, storage, committer)
            if log.commits:
                log.drop_rolled_back(self._table.refresh().view.metadata, plan.observation.snapshot_id)
        finally:
            record.finish(leaves_files=committer.leaves_files or bool(log.rolled_back))
        return log

    def _remove_leftovers(self, plan: Plan) -> int:
        try:
            return remove_leftovers(self._table, plan.observation.settings.leftovers_min_age)
        except Exception:  # noqa: BLE001  # every storage has its own errors; the next process tries again
            return 0

    def _committer(self, plan: NativePlan | KeyedPlan, record: ProcessRecord) -> Committer:
        said, before_submit = self._listener.said, record.note_submitted
        if isinstance(plan, NativePlan):
            return NativeCommitter(self._table, plan, plan.process_id, said, before_submit)
        table = cast("KeyedTable", self._table)  # no other table has a keyed plan
        return KeyedCommitter(table, plan, plan.process_id, said, before_submit)

    def _run_tasks(self, plan: Plan, job: Job, storage: RenewedStorage, committer: Committer) -> None:
        tasks = {task.id: task for task in plan.tasks}
        # The largest tasks first, so that the last ones are short. Conversions are committed after merges anyway.
        merges = sorted(plan.tasks_of("merge"), key=lambda task: task.input_bytes, reverse=True)
        ordered = [*merges, *plan.tasks_of("convert")]
        with closing(self._engine.run(job, storage, ordered, self._listener.progress)) as outcomes:
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


def _own_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
