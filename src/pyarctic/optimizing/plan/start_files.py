"""The files of a table as they were when a plan was made, loaded from the table itself."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.table.snapshots import Snapshot

from pyarctic.errors import Rejected, about
from pyarctic.iceberg.delete import DeleteMatches, match_deletes
from pyarctic.iceberg.manifest import PartitionDecoder
from pyarctic.optimizing.plan.commit_plan import CommitPlan
from pyarctic.tables import Table
from pyarctic.tables.read import check_files


@dataclass(frozen=True, kw_only=True, eq=False)
class StartFiles:
    """The files of the start snapshot of a plan; of a keyed table those of the base store."""

    matches: DeleteMatches
    """The data files with their deletes."""


def load_start(table: Table, plan: CommitPlan) -> StartFiles:
    """Load the files that a table had when the plan was made, whatever it has now. Raises Rejected if its start snapshot was
    expired, or if another table has the name now."""
    with about(table=table.name):
        job = plan.job
        if table.view.metadata.table_uuid != job.metadata.table_uuid:
            raise Rejected(
                f"the plan is for table {job.metadata.table_uuid}, and another table, {table.uuid}, has its name now",
                hint="Plan it again.",
                reason="replaced-table",
            )
        snapshot = _start_snapshot(table, job.snapshot_id)
        files = table.file_list.at(table.view.io, snapshot)
        frame = files.frame() if plan.keyed is None else check_files(files, job.metadata)
        return StartFiles(matches=match_deletes(frame, PartitionDecoder(job.metadata).unpartitioned_specs()))


def _start_snapshot(table: Table, start: int | None) -> Snapshot | None:
    if start is None:
        return None
    if table.view.metadata.snapshot_by_id(start) is None:
        table.refresh()  # it may have been planned after this handle was loaded
    snapshot = table.view.metadata.snapshot_by_id(start)
    if snapshot is None:
        raise Rejected(
            f"the start snapshot {start} of the plan was expired by others",
            hint="Plan it again; its results cannot be committed any more. Keep snapshots longer than processes take.",
            reason="history-lost",
            snapshot_id=start,
        )
    return snapshot
