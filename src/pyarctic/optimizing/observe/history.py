"""What a table's snapshots tell: when files came, which were made by optimizing, and who changes rows where and how often.

A statement of another engine that deletes, updates or merges rows fails if a data file it read is replaced before it
commits, and it is not repeated by itself. So partitions in which such statements run are left alone until they have ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

import polars as pl
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of

from pyarctic.iceberg.manifest import ManifestReader

PROCESS = "arctic.process-id"
"""In the summary of every snapshot that optimizing makes."""
KIND = "arctic.kind"
TASKS = "arctic.tasks"
"""The ids of the tasks that a snapshot holds, as ranges: "0-4,7"."""

_MOST_STATEMENTS = 24
"""So many statements back is looked."""
CADENCE_EVENTS = 3
"""So many statements make a rhythm."""
WRITERS_WINDOW = timedelta(hours=24)
"""Statements that are older tell nothing of what runs now."""
_TOLERANCE = 3
"""After so many missed beats a writer is taken to have stopped."""

MOMENT = pl.Datetime("ms", "UTC")
SNAPSHOT_TIMES = pl.Schema(
    [("snapshot_id", pl.Int64()), ("committed_at", MOMENT), ("optimized", pl.Boolean()), ("full", pl.Boolean())]
)
STATEMENTS = pl.Schema(
    [("snapshot_id", pl.Int64()), ("committed_at", MOMENT), ("spec_id", pl.Int32()), ("partition", pl.String())]
)
ACTIVITY = pl.Schema(
    [
        ("spec_id", pl.Int32()),
        ("partition", pl.String()),
        ("statements", pl.UInt32()),
        ("last_statement_at", MOMENT),
        ("cadence_seconds", pl.Float64()),
        ("busy_until", MOMENT),
    ]
)


def format_ids(ids: Iterable[int]) -> str:
    """Ids as ranges: "0-4,7"."""
    ranges: list[list[int]] = []
    for number in sorted(ids):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def committed_tasks(metadata: TableMetadata, process_id: str) -> set[int]:
    """The ids of the tasks of a process that are in the table, as its snapshots tell."""
    summaries = [snapshot.summary.additional_properties for snapshot in metadata.snapshots if snapshot.summary is not None]
    listed = ",".join(summary.get(TASKS, "") for summary in summaries if summary.get(PROCESS) == process_id)
    ranges = [[int(number) for number in text.split("-")] for text in listed.split(",") if text]
    return {number for ends in ranges for number in range(ends[0], ends[-1] + 1)}


def is_ours(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and PROCESS in snapshot.summary.additional_properties


def is_statement(snapshot: Snapshot) -> bool:
    """Whether somebody else changed rows that were there: deleted, updated, merged or overwrote. Streams that upsert by
    equality deletes do not count: they name no data file, so nothing that becomes of one can make them fail."""
    summary = snapshot.summary
    if summary is None or summary.operation not in (Operation.OVERWRITE, Operation.DELETE) or is_ours(snapshot):
        return False
    by_keys = int(summary.additional_properties.get("added-equality-deletes") or 0) > 0
    replaces = int(summary.additional_properties.get("deleted-data-files") or 0) > 0
    return replaces or not by_keys


def snapshot_times(metadata: TableMetadata) -> pl.DataFrame:
    """When each snapshot came, and which were made by optimizing."""
    rows = [
        (s.snapshot_id, s.timestamp_ms, is_ours(s), is_ours(s) and "full" in str(s.summary.additional_properties.get(KIND)))
        for s in metadata.snapshots
        if s.summary is not None
    ]
    names = SNAPSHOT_TIMES.names()
    return pl.DataFrame(rows, names, orient="row").cast(SNAPSHOT_TIMES) if rows else pl.DataFrame(schema=SNAPSHOT_TIMES)


def recent_statements(metadata: TableMetadata, reader: ManifestReader, since: datetime) -> pl.DataFrame:
    """Which partitions the latest statements of others touched. Reads only what those statements wrote."""
    found: list[pl.DataFrame] = []
    for snapshot in ancestors_of(metadata.current_snapshot(), metadata):
        if snapshot.timestamp_ms < since.timestamp() * 1000 or len(found) >= _MOST_STATEMENTS:
            break
        if is_statement(snapshot):
            own = [m for m in reader.manifests(snapshot) if m.added_snapshot_id == snapshot.snapshot_id]
            files = reader.files_of(own).filter(pl.col("snapshot_id") == snapshot.snapshot_id)
            when = pl.lit(snapshot.timestamp_ms).cast(STATEMENTS["committed_at"]).alias("committed_at")
            found.append(files.select("snapshot_id", "spec_id", "partition").unique().with_columns(when))
    return pl.concat(found).select(STATEMENTS.names()).cast(STATEMENTS) if found else pl.DataFrame(schema=STATEMENTS)


def writers_activity(statements: pl.DataFrame, quiet_time: timedelta, now: datetime) -> pl.DataFrame:
    """For every partition with recent statements: their rhythm, and until when to keep away from it (null: now is fine).

    After a statement the next one of a script may follow at once. A writer with a rhythm may be at work from the middle
    between two beats on, until it has missed some."""
    if statements.is_empty():
        return pl.DataFrame(schema=ACTIVITY)
    last = pl.col("last_statement_at")
    beat = pl.duration(milliseconds=(pl.col("cadence_seconds") * 1000).cast(pl.Int64))
    moment = pl.lit(now).cast(STATEMENTS["committed_at"])
    quiet_until = last + pl.lit(quiet_time)
    has_rhythm = pl.col("statements") >= CADENCE_EVENTS
    stopped_at = last + beat * _TOLERANCE
    expected_from = last + beat / 2
    quiet = moment < quiet_until
    at_work = has_rhythm & (moment >= expected_from) & (moment < stopped_at)
    no_gap = has_rhythm & quiet & (expected_from <= quiet_until)
    until = pl.when(at_work | no_gap).then(pl.max_horizontal(stopped_at, quiet_until)).when(quiet).then(quiet_until)
    gaps = pl.col("committed_at").sort().diff().dt.total_milliseconds() / 1000
    return (
        statements.group_by("spec_id", "partition")
        .agg(statements=pl.len(), last_statement_at=pl.col("committed_at").max(), cadence_seconds=gaps.median())
        .with_columns(busy_until=until)
        .cast(ACTIVITY)
    )
