"""Measuring partitions, from their measured files."""

from __future__ import annotations

import polars as pl

from pyarctic.iceberg.delete import EQUALITY, GLOBAL_EQUALITY, PARTITION_KEY
from pyarctic.iceberg.manifest import PartitionDecoder
from pyarctic.iceberg.read import is_decodable
from pyarctic.optimizing.evaluate.files import HAS_DELETES
from pyarctic.optimizing.evaluate.moves import moving_partitions
from pyarctic.optimizing.observe.changes import PendingChanges
from pyarctic.optimizing.observe.observation import KeyedObservation, Observation
from pyarctic.tables.read import IS_FOREIGN

TOO_LARGE = 1.5
"""Times the target size. Files are sometimes written larger than the target, since sizes are known only afterwards; whatever
counts as too large is rewritten."""
_TOO_LARGE_IN_Z_ORDER = 2.5
"""Files in z-order are divided by rows, not by their size."""
_POSITION_BYTES = 3
"""Roughly what one deleted key takes as a position."""

_SIZE = pl.col("file_size_bytes")


def measure_partitions(files: pl.DataFrame, observation: Observation) -> pl.DataFrame:
    """A row for each partition, with a column for everything that is measured."""
    partitions = files.group_by(PARTITION_KEY, maintain_order=True).agg(
        **_size_columns(observation), **_order_columns(observation), **_delete_columns(), **_time_columns()
    )
    for columns in (_packable_files(files, observation), _equality_since(observation)):
        partitions = partitions.join(columns, on=PARTITION_KEY, how="left", maintain_order="left")
    lost = PartitionDecoder(observation.metadata).lost_partitions(files)
    moving = moving_partitions(files, observation, lost)
    for name, keys in (("is_lost", lost), ("moves", moving)):
        flags = keys.with_columns(pl.lit(value=True).alias(name))
        partitions = partitions.join(flags, on=PARTITION_KEY, how="left", maintain_order="left")
    partitions = partitions.with_columns(pl.col("is_lost", "moves").fill_null(value=False))
    delete_ratio = (pl.col("deleted_rows") + pl.col("equality_records")) / pl.col("records")
    partitions = _with_improvable(partitions, observation).with_columns(
        all_files=pl.col("data_files"),
        all_rows=pl.col("records"),
        change_files=pl.lit(0),
        change_bytes=pl.lit(0),
        delete_ratio=delete_ratio,
    )
    if isinstance(observation, KeyedObservation):
        partitions = _with_changes(partitions, observation.changes)
    partitions = partitions.join(observation.activity, on=PARTITION_KEY, how="left", maintain_order="left")
    waiting_since = pl.min_horizontal("oldest_fragment_at", pl.when(pl.col("checked_rows") > 0).then("equality_since"))
    return partitions.with_columns(
        expected_position_bytes=pl.col("position_bytes") + _POSITION_BYTES * pl.col("equality_records"),
        waiting_since=pl.max_horizontal("optimized_at", waiting_since),
        is_current_spec=pl.col("spec_id") == observation.metadata.default_spec_id,
        is_busy=pl.col("busy_until").is_not_null() & pl.lit(observation.settings.writers_first),
    )


def _with_improvable(partitions: pl.DataFrame, observation: Observation) -> pl.DataFrame:
    """What optimizing can improve. Rows of a lost partition cannot be written to it again; full optimizing may move them.
    Positions cannot be written for a spec that is not writable. Files with deletes are not rewritten if values cannot be
    decoded."""
    is_lost, moves = pl.col("is_lost"), pl.col("moves")
    is_unwritable = pl.col("spec_id").is_in(PartitionDecoder(observation.metadata).unwritable_specs())
    can_remove = pl.lit(_can_decode(observation)) & ~is_lost
    packable = pl.col("packable_files", "packable_fragments")
    partitions = partitions.with_columns(
        pl.when(is_lost).then(0).otherwise(packable).name.keep(),
        pl.when(can_remove).then("position_files").otherwise(0).alias("removable_files"),
        compared_rows=pl.when(is_unwritable & ~moves).then(0).otherwise("checked_rows"),
        checked_rows=pl.when(is_unwritable).then(0).otherwise("checked_rows"),
        removable_rows=pl.when(can_remove | moves).then("deleted_rows").otherwise(0),
    )
    is_compared, is_removable = pl.col("compared_rows") > 0, pl.col("removable_rows") > 0
    return partitions.with_columns(
        excess_files=pl.col("packable_files"),
        waiting_files=pl.col("packable_files")
        + pl.when(is_compared).then("equality_files").otherwise(0)
        + pl.when(is_removable).then("position_files").otherwise(0),
    )


def _can_decode(observation: Observation) -> bool:
    return all(is_decodable(field.field_type) for field in observation.metadata.schema().fields)


def _size_columns(observation: Observation) -> dict[str, pl.Expr]:
    order, small = observation.order, pl.col("is_small")
    too_large = TOO_LARGE if order is None or not order.z_order else _TOO_LARGE_IN_Z_ORDER
    return {
        "data_files": pl.len().cast(pl.Int64),
        "records": pl.col("record_count").sum(),
        "data_bytes": _SIZE.sum(),
        "fragments": pl.col("is_fragment").sum().cast(pl.Int64),
        "small_files": small.sum().cast(pl.Int64),
        "small_bytes": _SIZE.filter(small).sum(),
        "foreign_files": IS_FOREIGN.sum().cast(pl.Int64),
        "oldest_foreign_at": pl.col("committed_at").filter(IS_FOREIGN).min(),
        "large_files": (observation.settings.target_bytes * too_large < _SIZE).sum().cast(pl.Int64),
    }


def _order_columns(observation: Observation) -> dict[str, pl.Expr]:
    order, sort_order_id = observation.order, observation.metadata.default_sort_order_id
    has_sort_order = order is not None and order.sorts and not order.z_order
    is_sorted = pl.col("sort_order_id").fill_null(0) == sort_order_id if has_sort_order else pl.lit(value=True)
    is_deep = pl.col("overlap_set").is_not_null()
    return {
        "unsorted_files": (~is_sorted).sum().cast(pl.Int64),
        "overlap_depth": pl.col("overlap_depth").max(),
        "deep_files": is_deep.sum().cast(pl.Int64),
        "deep_bytes": _SIZE.filter(is_deep).sum(),
    }


def _delete_columns() -> dict[str, pl.Expr]:
    deleted_rows = pl.col("own_deleted_rows").sum() + pl.col("shared_deleted_rows").max()
    return {
        "equality_files": pl.col("equality_files").max(),
        "equality_bytes": pl.col("equality_bytes").max(),
        "equality_records": pl.col("equality_records").max(),
        "checked_rows": pl.col("record_count").filter(pl.col("equality_files") > 0).sum(),
        "position_bytes": pl.col("own_position_bytes").sum() + pl.col("shared_position_bytes").max(),
        "deleted_rows": pl.min_horizontal(deleted_rows, pl.col("record_count").sum()),
        "position_files": pl.col("own_position_files").sum() + pl.col("shared_position_files").max(),
    }


def _time_columns() -> dict[str, pl.Expr]:
    committed_at = pl.col("committed_at")
    return {
        "optimized_at": committed_at.filter("optimized").max(),
        "full_at": committed_at.filter("full").max(),
        "oldest_file_at": committed_at.min(),
        "oldest_fragment_at": committed_at.filter(pl.col("is_fragment") & ~pl.col("optimized")).min(),
    }


def _packable_files(files: pl.DataFrame, observation: Observation) -> pl.DataFrame:
    """How many files fewer each partition could have. Files of different nodes of the tree are not merged."""
    can_be_merged = pl.lit(_can_decode(observation)) | ~HAS_DELETES
    small, fragment = pl.col("is_small") & can_be_merged, pl.col("is_fragment") & can_be_merged
    ideal_files = (_SIZE.filter(small).sum() / observation.settings.target_bytes).ceil().cast(pl.Int64)
    by_node = files.group_by(*PARTITION_KEY, "node_id").agg(
        packable_files=(small.sum().cast(pl.Int64) - ideal_files).clip(lower_bound=0),
        packable_fragments=(fragment.sum().cast(pl.Int64) - 1).clip(lower_bound=0),
    )
    return by_node.group_by(PARTITION_KEY).agg(pl.col("packable_files", "packable_fragments").sum())


def _equality_since(observation: Observation) -> pl.DataFrame:
    """Since when equality deletes wait in each partition. Global ones wait in all of them."""
    matches = observation.matches
    times = observation.times.select("snapshot_id", "committed_at")
    in_partition = matches.by_kind[EQUALITY].join(times, on="snapshot_id", how="left")
    oldest_global = matches.by_kind[GLOBAL_EQUALITY].join(times, on="snapshot_id", how="left")["committed_at"].min()
    partitions = matches.data.select(PARTITION_KEY).unique()
    since = in_partition.group_by(PARTITION_KEY).agg(equality_since=pl.col("committed_at").min())
    return partitions.join(since, on=PARTITION_KEY, how="left").with_columns(
        equality_since=pl.min_horizontal("equality_since", pl.lit(oldest_global, times.schema["committed_at"]))
    )


def _with_changes(base: pl.DataFrame, changes: PendingChanges) -> pl.DataFrame:
    """The partitions of a keyed table. Unmerged changes count like equality deletes of other tables: all rows must be
    compared with them, also with those that cannot be merged yet. So do foreign files."""
    change_files = pl.col("change_files")
    base = base.drop("change_files", "change_bytes")
    partitions = changes.count_by_partition().join(base, on=PARTITION_KEY, how="left", maintain_order="left")
    numbers = [name for name, dtype in base.schema.items() if dtype.is_numeric() and name not in PARTITION_KEY]
    partitions = partitions.with_columns(pl.col(numbers).fill_null(0), pl.col("is_lost", "moves").fill_null(value=False))
    unmerged_files = change_files + pl.col("held_files")
    unmerged_records = pl.col("change_records") + pl.col("held_records")
    unmerged_share = pl.col("delete_bytes") / (pl.col("data_bytes") + pl.col("insert_bytes"))
    is_compared = (unmerged_files > 0) | (pl.col("foreign_files") > 0)
    partitions = partitions.with_columns(
        all_files=pl.col("data_files") + unmerged_files,
        all_rows=pl.col("records") + unmerged_records,
        unmerged_files=unmerged_files,
        excess_files=pl.col("packable_files") + unmerged_files,
        waiting_files=pl.col("waiting_files") + unmerged_files,
        equality_files=change_files,
        equality_bytes=pl.col("delete_bytes"),
        equality_records=pl.col("delete_records"),
        equality_since=pl.min_horizontal("changed_since", "oldest_foreign_at"),
        checked_rows=pl.when((change_files > 0) | (pl.col("foreign_files") > 0))
        .then(pl.col("records") + pl.col("change_records"))
        .otherwise(0),
        compared_rows=pl.when(is_compared).then(pl.col("records") + unmerged_records).otherwise(0),
        delete_ratio=pl.max_horizontal(unmerged_share, pl.col("deleted_rows") / pl.col("records")).fill_nan(0),
        optimized_at=pl.max_horizontal("optimized_at", "merged_at"),
    )
    improvable = pl.col("excess_files", "compared_rows", "removable_rows", "waiting_files")
    return partitions.with_columns(pl.when("is_ambiguous").then(0).otherwise(improvable).name.keep())
