"""Choosing the partitions of a plan, and planning their tasks."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import replace

import polars as pl

from pyarctic.iceberg.delete import PARTITION_KEY
from pyarctic.iceberg.manifest import FILE_SCHEMA
from pyarctic.iceberg.write import random_id
from pyarctic.optimizing.evaluate.evaluation import Evaluation
from pyarctic.optimizing.evaluate.rules import GAINS
from pyarctic.optimizing.observe.observation import KeyedObservation, Observation
from pyarctic.optimizing.plan.keyed import plan_keyed_tasks, select_mergeable_partitions
from pyarctic.optimizing.plan.native import plan_native_tasks
from pyarctic.optimizing.plan.plan import KeyedPlan, NativePlan
from pyarctic.optimizing.protocol.task import OptimizingKind
from pyarctic.optimizing.settings import Settings

_SECONDS_A_DAY = 86_400


def make_plan(
    evaluation: Evaluation,
    *,
    kind: OptimizingKind | None = None,
    only: pl.DataFrame | None = None,
    in_work: Collection[str] = (),
    ignore_writers: bool = False,
    first_task: int = 0,
    parallelism: int = 1,
) -> NativePlan | KeyedPlan:
    """Plan tasks for the partitions that need optimizing, the most urgent ones first.

    `kind` overrides the choice for every partition that would gain by it. `only` (spec_id, partition) restricts the plan.
    Files `in_work` elsewhere are not planned again. Tasks are numbered from `first_task` on, and sized so that
    `parallelism` workers have equal shares."""
    observation = evaluation.observation
    partitions = _requested_partitions(evaluation.partitions, kind, only, ignore_writers=ignore_writers)
    due = partitions.filter(pl.col("kind").is_not_null()).sort(_urgency(observation), descending=True)
    dangling_deletes = evaluation.dangling_deletes.select(FILE_SCHEMA.names())
    if isinstance(observation, KeyedObservation):
        due = select_mergeable_partitions(due, evaluation, observation.changes, in_work)
    chosen, left_out = _limit(due, observation.settings)
    observation = replace(observation, settings=_balance(observation.settings, chosen, parallelism))
    evaluation = replace(evaluation, observation=observation)
    if isinstance(observation, KeyedObservation):
        tasks = plan_keyed_tasks(evaluation, chosen, observation, first_task)
        return KeyedPlan(
            process_id=str(uuid.uuid4()),
            job_id=str(random_id()),  # file names of the shared format have a number in its place
            evaluation=evaluation,
            partitions=partitions,
            tasks=tasks.tasks,
            dangling_deletes=dangling_deletes,
            left_out=left_out,
            changes=observation.changes,
            merges=tasks.merges,
            tree=tasks.tree,
        )
    return NativePlan(
        process_id=str(uuid.uuid4()),
        job_id=str(uuid.uuid4()),
        evaluation=evaluation,
        partitions=partitions,
        tasks=plan_native_tasks(
            evaluation, chosen, partitions, in_work, resolve_overlaps=kind != "minor", first_task=first_task
        ),
        dangling_deletes=dangling_deletes,
        left_out=left_out,
        ignores_writers=ignore_writers,
    )


def _requested_partitions(
    partitions: pl.DataFrame, kind: OptimizingKind | None, only: pl.DataFrame | None, *, ignore_writers: bool
) -> pl.DataFrame:
    if kind is not None:
        causes = pl.when(pl.col("kind") == kind).then("causes").otherwise(pl.lit([f"asked for {kind}"]))
        partitions = partitions.with_columns(kind=pl.when(GAINS[kind]).then(pl.lit(kind)), causes=causes)
    if only is not None:
        partitions = partitions.join(only, on=PARTITION_KEY, how="semi", maintain_order="left")
    if ignore_writers:
        partitions = partitions.with_columns(is_busy=pl.lit(value=False))
    return partitions


def _urgency(observation: Observation) -> pl.Expr:
    """By health and waiting time: after a day the partition that has waited longest comes before the least healthy one."""
    waited = (pl.lit(observation.now) - pl.col("waiting_since")).dt.total_seconds() / _SECONDS_A_DAY
    return (100 - pl.col("health")) / 100 + waited.fill_null(0).clip(lower_bound=0)


def _cost(unit: str) -> pl.Expr:
    """The files or the bytes of a partition that are rewritten. Busy partitions cost next to nothing."""
    some_files = pl.sum_horizontal(f"small_{unit}", f"deep_{unit}")
    is_full = pl.col("kind") == "full"
    of_base = pl.when("is_busy").then(0).when(is_full).then(f"data_{unit}").otherwise(some_files)
    return of_base + pl.col(f"change_{unit}")


def _balance(settings: Settings, chosen: pl.DataFrame, parallelism: int) -> Settings:
    """Settings with the size of tasks that gives all workers the same number of equal tasks; each is still large enough for
    a file of the target size."""
    total = int(chosen.select(_cost("bytes").sum()).item() or 0)
    rounds = max(round(total / (parallelism * settings.task_bytes)), 1)
    least_bytes = min(settings.target_bytes, settings.task_bytes)
    return replace(settings, task_bytes=max(total // (rounds * parallelism), least_bytes))


def _limit(due: pl.DataFrame, settings: Settings) -> tuple[pl.DataFrame, int]:
    """As many partitions as the limits of a plan allow, at least one, and the number of the others."""
    files, size = _cost("files"), _cost("bytes")
    fits = (files.cum_sum() <= settings.plan_files) & (size.cum_sum() <= settings.plan_bytes)
    is_first = (files.cum_sum() - files == 0) & (size.cum_sum() - size == 0)
    chosen = due.filter(fits | is_first)
    return chosen, due.height - chosen.height
