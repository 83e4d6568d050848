"""Which changes may be merged into Base yet.

Rows of Base come after all changes of their file's transaction. A transaction that was begun and not committed will bring
changes under an older number than those committed meanwhile. Were these merged before it, its changes would be taken for
older than rows that they are meant for. So nothing is merged at or beyond the oldest transaction that may still come.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

import polars as pl
from pyiceberg.table.metadata import TableMetadata

from pyarctic.tables.read.key_groups import PARTITION

BEGUN = "tx.begin.signature"
"""In the summary of the empty commit that begins a transaction."""
COMMITTED = "txId"
"""In the summary of a commit to Base: the transaction it belongs to."""
ENDED = "arctic.transactions-ended"
"""In the summary of a commit to either store: transactions that bring nothing more, by comma."""


def find_open_transactions(
    change: TableMetadata, base: TableMetadata, committed: Collection[int], since: datetime
) -> list[int]:
    """Transactions that were begun since a moment, and of which nothing is known to be committed. `committed`: those of all
    files there are."""
    least = since.timestamp() * 1000
    begun = {
        snapshot.sequence_number or 0
        for snapshot in change.snapshots
        if snapshot.timestamp_ms >= least and snapshot.summary and BEGUN in snapshot.summary.additional_properties
    }
    told = {
        int(number)
        for snapshot in (*base.snapshots, *change.snapshots)
        for key in (COMMITTED, ENDED)
        for number in (snapshot.summary.additional_properties.get(key, "") if snapshot.summary else "").split(",")
        if number.isdigit()
    }
    return sorted(begun - told - set(committed))


def may_hide_transactions(change: TableMetadata, since: datetime) -> bool:
    """Whether snapshots that came since a moment were expired: a transaction that was begun in one of them is not known."""
    oldest = min(change.snapshots, key=lambda snapshot: snapshot.sequence_number or 0, default=None)
    return oldest is not None and (oldest.sequence_number or 0) > 1 and oldest.timestamp_ms >= since.timestamp() * 1000


def select_mergeable(unmerged: pl.DataFrame, oldest_open: int | None) -> pl.DataFrame:
    """The unmerged changes that can be merged now. In every partition they are all up to some sequence number, and none that
    is left has a transaction so old."""
    if oldest_open is None or unmerged.is_empty():
        return unmerged
    last = unmerged.select(PARTITION).unique().with_columns(last=pl.lit(oldest_open - 1, pl.Int64))
    while True:
        told = unmerged.join(last, on=PARTITION, how="left", maintain_order="left")
        taken = pl.col("data_sequence_number") <= pl.col("last")
        older = told.filter(~taken & (pl.col("transaction_id") <= pl.col("last")))
        if older.is_empty():
            return told.filter(taken).drop("last")
        before = older.group_by(PARTITION).agg(before=pl.col("transaction_id").min() - 1)
        last = last.join(before, on=PARTITION, how="left").select(*PARTITION, last=pl.min_horizontal("last", "before"))
