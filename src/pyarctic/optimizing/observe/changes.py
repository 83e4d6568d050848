"""The change store of a keyed table, as evaluating and planning see it: what is not merged yet, and what has to wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import polars as pl
from pyiceberg.table.metadata import TableMetadata

from pyarctic.iceberg.delete import PARTITION_KEY
from pyarctic.iceberg.manifest import IS_DATA
from pyarctic.optimizing.observe.history import MOMENT, snapshot_times
from pyarctic.optimizing.settings import Settings
from pyarctic.tables import KeyedTable
from pyarctic.tables.format import (
    BASE_BUCKETS,
    ROOT,
    PrimaryKey,
    StorePaths,
    check_spec,
    find_open_transactions,
    may_hide_transactions,
    merge_times,
    merged_sequences,
    parse_change_file_names,
    parse_file_names,
    select_mergeable,
    tree_mask,
)
from pyarctic.tables.read import IS_FOREIGN, check_files, order_foreign_files, select_unmerged, with_key_ranges

_IS_DELETE = pl.col("kind") == "ED"
_EPOCH = datetime.fromtimestamp(0, UTC)
_MAX_MASK = 4095
"""The limit where the table has none: 4096 nodes of the target size are half a terabyte in one partition."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PendingChanges:
    """The changes that a process may merge, and what it must know for it."""

    files: pl.DataFrame
    """Files of the change store that can be merged now, with the values of their names, `committed_at`, the bounds of the
    first key column, and `keeps_order`: whether their rows would keep their transaction order as files of the base store."""
    partitions: pl.DataFrame
    """Every partition of both stores: `path`, its name in the list of merged sequences; `merged`, the sequence number it is
    merged up to (-1: nothing is); `merged_at`; `held_files` and `held_records`, the changes that wait for a
    transaction; `oldest_held`, the oldest transaction among these; `is_ambiguous`, whether another partition has the same
    path."""
    base_ranges: pl.DataFrame
    """`file_path` of the data files in the base store that may share keys with them or with foreign files, and the same
    bounds."""
    foreign: tuple[str, ...]
    """Paths of the foreign files in the base store, the oldest first."""
    snapshot_id: int | None
    """The snapshot of the change store; None: it has none."""
    sequence_number: int
    """The newest commit of the change store that was seen."""
    oldest_open: int | None
    """The oldest transaction that was begun and may still be committed."""
    open_until: datetime | None
    """Until when that one is waited for."""
    may_hide_open: bool
    """Whether such transactions may be unknown, because the snapshots that began them were expired."""
    key: PrimaryKey
    has_nodes: bool
    """Whether the nodes of files tell which of them may share a key. If not, all count as files of the root."""
    min_mask: int
    max_mask: int
    """The levels of the tree that the base store is written at: the first unless it grows, never beyond the second."""

    def count_by_partition(self) -> pl.DataFrame:
        """The partitions, with the number and size of their changes."""
        size, rows = pl.col("file_size_bytes"), pl.col("record_count")
        counted = self.files.group_by(PARTITION_KEY, maintain_order=True).agg(
            change_files=pl.len().cast(pl.Int64),
            change_bytes=size.sum(),
            change_records=rows.sum(),
            insert_bytes=size.filter(~_IS_DELETE).sum(),
            delete_files=_IS_DELETE.sum().cast(pl.Int64),
            delete_bytes=size.filter(_IS_DELETE).sum(),
            delete_records=rows.filter(_IS_DELETE).sum(),
            changed_since=pl.col("committed_at").min(),
        )
        counts = pl.col("^(change|insert|delete)_(files|bytes|records)$").fill_null(0)
        return self.partitions.join(counted, on=PARTITION_KEY, how="left", maintain_order="left").with_columns(counts)


def observe_changes(table: KeyedTable, settings: Settings, now: datetime) -> PendingChanges:
    """Read the metadata of the change store."""
    base, change = table.view.metadata, table.change_store.view.metadata
    check_spec(base, change)
    key = PrimaryKey.of(base, table.name)
    all_changes = parse_change_file_names(check_files(table.change_store.file_list, change))
    merged = merged_sequences(base, table.view.io, base.current_snapshot())
    unmerged = select_unmerged(all_changes, StorePaths(change), merged)
    files_of_base = table.file_list.frame()
    base_files = order_foreign_files(parse_file_names(files_of_base, "base"), files_of_base, table.view, table.reader())
    committed_ids = {*all_changes["transaction_id"], *base_files["transaction_id"]}
    since = now - settings.transaction_timeout
    oldest_open = min(find_open_transactions(change, base, committed_ids, since), default=None)
    files = _with_commit_times(select_mergeable(unmerged, oldest_open), change)
    files = files.with_columns(keeps_order=_keeps_order(change, base, committed_ids))
    files = with_key_ranges(files, table.change_store.file_list, table.change_store.view.io, key.fields)
    base_ranges = _base_ranges(table, base_files.filter(IS_DATA), files, key)
    has_nodes = not key.was_widened((base, change), (files, base_ranges))
    if not has_nodes:
        files = files.with_columns(node_id=pl.lit(ROOT.id, pl.Int64), keeps_order=pl.lit(value=False))
    min_mask, max_mask = _mask_limits(base.properties)
    return PendingChanges(
        files=files,
        base_ranges=base_ranges.select("file_path", pl.col("^(lower|upper)_[0-9]+$")),
        partitions=_all_partitions(table, unmerged, files, merged),
        foreign=tuple(base_files.filter(IS_FOREIGN).sort("foreign_order")["file_path"]),
        snapshot_id=table.change_store.view.snapshot_id,
        sequence_number=max((snapshot.sequence_number or 0 for snapshot in change.snapshots), default=0),
        oldest_open=oldest_open,
        open_until=_end_of_wait(change, oldest_open, settings.transaction_timeout),
        may_hide_open=may_hide_transactions(change, since),
        key=key,
        has_nodes=has_nodes,
        min_mask=min_mask if has_nodes else 0,
        max_mask=max_mask if has_nodes else 0,
    )


def _end_of_wait(change: TableMetadata, transaction: int | None, timeout: timedelta) -> datetime | None:
    begun = [snapshot.timestamp_ms for snapshot in change.snapshots if snapshot.sequence_number == transaction]
    return datetime.fromtimestamp(begun[0] / 1000, UTC) + timeout if begun else None


def _with_commit_times(files: pl.DataFrame, change: TableMetadata) -> pl.DataFrame:
    """Files with `committed_at`. Those of expired snapshots are at least as old as the oldest snapshot."""
    times = snapshot_times(change).select("snapshot_id", "committed_at")
    files = files.join(times, on="snapshot_id", how="left", maintain_order="left")
    return files.with_columns(pl.col("committed_at").fill_null(pl.lit(times["committed_at"].min(), MOMENT)))


def _keeps_order(change: TableMetadata, base: TableMetadata, committed_ids: set[int]) -> pl.Expr:
    """Whether rows of a file would keep their place among transactions if it were part of the base store, where only its
    name tells one. A file that names none comes before all others there. That is right as long as no transaction can come
    that is older than its commit, however long it has been open."""
    names_transaction = pl.col("transaction_id") != pl.col("data_sequence_number")
    if may_hide_transactions(change, _EPOCH):
        return names_transaction
    oldest_begun = min(find_open_transactions(change, base, committed_ids, _EPOCH), default=None)
    return names_transaction | (pl.lit(value=True) if oldest_begun is None else pl.col("transaction_id") < oldest_begun)


def _base_ranges(table: KeyedTable, base_files: pl.DataFrame, changes: pl.DataFrame, key: PrimaryKey) -> pl.DataFrame:
    """The data files of the base store in partitions with changes or foreign files, with the bounds of their keys."""
    partitions = pl.concat([changes.select(PARTITION_KEY), base_files.filter(IS_FOREIGN).select(PARTITION_KEY)])
    in_same_partitions = base_files.join(partitions.unique(), on=PARTITION_KEY, how="semi")
    return with_key_ranges(in_same_partitions, table.file_list, table.view.io, key.fields)


def _mask_limits(properties: Mapping[str, str]) -> tuple[int, int]:
    """The levels of the tree that the base store is written at, at least and at most."""
    mask = tree_mask(properties, BASE_BUCKETS)
    return mask, mask if BASE_BUCKETS in properties else _MAX_MASK


def _all_partitions(
    table: KeyedTable, unmerged: pl.DataFrame, mergeable: pl.DataFrame, merged: Mapping[str, int]
) -> pl.DataFrame:
    metadata = table.view.metadata
    in_base = table.file_list.frame().select(PARTITION_KEY)
    partitions = pl.concat([in_base, unmerged.select(PARTITION_KEY)]).unique(maintain_order=True)
    store_paths = StorePaths(metadata)
    paths = [store_paths.path(spec_id, key) for spec_id, key in partitions.iter_rows()]
    times = merge_times(metadata, table.view.io, metadata.current_snapshot())
    held = unmerged.join(mergeable.select("file_path"), on="file_path", how="anti")
    held_by_partition = held.group_by(PARTITION_KEY).agg(
        held_files=pl.len().cast(pl.Int64),
        held_records=pl.col("record_count").sum(),
        oldest_held=pl.col("transaction_id").min(),
    )
    return (
        partitions.with_columns(
            pl.Series("path", paths, pl.String),
            pl.Series("merged", [merged.get(path, -1) for path in paths], pl.Int64),
            pl.Series("merged_at", [times.get(path) for path in paths], pl.Int64).cast(MOMENT),
        )
        .join(held_by_partition, on=PARTITION_KEY, how="left", maintain_order="left")
        .with_columns(pl.col("held_files", "held_records").fill_null(0), is_ambiguous=pl.col("path").is_duplicated())
    )
