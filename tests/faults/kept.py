"""A process over a table whose log is kept in memory: committers of it come and go, and may die anywhere."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

import pyarctic
from pyarctic.optimizing import Options
from pyarctic.optimizing.api import plan_table
from pyarctic.optimizing.commit.closing import close_process
from pyarctic.optimizing.commit.committer import Committer
from pyarctic.optimizing.commit.decision import CommitPolicy
from pyarctic.optimizing.commit.log import CommitLog, CommitRecord, FinishedTask
from pyarctic.optimizing.commit.unneeded_files import remove_unneeded_files
from pyarctic.optimizing.execute.kernel import JobContext, execute
from pyarctic.optimizing.plan.commit_plan import CommitPlan
from pyarctic.optimizing.plan.start_files import load_start
from pyarctic.optimizing.protocol import TaskResult
from pyarctic.tables import Table
from tests.faults.lab import Killed


@dataclass(kw_only=True)
class Kept:
    """A planned and executed process, and its log, which is the store of all its committers."""

    table: str
    plan: CommitPlan
    results: dict[int, TaskResult]
    log: CommitLog = field(default_factory=CommitLog)

    @classmethod
    def planned(cls, table: str, where: str | None = None) -> Kept:
        """Plan as of now, and execute all tasks."""
        options = Options(kind="full", ignore_writers=True, where=where)
        made = plan_table(pyarctic.table(table), options)
        assert made is not None
        # As it is stored.
        plan = CommitPlan.from_bytes(made.to_commit_plan(memory_bytes=64 << 20).to_bytes())
        context = JobContext(job=plan.job, io=pyarctic.table(table).view.io)
        results = {task.id: execute(context, task, attempt=0, listen=lambda _: None) for task in plan.tasks}
        return cls(table=table, plan=plan, results=results)

    def committer(self, tasks: Collection[int] | None = None) -> Committer:
        """A new committer that goes on from the log with the results of some tasks, or of all."""
        table = pyarctic.table(self.table)
        policy = replace(CommitPolicy.of(table.view.metadata), interval=timedelta(0), batch=1)
        committer = Committer(table, self.plan, load_start(table, self.plan), log=self.log, store=self, policy=policy)
        for number, finished in self.finished.items():
            if tasks is None or number in tasks:
                committer.accept(finished)
        return committer

    def commit(self, tasks: Collection[int] | None = None) -> None:
        """Commit the results of some tasks, or of all."""
        self.committer(tasks).finish()

    def close(self) -> None:
        """Give up what is not in the table."""
        close_process(pyarctic.table(self.table), self.plan, self.log, self.finished, self, "cancelled")

    def clean(self) -> None:
        """Remove what is not needed any more."""
        attempts = {task: [0] for task in self.results}
        removal = remove_unneeded_files(pyarctic.table(self.table), self.plan, self.log, self.results, attempts)
        assert not removal.failed

    @property
    def finished(self) -> dict[int, FinishedTask]:
        by_id, now = {task.id: task for task in self.plan.tasks}, datetime.now(UTC)
        return {
            number: FinishedTask(task=by_id[number], result=result, received_at=now)
            for number, result in self.results.items()
        }

    @property
    def units(self) -> list[int]:
        """The ids of its commit units, which are those of their first tasks."""
        return [*Committer(self._handle(), self.plan, load_start(self._handle(), self.plan))._units]

    def tasks_of(self, unit: int) -> list[int]:
        committer = Committer(self._handle(), self.plan, load_start(self._handle(), self.plan))
        return [task.id for task in committer._units[unit].tasks]

    def _handle(self) -> Table:
        return pyarctic.table(self.table)

    # ---- as a store of the log ------------------------------------------------------------------------------------------

    def save_record(self, record: CommitRecord) -> None:
        stored = CommitRecord.from_json(record.to_json())
        self.log = self.log.with_record(stored)

    def save_dropped(self, reasons: Mapping[int, str]) -> None:
        self.log = self.log.with_dropped(reasons)

    def save_found(self, units: Sequence[int]) -> None:
        self.log = self.log.with_found(units)


@contextmanager
def dying(*, landed: bool, catalog: type[Any] = SqlCatalog) -> Iterator[list[Callable[[], Any]]]:
    """The process dies with its first request: after it has landed, or while it is on its way; that request can be let
    through later."""
    accept: Any = catalog.commit_table
    held: list[Callable[[], Any]] = []

    def commit_table(*request: Any) -> Any:
        if landed:
            accept(*request)
        held.append(lambda: accept(*request))
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "commit_table", commit_table)
        # A process that is dead removes nothing.
        patch.setattr("pyarctic.iceberg.commit.attempts._Commit._remove_unused", lambda *_, **__: None)
        with suppress(Killed):
            yield held
