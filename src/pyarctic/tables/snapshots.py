"""Which snapshot is meant: by its id, by a branch or tag, or by a moment."""

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
    """The snapshot that is asked for, and the schema its rows are shown with: an old snapshot or a tag has its own,
    the table and its branches have the current one."""
    if sum(choice is not None for choice in (snapshot_id, ref, as_of)) > 1:
        raise UsageError("give one of snapshot, ref and as-of", hint="Each of them alone names a snapshot.")
    if snapshot_id is not None:
        if not isinstance(snapshot_id, int):
            raise UsageError(f"a snapshot id is a number, not {snapshot_id!r}", hint="Convert it with int(…).")
        return _with_schema(metadata, snapshot_id)
    if ref is not None:
        found = metadata.refs.get(ref)
        if found is None:
            raise NotFound(f"no branch or tag {ref!r}", hint=f"There are: {', '.join(metadata.refs) or 'none'}.", ref=ref)
        snapshot, schema = _with_schema(metadata, found.snapshot_id)
        return snapshot, metadata.schema() if found.snapshot_ref_type == SnapshotRefType.BRANCH else schema
    if as_of is not None:
        if not isinstance(as_of, datetime):
            raise UsageError(f"as_of is a datetime, not {as_of!r}", hint="Convert it with datetime.fromisoformat(…).")
        return _with_schema(metadata, _current_at(metadata, as_of))
    return metadata.current_snapshot(), metadata.schema()


def schema_of(metadata: TableMetadata, snapshot: Snapshot) -> Schema:
    """The schema that was in force when a snapshot was made."""
    schemas = {schema.schema_id: schema for schema in metadata.schemas}
    current = metadata.schema()
    return schemas.get(snapshot.schema_id, current) if snapshot.schema_id is not None else current


def _with_schema(metadata: TableMetadata, snapshot_id: int) -> tuple[Snapshot, Schema]:
    snapshot = snapshot_by_id(metadata, snapshot_id)
    return snapshot, schema_of(metadata, snapshot)


def is_by(timestamp_ms: int, moment: datetime) -> bool:
    """Whether something happened by a moment, which is of UTC if it has no zone."""
    return instant(timestamp_ms) <= (moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def _current_at(metadata: TableMetadata, moment: datetime) -> int:
    past = [entry for entry in metadata.snapshot_log if is_by(entry.timestamp_ms, moment)]
    if not past:
        raise NotFound(
            f"the table has no snapshot as old as {moment.isoformat()}"
            if metadata.snapshots
            else "the table has no snapshot yet",
            hint="`arctic table snapshots` lists those there are; older ones may have been expired.",
        )
    return past[-1].snapshot_id
