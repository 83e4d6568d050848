"""Undoing a run: the table goes back to the snapshot before it, if nobody has written since."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of

from pyarctic.errors import NotFound, Rejected, about
from pyarctic.iceberg.manifest import snapshot_by_id
from pyarctic.optimizing.observe.history import PROCESS, is_ours
from pyarctic.optimizing.observe.observing import check_kind
from pyarctic.tables import KeyedTable, Table
from pyarctic.tables.format import merged_sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """What was, or would be, rolled back."""

    table: str
    from_snapshot_id: int
    to_snapshot_id: int
    snapshots: tuple[int, ...]
    """Snapshots that are not part of the table's history any more, newest first."""
    dry_run: bool

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "table": self.table,
            "from_snapshot_id": str(self.from_snapshot_id),
            "to_snapshot_id": str(self.to_snapshot_id),
            "snapshots": [str(snapshot_id) for snapshot_id in self.snapshots],
            "dry_run": self.dry_run,
        }


def roll_back(table: Table, to: int | None = None, *, dry_run: bool = False) -> Rollback:
    """Take back the last run, or all runs since snapshot `to`. Refuses if anything else would be lost."""
    check_kind(table)
    with about(table=table.name):
        metadata = table.view.metadata
        lineage = list(ancestors_of(metadata.current_snapshot(), metadata))
        if not lineage:
            raise NotFound("the table has no snapshot", hint="There is nothing to take back.")
        leaving = _since(lineage, to, table) if to is not None else _last_run(lineage)
        if leaving[-1].parent_snapshot_id is None:
            raise Rejected(
                "there was nothing in Base before it", hint="It cannot be taken back: a table cannot be without a snapshot."
            )
        target = metadata.snapshot_by_id(leaving[-1].parent_snapshot_id)
        if target is None:
            raise Rejected(
                "the snapshot before the run was expired",
                hint="It cannot be taken back any more. Rows are the same before and after optimizing.",
            )
        done = Rollback(
            table=table.name,
            from_snapshot_id=lineage[0].snapshot_id,
            to_snapshot_id=target.snapshot_id,
            snapshots=tuple(snapshot.snapshot_id for snapshot in leaving),
            dry_run=dry_run,
        )
        if isinstance(table, KeyedTable):
            _require_changes(table, target)
        if not dry_run:
            table.roll_back(target.snapshot_id)
        return done


def _require_changes(table: KeyedTable, target: Snapshot) -> None:
    """Base as it was needs the changes that were merged since. They are there if nothing has left the change store: commits
    are counted, because the clocks of those who made them may differ."""
    view, change = table.view, table.change_store.view.metadata
    then = merged_sequences(view.metadata, view.io, target)
    now = merged_sequences(view.metadata, view.io, view.metadata.current_snapshot())
    needed = min((then.get(path, 0) for path, merged in now.items() if merged > then.get(path, 0)), default=None)
    snapshot = change.current_snapshot()
    while needed is not None and snapshot is not None and (snapshot.sequence_number or 0) > needed:
        appends = snapshot.summary is not None and snapshot.summary.operation == Operation.APPEND
        parent, number = snapshot.parent_snapshot_id, snapshot.sequence_number or 0
        snapshot = change.snapshot_by_id(parent) if parent is not None else None
        # PyIceberg's expiry takes a snapshot its parent: only the first commit of all has none.
        if not appends or (snapshot is None and number > 1):
            raise Rejected(
                "changes that the run merged may have been cleaned since",
                hint="It cannot be taken back any more. Rows are the same before and after optimizing.",
            )


def _last_run(lineage: list[Snapshot]) -> list[Snapshot]:
    if not is_ours(lineage[0]):
        raise _would_lose(lineage[0], any(is_ours(snapshot) for snapshot in lineage))
    process = _process(lineage[0])
    leaving = []
    for snapshot in lineage:
        if _process(snapshot) != process:
            # Somebody wrote between two commits of the run: only what came after that can be taken back.
            break
        leaving.append(snapshot)
    return leaving


def _since(lineage: list[Snapshot], to: int, table: Table) -> list[Snapshot]:
    snapshot_by_id(table.view.metadata, to)
    ids = [snapshot.snapshot_id for snapshot in lineage]
    if to not in ids:
        raise NotFound(
            f"snapshot {to} is not in the history of the current one",
            hint="`arctic table snapshots` lists those there are.",
            snapshot_id=to,
        )
    leaving = lineage[: ids.index(to)]
    foreign = next((snapshot for snapshot in leaving if not is_ours(snapshot)), None)
    if foreign is not None:
        raise _would_lose(foreign, known=True)
    if not leaving:
        raise Rejected(f"snapshot {to} is the current one", hint="There is nothing to take back.", snapshot_id=to)
    return leaving


def _would_lose(snapshot: Snapshot, known: bool) -> Rejected:
    operation = snapshot.summary.operation.value if snapshot.summary else "change"
    if not known:
        return Rejected(
            "the table was not optimized, as far as its history goes back", hint="There is nothing to take back."
        )
    return Rejected(
        f"snapshot {snapshot.snapshot_id} ({operation}) came after it and would be lost",
        hint="Optimizing keeps all rows, so nothing is wrong with them. To take data back, use your engine.",
        snapshot_id=snapshot.snapshot_id,
    )


def _process(snapshot: Snapshot) -> str | None:
    return snapshot.summary.additional_properties.get(PROCESS) if snapshot.summary else None
