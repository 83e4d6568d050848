"""Closing a process whose results are not wanted any more, or cannot be committed: it was cancelled, or others have expired
its start snapshot."""

from __future__ import annotations

from collections.abc import Mapping

from pyarctic.clock import Clock, SystemClock
from pyarctic.errors import OutcomeUnknown
from pyarctic.optimizing.commit.log import CommitLog, FinishedTask, LogStore
from pyarctic.optimizing.commit.settling import apply_settled, find_outcome, move_branch
from pyarctic.optimizing.commit.units import units_of
from pyarctic.optimizing.plan.commit_plan import CommitPlan
from pyarctic.tables import Table


def close_process(
    table: Table,
    plan: CommitPlan,
    log: CommitLog,
    results: Mapping[int, FinishedTask],
    store: LogStore,
    reason: str,
    clock: Clock | None = None,
) -> CommitLog:
    """Give up all units that are not in the table, and give the log. Their files can be removed afterwards
    (`remove_unneeded_files`). An open commit is settled first: if a request of it may still be accepted, the branch is moved
    on by a snapshot without files. Raises OutcomeUnknown if the catalog does not allow that; then nothing is given up."""
    clock = clock or SystemClock()
    units = units_of(plan)
    if log.open is not None:
        tasks = {task.id for unit in log.open.units for task in units[unit].tasks}
        finished = [results[task] for task in tasks if task in results]
        move_branch(table, plan, log.open, finished)
        settled = find_outcome(table, plan, log.open, finished)
        if settled is None:
            raise OutcomeUnknown(
                f"the commit of snapshot {log.open.snapshot_id} may still be accepted",
                hint="Nothing was removed. Try again when the catalog answers.",
                snapshot_id=log.open.snapshot_id,
            )
        record = apply_settled(log.open, settled, clock.now())
        store.save_record(record)
        log = log.with_record(record)
    reasons = {unit: reason for unit in units if unit not in log.resolved_units}
    store.save_dropped(reasons)
    return log.with_dropped(reasons)
