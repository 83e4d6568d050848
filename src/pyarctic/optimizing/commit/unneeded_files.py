"""Which files of a process may be removed, and when: the one place that decides it.

A file of a process is removed only if it is proved that nothing holds it and nothing will:

* Its unit is resolved: committed, dropped, or found in the table. Outputs of units that wait stay.
* No open commit names it. An open commit is settled first (`settling.find_outcome`): only then no request can be accepted
  any more.
* No snapshot of the newest metadata refers to it, on any branch and in history that was rolled back.

The files that a commit itself writes (manifests, their lists, rebased deletes, statistics, metadata files) are known by the
snapshot that their names tell. They may be removed as soon as their record is settled, also if it has landed: of several
attempts one has.

Attempts that lost, or that nobody waits for, are known by their numbers; whoever hands out numbers knows all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyiceberg.io import FileIO
from pyiceberg.table.locations import load_location_provider

from pyarctic.iceberg import list_folder
from pyarctic.iceberg.write import told_snapshot
from pyarctic.optimizing.commit.log import CommitLog
from pyarctic.optimizing.commit.units import units_of
from pyarctic.optimizing.execute.attempt_files import find_job_files
from pyarctic.optimizing.plan.commit_plan import CommitPlan
from pyarctic.optimizing.protocol.result import TaskResult
from pyarctic.tables import Removal, Table, remove_outputs
from pyarctic.tables.format import statistics_folder


def unneeded_results(plan: CommitPlan, log: CommitLog, results: Mapping[int, TaskResult]) -> set[str]:
    """Files of accepted results that are not needed any more, unless a snapshot refers to them."""
    in_doubt = {unit for record in log.in_doubt for unit in record.units}
    resolved = log.resolved_units - in_doubt
    tasks = [task.id for unit in units_of(plan).values() if unit.id in resolved for task in unit.tasks]
    return {path for task in tasks if task in results for path in results[task].paths}


def unneeded_attempts(
    plan: CommitPlan, io: FileIO, attempts: Mapping[int, Iterable[int]], results: Mapping[int, TaskResult]
) -> set[str]:
    """Files of these attempts, by task, that no accepted result names. Nobody may be working on them any more."""
    ended = {(task, number) for task, numbers in attempts.items() for number in numbers}
    tasks = [task for task in plan.tasks if task.id in attempts]
    files = find_job_files(plan.job, io, tasks, sorted({number for _, number in ended}))
    named = {path for result in results.values() for path in result.paths}
    return {file.path for file in files if (file.task, file.attempt) in ended and file.path not in named}


def unneeded_commit_files(plan: CommitPlan, table: Table, log: CommitLog) -> set[str]:
    """Files that settled commits have written; the table may refer to them. Their folders are listed: how many attempts were
    killed is not known."""
    in_doubt = {record.snapshot_id for record in log.in_doubt}
    settled = {record.snapshot_id for record in log.records if record.state != "open"} - in_doubt
    if not settled:
        return set()
    folders: set[str] = set()
    for metadata in (plan.job.metadata, table.view.metadata):  # others may have moved them meanwhile
        locations = load_location_provider(metadata.location, metadata.properties)
        folders |= {locations.metadata_path, locations.data_path}
        folders |= {statistics_folder(metadata)} if plan.keyed is not None else set()
    files = (path for folder in folders for path in list_folder(table.view.io, folder) or ())
    return {path for path in files if told_snapshot(path) in settled}


def remove_unneeded_files(
    table: Table,
    plan: CommitPlan,
    log: CommitLog,
    results: Mapping[int, TaskResult],
    attempts: Mapping[int, Iterable[int]],
) -> Removal:
    """Remove the files of a process that nothing needs any more. It may be called at any time, and again."""
    paths = unneeded_results(plan, log, results) | unneeded_attempts(plan, table.view.io, attempts, results)
    paths |= unneeded_commit_files(plan, table, log)
    return remove_outputs(table, paths, table_uuid=plan.job.metadata.table_uuid, since=plan.job.snapshot_id)
