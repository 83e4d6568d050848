"""Packing the files that a plan rewrites into tasks.

Files are packed by size, in order of their sequence numbers; where rows are sorted, in order of their keys. Files that have
to be sorted together are a set, and a set is one task whatever its size, so that its outputs have no key in common.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from pyarctic.iceberg.delete import PARTITION_KEY
from pyarctic.optimizing.observe.observation import Observation
from pyarctic.optimizing.order.key_bounds import low_column
from pyarctic.optimizing.order.overlaps import NO_SET, settle_overlaps
from pyarctic.optimizing.plan.task_inputs import estimate_output

TASK_KEY = [*PARTITION_KEY, "set", "part"]


def pack_tasks(files: pl.DataFrame, observation: Observation, *, resolve_overlaps: bool = True) -> pl.DataFrame:
    """Files with `part` and `set`, the task they belong to, and what is expected of each. With `resolve_overlaps` more files
    may be rewritten, so that outputs do not overlap too deeply with files that are kept."""
    files = estimate_output(files, observation.metadata)
    if observation.bounds is None:
        return _pack(files.with_columns(set=pl.lit(NO_SET, pl.Int64)), observation, "data_sequence_number")
    is_full = (pl.col("partition_kind") == "full") & pl.col("partition_is_current_spec")
    is_deep = (pl.col("partition_kind") == "major") & pl.col("overlap_set").is_not_null()
    files = files.with_columns(
        set=pl.when(~pl.col("rewrite"))
        .then(NO_SET)
        .when(is_full)
        .then(0)
        .when(is_deep)
        .then("overlap_set")
        .otherwise(NO_SET)
    )
    files = _pack(files, observation, low_column(0))
    threshold = observation.settings.overlap_depth
    if resolve_overlaps and threshold is not None:
        files = _resolve_overlaps(files, threshold, observation.settings.target_bytes)
    return files


def _pack(files: pl.DataFrame, observation: Observation, by: str) -> pl.DataFrame:
    """Pack rewritten files that belong to no set into tasks of about the same size."""
    files = files.sort(*PARTITION_KEY, by, "data_sequence_number", "file_path", maintain_order=True)
    is_packed = pl.col("rewrite") & (pl.col("set") == NO_SET)
    size = pl.when(is_packed).then("expected_bytes").otherwise(0)
    total = size.sum().over(PARTITION_KEY)
    before = (size.cum_sum() - size).over(PARTITION_KEY)
    parts = (total / observation.settings.task_bytes).round().clip(lower_bound=1)
    part = (before * parts / total.clip(lower_bound=1)).floor().clip(upper_bound=parts - 1)
    return files.with_columns(part=pl.when(is_packed).then(part.cast(pl.Int64)).otherwise(0))


def _resolve_overlaps(files: pl.DataFrame, threshold: int, target_bytes: int) -> pl.DataFrame:
    """Files with their final sets. A few files that are all sorted cannot overlap too deeply."""
    is_enough = (pl.len().over(PARTITION_KEY) >= threshold) | (pl.col("partition_kind") == "minor")
    may_overlap = pl.col("rewrite").any().over(PARTITION_KEY) & (pl.col("partition_kind") != "full") & is_enough
    files = files.with_columns(may_overlap=may_overlap & pl.col("partition_is_current_spec"))
    partitions = files.filter("may_overlap").partition_by(PARTITION_KEY, maintain_order=True)
    resolved = [_resolve_partition(partition, threshold, target_bytes) for partition in partitions]
    return pl.concat([files.filter(~pl.col("may_overlap")), *resolved]).drop("may_overlap")


def _resolve_partition(files: pl.DataFrame, threshold: int, target_bytes: int) -> pl.DataFrame:
    rewrite, sets, parts = (files[name].to_numpy() for name in ("rewrite", "set", "part"))
    is_set = rewrite & (sets != NO_SET)
    items = np.where(is_set, sets, np.where(rewrite, sets.max(initial=0) + 1 + parts, NO_SET))
    # Minor optimizing does not sort: all files of a task have all its keys.
    is_sorted = is_set | (rewrite & (files["partition_kind"] == "major").to_numpy())
    task_bytes = files.select(pl.col("expected_bytes").filter("rewrite").sum().over("set", "part")).to_series()
    output_files = (task_bytes / target_bytes).ceil().clip(lower_bound=1).cast(pl.Int64).to_numpy()
    final_sets = settle_overlaps(files, items, is_set, np.where(is_sorted, 1, output_files), threshold)
    in_set = pl.Series(final_sets != NO_SET)
    part = pl.when(in_set).then(0).otherwise("part")  # tasks that were joined are one task
    return files.with_columns(set=pl.Series(final_sets), rewrite=pl.col("rewrite") | in_set, part=part)
