"""Removing the files of processes that were killed. They are found by the records that these processes wrote."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta

from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import ancestors_of

from pyarctic.iceberg.commit import rollback_targets
from pyarctic.iceberg.read import TableView
from pyarctic.optimizing.execute.attempt_files import find_job_files
from pyarctic.optimizing.execute.process_records import RecordedProcess, recorded_processes
from pyarctic.optimizing.protocol.task import Task
from pyarctic.tables import Table, remove_outputs


def remove_leftovers(table: Table, min_age: timedelta) -> int:
    """Remove the files of dead processes that no snapshot refers to, and return their number."""
    view = table.view
    seconds = min_age.total_seconds()
    dead = [process for process in recorded_processes(view.io, view.metadata) if process.is_dead(time.time(), seconds)]
    claimed = [process for each in dead if (process := each.claim(view.io)) is not None]
    if not claimed:
        return 0
    newest = table.load_newest()  # after the claims: it has all that these processes have committed
    # If one is not dead any more, it runs after all.
    return sum(_remove_files_of(each, table, newest) for each in claimed if each.is_dead(time.time(), seconds))


def _remove_files_of(process: RecordedProcess, table: Table, newest: TableView) -> int:
    """Remove the files of a dead process. They wait together until no request of it can be accepted any more."""
    job, state = process.job, process.state
    tasks = process.tasks
    if not process.has_ended or not _has_history(process, newest.metadata):
        # It may be suspended on another machine; or its files were in the table for a while, and may be in use elsewhere.
        tasks = [task for task in tasks if task.id not in state.submitted]
    elif not _is_settled(process, newest.metadata):
        return 0
    paths = _find_files(process, tasks, newest.io)
    removal = remove_outputs(table, paths, table_uuid=job.metadata.table_uuid, since=job.snapshot_id)
    if not removal.failed:
        process.forget(newest.io)
    return len(removal.removed)


def _has_history(process: RecordedProcess, metadata: TableMetadata) -> bool:
    """Whether the snapshots since the start of the process were not expired."""
    start = process.job.snapshot_id
    return start is None or metadata.snapshot_by_id(start) is not None


def _is_settled(process: RecordedProcess, metadata: TableMetadata) -> bool:
    """Whether no request of an ended process can be accepted any more: the branch is beyond all heads that its requests
    require, by a snapshot that no catalog drops in favour of a request."""
    heads = process.state.heads
    if metadata.format_version == 1 and any(head.snapshot_id in heads for head in metadata.snapshots):
        return False  # others may set the branch back, and nothing but the head tells that a request is late
    permanent = rollback_targets(metadata, metadata.current_snapshot())[-1]
    return heads <= {snapshot.parent_snapshot_id for snapshot in ancestors_of(permanent, metadata)}


def _find_files(process: RecordedProcess, tasks: Sequence[Task], io: FileIO) -> set[str]:
    return {file.path for file in find_job_files(process.job, io, tasks, process.attempts)}
