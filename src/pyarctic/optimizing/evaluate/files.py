"""Measuring data files: their size class, the deletes that apply to them, their age, and their overlaps."""

from __future__ import annotations

import polars as pl

from pyarctic.iceberg.delete import EQUALITY, FILE_SCOPED, GLOBAL_EQUALITY, PARTITION_SCOPED, DeleteMatches
from pyarctic.optimizing.observe.observation import KeyedObservation, Observation
from pyarctic.optimizing.order.overlaps import with_overlaps
from pyarctic.tables.format import ROOT, parse_file_names
from pyarctic.tables.read import restore_foreign_order

_SIZE, _RECORDS = pl.col("file_size_bytes"), pl.col("record_count")
HAS_DELETES = (pl.col("own_deleted_rows") > 0) | (pl.col("equality_files") > 0) | (pl.col("shared_position_files") > 0)
"""Whether deletes may apply to a file."""


def measure_files(observation: Observation) -> pl.DataFrame:
    """The data files of a table, with a column for everything that is measured."""
    files = _with_deletes(observation.matches).with_columns(
        is_fragment=observation.settings.fragment_bytes > _SIZE, is_small=observation.settings.min_target_bytes > _SIZE
    )
    files = _with_nodes(_with_commit_times(files, observation.times), observation)
    if observation.bounds is None:
        return files.with_columns(overlap_depth=pl.lit(None, pl.Int64), overlap_set=pl.lit(None, pl.Int64))
    spec_id, threshold = observation.metadata.default_spec_id, observation.settings.overlap_depth
    return with_overlaps(files, observation.bounds, spec_id, threshold)


def _with_deletes(matches: DeleteMatches) -> pl.DataFrame:
    """`own_…` are deletes about this file only, `shared_…` those about all files of a partition."""
    return matches.data.with_columns(
        equality_files=_count(EQUALITY) + _count(GLOBAL_EQUALITY),
        equality_bytes=_sum(matches, EQUALITY, _SIZE) + _sum(matches, GLOBAL_EQUALITY, _SIZE),
        equality_records=_sum(matches, EQUALITY, _RECORDS) + _sum(matches, GLOBAL_EQUALITY, _RECORDS),
        own_position_files=_count(FILE_SCOPED) + pl.col("vector").is_not_null().cast(pl.Int64),
        own_position_bytes=_sum(matches, FILE_SCOPED, _SIZE) + _vector_value(matches, "content_size_bytes"),
        own_deleted_rows=_sum(matches, FILE_SCOPED, _RECORDS) + _vector_value(matches, "record_count"),
        shared_position_files=_count(PARTITION_SCOPED),
        shared_position_bytes=_sum(matches, PARTITION_SCOPED, _SIZE),
        shared_deleted_rows=_sum(matches, PARTITION_SCOPED, _RECORDS),
    )


def _count(scope: str) -> pl.Expr:
    """The number of deletes of a scope that apply to a file."""
    return (pl.col(f"{scope}_to") - pl.col(f"{scope}_from")).clip(lower_bound=0)


def _sum(matches: DeleteMatches, scope: str, value: pl.Expr) -> pl.Expr:
    """The sum of a value over the deletes of a scope that apply to a file: the difference of two running sums."""
    deletes = matches.by_kind[scope]
    running_sum = pl.concat([pl.Series([0], dtype=pl.Int64), deletes.select(value.cum_sum().cast(pl.Int64)).to_series()])
    start, end = pl.col(f"{scope}_from"), pl.max_horizontal(f"{scope}_from", f"{scope}_to")
    return pl.lit(running_sum).gather(end) - pl.lit(running_sum).gather(start)


def _vector_value(matches: DeleteMatches, column: str) -> pl.Expr:
    """A value of the deletion vector of a file; 0 without one."""
    return pl.lit(matches.vectors[column].cast(pl.Int64)).gather(pl.col("vector")).fill_null(0)


def _with_commit_times(files: pl.DataFrame, times: pl.DataFrame) -> pl.DataFrame:
    """When files were added, and by whom. Those of expired snapshots are at least as old as the oldest snapshot."""
    oldest = times["committed_at"].min()
    return files.join(times, on="snapshot_id", how="left", maintain_order="left").with_columns(
        pl.col("committed_at").fill_null(pl.lit(oldest)), pl.col("optimized", "full").fill_null(value=False)
    )


def _with_nodes(files: pl.DataFrame, observation: Observation) -> pl.DataFrame:
    """The node of the tree that each file belongs to; all belong to the root where there is no tree. `foreign_order`: the
    order of files that other engines have put into the base store of a keyed table."""
    if isinstance(observation, KeyedObservation):
        files = restore_foreign_order(parse_file_names(files, "base"), observation.changes.foreign)
        if observation.changes.has_nodes:
            return files
        return files.with_columns(node_id=pl.lit(ROOT.id, pl.Int64))
    return files.with_columns(node_id=pl.lit(ROOT.id, pl.Int64), foreign_order=pl.lit(0, pl.Int64))
