"""The files that a plan rewrites, divided into tasks.

Files are packed into tasks by size, in order of arrival; where rows are sorted, in the order of their keys. What has to be
sorted together is a set, and a set is one task whatever its size, so that its outputs have no key in common.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from pyarctic.iceberg.delete import PARTITION_KEY
from pyarctic.optimizing.evaluate.evaluation import Observation
from pyarctic.optimizing.order.key_bounds import low_column
from pyarctic.optimizing.order.overlaps import NO_SET, settle_overlaps
from pyarctic.optimizing.plan.task_inputs import estimate_output

TASK_KEY = [*PARTITION_KEY, "set", "part"]


def pack_tasks(files: pl.DataFrame, observation: Observation, *, settle: bool = True) -> pl.DataFrame:
    """Marked files with `part` and `set`, the tasks they belong to, and what is expected of each. With `settle` others may
    be taken along, so that what is written does not overlap too deeply with what stays."""
    files = estimate_output(files, observation.metadata)
    if observation.reach is None:
        return _packed(files.with_columns(set=pl.lit(NO_SET, pl.Int64)), observation, "data_sequence_number")
    whole = (pl.col("partition_kind") == "full") & pl.col("partition_is_current_spec")
    deep = (pl.col("partition_kind") == "major") & pl.col("overlap_set").is_not_null()
    files = files.with_columns(
        set=pl.when(~pl.col("rewrite")).then(NO_SET).when(whole).then(0).when(deep).then("overlap_set").otherwise(NO_SET)
    )
    files = _packed(files, observation, low_column(0))
    threshold = observation.settings.overlap_depth
    if settle and threshold is not None:
        files = _settled(files, threshold, observation.settings.target_bytes)
    return files


def _packed(files: pl.DataFrame, observation: Observation, by: str) -> pl.DataFrame:
    """Files that are rewritten and in no set, in tasks of about one size."""
    files = files.sort(*PARTITION_KEY, by, "data_sequence_number", "file_path", maintain_order=True)
    packs = pl.col("rewrite") & (pl.col("set") == NO_SET)
    size = pl.when(packs).then("expected_bytes").otherwise(0)
    total = size.sum().over(PARTITION_KEY)
    before = (size.cum_sum() - size).over(PARTITION_KEY)
    parts = (total / observation.settings.task_bytes).round().clip(lower_bound=1)
    part = (before * parts / total.clip(lower_bound=1)).floor().clip(upper_bound=parts - 1)
    return files.with_columns(part=pl.when(packs).then(part.cast(pl.Int64)).otherwise(0))


def _settled(files: pl.DataFrame, threshold: int, target_bytes: int) -> pl.DataFrame:
    """Files with the sets as they have to be. Of few files that are all sorted none can lie too deep."""
    enough = (pl.len().over(PARTITION_KEY) >= threshold) | (pl.col("partition_kind") == "minor")
    in_question = pl.col("rewrite").any().over(PARTITION_KEY) & (pl.col("partition_kind") != "full") & enough
    files = files.with_columns(in_question=in_question & pl.col("partition_is_current_spec"))
    groups = files.filter("in_question").partition_by(PARTITION_KEY, maintain_order=True)
    found = [_settled_partition(group, threshold, target_bytes) for group in groups]
    return pl.concat([files.filter(~pl.col("in_question")), *found]).drop("in_question")


def _settled_partition(files: pl.DataFrame, threshold: int, target_bytes: int) -> pl.DataFrame:
    rewrite, sets, parts = (files[name].to_numpy() for name in ("rewrite", "set", "part"))
    is_set = rewrite & (sets != NO_SET)
    items = np.where(is_set, sets, np.where(rewrite, sets.max(initial=0) + 1 + parts, NO_SET))
    # Minor optimizing does not sort: all files of a task have all its keys.
    is_sorted = is_set | (rewrite & (files["partition_kind"] == "major").to_numpy())
    pack_bytes = files.select(pl.col("expected_bytes").filter("rewrite").sum().over("set", "part")).to_series()
    weight = (pack_bytes / target_bytes).ceil().clip(lower_bound=1).cast(pl.Int64).to_numpy()
    found = settle_overlaps(files, items, is_set, np.where(is_sorted, 1, weight), threshold)
    in_set = pl.Series(found != NO_SET)
    part = pl.when(in_set).then(0).otherwise("part")  # packs that were joined are one task
    return files.with_columns(set=pl.Series(found), rewrite=pl.col("rewrite") | in_set, part=part)
