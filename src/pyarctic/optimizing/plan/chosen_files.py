"""The data files of chosen partitions, and which of them are rewritten because of their size or their deletes."""

from __future__ import annotations

import polars as pl

from pyarctic.iceberg.delete import PARTITION_KEY
from pyarctic.iceberg.read import is_decodable
from pyarctic.optimizing.evaluate.evaluation import Evaluation
from pyarctic.optimizing.evaluate.files import HAS_DELETES
from pyarctic.tables.read import IS_FOREIGN

IS_DEEP = pl.col("overlap_set").is_not_null() & (pl.col("partition_kind") == "major")
"""Whether a file overlaps with too many others."""


def choose_files(evaluation: Evaluation, partitions: pl.DataFrame) -> pl.DataFrame:
    """The data files of these partitions, with `rewrite`: whether their size, their deletes or their origin call for it."""
    threshold = evaluation.observation.settings.major_delete_ratio
    files = with_partitions(evaluation.files, partitions)
    # Which files equality deletes and deletes about a partition apply to is not known without reading them.
    deleted_anywhere = pl.col("equality_records") + pl.col("shared_deleted_rows")
    deleted_share = pl.col("own_deleted_rows") / pl.col("record_count") + deleted_anywhere / pl.col("partition_records")
    has_many_deletes = (deleted_share >= threshold) & HAS_DELETES
    kind = pl.col("partition_kind")
    files = files.with_columns(
        rewrite=pl.when(kind == "full")
        .then(pl.lit(value=True))
        .when(kind == "major")
        .then(pl.col("is_small") | has_many_deletes | IS_DEEP)
        .otherwise(pl.col("is_fragment"))
        | IS_FOREIGN,
    )
    # What is kept must not call for the next process by itself.
    kept = ~pl.col("rewrite")
    kept_deleted_rows = (pl.col("own_deleted_rows").filter(kept).sum() + deleted_anywhere.max()).over(PARTITION_KEY)
    kept_rows = pl.col("record_count").filter(kept).sum().over(PARTITION_KEY)
    is_caused_by_deletes = pl.col("partition_causes").list.contains("delete-ratio")
    would_call_again = is_caused_by_deletes & (kept_deleted_rows >= threshold * kept_rows)
    can_be_written = ~pl.col("partition_is_lost") | ((kind == "full") & pl.col("partition_moves"))
    if not all(is_decodable(field.field_type) for field in evaluation.observation.metadata.schema().fields):
        can_be_written &= ~HAS_DELETES  # row groups are copied as is, deleted rows included
    return files.with_columns(rewrite=(pl.col("rewrite") | (would_call_again & HAS_DELETES)) & can_be_written)


def with_partitions(files: pl.DataFrame, partitions: pl.DataFrame) -> pl.DataFrame:
    """The files of these partitions, with what planning needs to know of them."""
    of_partition = pl.col("kind", "causes", "is_busy", "is_current_spec", "is_lost", "moves", "records").name.prefix(
        "partition_"
    )
    return files.join(partitions.select(*PARTITION_KEY, of_partition), on=PARTITION_KEY, maintain_order="left")
