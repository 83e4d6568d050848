"""The history of a table's snapshots: when files were added, which were made by optimizing, and which partitions other
engines change rows in, and how often.

A statement of another engine that deletes, updates or merges rows fails if a data file it read is replaced before it
commits, and engines do not retry it. So partitions in which such statements run are left alone until they have ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from itertools import islice, takewhile

import polars as pl
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from pyarctic.iceberg.manifest import ManifestReader, ancestors, files_changed_by

PROCESS = "arctic.process-id"
"""In the summary of every snapshot of an optimizing process."""
KIND = "arctic.kind"
SPEC = "arctic.spec-id"
"""The partition spec that was the current one when the process was planned."""
TASKS = "arctic.tasks"
"""The ids of the tasks that a snapshot holds, as ranges: "0-4,7"."""

_MAX_STATEMENTS = 24
"""The number of statements to look back at."""
_MAX_STATEMENTS_READ = 96
"""The same, with statements that have changed no file."""
CADENCE_EVENTS = 3
"""The number of statements from which a cadence is derived."""
_RECENT_QUIET_TIMES = 10
"""Until there is a cadence, each statement keeps us away for this many quiet times: the next one may run for minutes."""
WRITERS_WINDOW = timedelta(hours=24)
"""Older statements say nothing about what is running now."""
_MISSED_INTERVALS = 3
"""A writer that has missed this many intervals is considered to have stopped."""

MOMENT = pl.Datetime("ms", "UTC")
SNAPSHOT_TIMES = pl.Schema(
    [
        ("snapshot_id", pl.Int64()),
        ("committed_at", MOMENT),
        ("optimized", pl.Boolean()),
        ("full", pl.Boolean()),
        ("full_spec_id", pl.Int32()),
    ]
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


def is_full(snapshot: Snapshot) -> bool:
    """Whether full optimizing made a snapshot."""
    return is_optimizing(snapshot) and "full" in str(_properties(snapshot).get(KIND))


def _full_spec_id(snapshot: Snapshot) -> int | None:
    spec_id = str(_properties(snapshot).get(SPEC))
    return int(spec_id) if is_full(snapshot) and spec_id.isdigit() else None


def _properties(snapshot: Snapshot) -> Mapping[str, str]:
    return snapshot.summary.additional_properties if snapshot.summary is not None else {}


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
    """When each snapshot was committed, which were made by optimizing, and the current spec of full optimizing."""
    rows = [
        (snapshot.snapshot_id, snapshot.timestamp_ms, is_optimizing(snapshot), is_full(snapshot), _full_spec_id(snapshot))
        for snapshot in metadata.snapshots
        if snapshot.summary is not None
    ]
    names = SNAPSHOT_TIMES.names()
    return (
        pl.DataFrame(rows, names, orient="row", infer_schema_length=None).cast(SNAPSHOT_TIMES)
        if rows
        else pl.DataFrame(schema=SNAPSHOT_TIMES)
    )


def recent_statements(
    metadata: TableMetadata, reader: ManifestReader, since: datetime, known: dict[int, pl.DataFrame] | None = None
) -> pl.DataFrame:
    """The partitions in which the latest statements of other engines added or removed files. Reads only what those
    statements wrote, and keeps it in `known`, by snapshot."""
    known = {} if known is None else known
    snapshots = ancestors(metadata, metadata.current_snapshot())
    recent = takewhile(lambda snapshot: snapshot.timestamp_ms >= since.timestamp() * 1000, snapshots)
    statements: list[pl.DataFrame] = []
    for snapshot in islice(filter(is_statement, recent), _MAX_STATEMENTS_READ):
        if snapshot.snapshot_id not in known:
            known[snapshot.snapshot_id] = _partitions_of(snapshot, reader)
        if known[snapshot.snapshot_id].height:
            statements.append(known[snapshot.snapshot_id])
        if len(statements) == _MAX_STATEMENTS:
            break
    return pl.concat([pl.DataFrame(schema=STATEMENTS), *statements])


def _partitions_of(statement: Snapshot, reader: ManifestReader) -> pl.DataFrame:
    committed_at = pl.lit(statement.timestamp_ms).alias("committed_at")
    files = files_changed_by(reader, statement).with_columns(committed_at)
    return files.select(STATEMENTS.names()).unique().cast(STATEMENTS)


def writers_activity(statements: pl.DataFrame, quiet_time: timedelta, now: datetime) -> pl.DataFrame:
    """For every partition with recent statements: their cadence, and until when to keep away from it (null: it is quiet).

    After a statement of a script the next one may follow at once. A writer with a cadence may be at work from the middle of
    an interval on, until it has missed some intervals. The first statements of a writer are taken for the beginning of a
    cadence, for some quiet times."""
    if statements.is_empty():
        return pl.DataFrame(schema=ACTIVITY)
    last = pl.col("last_statement_at")
    interval = pl.duration(milliseconds=(pl.col("cadence_seconds") * 1000).cast(pl.Int64))
    moment = pl.lit(now).cast(STATEMENTS["committed_at"])
    quiet_until = last + pl.lit(quiet_time)
    recent_until = last + pl.lit(quiet_time * _RECENT_QUIET_TIMES)
    has_cadence = pl.col("statements") >= CADENCE_EVENTS
    stopped_at = last + interval * _MISSED_INTERVALS
    expected_from = last + interval / 2
    is_quiet_time = moment < quiet_until
    is_at_work = has_cadence & (moment >= expected_from) & (moment < stopped_at)
    has_no_pause = has_cadence & is_quiet_time & (expected_from <= quiet_until)
    busy_until = (
        pl.when(is_at_work | has_no_pause)
        .then(pl.max_horizontal(stopped_at, quiet_until))
        .when(~has_cadence & (moment < recent_until))
        .then(recent_until)
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
