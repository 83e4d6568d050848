"""Catalogs that let writers win: they drop snapshots of compaction that a writer conflicts with, if these are marked.

Apache Polaris (`polaris.config.rollback.compaction.on-conflicts.enabled`) and Lakekeeper do so where it is switched on: if
all snapshots since the one that a request was built on are marked and of the operation `replace`, they are dropped, and the
request is accepted. So a branch that has moved on may go back.
"""

from __future__ import annotations

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

ROLLBACK_ON_CONFLICT = {"polaris.internal.conflict-resolution.by-operation-type.replace": "rollback"}
"""The mark, for the summary of a `replace`. Lakekeeper knows it too."""
_MARKS = {**ROLLBACK_ON_CONFLICT, "lakekeeper.rollbackable": "true"}


def rollback_targets(metadata: TableMetadata, head: Snapshot | None) -> list[Snapshot | None]:
    """The head of a branch, and the snapshots before it that a catalog may bring it back to; the last one is permanent. None
    is the empty table, or a snapshot that was expired."""
    targets = [head]
    while head is not None and _may_be_dropped(head):
        parent = head.parent_snapshot_id
        head = metadata.snapshot_by_id(parent) if parent is not None else None
        targets.append(head)
    return targets


def _may_be_dropped(snapshot: Snapshot) -> bool:
    summary = snapshot.summary
    if summary is None or summary.operation != Operation.REPLACE:
        return False
    return any(summary.additional_properties.get(name, "").lower() == value for name, value in _MARKS.items())
