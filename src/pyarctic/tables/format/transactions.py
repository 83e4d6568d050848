"""Which changes may be merged into Base yet.

Rows of Base come after all changes of their file's transaction. A transaction that was begun and is not committed yet will
add changes with an older number than those committed meanwhile. If these were merged before it, its changes would count as
older than rows that they are meant to replace. So nothing is merged from the oldest open transaction on.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

import polars as pl
from pyiceberg.table.metadata import TableMetadata

from pyarctic.iceberg.delete import PARTITION_KEY

BEGUN = "tx.begin.signature"
"""In the summary of the empty commit that begins a transaction."""
COMMITTED = "txId"
"""In the summary of a commit to Base: its transaction."""
ENDED = "arctic.transactions-ended"
"""In the summary of a commit to either store: transactions that will commit nothing more, separated by commas."""


def find_open_transactions(
    change: TableMetadata, base: TableMetadata, committed: Collection[int], since: datetime
) -> list[int]:
    """Transactions that were begun at or after `since` and are not known to be committed or ended.

    `committed`: the transactions of all files."""
    since_ms = since.timestamp() * 1000
    begun = {
        snapshot.sequence_number or 0
        for snapshot in change.snapshots
        if snapshot.timestamp_ms >= since_ms and snapshot.summary and BEGUN in snapshot.summary.additional_properties
    }
    finished = {
        int(number)
        for snapshot in (*base.snapshots, *change.snapshots)
        for key in (COMMITTED, ENDED)
        for number in (snapshot.summary.additional_properties.get(key, "") if snapshot.summary else "").split(",")
        if number.isdigit()
    }
    return sorted(begun - finished - set(committed))


def may_hide_transactions(change: TableMetadata, since: datetime) -> bool:
    """Whether snapshots younger than `since` may have been expired: transactions that were begun in them are not known.
    Older ones may still be there, because of tags. An expired snapshot is not younger than the next one that is there."""
    since_ms = since.timestamp() * 1000
    numbers = {snapshot.sequence_number or 0 for snapshot in change.snapshots}
    return any(
        (number := snapshot.sequence_number or 0) > 1 and number - 1 not in numbers and snapshot.timestamp_ms >= since_ms
        for snapshot in change.snapshots
    )


def select_mergeable(unmerged: pl.DataFrame, oldest_open: int | None) -> pl.DataFrame:
    """The unmerged changes that can be merged now: in every partition all up to some sequence number, such that no remaining
    change has a transaction up to that number."""
    if oldest_open is None or unmerged.is_empty():
        return unmerged
    last = unmerged.select(PARTITION_KEY).unique().with_columns(last=pl.lit(oldest_open - 1, pl.Int64))
    while True:
        limited = unmerged.join(last, on=PARTITION_KEY, how="left", maintain_order="left")
        is_mergeable = pl.col("data_sequence_number") <= pl.col("last")
        older = limited.filter(~is_mergeable & (pl.col("transaction_id") <= pl.col("last")))
        if older.is_empty():
            return limited.filter(is_mergeable).drop("last")
        before = older.group_by(PARTITION_KEY).agg(before=pl.col("transaction_id").min() - 1)
        last = last.join(before, on=PARTITION_KEY, how="left").select(
            *PARTITION_KEY, last=pl.min_horizontal("last", "before")
        )
