"""Packing files of former partition specs into tasks that move their rows to the current spec.

A partition that two tasks write to gets a file of each. So files that may have rows of the same partitions are one task,
with the files of the current spec that are in these partitions already. They are divided only if there is so much data that
each task has enough for every partition.
"""

from __future__ import annotations

from collections.abc import Collection

import polars as pl

from pyarctic.optimizing.evaluate.evaluation import Evaluation
from pyarctic.optimizing.evaluate.moves import count_destinations, count_files
from pyarctic.optimizing.evaluate.partitions import TOO_LARGE
from pyarctic.optimizing.observe.destinations import (
    NULL_VALUE,
    destination_fields,
    destinations,
    high_column,
    low_column,
    null_column,
)
from pyarctic.optimizing.plan.chosen_files import with_partitions
from pyarctic.optimizing.plan.task_inputs import estimate_output
from pyarctic.optimizing.settings import Settings

MOVES = pl.col("rewrite") & (pl.col("partition_kind") == "full") & pl.col("partition_moves")
"""Whether the rows of a file are moved to the current partition spec."""


def pack_moves(
    files: pl.DataFrame, evaluation: Evaluation, requested: pl.DataFrame, in_work: Collection[str]
) -> list[pl.DataFrame]:
    """For each task that moves rows its files, with what is expected of them, and how many files the task writes:
    `least_files`, `expected_files` and `most_files`. `requested`: the partitions that may be optimized."""
    observation = evaluation.observation
    metadata, settings = observation.metadata, observation.settings
    moving = files.filter(MOVES)
    if moving.is_empty() or observation.destinations is None:
        return []
    moving = moving.join(observation.destinations, on="file_path", how="left", maintain_order="left")
    receiving = _receiving_files(files, evaluation, requested, in_work)
    receiving = receiving.join(destinations(metadata, receiving), on="file_path", maintain_order="left")
    both = pl.concat([moving.with_columns(moves=True), receiving.with_columns(moves=False)], how="diagonal_relaxed")
    both = _with_components(estimate_output(both, metadata), destination_fields(metadata))
    both = both.filter(pl.col("moves").any().over("component"))
    # Many files of the current spec would make one large task of the whole table.
    is_large = pl.col("expected_bytes").sum().over("component") > settings.task_bytes
    both = both.filter(pl.col("moves") | ~is_large)
    most = count_destinations(both, ["component"], metadata).select("component", "most")
    packed = _with_tasks(both.join(most, on="component", maintain_order="left"), settings)
    counts = count_destinations(packed, ["move"], metadata)
    packed = packed.drop("most").join(counts, on="move", maintain_order="left")
    size = pl.col("expected_bytes").sum().over("move")
    # Rows of one partition make one file up to one and a half times the target size, and at least two beyond.
    large_files = size / settings.target_bytes / TOO_LARGE
    packed = packed.with_columns(
        least_files=pl.max_horizontal("least", large_files.ceil()).cast(pl.Int64),
        expected_files=count_files(pl.col("expected"), size, settings.target_bytes).round().cast(pl.Int64),
        most_files=(pl.col("most") + large_files.floor()).cast(pl.Int64),
    )
    packed = packed.sort("move", ~pl.col("moves"), "spec_id", "partition", "data_sequence_number", "file_path")
    return packed.partition_by("move", maintain_order=True)


def _receiving_files(
    files: pl.DataFrame, evaluation: Evaluation, requested: pl.DataFrame, in_work: Collection[str]
) -> pl.DataFrame:
    """The files of the current spec that are rewritten anyway, or are small, in partitions that may be optimized."""
    spec_id = evaluation.observation.metadata.default_spec_id
    chosen = files.select("file_path", rewrite="rewrite")
    free = requested.filter((pl.col("spec_id") == spec_id) & ~pl.col("is_busy"))
    candidates = with_partitions(evaluation.files, free).join(chosen, on="file_path", how="left", maintain_order="left")
    is_taken = (pl.col("rewrite").fill_null(value=False) | pl.col("is_small")) & ~pl.col("file_path").is_in(list(in_work))
    return candidates.filter(is_taken).with_columns(rewrite=pl.lit(value=True))


def _with_components(files: pl.DataFrame, fields: int) -> pl.DataFrame:
    """`component`: files of different components have no partition of the current spec in common."""
    files = files.with_columns(component=pl.lit(0, pl.UInt32))
    for number in range(fields):
        low = pl.when(null_column(number)).then(NULL_VALUE).otherwise(low_column(number))
        high = pl.col(high_column(number)).fill_null(NULL_VALUE)
        files = files.with_columns(low=low, high=high).sort("component", "low", "file_path")
        reach = pl.col("high").cum_max().shift(1).over("component")
        starts = reach.is_null() | (pl.col("low") > reach)
        files = files.with_columns(component=starts.cum_sum().cast(pl.UInt32))
    return files


def _with_tasks(files: pl.DataFrame, settings: Settings) -> pl.DataFrame:
    """`move`: the number of the task. Small components share a task, large ones are divided if their partitions get at least
    a file of the target size from each part."""
    size = pl.col("expected_bytes")
    total = size.sum().over("component")
    before = (size.cum_sum() - size).over("component")
    parts = pl.min_horizontal(total / (pl.col("most") * settings.target_bytes), (total / settings.task_bytes).round())
    parts = parts.floor().clip(lower_bound=1)
    part = (before * parts / total.clip(lower_bound=1)).floor().clip(upper_bound=parts - 1)
    is_large = total > settings.task_bytes
    small_size = pl.when(is_large).then(0).otherwise(size)
    bin_number = ((small_size.cum_sum() - small_size) / settings.task_bytes).floor()
    task = pl.struct(
        is_large=is_large,
        number=pl.when(is_large).then("component").otherwise(bin_number.min().over("component").cast(pl.UInt32)),
        part=pl.when(is_large).then(part).otherwise(0),
    )
    return files.sort("component", maintain_order=True).with_columns(move=task.rank("dense").cast(pl.Int64))
