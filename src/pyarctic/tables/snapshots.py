"""Selecting a snapshot: by its id, by a branch or tag, or by a point in time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from pyarctic.errors import NotFound, UsageError
from pyarctic.iceberg.manifest import ancestors, snapshot_by_id
from pyarctic.tables.describe import instant
from pyarctic.tables.format.merged_sequence import last_sequence_number


def resolve_snapshot(
    metadata: TableMetadata, snapshot_id: int | None = None, ref: str | None = None, as_of: datetime | None = None
) -> tuple[Snapshot | None, Schema]:
    """The selected snapshot, and the schema to read it with: that of its time for an old snapshot or a tag, the current one
    for the table and its branches."""
    check_choice(snapshot_id, ref, as_of)
    if snapshot_id is not None:
        return _with_schema(metadata, snapshot_id)
    if ref is not None:
        branch_or_tag = metadata.refs.get(ref)
        if branch_or_tag is None:
            raise NotFound(f"no branch or tag {ref!r}", hint=f"There are: {', '.join(metadata.refs) or 'none'}.", ref=ref)
        snapshot, schema = _with_schema(metadata, branch_or_tag.snapshot_id)
        return snapshot, metadata.schema() if branch_or_tag.snapshot_ref_type == SnapshotRefType.BRANCH else schema
    if as_of is not None:
        snapshot = _current_at(metadata, as_of)
        return snapshot, schema_of(metadata, snapshot)
    return metadata.current_snapshot(), metadata.schema()


def check_choice(snapshot_id: int | None, ref: str | None, as_of: datetime | None) -> None:
    """Refuse several choices of a snapshot, and values of a wrong type."""
    if sum(choice is not None for choice in (snapshot_id, ref, as_of)) > 1:
        raise UsageError("give one of snapshot, ref and as-of", hint="Each of them alone names a snapshot.")
    if snapshot_id is not None and not isinstance(snapshot_id, int):
        raise UsageError(f"a snapshot id is a number, not {snapshot_id!r}", hint="Convert it with int(…).")
    if as_of is not None and not isinstance(as_of, datetime):
        raise UsageError(f"as_of is a datetime, not {as_of!r}", hint="Convert it with datetime.fromisoformat(…).")


def schema_of(metadata: TableMetadata, snapshot: Snapshot) -> Schema:
    """The schema of the table when a snapshot was committed."""
    schemas = {schema.schema_id: schema for schema in metadata.schemas}
    current = metadata.schema()
    return schemas.get(snapshot.schema_id, current) if snapshot.schema_id is not None else current


def _with_schema(metadata: TableMetadata, snapshot_id: int) -> tuple[Snapshot, Schema]:
    snapshot = snapshot_by_id(metadata, snapshot_id)
    return snapshot, schema_of(metadata, snapshot)


def is_not_after(timestamp_ms: int, time: datetime) -> bool:
    """Whether a timestamp is not after a point in time, which is UTC if it has no zone."""
    return instant(timestamp_ms) <= (time if time.tzinfo else time.replace(tzinfo=UTC))


def _current_at(metadata: TableMetadata, time: datetime) -> Snapshot:
    snapshot = next(snapshots_until(metadata, time, "the table"), None)
    if snapshot is None:
        raise NotFound(
            f"the table has no snapshot as old as {time.isoformat()}"
            if metadata.snapshots
            else "the table has no snapshot yet",
            hint="`arctic table snapshots` lists all snapshots; older ones may have been expired.",
        )
    return snapshot


def snapshots_until(metadata: TableMetadata, time: datetime, what: str) -> Iterator[Snapshot]:
    """The snapshot that was current at a time, and those that were before, also if the table was rolled back since. Raises
    NotFound where the history was cut; `what` has it."""
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    following: Snapshot | None = None
    until_ms: int | None = None
    for timestamp_ms, snapshot_id in _current_snapshots(metadata):
        snapshot = snapshots.get(snapshot_id)
        if is_not_after(timestamp_ms, time):
            if snapshot is None or _is_gap_between(snapshot, timestamp_ms, following, until_ms, metadata):
                raise expired(what, following)
            yield snapshot
        following, until_ms = snapshot, timestamp_ms
    if following is not None and (following.sequence_number or 0) > 1:
        raise expired(what, following)


def _current_snapshots(metadata: TableMetadata) -> Iterator[tuple[int, int]]:
    """Which snapshots were current since when, the latest first. Not every catalog keeps a log of it."""
    if metadata.snapshot_log:
        yield from ((entry.timestamp_ms, entry.snapshot_id) for entry in reversed(metadata.snapshot_log))
        return
    for snapshot in ancestors(metadata, metadata.current_snapshot()):
        yield snapshot.timestamp_ms, snapshot.snapshot_id


def _is_gap_between(
    snapshot: Snapshot, since_ms: int, following: Snapshot | None, until_ms: int | None, metadata: TableMetadata
) -> bool:
    """Whether an expired snapshot may have been current between two that follow each other in the log, where they became
    current at two moments. Some tools remove only the entries of expired snapshots from the log."""
    if following is None or until_ms is None:
        return False
    if following.timestamp_ms == until_ms:  # it was committed then, on top of the one that was current
        return all(each.snapshot_id != snapshot.snapshot_id for each in ancestors(metadata, following))
    # The table was set to it then. What was committed in between has a number between those before and after.
    known = {each.sequence_number or 0: each.timestamp_ms for each in metadata.snapshots}
    before = max((number for number, at in known.items() if at <= since_ms), default=snapshot.sequence_number or 0)
    after = min((number for number, at in known.items() if at >= until_ms), default=last_sequence_number(metadata) + 1)
    return following is snapshot or any(number not in known for number in range(before + 1, after))


def expired(what: str, oldest: Snapshot | None) -> NotFound:
    """The error for a time whose snapshot was expired; `oldest` is the next one."""
    snapshot_id = oldest.snapshot_id if oldest is not None else None
    return NotFound(
        f"{what} has no snapshot of that time any more: the next one is {snapshot_id}",
        hint="Older ones were expired. Choose a later snapshot or time.",
        snapshot_id=snapshot_id,
    )
