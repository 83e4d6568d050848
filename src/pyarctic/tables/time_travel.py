"""The past of a keyed table: which snapshots of both stores belong together.

A keyed table was, at any time, the snapshots of both stores that were current then. A snapshot id of either store stands for
the time of its commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from pyarctic.errors import NotFound, UsageError
from pyarctic.iceberg.manifest import ancestors
from pyarctic.iceberg.read import TableView
from pyarctic.tables.describe import instant
from pyarctic.tables.format.file_names import Store
from pyarctic.tables.format.merged_sequence import merged_sequences
from pyarctic.tables.snapshots import check_choice, expired, schema_of, snapshots_until


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedSnapshot:
    """A keyed table at one time."""

    base: Snapshot | None
    change: Snapshot | None
    """None: the store had no snapshot yet."""
    schema: Schema


def resolve_keyed_snapshot(
    base: TableView, change: TableView, snapshot_id: int | None, as_of: datetime | None
) -> KeyedSnapshot:
    """The snapshots of both stores that a snapshot id of either store, or a point in time, stands for."""
    change_then = resolve_change_snapshot(base, change, snapshot_id, as_of)
    if snapshot_id is None and as_of is None:
        head = base.metadata.current_snapshot()
        return KeyedSnapshot(base=head, change=change_then, schema=base.metadata.schema())
    if as_of is not None:
        base_then = _base_at(base, change_then, as_of)
        if base_then is None and change_then is None:
            raise NotFound(
                f"the table has no snapshot as old as {as_of.isoformat()}",
                hint="`arctic table snapshots` lists those of Base, and with --store change those of the change store.",
            )
    elif change_then is not None and change_then.snapshot_id == snapshot_id:
        base_then = _base_at(base, change_then, instant(change_then.timestamp_ms))
    else:
        base_then = base.metadata.snapshot_by_id(snapshot_id or 0)
    return KeyedSnapshot(base=base_then, change=change_then, schema=_schema_then(base, change, base_then, change_then))


def resolve_change_snapshot(
    base: TableView, change: TableView, snapshot_id: int | None, as_of: datetime | None
) -> Snapshot | None:
    """The snapshot of the change store alone; None if it had none yet."""
    check_choice(snapshot_id, None, as_of)
    if as_of is not None:
        return _snapshot_at(change.metadata, as_of, "change")
    if snapshot_id is None:
        return change.metadata.current_snapshot()
    snapshot = change.metadata.snapshot_by_id(snapshot_id)
    if snapshot is not None:
        return snapshot
    of_base = base.metadata.snapshot_by_id(snapshot_id)
    if of_base is None:
        raise _unknown(snapshot_id)
    return _change_of(base, change.metadata, of_base)


def check_store(snapshot_id: int | None, metadata: TableMetadata, other: TableMetadata, store: Store) -> None:
    """Refuse a snapshot id of the other store where one store is read."""
    if snapshot_id is None or metadata.snapshot_by_id(snapshot_id) is not None:
        return
    if other.snapshot_by_id(snapshot_id) is None:
        raise _unknown(snapshot_id)
    other_store = "change" if store == "base" else "base"
    raise UsageError(
        f"snapshot {snapshot_id} is one of the {other_store} store, not of the {store} store",
        hint=f"Use [[store={other_store!r}]], or leave [[store]] out: merged rows can be read at snapshots of either store.",
        snapshot_id=snapshot_id,
    )


def _unknown(snapshot_id: int | None) -> NotFound:
    return NotFound(
        f"neither store has a snapshot {snapshot_id} (any more)",
        hint="`arctic table snapshots` lists those of Base, and with --store change those of the change store. "
        "Older ones may have been expired.",
        snapshot_id=snapshot_id,
    )


def _schema_then(base: TableView, change: TableView, base_then: Snapshot | None, change_then: Snapshot | None) -> Schema:
    """The schema of the later snapshot: a store keeps its schema until it is written to again."""
    is_base_later = base_then is not None and (change_then is None or base_then.timestamp_ms > change_then.timestamp_ms)
    view, snapshot = (base, base_then) if is_base_later else (change, change_then)
    return base.metadata.schema() if snapshot is None else schema_of(view.metadata, snapshot)


def _change_of(base: TableView, change: TableMetadata, of_base: Snapshot) -> Snapshot | None:
    """The snapshot of the change store that was current when one of Base was committed. It is not older than what was merged
    into Base: clocks of writers may differ."""
    merged = max(merged_sequences(base.metadata, base.io, of_base).values(), default=0)
    then = _snapshot_at(change, instant(of_base.timestamp_ms), "change")
    if ((then.sequence_number or 0) if then is not None else 0) >= merged:
        return then
    later = [each for each in ancestors(change, change.current_snapshot()) if (each.sequence_number or 0) >= merged]
    if not later or (
        (later[-1].sequence_number or 0) > merged and change.snapshot_by_id(later[-1].parent_snapshot_id or -1) is None
    ):
        raise expired("the change store", later[-1] if later else None)
    return later[-1]


def _base_at(base: TableView, change: Snapshot | None, time: datetime) -> Snapshot | None:
    """The newest snapshot of Base that is not younger than a time, and into which no change later than a snapshot of the
    change store was merged: clocks of writers may differ."""
    last_sequence = (change.sequence_number or 0) if change is not None else 0
    for snapshot in snapshots_until(base.metadata, time, "the base store"):
        if max(merged_sequences(base.metadata, base.io, snapshot).values(), default=0) <= last_sequence:
            return snapshot
    return None


def _snapshot_at(metadata: TableMetadata, time: datetime, store: Store) -> Snapshot | None:
    """The snapshot that was the current one at a time; None if the store had none yet."""
    return next(snapshots_until(metadata, time, f"the {store} store"), None)
