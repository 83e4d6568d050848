"""Removing files of ended processes that nothing needs, and what the database need not keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from pyarctic.ams.committing import open_table_of
from pyarctic.ams.core import Core
from pyarctic.ams.handing import Plans
from pyarctic.ams.process_log import ProcessLog, load_results
from pyarctic.ams.rows import CommitRow, EventRow, OptimizerRow, PlanRow, ProcessRow, ResultRow, TaskRow, UnitRow
from pyarctic.ams.states import ENDED_PROCESSES
from pyarctic.ams.times import begun, is_due
from pyarctic.logs import get_logger
from pyarctic.optimizing.commit import remove_unneeded_files

_log = get_logger(__name__)
_AGAIN = timedelta(minutes=5)
"""When to try again after a file could not be removed."""
_GONE = timedelta(hours=1)
"""When to look again for a table that is gone."""


class Cleaning:
    """Removes files of attempts that lost, and outputs that were given up: right after a process, and once more when no dead
    attempt can write any more."""

    def __init__(self, core: Core, plans: Plans) -> None:
        self._core = core
        self._plans = plans

    def clean(self) -> None:
        """Look through the files of all processes for which it is due. A table that fails does not stop the others."""
        now = self._core.clock.now()
        with self._core.store.read() as view:
            ended = view.find(ProcessRow, state=ENDED_PROCESSES)
            grace = self._grace(view.find(OptimizerRow))
        longest = max(grace, _GONE)
        for process in ended:
            if process.clean_at is None or not is_due(process.clean_at, now, longest):
                continue
            try:
                clean_at = self._clean(process, grace, now)
            except Exception as error:  # noqa: BLE001  # of a catalog or storage: it is tried again
                reason = f"{type(error).__name__}: {error}"
                _log.warning("cleaning_failed", table=process.table, process_id=process.id, reason=reason)
                clean_at = now + _AGAIN
            with self._core.store.begin() as transaction:
                current = transaction.get(ProcessRow, process.id)
                if current is not None:
                    transaction.update(replace(current, clean_at=clean_at))

    def _clean(self, process: ProcessRow, grace: timedelta, now: datetime) -> datetime | None:
        """Remove files; gives when to do so again."""
        with self._core.store.read() as view:
            plan = self._plans.get(view, process.id)
            tasks = view.find(TaskRow, process_id=process.id)
            finished = load_results(view, process.id, plan, tasks)
        table = open_table_of(self._core, process)
        if table is None:  # it may come back, as long as there is a plan to know its files by
            over = (process.ended_at or now) + self._core.settings.keep_plans
            return now + _GONE if now < over else None
        attempts = {task.number: range(task.attempt + 1) for task in tasks if task.attempt is not None}
        results = {number: each.result for number, each in finished.items()}
        removal = remove_unneeded_files(table, plan, ProcessLog(self._core, process).load(), results, attempts)
        if removal.removed or removal.failed:
            facts = {"removed": len(removal.removed), "failed": len(removal.failed)}
            _log.info("files_removed", table=process.table, process_id=process.id, **facts)
        if removal.failed:
            return now + _AGAIN
        last = begun(process.ended_at or now, self._core.since, now) + grace
        return last if attempts and now < last else None

    def _grace(self, optimizers: Sequence[OptimizerRow]) -> timedelta:
        """How long dead attempts may go on: optimizers that do not reach the service stop them after some silence."""
        least = self._core.settings.heartbeat_timeout
        return max([self._core.settings.dead_attempt_grace, *(each.heartbeat_timeout(least) for each in optimizers)])

    def forget(self) -> None:
        """Remove plans and results of processes that ended a while ago, and the oldest history."""
        now, settings = self._core.clock.now(), self._core.settings
        with self._core.store.read() as view:
            ended = view.find(ProcessRow, state=ENDED_PROCESSES)
            old_events = [row.number for row in view.find(EventRow) if row.at < now - settings.keep_history]
        for process in ended:
            if process.clean_at is not None or process.ended_at is None:
                continue
            is_old = process.ended_at < now - settings.keep_history
            documents = (PlanRow, ResultRow) if is_old or process.ended_at < now - settings.keep_plans else ()
            with self._core.store.begin() as transaction:
                for kind in (*documents, *((TaskRow, UnitRow, CommitRow) if is_old else ())):
                    transaction.delete(kind, process_id=process.id)
                if is_old:
                    transaction.delete(ProcessRow, id=process.id)
        self._forget_optimizers(now - settings.keep_history)
        if old_events:
            with self._core.store.begin() as transaction:
                transaction.delete(EventRow, number=old_events)

    def _forget_optimizers(self, until: datetime) -> None:
        with self._core.store.read() as view:
            ended = [row.id for row in view.find(OptimizerRow) if row.ended_at is not None and row.ended_at < until]
        if ended:
            with self._core.store.begin() as transaction:
                transaction.delete(OptimizerRow, id=ended)
