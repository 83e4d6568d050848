"""Removing files of ended processes that nothing needs, and what the database need not keep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import takewhile

from pyarctic.ams.committing import OpenedTable
from pyarctic.ams.core import Core
from pyarctic.ams.handing import Plans
from pyarctic.ams.process_log import ProcessLog, load_results
from pyarctic.ams.rows import (
    CommitRow,
    EventRow,
    OptimizerRow,
    PlanRow,
    ProcessRow,
    ResultRow,
    TableRow,
    TaskRow,
    UnitRow,
)
from pyarctic.ams.states import ENDED_PROCESSES, TableState
from pyarctic.ams.store import Query, Transaction
from pyarctic.ams.times import begun, is_due
from pyarctic.logs import get_logger
from pyarctic.optimizing.commit import remove_unneeded_files

_log = get_logger(__name__)
_AGAIN = timedelta(minutes=5)
"""When to try again after a file could not be removed."""
_BATCH = 1000
"""Of rows that are read at a time."""
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
_GONE = timedelta(hours=1)
"""When to look again for a table that is gone."""


class Cleaning:
    """Removes files of attempts that lost, and outputs that were given up: right after a process, and once more when no dead
    attempt can write any more."""

    def __init__(self, core: Core, plans: Plans) -> None:
        self._core = core
        self._plans = plans

    def due(self) -> list[ProcessRow]:
        """The processes whose files are to be looked through now."""
        with self._core.store.read() as view:
            return self._due(view)

    def _due(self, view: Transaction, **where: str) -> list[ProcessRow]:
        now = self._core.clock.now()
        # None comes before everything else: those whose files were looked through are left out.
        ended = view.find(ProcessRow, Query(order="clean_at", after=_LONG_AGO), state=ENDED_PROCESSES, **where)
        longest = max(self._grace(view), _GONE)
        return [row for row in ended if row.clean_at is not None and is_due(row.clean_at, now, longest)]

    def clean(self, table_uuid: str) -> None:
        """Look through the files of the processes of a table for which it is due. If that fails, it is tried again later."""
        with self._core.store.read() as view:
            due, grace = self._due(view, table_uuid=table_uuid), self._grace(view)
        opened = OpenedTable(self._core)
        for process in due:
            now = self._core.clock.now()
            try:
                clean_at = self._clean(process, opened, grace, now)
            except Exception as error:  # noqa: BLE001  # of a catalog or storage
                reason = f"{type(error).__name__}: {error}"
                _log.warning("cleaning_failed", table=process.table, process_id=process.id, reason=reason)
                clean_at = now + _AGAIN
            with self._core.store.begin() as transaction:
                current = transaction.get(ProcessRow, process.id)
                if current is not None:
                    transaction.update(replace(current, clean_at=clean_at))

    def _clean(self, process: ProcessRow, opened: OpenedTable, grace: timedelta, now: datetime) -> datetime | None:
        """Remove files; gives when to do so again."""
        with self._core.store.read() as view:
            plan = self._plans.get(view, process.id)
            tasks = view.find(TaskRow, process_id=process.id)
            finished = load_results(view, process.id, plan, tasks)
        table = opened.newest(process)
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

    def _grace(self, view: Transaction) -> timedelta:
        """How long dead attempts may go on: optimizers that do not reach the service stop them after some silence."""
        optimizers = view.find(OptimizerRow)
        least = self._core.settings.heartbeat_timeout
        return max([self._core.settings.dead_attempt_grace, *(each.heartbeat_timeout(least) for each in optimizers)])

    def forget(self) -> None:
        """Remove plans and results of processes that ended a while ago, and the oldest history."""
        now, settings = self._core.clock.now(), self._core.settings
        oldest = now - settings.keep_history
        for process in self._ended_before(now - settings.keep_plans):
            self._forget_process(process, is_old=process.ended_at is not None and process.ended_at < oldest)
        self._forget_optimizers(oldest)
        self._forget_tables(oldest)
        self._forget_events(oldest)

    def _ended_before(self, until: datetime) -> Iterator[ProcessRow]:
        """Processes whose files were looked through, the last ones first, some at a time."""
        query = Query(order="ended_at", descending=True, after=until, limit=_BATCH)
        while True:
            with self._core.store.read() as view:
                some = view.find(ProcessRow, query, state=ENDED_PROCESSES)
                last = some[-1].ended_at if len(some) == _BATCH else None
                equal = view.find(ProcessRow, state=ENDED_PROCESSES, ended_at=last) if last is not None else ()
            yield from (process for process in (*some, *equal) if process.clean_at is None)
            if last is None:
                return
            query = replace(query, after=last)

    def _forget_process(self, process: ProcessRow, *, is_old: bool) -> None:
        with self._core.store.read() as view:
            has_documents = view.get(PlanRow, process.id) is not None
        if not (is_old or has_documents):
            return
        with self._core.store.begin() as transaction:
            for kind in (PlanRow, ResultRow, *((TaskRow, UnitRow, CommitRow) if is_old else ())):
                transaction.delete(kind, process_id=process.id)
            if is_old:
                transaction.delete(ProcessRow, id=process.id)

    def _forget_optimizers(self, until: datetime) -> None:
        with self._core.store.read() as view:
            ended = [row.id for row in view.find(OptimizerRow) if row.ended_at is not None and row.ended_at < until]
        if ended:
            with self._core.store.begin() as transaction:
                transaction.delete(OptimizerRow, id=ended)

    def _forget_tables(self, until: datetime) -> None:
        """Tables that are gone for long, and have no process any more."""
        with self._core.store.read() as view:
            gone = [row.uuid for row in view.find(TableRow, state=TableState.GONE) if row.next_look_at < until]
            gone = [uuid for uuid in gone if not view.find(ProcessRow, Query(limit=1), table_uuid=uuid)]
        if gone:
            with self._core.store.begin() as transaction:
                transaction.delete(TableRow, uuid=gone, state=TableState.GONE)

    def _forget_events(self, until: datetime) -> None:
        """The oldest events, as far as they follow one another: a clock that was set may have told some a wrong time."""
        while True:
            with self._core.store.read() as view:
                some = view.find(EventRow, Query(limit=_BATCH))
            old = list(takewhile(lambda event: event.at < until, some))
            if old:
                with self._core.store.begin() as transaction:
                    transaction.delete(EventRow, Query(descending=True, after=old[-1].number + 1))
            if len(old) < _BATCH:
                return
