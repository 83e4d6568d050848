"""What the commits of a process came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl
from pyiceberg.table.metadata import TableMetadata

from pyarctic.iceberg.manifest import ancestors
from pyarctic.optimizing.commit.log import CommitLog, FinishedTask, no_files
from pyarctic.optimizing.commit.units import CommitUnit


@dataclass(frozen=True, kw_only=True, eq=False)
class CommitSummary:
    """What a process has changed."""

    snapshot_ids: tuple[int, ...] = ()
    committed: Sequence[FinishedTask] = ()
    found: Sequence[FinishedTask] = ()
    """Tasks that were in the table already, by an earlier commit of the same results."""
    dropped: Sequence[tuple[FinishedTask, str]] = ()
    """Tasks whose results were discarded, and why."""
    removed_deletes: pl.DataFrame = field(default_factory=no_files)
    rolled_back: tuple[int, ...] = ()
    """Snapshots of the process that are not in the history of the table any more."""
    rebased_rows: int = 0
    change_manifests_merged: int = 0


def summarize(log: CommitLog, units: Mapping[int, CommitUnit], results: Mapping[int, FinishedTask]) -> CommitSummary:
    """Sum up the log of a process."""

    def finished(unit: int) -> list[FinishedTask]:
        return [results[task.id] for task in units[unit].tasks if task.id in results]

    rolled_back = [record for record in log.records if record.code == "rolled-back"]
    return CommitSummary(
        snapshot_ids=tuple(record.snapshot_id for record in log.landed),
        committed=[each for unit in log.committed_units for each in finished(unit)],
        found=[each for unit in sorted(log.found) for each in finished(unit)],
        dropped=[(each, reason) for unit, reason in log.dropped.items() for each in finished(unit)],
        removed_deletes=log.removed_deletes,
        rolled_back=tuple(record.snapshot_id for record in rolled_back),
        rebased_rows=sum(record.rebased_rows for record in log.landed),
    )


def without_rolled_back(log: CommitLog, metadata: TableMetadata, start: int | None) -> CommitLog:
    """The log after somebody has rolled back commits of it, or the catalog has done so in favour of a writer. `start` is the
    snapshot the process was planned on: if it is not in the history either, snapshots were expired, and nothing can be
    said."""
    history = {snapshot.snapshot_id for snapshot in ancestors(metadata, metadata.current_snapshot())}
    if start is not None and start not in history:
        return log
    for record in log.landed:
        if record.snapshot_id not in history:
            reason = f"its snapshot {record.snapshot_id} was rolled back in favour of another writer"
            lost = replace(record, state="refused", code="rolled-back", reason=reason, was_in_table=True)
            log = log.with_record(lost).with_dropped(dict.fromkeys(record.units, reason))
    return log
