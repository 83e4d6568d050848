"""Selecting a snapshot: by its id, by a branch or tag, or by a point in time."""

from __future__ import annotations

from datetime import UTC, datetime

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from pyarctic.errors import NotFound, UsageError
from pyarctic.iceberg.manifest import snapshot_by_id
from pyarctic.tables.describe import instant


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
        return _with_schema(metadata, _current_at(metadata, as_of))
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


def _current_at(metadata: TableMetadata, time: datetime) -> int:
    entries = [entry for entry in metadata.snapshot_log if is_not_after(entry.timestamp_ms, time)]
    if not entries:
        raise NotFound(
            f"the table has no snapshot as old as {time.isoformat()}"
            if metadata.snapshots
            else "the table has no snapshot yet",
            hint="`arctic table snapshots` lists all snapshots; older ones may have been expired.",
        )
    return entries[-1].snapshot_id
