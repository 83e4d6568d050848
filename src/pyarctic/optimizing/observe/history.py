"""The history of a table's snapshots: when files were added, which were made by optimizing, and which partitions other
engines change rows in, and how often.

A statement of another engine that deletes, updates or merges rows fails if a data file it read is replaced before it
commits, and engines do not retry it. So partitions in which such statements run are left alone until they have ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

import polars as pl
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of

from pyarctic.iceberg.manifest import ManifestReader

PROCESS = "arctic.process-id"
"""In the summary of every snapshot of an optimizing process."""
KIND = "arctic.kind"
TASKS = "arctic.tasks"
"""The ids of the tasks that a snapshot holds, as ranges: "0-4,7"."""

_MAX_STATEMENTS = 24
"""The number of statements to look back at."""
CADENCE_EVENTS = 3
"""The number of statements from which a cadence is derived."""
WRITERS_WINDOW = timedelta(hours=24)
"""Older statements say nothing about what is running now."""
_MISSED_INTERVALS = 3
"""A writer that has missed this many intervals is considered to have stopped."""

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
    """The ids of the tasks of a process that are in the table, according to its snapshots."""
    summaries = [snapshot.summary.additional_properties for snapshot in metadata.snapshots if snapshot.summary is not None]
    listed = ",".join(summary.get(TASKS, "") for summary in summaries if summary.get(PROCESS) == process_id)
    ranges = [[int(number) for number in text.split("-")] for text in listed.split(",") if text]
    return {number for ends in ranges for number in range(ends[0], ends[-1] + 1)}


def is_optimizing(snapshot: Snapshot) -> bool:
    """Whether an optimizing process made a snapshot."""
    return snapshot.summary is not None and PROCESS in snapshot.summary.additional_properties


def is_statement(snapshot: Snapshot) -> bool:
    """Whether another engine changed existing rows: deleted, updated, merged or overwrote them. Streams that upsert by
    equality deletes do not count: they reference no data file, so replacing one cannot make them fail."""
    summary = snapshot.summary
    if summary is None or summary.operation not in (Operation.OVERWRITE, Operation.DELETE) or is_optimizing(snapshot):
        return False
    deletes_by_key = int(summary.additional_properties.get("added-equality-deletes") or 0) > 0
    replaces_files = int(summary.additional_properties.get("deleted-data-files") or 0) > 0
    return replaces_files or not deletes_by_key


def snapshot_times(metadata: TableMetadata) -> pl.DataFrame:
    """When each snapshot was committed, and which were made by optimizing."""
    rows = [
        (
            snapshot.snapshot_id,
            snapshot.timestamp_ms,
            is_optimizing(snapshot),
            is_optimizing(snapshot) and "full" in str(snapshot.summary.additional_properties.get(KIND)),
        )
        for snapshot in metadata.snapshots
        if snapshot.summary is not None
    ]
    names = SNAPSHOT_TIMES.names()
    return pl.DataFrame(rows, names, orient="row").cast(SNAPSHOT_TIMES) if rows else pl.DataFrame(schema=SNAPSHOT_TIMES)


def recent_statements(metadata: TableMetadata, reader: ManifestReader, since: datetime) -> pl.DataFrame:
    """The partitions that the latest statements of other engines touched. Reads only what those statements wrote."""
    statements: list[pl.DataFrame] = []
    for snapshot in ancestors_of(metadata.current_snapshot(), metadata):
        if snapshot.timestamp_ms < since.timestamp() * 1000 or len(statements) >= _MAX_STATEMENTS:
            break
        if is_statement(snapshot):
            manifests = [
                manifest for manifest in reader.manifests(snapshot) if manifest.added_snapshot_id == snapshot.snapshot_id
            ]
            files = reader.files_of(manifests).filter(pl.col("snapshot_id") == snapshot.snapshot_id)
            committed_at = pl.lit(snapshot.timestamp_ms).cast(STATEMENTS["committed_at"])
            partitions = files.select("snapshot_id", "spec_id", "partition").unique()
            statements.append(partitions.with_columns(committed_at=committed_at))
    if not statements:
        return pl.DataFrame(schema=STATEMENTS)
    return pl.concat(statements).select(STATEMENTS.names()).cast(STATEMENTS)


def writers_activity(statements: pl.DataFrame, quiet_time: timedelta, now: datetime) -> pl.DataFrame:
    """For every partition with recent statements: their cadence, and until when to keep away from it (null: it is quiet).

    After a statement of a script the next one may follow at once. A writer with a cadence may be at work from the middle of
    an interval on, until it has missed some intervals."""
    if statements.is_empty():
        return pl.DataFrame(schema=ACTIVITY)
    last = pl.col("last_statement_at")
    interval = pl.duration(milliseconds=(pl.col("cadence_seconds") * 1000).cast(pl.Int64))
    moment = pl.lit(now).cast(STATEMENTS["committed_at"])
    quiet_until = last + pl.lit(quiet_time)
    has_cadence = pl.col("statements") >= CADENCE_EVENTS
    stopped_at = last + interval * _MISSED_INTERVALS
    expected_from = last + interval / 2
    is_quiet_time = moment < quiet_until
    is_at_work = has_cadence & (moment >= expected_from) & (moment < stopped_at)
    has_no_pause = has_cadence & is_quiet_time & (expected_from <= quiet_until)
    busy_until = (
        pl.when(is_at_work | has_no_pause)
        .then(pl.max_horizontal(stopped_at, quiet_until))
        .when(is_quiet_time)
        .then(quiet_until)
    )
    intervals = pl.col("committed_at").sort().diff().dt.total_milliseconds() / 1000
    return (
        statements.group_by("spec_id", "partition")
        .agg(statements=pl.len(), last_statement_at=pl.col("committed_at").max(), cadence_seconds=intervals.median())
        .with_columns(busy_until=busy_until)
        .cast(ACTIVITY)
    )
