"""Rolling back an optimizing process: the table returns to the snapshot before it, if nobody has written since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any

import polars as pl
from pyiceberg.table.snapshots import Snapshot

from pyarctic.errors import NotFound, Rejected, about
from pyarctic.iceberg.manifest import IS_DATA, PARTITION_KEY, ancestors, changed_files, snapshot_by_id
from pyarctic.optimizing.observe.history import PROCESS, is_optimizing
from pyarctic.optimizing.observe.observation import check_optimizable
from pyarctic.tables import KeyedTable, Table
from pyarctic.tables.format import StorePaths, merged_sequences, parse_change_file_names, parse_file_names
from pyarctic.tables.read import select_unmerged


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
        """This rollback as a JSON document."""
        return {
            "table": self.table,
            "from_snapshot_id": str(self.from_snapshot_id),
            "to_snapshot_id": str(self.to_snapshot_id),
            "snapshots": [str(snapshot_id) for snapshot_id in self.snapshots],
            "dry_run": self.dry_run,
        }


def roll_back(table: Table, to: int | None = None, *, dry_run: bool = False) -> Rollback:
    """Roll back the last process, or all processes since snapshot `to`. Refuses if anything else would be lost."""
    check_optimizable(table)
    with about(table=table.name):
        metadata = table.view.metadata
        history = list(ancestors(metadata, metadata.current_snapshot()))
        if not history:
            raise NotFound("the table has no snapshot", hint="There is nothing to roll back.")
        undone = _since(history, to, table) if to is not None else _last_process(history)
        if undone[-1].parent_snapshot_id is None:
            raise Rejected(
                "there was nothing in Base before it", hint="It cannot be rolled back: a table cannot be without a snapshot."
            )
        target = metadata.snapshot_by_id(undone[-1].parent_snapshot_id)
        if target is None:
            raise _refusal("the snapshot before the process was expired")
        rollback = Rollback(
            table=table.name,
            from_snapshot_id=history[0].snapshot_id,
            to_snapshot_id=target.snapshot_id,
            snapshots=tuple(snapshot.snapshot_id for snapshot in undone),
            dry_run=dry_run,
        )
        if isinstance(table, KeyedTable):
            _require_changes(table, [target, *reversed(undone)])
        if not dry_run:
            table.roll_back(target.snapshot_id)
        return rollback


def _require_changes(table: KeyedTable, history: Sequence[Snapshot]) -> None:
    """Refuse unless the base store as it was, with the changes that were merged since, has the same rows. `history`: the
    snapshots from the one that becomes the current one, oldest first."""
    view = table.view
    try:
        merged = [merged_sequences(view.metadata, view.io, snapshot) for snapshot in history]
    except NotFound as cause:
        raise _refusal("what was merged before the process is not known: older snapshots were expired") from cause
    steps = list(zip(pairwise(history), pairwise(merged), strict=True))
    for _, (before, after) in steps:
        _require_merged_files(table.change_store, before, after)
    for snapshots, (before, after) in steps:
        rewritten = changed_files(table.reader(), *snapshots).filter(IS_DATA)
        _refuse_late_transactions(table.change_store, parse_file_names(rewritten, "base"), before, after)


def _require_merged_files(store: Table, before: Mapping[str, int], after: Mapping[str, int]) -> None:
    """Refuse unless the change store still has the files that a commit to Base has merged. Operations of its snapshots do
    not tell: merging manifests is a replace that keeps all files, and a delete may have cleaned only older changes."""
    grown = [sequence for path, sequence in after.items() if sequence > before.get(path, 0)]
    if not grown:
        return
    metadata = store.view.metadata
    # The latest commit that was merged. All files were there then, or they were not merged.
    seen = next((snapshot for snapshot in metadata.snapshots if snapshot.sequence_number == max(grown)), None)
    if seen is None:
        raise _refusal(
            "changes that the process merged may have been cleaned since: the snapshot of the change store that had them "
            "was expired"
        )
    changed = changed_files(store.reader(), seen, metadata.current_snapshot())
    removed, paths = changed.filter(pl.col("change") == "removed"), StorePaths(metadata)
    needed = select_unmerged(removed, paths, before)
    if select_unmerged(needed, paths, after).height < needed.height:
        raise _refusal("changes that the process merged were removed from the change store since")
    if changed.filter((pl.col("change") == "added") & ~IS_DATA).height:
        raise _refusal("another engine has deleted rows of the change store since, which the process may have merged")


def _refuse_late_transactions(
    store: Table, rewritten: pl.DataFrame, before: Mapping[str, int], after: Mapping[str, int]
) -> None:
    """Refuse if changes came after a commit to Base whose transaction is older than what it has merged or put together: they
    outlasted the timeout. They do not apply to rows of Base that are labelled with a later transaction, and a key that was
    deleted later is not known any more. Without the commit the order of transactions would decide again."""
    files, paths = parse_change_file_names(store.file_list.frame()), StorePaths(store.view.metadata)
    pending = select_unmerged(files, paths, after)
    merged = select_unmerged(files, paths, before).join(pending, on="file_path", how="anti")
    transaction, change = pl.col("transaction_id"), pl.col("change")
    of_merged = merged.group_by(PARTITION_KEY).agg(least=pl.lit(0, pl.Int64), most=transaction.max())
    of_rewritten = rewritten.group_by(PARTITION_KEY).agg(
        least=transaction.filter(change == "removed").min() + 1, most=transaction.filter(change == "added").max()
    )
    late = pending.join(pl.concat([of_merged, of_rewritten]), on=PARTITION_KEY).filter(
        transaction.is_between(pl.col("least"), pl.col("most"))
    )
    if late.height:
        number = late["transaction_id"].sort()[0]
        raise Rejected(
            f"transaction {number} was committed after the process, although it is older than what the process merged",
            hint="It cannot be rolled back any more: without it the transaction would count in its order, and rows might "
            "change.",
        )


def _refusal(reason: str) -> Rejected:
    return Rejected(reason, hint="It cannot be rolled back any more. Rows are the same before and after optimizing.")


def _last_process(history: list[Snapshot]) -> list[Snapshot]:
    if not is_optimizing(history[0]):
        if any(is_optimizing(snapshot) for snapshot in history):
            raise _would_lose(history[0])
        raise Rejected("the table was not optimized, as far as its history goes back", hint="There is nothing to roll back.")
    process_id = _process_id(history[0])
    # If others wrote between two commits of the process, only the later commit can be rolled back.
    return list(takewhile(lambda snapshot: _process_id(snapshot) == process_id, history))


def _since(history: list[Snapshot], to: int, table: Table) -> list[Snapshot]:
    snapshot_by_id(table.view.metadata, to)
    ids = [snapshot.snapshot_id for snapshot in history]
    if to not in ids:
        raise NotFound(
            f"snapshot {to} is not in the history of the current one",
            hint="`arctic table snapshots` lists those there are.",
            snapshot_id=to,
        )
    undone = history[: ids.index(to)]
    foreign = next((snapshot for snapshot in undone if not is_optimizing(snapshot)), None)
    if foreign is not None:
        raise _would_lose(foreign)
    if not undone:
        raise Rejected(f"snapshot {to} is the current one", hint="There is nothing to roll back.", snapshot_id=to)
    return undone


def _would_lose(snapshot: Snapshot) -> Rejected:
    operation = snapshot.summary.operation.value if snapshot.summary else "change"
    return Rejected(
        f"snapshot {snapshot.snapshot_id} ({operation}) came after it and would be lost",
        hint="Optimizing keeps all rows, so nothing is wrong with them. To roll back data, use your engine.",
        snapshot_id=snapshot.snapshot_id,
    )


def _process_id(snapshot: Snapshot) -> str | None:
    return snapshot.summary.additional_properties.get(PROCESS) if snapshot.summary else None
