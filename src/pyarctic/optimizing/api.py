"""One run over one table: look, plan, execute, commit, report."""

from __future__ import annotations

import resource
import time
import uuid
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal, Protocol

import polars as pl
from pyiceberg.table.metadata import TableMetadataV1

from pyarctic.errors import UsageError, about
from pyarctic.iceberg.manifest import EQUALITY_DELETES, FILE_SCHEMA, IS_VECTOR, PartitionDecoder
from pyarctic.iceberg.predicate import parse_condition, prune_partitions, with_optional_parents
from pyarctic.iceberg.write import random_id
from pyarctic.optimizing.commit.committer import CommitLog, Committer, FinishedTask
from pyarctic.optimizing.commit.keyed import KeyedCommitter
from pyarctic.optimizing.commit.native import NativeCommitter
from pyarctic.optimizing.evaluate.evaluation import Evaluation
from pyarctic.optimizing.execute.engines import Engine
from pyarctic.optimizing.observe.observing import check_kind, evaluate_table
from pyarctic.optimizing.plan.explain import Explanation, explain_plan, nothing_to_explain
from pyarctic.optimizing.plan.planning import Plan, make_plan
from pyarctic.optimizing.protocol.tasks import (
    OPTIMIZING_KINDS,
    Job,
    OptimizingKind,
    Progress,
    Task,
    TaskFailure,
    job_metadata,
)
from pyarctic.optimizing.report import Amounts, Health, Report
from pyarctic.tables import Table

KindChoice = Literal["auto", "minor", "major", "full"]
MEMORY_BYTES = 512 << 20
"""What one task may use."""


class ProcessListener(Protocol):
    """Somebody who looks on."""

    def planned(self, plan: Plan) -> None: ...
    def progress(self, progress: Progress) -> None: ...
    def ended(self, task: int, failure: TaskFailure | None) -> None: ...
    def said(self, text: str) -> None: ...


class SilentListener:
    """Nobody looks on."""

    def planned(self, plan: Plan) -> None: ...
    def progress(self, progress: Progress) -> None: ...
    def ended(self, task: int, failure: TaskFailure | None) -> None: ...
    def said(self, text: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a caller may choose."""

    kind: KindChoice = "auto"
    where: str | None = None
    dry_run: bool = False
    verify: bool = False
    ignore_writers: bool = False
    memory_bytes: int = MEMORY_BYTES

    def __post_init__(self) -> None:
        if self.kind not in ("auto", *OPTIMIZING_KINDS):
            raise UsageError(
                f"unknown kind of optimizing: {self.kind!r}", hint=f"One of: auto, {', '.join(OPTIMIZING_KINDS)}."
            )


def plan_table(table: Table, options: Options, first_task: int = 0) -> Plan | None:
    """What a run would do now; None for a table without data."""
    check_kind(table)
    evaluation = evaluate_table(table)
    if evaluation is None:
        return None
    with about(table=table.name):
        kind: OptimizingKind | None = None if options.kind == "auto" else options.kind
        only = None if options.where is None else _partitions_of(evaluation, options.where)
        return make_plan(evaluation, kind=kind, only=only, ignore_writers=options.ignore_writers, first_task=first_task)


def _partitions_of(evaluation: Evaluation, where: str) -> pl.DataFrame:
    """The partitions that may hold rows for which a condition holds."""
    metadata = evaluation.observation.metadata
    schema = metadata.schema()
    condition = parse_condition(schema, where)
    return prune_partitions(evaluation.partitions, metadata, with_optional_parents(schema), condition).select(
        "spec_id", "partition"
    )


def explain_table(table: Table, options: Options) -> Explanation:
    """Why a run would do what it would do. Nothing is changed."""
    plan = plan_table(table, options)
    return explain_plan(plan) if plan is not None else nothing_to_explain(table.name, datetime.now(UTC))


def optimize_table(table: Table, engine: Engine, options: Options, watcher: ProcessListener | None = None) -> Report:
    """Bring a table into shape, and tell what was done."""
    return _Run(table, engine, options, watcher or SilentListener()).run()


@dataclass(kw_only=True)
class _Tally:
    """What the run has seen of its tasks."""

    failures: list[TaskFailure] = field(default_factory=list)
    cpu_seconds: float = 0.0
    peak_bytes: int = 0


class _Run:
    def __init__(self, table: Table, engine: Engine, options: Options, watcher: ProcessListener) -> None:
        self._table = table
        self._engine = engine
        self._options = options
        self._watcher = watcher
        self._process_id = str(uuid.uuid4())
        self._tally = _Tally()
        self._started = time.monotonic()
        self._cpu = _own_cpu()

    def run(self) -> Report:
        plan = plan_table(self._table, self._options)
        if plan is None:
            return self._nothing()
        plans, ledger = [plan], CommitLog()
        self._watcher.planned(plan)
        if not self._options.dry_run:
            ledger = self._execute(plan)
            if any(_changes_spec(task) for task in plan.tasks) and ledger.commits:
                # Rows of former partition specs have come to partitions that have files of their own: put them together.
                again = plan_table(self._table.refresh(), self._options, first_task=len(plan.tasks))
                if again is not None and again.tasks:
                    plans.append(again)
                    self._watcher.planned(again)
                    ledger.add(self._execute(again))
        return self._report(plans, ledger)

    def _execute(self, plan: Plan) -> CommitLog:
        kind = NativeCommitter if plan.keyed is None else KeyedCommitter
        committer = kind(self._table, plan, self._process_id, self._watcher.said)
        with committer:
            self._work(plan, committer)
        return committer.ledger

    def _work(self, plan: Plan, committer: Committer) -> None:
        job = make_job(self._table, plan, self._options)
        by_id = {task.id: task for task in plan.tasks}
        # The longest work first: what is left at the end is short. Conversions are committed after merges anyway.
        merges = sorted(plan.tasks_of("merge"), key=lambda task: task.input_bytes, reverse=True)
        tasks = [*merges, *plan.tasks_of("convert")]
        with closing(self._engine.run(job, self._table.view.io, tasks, self._watcher.progress)) as outcomes:
            for outcome in outcomes:
                task = by_id[outcome.task]
                if isinstance(outcome, TaskFailure):
                    outcome = replace(outcome, partition=task.partition)
                    self._tally.failures.append(outcome)
                    self._watcher.ended(outcome.task, outcome)
                    committer.fail(task)
                    continue
                committer.take(
                    FinishedTask(task=task, result=outcome)
                )  # before anybody may interrupt: its files are nobody's yet
                self._watcher.ended(outcome.task, None)
                self._tally.cpu_seconds += outcome.cpu_seconds
                self._tally.peak_bytes = max(self._tally.peak_bytes, outcome.peak_bytes)
        committer.finish()

    def _report(self, plans: list[Plan], ledger: CommitLog) -> Report:
        first, last = plans[0], plans[-1]
        before = after = first.evaluation
        if ledger.commits:
            after = evaluate_table(self._table.refresh()) or before
        added = [file for one in ledger.committed for file in one.result.add]
        merges = [one for one in ledger.committed if one.task.action == "merge"]
        replaced = pl.concat([pl.DataFrame(schema=FILE_SCHEMA), *(one.task.replaced for one in merges)]).unique("file_path")
        keyed = [one.task.keyed.changes for one in merges if one.task.keyed is not None]
        brought = pl.concat([pl.DataFrame(schema=FILE_SCHEMA), *keyed]).unique("file_path")
        deletes = ledger.removed_deletes
        decoder = PartitionDecoder(last.observation.metadata)
        tasks = [task for plan in plans for task in plan.tasks]
        figures = [plan.figures() for plan in plans]
        return Report(
            table=self._table.name,
            engine=self._engine.name,
            dry_run=self._options.dry_run,
            process_id=self._process_id,
            kinds=tuple(kind for kind in OPTIMIZING_KINDS if any(task.kind == kind for task in tasks)),
            snapshot_ids=tuple(commit.snapshot_id for commit in ledger.commits if commit.snapshot_id is not None),
            tasks_planned=len(tasks),
            tasks_committed=len(ledger.committed),
            dropped=tuple(f"task {done.task.id}: {reason}" for done, reason in ledger.dropped),
            failures=tuple(self._tally.failures),
            removed=Amounts(
                data_files=replaced.height,
                data_bytes=int(replaced["file_size_bytes"].sum()),
                rows=int(replaced["record_count"].sum()),
                change_files=brought.height,
                change_rows=int(brought["record_count"].sum()),
                **_delete_counts(deletes),
            ),
            added=Amounts(
                data_files=sum(file.content == 0 for file in added),
                data_bytes=sum(file.file_size_bytes for file in added if file.content == 0),
                rows=sum(file.record_count for file in added if file.content == 0),
                position_delete_files=sum(file.content == 1 and not file.is_vector for file in added),
                deletion_vectors=sum(file.is_vector for file in added),
            ),
            rows_deleted=sum(one.result.rows_deleted for one in merges),
            rows_copied=sum(one.result.copied_rows for one in merges),
            files_shared=sum(len(one.result.shared) for one in merges),
            rebased_rows=sum(commit.rebased_rows for commit in ledger.commits),
            health_before=Health.of(before.health),
            health_after=Health.of(after.health),
            before=_amounts(before),
            after=_amounts(after),
            predicted={name: sum(each[name] for each in figures) for name in figures[0]},
            held_back=tuple(decoder.path(*key) for key in last.held_back.select("spec_id", "partition").iter_rows()),
            left_out=last.left_out,
            cpu_seconds=round(self._tally.cpu_seconds + _own_cpu() - self._cpu, 3),
            wall_seconds=round(time.monotonic() - self._started, 3),
            peak_task_bytes=self._tally.peak_bytes,
        )

    def _nothing(self) -> Report:
        well = Health(score=100.0, small_files=0.0, equality_deletes=0.0, position_deletes=0.0)
        return Report(
            table=self._table.name,
            engine=self._engine.name,
            dry_run=self._options.dry_run,
            process_id=self._process_id,
            kinds=(),
            health_before=well,
            health_after=well,
            before=Amounts(),
            after=Amounts(),
        )


def make_job(table: Table, plan: Plan, options: Options) -> Job:
    """What the tasks of a plan share."""
    metadata, snapshot_id = plan.observation.metadata, plan.observation.snapshot_id
    keyed = plan.keyed is not None
    sequence = None
    if not keyed and snapshot_id is not None and not isinstance(metadata, TableMetadataV1):
        # Rewritten files keep the number they were planned at, so that later equality deletes reach them. Base has none.
        snapshot = metadata.snapshot_by_id(snapshot_id)
        sequence = (snapshot.sequence_number if snapshot else None) or 0
    return Job(
        id=str(random_id()) if keyed else str(uuid.uuid4()),
        table=table.name,
        metadata=job_metadata(metadata),
        snapshot_id=snapshot_id,
        sequence_number=sequence,
        memory_bytes=options.memory_bytes,
        verify=options.verify,
    )


def _changes_spec(task: Task) -> bool:
    return task.action == "merge" and bool((task.data["spec_id"] != task.spec_id).any())


def _delete_counts(deletes: pl.DataFrame) -> dict[str, int]:
    is_equality = pl.col("content") == EQUALITY_DELETES
    counted = deletes.select(
        equality_delete_files=is_equality.sum(),
        position_delete_files=(~is_equality & ~IS_VECTOR).sum(),
        deletion_vectors=IS_VECTOR.sum(),
    )
    return {name: int(value) for name, value in counted.row(0, named=True).items()}


def _amounts(evaluation: Evaluation) -> Amounts:
    files, matches = evaluation.files, evaluation.observation.matches
    pending = evaluation.partitions if evaluation.observation.changes is not None else None
    deletes = pl.concat([*matches.by_kind.values(), matches.vectors])
    return Amounts(
        data_files=files.height,
        data_bytes=int(files["file_size_bytes"].sum()),
        rows=int(files["record_count"].sum()),
        change_files=int(pending["change_files"].sum()) if pending is not None else 0,
        change_rows=int(pending["change_records"].sum()) if pending is not None else 0,
        **_delete_counts(deletes),
    )


def _own_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
