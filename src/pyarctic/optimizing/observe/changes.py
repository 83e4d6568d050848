"""The change store of a keyed table, as evaluating and planning see it: what is not merged yet, and what has to wait."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import polars as pl

from pyarctic.iceberg.delete import PARTITION_KEY
from pyarctic.iceberg.manifest import IS_DATA, FileList
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
from pyarctic.tables.read import check_files, select_unmerged, with_key_ranges

_DELETED = pl.col("kind") == "ED"


@dataclass(frozen=True, kw_only=True, eq=False)
class PendingChanges:
    """What a round may merge."""

    files: pl.DataFrame
    """Files of the change store that can be merged now, with the facts of their names, `committed_at`, the bounds of the
    first key column, and `keeps_order`: whether their rows would keep their age, were they files of Base."""
    partitions: pl.DataFrame
    """Every partition of both stores: `path`, as the list of what was merged names it; `merged`, how far it is (-1: nothing
    is); `merged_at`; `held_files`, changes that wait for a transaction; `oldest_held`, the oldest transaction among these;
    `is_ambiguous`, whether another partition has the same path."""
    base_ranges: pl.DataFrame
    """`file_path` of the data files in Base that may share keys with them, and the same bounds."""
    sequence_number: int
    """How far the change store is known: later commits were not looked at."""
    oldest_open: int | None
    """The oldest transaction that was begun and may still be committed."""
    may_know_too_little: bool
    """Whether such transactions may be unknown, because snapshots that began them were expired."""
    key: PrimaryKey
    has_nodes: bool
    """Whether the nodes of files tell which of them may share a key. If not, all are taken for files of the root."""
    least_mask: int
    most_mask: int
    """How deep in the tree Base is written: tables stay at the first unless they grow, and never get beyond the second."""

    def measured(self) -> pl.DataFrame:
        """Each partition's changes, counted."""
        size, rows = pl.col("file_size_bytes"), pl.col("record_count")
        counted = self.files.group_by(PARTITION_KEY, maintain_order=True).agg(
            change_files=pl.len().cast(pl.Int64),
            change_bytes=size.sum(),
            change_records=rows.sum(),
            insert_bytes=size.filter(~_DELETED).sum(),
            delete_files=_DELETED.sum().cast(pl.Int64),
            delete_bytes=size.filter(_DELETED).sum(),
            delete_records=rows.filter(_DELETED).sum(),
            changed_since=pl.col("committed_at").min(),
        )
        counts = pl.col("^(change|insert|delete)_(files|bytes|records)$").fill_null(0)
        return self.partitions.join(counted, on=PARTITION_KEY, how="left", maintain_order="left").with_columns(counts)


def observe_changes(table: KeyedTable, settings: Settings, now: datetime) -> PendingChanges:
    """Reads the metadata of the change store."""
    base, change = table.view.metadata, table.change_store.view.metadata
    check_spec(base, change)
    key = PrimaryKey.of(base, table.name)
    stored = check_files(table.change_store.file_list, change)
    everything = parse_change_file_names(stored)
    snapshot = base.current_snapshot()
    merged = merged_sequences(base, table.view.io, snapshot)
    pending = select_unmerged(everything, StorePaths(change), merged)
    numbers = {*everything["transaction_id"], *parse_file_names(table.file_list.frame(), "base")["transaction_id"]}
    since = now - settings.transaction_timeout
    waits_for = find_open_transactions(change, base, numbers, since)
    files = select_mergeable(pending, min(waits_for, default=None))
    came = snapshot_times(change).select("snapshot_id", "committed_at")
    files = files.join(came, on="snapshot_id", how="left", maintain_order="left")
    files = files.with_columns(
        pl.col("committed_at").fill_null(pl.lit(came["committed_at"].min(), MOMENT))
    )  # expired: at least as old
    begun, knows_all = find_open_transactions(change, base, numbers, _EVER), not may_hide_transactions(change, _EVER)
    files = files.with_columns(keeps_order=_keeps_order(min(begun, default=None), knows_all=knows_all))
    files = with_key_ranges(files, table.change_store.file_list, table.change_store.view.io, key.fields)
    beside = parse_file_names(table.file_list.frame().filter(IS_DATA), "base")
    beside = beside.join(files.select(PARTITION_KEY).unique(), on=PARTITION_KEY, how="semi")
    ranged = with_key_ranges(beside, table.file_list, table.view.io, key.fields)
    has_nodes = not key.was_widened((base, change), (files, ranged))
    if not has_nodes:
        files = files.with_columns(node_id=pl.lit(ROOT.id, pl.Int64), keeps_order=pl.lit(value=False))
    told = base.properties.get(BASE_BUCKETS)
    level = tree_mask(base.properties, BASE_BUCKETS)
    return PendingChanges(
        files=files,
        base_ranges=ranged.select("file_path", pl.col("^(lower|upper)_[0-9]+$")),
        partitions=_partitions(table, table.file_list, pending, files, merged),
        sequence_number=max((one.sequence_number or 0 for one in change.snapshots), default=0),
        oldest_open=min(waits_for, default=None),
        may_know_too_little=may_hide_transactions(change, since),
        key=key,
        has_nodes=has_nodes,
        least_mask=level if has_nodes else 0,
        most_mask=0 if not has_nodes else level if told is not None else _DEEPEST,
    )


def _keeps_order(first_begun: int | None, *, knows_all: bool) -> pl.Expr:
    """Whether rows of a file would keep their place among transactions if it were part of Base, where its name alone tells
    one. A file that names none comes before all others there. That is right as long as no transaction can come that is older
    than its commit, however long it has been open."""
    names_one = pl.col("transaction_id") != pl.col("data_sequence_number")
    if not knows_all:
        return names_one
    return names_one | (pl.lit(value=True) if first_begun is None else pl.col("transaction_id") < first_begun)


_EVER = datetime.fromtimestamp(0, UTC)
_DEEPEST = 4095
"""Where the table says nothing: 4096 nodes of the target size are half a terabyte in a partition."""


def _partitions(
    table: KeyedTable, base: FileList, pending: pl.DataFrame, files: pl.DataFrame, merged: dict[str, int]
) -> pl.DataFrame:
    metadata = table.view.metadata
    known = pl.concat([base.frame().select(PARTITION_KEY), pending.select(PARTITION_KEY)]).unique(maintain_order=True)
    paths = StorePaths(metadata)
    told = [paths.path(spec_id, key) for spec_id, key in known.iter_rows()]
    times = merge_times(metadata, table.view.io, metadata.current_snapshot())
    held = pending.join(files.select("file_path"), on="file_path", how="anti")
    waiting = held.group_by(PARTITION_KEY).agg(
        held_files=pl.len().cast(pl.Int64), oldest_held=pl.col("transaction_id").min()
    )
    return (
        known.with_columns(
            pl.Series("path", told, pl.String),
            pl.Series("merged", [merged.get(path, -1) for path in told], pl.Int64),
            pl.Series("merged_at", [times.get(path) for path in told], pl.Int64).cast(MOMENT),
        )
        .join(waiting, on=PARTITION_KEY, how="left", maintain_order="left")
        .with_columns(pl.col("held_files").fill_null(0), is_ambiguous=pl.col("path").is_duplicated())
    )
