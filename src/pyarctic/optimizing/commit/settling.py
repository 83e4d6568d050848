"""What became of a commit whose outcome was not stored: asked of the table, never assumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from pyarctic.errors import OutcomeUnknown
from pyarctic.iceberg.commit import Committed, TableState, Unknown, referenced_files, rollback_targets
from pyarctic.optimizing.commit.changes import empty_change
from pyarctic.optimizing.commit.log import MOVED_FOR_NOW, CommitRecord, FinishedTask
from pyarctic.optimizing.commit.outputs import Outputs
from pyarctic.optimizing.plan.commit_plan import CommitPlan
from pyarctic.tables import Table


@dataclass(frozen=True, kw_only=True)
class Settled:
    """The proved outcome of a commit."""

    state: Literal["landed", "refused"]
    code: str | None = None
    reason: str | None = None
    was_in_table: bool = False
    rebased_rows: int = 0


def find_outcome(table: Table, plan: CommitPlan, record: CommitRecord, finished: Sequence[FinishedTask]) -> Settled | None:
    """The outcome of an open commit, by the table as it was loaded; None: a request of it may still be accepted."""
    metadata = table.view.metadata
    if metadata.table_uuid != plan.job.metadata.table_uuid:
        reason = "another table has the name now"
        return Settled(state="refused", code="replaced-table", reason=reason, was_in_table=record.was_sent)
    if not record.was_sent:
        return Settled(state="refused", code="not-sent")
    state = TableState(metadata=metadata, branch=MAIN_BRANCH, reader=table.reader())
    place = _find_in_history(state, record)
    if isinstance(place, Snapshot):
        summary = place.summary.additional_properties if place.summary else {}
        return Settled(state="landed", rebased_rows=int(summary.get("arctic.rebased-rows", 0)))
    paths = {path for each in finished for path in each.result.written}
    was_committed = metadata.snapshot_by_id(record.snapshot_id) is not None or bool(
        referenced_files(metadata, table.reader(), paths, since=plan.job.snapshot_id)
    )
    if was_committed:
        # Others may have expired its snapshot, or committed the same results: then later snapshots have its files.
        if place == "not-known" or not paths.isdisjoint(state.reader.files_of(state.manifests)["file_path"]):
            return Settled(state="landed")
        reason = f"it was committed as snapshot {record.snapshot_id}, and the branch was rolled back since"
        return Settled(state="refused", code="history-lost", reason=reason, was_in_table=True)
    return _find_how_late(metadata, record)


def _find_how_late(metadata: TableMetadata, record: CommitRecord) -> Settled | None:
    """A commit that is not in the table was refused if its requests come too late, however long they are on their way."""
    possible = {head.snapshot_id if head else None for head in rollback_targets(metadata, metadata.current_snapshot())}
    if record.heads & possible:
        return None
    # In format version 1 nothing but the head tells that a request is late, and others may set the branch back to that head.
    may_return = metadata.format_version == 1 and any(head.snapshot_id in record.heads for head in metadata.snapshots)
    code = MOVED_FOR_NOW if may_return else "moved"
    return Settled(state="refused", code=code, reason="others committed first, and its requests came too late")


def _find_in_history(state: TableState, record: CommitRecord) -> Snapshot | Literal["not-there", "not-known"]:
    """The snapshot of a record in the history of the branch, also if others have expired it. A commit that added no file is
    known by nothing else."""
    oldest = None
    for snapshot in state.history():
        if snapshot.snapshot_id == record.snapshot_id:
            return snapshot
        if snapshot.snapshot_id in record.heads:  # it would come right after one of them
            return "not-there"
        oldest = snapshot
    return "not-there" if oldest is None or state.is_first(oldest) else "not-known"


def move_branch(table: Table, plan: CommitPlan, record: CommitRecord, finished: Sequence[FinishedTask]) -> None:
    """Make sure that no request of an open commit can be accepted any more: they require a head that the branch leaves by a
    snapshot without files."""
    table.refresh()
    if find_outcome(table, plan, record, finished) is None:
        change = empty_change(table, plan, record)
        outcome = table.try_commit(change)
        if not isinstance(outcome, Committed | Unknown):  # others have moved it
            Outputs(table, plan).remove(file.statistics_path for file in change.statistics)
        table.refresh()


def not_answered(record: CommitRecord, reason: str) -> OutcomeUnknown:
    """The error for a commit that was sent several times without an answer."""
    return OutcomeUnknown(
        f"the catalog did not answer the commit of snapshot {record.snapshot_id}: {reason}",
        hint="The process was stopped, and nothing was removed. Run it again when the catalog answers.",
        snapshot_id=record.snapshot_id,
    )


def apply_settled(record: CommitRecord, settled: Settled, now: datetime) -> CommitRecord:
    """A record with its proved outcome."""
    return replace(
        record,
        state=settled.state,
        changed_at=now,
        code=settled.code,
        reason=settled.reason,
        was_in_table=settled.was_in_table,
        rebased_rows=settled.rebased_rows,
    )
