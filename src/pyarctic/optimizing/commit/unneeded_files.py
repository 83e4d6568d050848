"""Which files of a process may be removed, and when: the one place that decides it.

A file of a process is removed only if it is proved that nothing holds it and nothing will:

* Its unit is resolved: committed, dropped, or found in the table. Outputs of units that wait stay.
* No open commit names it. An open commit is settled first (`settling.find_outcome`): only then no request can be accepted
  any more.
* No snapshot of the newest metadata refers to it, on any branch and in history that was rolled back.

Attempts that lost, or that nobody waits for, are known by their numbers; whoever hands out numbers knows all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyiceberg.io import FileIO

from pyarctic.optimizing.commit.log import CommitLog
from pyarctic.optimizing.commit.units import units_of
from pyarctic.optimizing.execute.attempt_files import find_attempt_files
from pyarctic.optimizing.plan.commit_plan import CommitPlan
from pyarctic.optimizing.protocol.result import TaskResult
from pyarctic.tables import Removal, Table, remove_outputs


def unneeded_results(plan: CommitPlan, log: CommitLog, results: Mapping[int, TaskResult]) -> set[str]:
    """Files of accepted results that are not needed any more, unless a snapshot refers to them."""
    in_doubt = set(log.open.units) if log.open is not None and log.open.was_sent else set()
    resolved = log.resolved_units - in_doubt
    tasks = [task.id for unit in units_of(plan).values() if unit.id in resolved for task in unit.tasks]
    return {path for task in tasks if task in results for path in results[task].paths}


def unneeded_attempts(
    plan: CommitPlan, io: FileIO, attempts: Mapping[int, Iterable[int]], results: Mapping[int, TaskResult]
) -> set[str]:
    """Files of attempts, by task, whose results were not accepted. Nobody may be working on them any more."""
    by_id = {task.id: task for task in plan.tasks}
    accepted = {(task, result.attempt) for task, result in results.items()}
    dead = [(task, number) for task, numbers in attempts.items() for number in numbers if (task, number) not in accepted]
    return {path for task, number in dead for path in find_attempt_files(plan.job, io, by_id[task], number)}


def remove_unneeded_files(
    table: Table,
    plan: CommitPlan,
    log: CommitLog,
    results: Mapping[int, TaskResult],
    attempts: Mapping[int, Iterable[int]],
) -> Removal:
    """Remove the files of a process that nothing needs any more. It may be called at any time, and again."""
    paths = unneeded_results(plan, log, results) | unneeded_attempts(plan, table.view.io, attempts, results)
    return remove_outputs(table, paths, table_uuid=plan.job.metadata.table_uuid, since=plan.job.snapshot_id)
