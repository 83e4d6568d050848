"""What became of a commit whose outcome was not stored: asked of the table, never assumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from pyiceberg.table.refs import MAIN_BRANCH

from pyarctic.iceberg.commit import TableState, referenced_files, rollback_targets
from pyarctic.optimizing.commit.changes import empty_change
from pyarctic.optimizing.commit.log import CommitRecord, FinishedTask
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
    snapshot = metadata.snapshot_by_id(record.snapshot_id)
    if snapshot is not None:
        if TableState(metadata=metadata, branch=MAIN_BRANCH, reader=table.reader()).has_left(snapshot):
            reason = f"it was committed as snapshot {record.snapshot_id}, and the branch was rolled back since"
            return Settled(state="refused", code="history-lost", reason=reason, was_in_table=True)
        summary = snapshot.summary.additional_properties if snapshot.summary else {}
        return Settled(state="landed", rebased_rows=int(summary.get("arctic.rebased-rows", 0)))
    # Others may have expired its snapshot: then later ones have its files.
    paths = {path for each in finished for path in each.result.written}
    if referenced_files(metadata, table.reader(), paths, since=plan.job.snapshot_id):
        return Settled(state="landed")
    possible = {head.snapshot_id if head else None for head in rollback_targets(metadata, metadata.current_snapshot())}
    if record.heads & possible:
        return None
    return Settled(state="refused", code="moved", reason="others committed first, and its requests came too late")


def move_branch(table: Table, plan: CommitPlan, record: CommitRecord, finished: Sequence[FinishedTask]) -> None:
    """Make sure that no request of an open commit can be accepted any more: they require a head that the branch leaves by a
    snapshot without files."""
    table.refresh()
    if find_outcome(table, plan, record, finished) is None:
        table.try_commit(empty_change(table, plan))
        table.refresh()


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
