"""Removing files of a process that its table does not need."""

from __future__ import annotations

from collections.abc import Iterable

from pyarctic.iceberg import remove_quietly
from pyarctic.optimizing.commit.log import FinishedTask
from pyarctic.optimizing.plan.commit_plan import CommitPlan
from pyarctic.tables import Table, remove_outputs


class Outputs:
    """The files that tasks and commits of a plan have written."""

    def __init__(self, table: Table, plan: CommitPlan) -> None:
        self._table = table
        self._job = plan.job
        self.removal_failed = False
        """Whether a file is still there that was to be removed."""

    def remove_row_maps(self, finished: Iterable[FinishedTask]) -> None:
        """Remove the row maps of these tasks: no snapshot refers to them."""
        row_maps = {path for each in finished for path in each.result.row_maps}
        self.removal_failed |= bool(remove_quietly(self._table.view.io, row_maps))

    def remove_written(self, finished: Iterable[FinishedTask]) -> None:
        """Remove the files that these tasks have written, unless a snapshot refers to them."""
        self.remove(path for each in finished for path in each.result.written)

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files unless a snapshot refers to them."""
        job = self._job
        removal = remove_outputs(self._table, paths, table_uuid=job.metadata.table_uuid, since=job.snapshot_id)
        self.removal_failed |= bool(removal.failed)
