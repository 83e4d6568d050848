"""One optimizing process over one table: plan, execute, commit, report."""

from __future__ import annotations

import resource
import time
import uuid
from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass, field, replace

import polars as pl

from pyarctic.clock import Clock, SystemClock
from pyarctic.errors import about
from pyarctic.iceberg import keep_small_files
from pyarctic.iceberg.predicate import (
    ALWAYS_TRUE,
    parse_condition,
    prune_partitions,
    restrict_condition,
    with_optional_parents,
)
from pyarctic.optimizing.commit.committer import Committer
from pyarctic.optimizing.commit.leftovers import remove_leftovers
from pyarctic.optimizing.commit.log import FinishedTask
from pyarctic.optimizing.commit.summary import CommitSummary
from pyarctic.optimizing.evaluate.evaluation import Evaluation, evaluate_table
from pyarctic.optimizing.events import (
    ConditionUseless,
    Planned,
    ProcessListener,
    TaskEnded,
    TaskProgressed,
    ignore_events,
)
from pyarctic.optimizing.execute.engine import Engine
from pyarctic.optimizing.execute.process_records import ProcessRecord
from pyarctic.optimizing.execute.renewed_storage import RenewedStorage
from pyarctic.optimizing.execute.task_runs import MAX_ATTEMPTS, run_tasks
from pyarctic.optimizing.observe.observation import check_optimizable
from pyarctic.optimizing.options import Options
from pyarctic.optimizing.plan.plan import KeyedPlan, NativePlan, Plan
from pyarctic.optimizing.plan.planner import make_plan
from pyarctic.optimizing.plan.start_files import StartFiles
from pyarctic.optimizing.protocol.job import Job
from pyarctic.optimizing.protocol.result import Progress, TaskFailure, TaskOutcome
from pyarctic.optimizing.protocol.task import Task
from pyarctic.optimizing.report import Report
from pyarctic.tables import Table

_KEPT_BYTES = 32 << 20
"""Manifests in remote storage are read for the plan, and again to write those without the replaced files."""


def plan_table(
    table: Table, options: Options, parallelism: int = 1, in_work: Collection[str] = ()
) -> NativePlan | KeyedPlan | None:
    """Plan what a process would do now with so many workers; None for a table without data. Files `in_work` by other
    processes are left out."""
    check_optimizable(table)
    evaluation = evaluate_table(table)
    if evaluation is None:
        return None
    with about(table=table.name):
        return make_plan(
            evaluation,
            kind=None if options.kind == "auto" else options.kind,
            only=None if options.where is None else _matching_partitions(evaluation, options.where),
            in_work=in_work,
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


def find_useless_condition(plan: Plan, where: str | None) -> ConditionUseless | None:
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
    return ConditionUseless(reason=reason)


@dataclass(kw_only=True)
class _TaskStatistics:
    """What the tasks of a process used, and which of them failed."""

    failures: list[TaskFailure] = field(default_factory=list)
    cpu_seconds: float = 0.0
    peak_bytes: int = 0


class OptimizingProcess:
    """Optimizes one table once: `OptimizingProcess(table, engine, options, listener).run()`."""

    def __init__(
        self,
        table: Table,
        engine: Engine,
        options: Options,
        listener: ProcessListener = ignore_events,
        clock: Clock | None = None,
    ) -> None:
        self._table = table
        self._engine = engine
        self._options = options
        self._listener = listener
        self._clock = clock or SystemClock()
        self._statistics = _TaskStatistics()
        self._start_seconds = time.monotonic()
        self._start_cpu_seconds = _own_cpu_seconds()

    def run(self) -> Report:
        """Plan, execute and commit."""
        with keep_small_files(_KEPT_BYTES):
            return self._run()

    def _run(self) -> Report:
        plan = plan_table(self._table, self._options, self._engine.parallelism)
        report = Report.empty(
            table=self._table.name,
            engine=self._engine.name,
            dry_run=self._options.dry_run,
            process_id=str(uuid.uuid4()) if plan is None else plan.process_id,
        )
        if plan is None:
            return report
        self._listener(Planned(plan=plan))
        if useless := find_useless_condition(plan, self._options.where):
            self._listener(useless)
        commits = CommitSummary()
        if not self._options.dry_run:
            commits = self._execute(plan)
            report = replace(report, leftovers_removed=self._remove_leftovers(plan))
        after = evaluate_table(self._table) if commits.snapshot_ids else None  # it was loaded after the last commit
        report = report.with_plan(plan).with_commits(commits).with_table(plan.evaluation, after or plan.evaluation)
        return self._with_statistics(report)

    def _execute(self, plan: NativePlan | KeyedPlan) -> CommitSummary:
        commit_plan = plan.to_commit_plan(memory_bytes=self._options.memory_bytes, verify=self._options.verify)
        storage = RenewedStorage(self._table)
        record = ProcessRecord(storage, commit_plan.job)
        committer = Committer(
            self._table,
            commit_plan,
            StartFiles(matches=plan.observation.matches),
            before_submit=record.note_submitted,
            clock=self._clock,
            notify=self._listener,
        )
        try:
            with committer:
                record.start(plan.tasks, range(MAX_ATTEMPTS))
                self._run_tasks(plan, commit_plan.job, storage, committer)
            return committer.summary()
        finally:
            record.finish(leaves_files=committer.leaves_files)

    def _remove_leftovers(self, plan: Plan) -> int:
        try:
            return remove_leftovers(self._table, plan.observation.settings.leftovers_min_age)
        except Exception:  # noqa: BLE001  # every storage has its own errors; the next process tries again
            return 0

    def _run_tasks(self, plan: Plan, job: Job, storage: RenewedStorage, committer: Committer) -> None:
        tasks = {task.id: task for task in plan.tasks}
        # The largest tasks first, so that the last ones are short. Conversions are committed after merges anyway.
        merges = sorted(plan.tasks_of("merge"), key=lambda task: task.input_bytes, reverse=True)
        ordered = [*merges, *plan.tasks_of("convert")]
        with closing(run_tasks(self._engine, job, storage, ordered, self._report_progress)) as outcomes:
            for outcome in outcomes:
                self._handle_outcome(tasks[outcome.task], outcome, committer)
        committer.finish()

    def _report_progress(self, progress: Progress) -> None:
        self._listener(TaskProgressed(progress=progress))

    def _handle_outcome(self, task: Task, outcome: TaskOutcome, committer: Committer) -> None:
        if isinstance(outcome, TaskFailure):
            failure = replace(outcome, partition=task.partition)
            self._statistics.failures.append(failure)
            self._listener(TaskEnded(task=task.id, failure=failure))
            committer.fail(task)
        else:
            # First of all: until the committer has it, nobody removes its files if this is interrupted.
            committer.accept(FinishedTask(task=task, result=outcome, received_at=self._clock.now()))
            self._listener(TaskEnded(task=task.id))
            self._statistics.cpu_seconds += outcome.cpu_seconds
            self._statistics.peak_bytes = max(self._statistics.peak_bytes, outcome.peak_bytes)
        committer.commit_due()

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
