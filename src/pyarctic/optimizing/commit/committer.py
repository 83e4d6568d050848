"""Committing the units of a plan: decide, store, send, store what came of it.

Whoever has the plan, the results and the log can go on, at any time and in any process. A committer owns the output files of
the tasks it has accepted: they are committed, or removed when their unit is given up, but never while a request that names
them may still be accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self, cast

import polars as pl

from pyarctic.clock import Clock, SystemClock
from pyarctic.errors import ArcticError, Unavailable
from pyarctic.errors import Conflict as ConflictError
from pyarctic.iceberg import remove_quietly
from pyarctic.iceberg.commit import Committed, Conflict, Outcome, Rejected, Unknown
from pyarctic.iceberg.manifest import EQUALITY_DELETES
from pyarctic.iceberg.write import random_id
from pyarctic.logs import get_logger
from pyarctic.optimizing.commit.changes import ChangeBuilder, Contents
from pyarctic.optimizing.commit.decision import (
    Candidate,
    Choice,
    Commit,
    CommitPolicy,
    Decision,
    Drop,
    Found,
    NotBefore,
    Nothing,
    Progress,
    Settle,
    TableNow,
    choose_next,
    decide_candidate,
)
from pyarctic.optimizing.commit.log import (
    BeforeSubmit,
    CommitLog,
    CommitRecord,
    FinishedTask,
    LogStore,
    Step,
    UnsavedLog,
    ignore_requests,
)
from pyarctic.optimizing.commit.outputs import Outputs
from pyarctic.optimizing.commit.settling import apply_settled, find_outcome, move_branch, not_answered
from pyarctic.optimizing.commit.summary import CommitSummary, summarize, without_rolled_back
from pyarctic.optimizing.commit.table_now import ConcurrentChanges, WriterActivity, find_landed
from pyarctic.optimizing.commit.units import CommitUnit, units_of
from pyarctic.optimizing.events import (
    CommitLanded,
    ProcessListener,
    TaskDropped,
    TaskFound,
    WritersAwaited,
    ignore_events,
)
from pyarctic.optimizing.plan.commit_plan import CommitPlan
from pyarctic.optimizing.plan.start_files import StartFiles
from pyarctic.optimizing.protocol.task import Task
from pyarctic.tables import KeyedTable, Table, merge_many_manifests

_MAX_SUBMITS = 5
"""How often an open commit is sent again when the catalog does not answer."""


class Committer:
    """Commits the units of one plan:

        with Committer(table, plan, start) as committer:
            committer.accept(result)  # or committer.fail(task), for each task
            committer.finish()

    If it is interrupted, files of tasks that are not in the table are removed, unless that is not certain."""

    def __init__(
        self,
        table: Table,
        plan: CommitPlan,
        start: StartFiles,
        *,
        log: CommitLog | None = None,
        store: LogStore | None = None,
        before_submit: BeforeSubmit = ignore_requests,
        policy: CommitPolicy | None = None,
        clock: Clock | None = None,
        notify: ProcessListener = ignore_events,
    ) -> None:
        """`log` is what earlier committers of the plan have stored in `store`. Without a store the log ends with this
        committer, and so do files that are not in the table."""
        self.log = log or CommitLog()
        self._table = table
        self._plan = plan
        self._start = start
        self._store: LogStore = store or UnsavedLog()
        self._is_stored = store is not None
        self._before_submit = before_submit
        self._policy = policy or CommitPolicy.of(table.view.metadata)
        self._clock = clock or SystemClock()
        self._notify = notify
        self._units = units_of(plan)
        self._unit_of_task = {task.id: unit.id for unit in self._units.values() for task in unit.tasks}
        self._results: dict[int, FinishedTask] = {}
        self._failed: set[int] = set()
        self._started_at = self._clock.now()
        self._builder = ChangeBuilder(table, plan, start)
        self._activity = WriterActivity(table, plan)
        self._submits = 0
        """How often this committer has asked for the open commit."""
        self._unknown_reason = "it gave no answer"
        self._awaits_writers = False
        self._outputs = Outputs(table, plan)
        self._events = get_logger(__name__).bind(table=table.name, process_id=plan.process_id)
        self._manifests_merged = 0
        """Manifests of the change store of a keyed table that were merged into others."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None or self._is_stored:  # whoever has the stored log can go on
            return
        in_table = {*self.log.committed_units, *self.log.found}
        self._remove_row_maps(unit for unit in self._units if unit not in in_table)
        self._remove_outputs(each for each in self._units.values() if each.id not in in_table)

    @property
    def results(self) -> Mapping[int, FinishedTask]:
        """The results that were accepted, by task."""
        return self._results

    @property
    def leaves_files(self) -> bool:
        """Whether there are files that are not in the table and could not be removed: a snapshot may refer to them later, or
        the catalog did not answer."""
        was_in_table = any(record.was_in_table for record in self.log.records)
        return self._outputs.removal_failed or bool(self.log.in_doubt) or was_in_table

    def summary(self) -> CommitSummary:
        """What was committed, and what others have rolled back since."""
        if self.log.landed:
            metadata, start = self._table.refresh().view.metadata, self._plan.job.snapshot_id
            self.log = without_rolled_back(self.log, metadata, start)
        summary = summarize(self.log, self._units, self._results)
        return replace(summary, change_manifests_merged=self._manifests_merged)

    def accept(self, finished: FinishedTask) -> None:
        """Take over the files of a task. They are committed by `commit_due` or `finish`."""
        self._results[finished.task.id] = finished
        unit = self._unit_of_task[finished.task.id]
        if unit in self.log.dropped:  # because of another task
            self._remove_outputs([self._units[unit]])
            self._notify(TaskDropped(task=finished.task.id, reason=self.log.dropped[unit]))

    def fail(self, task: Task) -> None:
        """Note that a task is not tried again."""
        self._failed.add(task.id)

    def commit_due(self) -> NotBefore | Nothing:
        """Commit what can be committed now; tells when there will be more to do without further results."""
        while True:
            decision = self.next()
            if isinstance(decision, NotBefore | Nothing):
                return decision

    def finish(self) -> None:
        """Commit everything that is left: all tasks have ended. Merge the manifests of the change store, which gets at least
        one with every commit of a writer."""
        while isinstance(decision := self.commit_due(), NotBefore):
            self._clock.sleep(max((decision.at - self._clock.now()).total_seconds(), 0))
        if isinstance(self._table, KeyedTable):
            self._manifests_merged += merge_many_manifests(self._table.change_store)

    def next(self) -> Choice | Decision:
        """Make one decision and carry it out."""
        progress = Progress(results=self._results, failed=self._failed, started_at=self._started_at)
        now = self._clock.now()
        choice = choose_next(self._units, self.log, progress, self._policy, now)
        if not isinstance(choice, Candidate):
            return self._carry_out(choice)
        table_now = self._look_at_table(choice)
        decision = decide_candidate(choice, table_now, self.log, progress, self._clock.now())
        if isinstance(decision, NotBefore):
            self._note_waiting(decision, table_now)
        return self._carry_out(decision)

    def _carry_out(self, decision: Choice | Decision) -> Choice | Decision:
        match decision:
            case Drop():
                self._drop(decision.reasons)
            case Found():
                self._store.save_found(decision.units)
                self.log = self.log.with_found(decision.units)
                self._remove_row_maps(decision.units)
                for each in self._finished(self._units[unit] for unit in decision.units):
                    self._notify(TaskFound(task=each.task.id))
            case Settle():
                self._settle(decision.record)
            case Commit():
                self._commit(decision)
            case Nothing() | NotBefore() | Candidate():
                pass
        return decision

    def _note_waiting(self, decision: NotBefore, table_now: TableNow) -> None:
        if decision.awaits_writers and not self._awaits_writers:
            self._notify(WritersAwaited(seconds=table_now.pause.total_seconds()))
        self._awaits_writers = decision.awaits_writers

    def _look_at_table(self, candidate: Candidate) -> TableNow:
        self._table.refresh()
        units = [self._units[unit] for unit in candidate.units]
        if not units:
            deletes = self._builder.live_dangling_deletes(self._in_table(), self.log)
            return TableNow(has_dangling_deletes=deletes.height > 0)
        landed = find_landed(self._table, self._plan, units, self._finished(units))
        if landed:
            return TableNow(landed=landed)
        if conflicts := self._conflicts(candidate.step, units):
            return TableNow(conflicts=conflicts)
        if self._plan.ignores_writers:
            return TableNow()
        busy, pause, last = self._activity.of_units(units, self._clock.now())
        return TableNow(busy=busy, pause=pause, last_statement_at=last)

    def _conflicts(self, step: Step, units: Sequence[CommitUnit]) -> dict[int, str]:
        if self._plan.keyed is not None:
            changes = ConcurrentChanges(cast("KeyedTable", self._table), self._plan, self._start)
            return {unit.id: reason for unit in units if (reason := changes.conflict_with(unit)) is not None}
        if step == "convert":
            # Positions beside equality deletes that other files still need would have to be found again by the next process.
            removed = self._builder.removable_deletes(self._contents(units), self._in_table(), self.log)
            if removed.filter(pl.col("content") == EQUALITY_DELETES).is_empty():
                reason = "the equality deletes are still needed by files that could not be rewritten"
                return {unit.id: reason for unit in units}
        return {}

    def _commit(self, decision: Commit) -> None:
        """Store the decision, then send it, then store what came of it."""
        units = [self._units[unit] for unit in decision.units]
        record = CommitRecord(
            snapshot_id=random_id(),
            step=decision.step,
            units=decision.units,
            removed_deletes=self._removed_deletes(decision, units),
            changed_at=self._clock.now(),
        )
        self._save(record)
        self._submits = 1
        self._send(record)

    def _removed_deletes(self, decision: Commit, units: Sequence[CommitUnit]) -> pl.DataFrame:
        if not units:
            return self._builder.live_dangling_deletes(self._in_table(), self.log)
        if not decision.removes_deletes:
            return self._plan.dangling_deletes.clear()
        return self._builder.removable_deletes(self._contents(units), self._in_table(), self.log)

    def _send(self, record: CommitRecord) -> None:
        """Send a record, and store the outcome. If it is interrupted, the record stays open."""
        was_sent = record.was_sent
        contents = self._contents([self._units[unit] for unit in record.units])
        tasks = {each.task.id for each in contents.finished}

        def before_send(head: int | None) -> None:
            nonlocal record
            self._before_submit(tasks, head)
            record = replace(record, heads=record.heads | {head})
            self._save(record)

        statistics: list[str] = []
        try:
            change = self._builder.build(record, contents, self.log)
            statistics = [file.statistics_path for file in change.statistics]
            outcome = self._table.try_commit(change, before_send)
        except (Unavailable, ConflictError):  # no request of this call is on its way; after other errors that is not certain
            if not was_sent:
                self._save(record.refused(self._clock.now(), "not-sent"))
            self._outputs.remove(statistics)
            raise
        except Exception as error:
            if record.was_sent:
                raise
            # It cannot be built: a file is missing or damaged. With other units it is tried again, alone it is given up.
            code = error.code if isinstance(error, ArcticError) else "error"
            self._save(record.refused(self._clock.now(), code, f"it cannot be built: {error}"))
            self._outputs.remove(statistics)
            if not self._is_stored or not isinstance(error, ArcticError):
                raise
            return
        self._record_outcome(record, outcome, contents, was_sent=was_sent)
        if not isinstance(outcome, Committed | Unknown):
            self._outputs.remove(statistics)

    def _record_outcome(self, record: CommitRecord, outcome: Outcome, contents: Contents, *, was_sent: bool) -> None:
        """Store the outcome of a request. `was_sent`: there was one before, with the same snapshot id."""
        now = self._clock.now()
        match outcome:
            case Committed():
                landed = replace(record, state="landed", changed_at=now, rebased_rows=outcome.rebased_rows)
                self._record_landed(landed, outcome.unused_files)
            case Unknown():
                self._unknown_reason = outcome.reason  # it stays open
            case Rejected() if was_sent and not outcome.may_have_landed:
                move_branch(self._table, self._plan, record, contents.finished)  # a request from before may be accepted
            case Conflict() if was_sent:
                pass
            case Conflict():
                self._save(record.refused(now, "conflict", outcome.reason))
            case Rejected():
                self._save(record.refused(now, outcome.code, outcome.reason, was_in_table=outcome.may_have_landed))

    def _record_landed(self, record: CommitRecord, unused_files: Iterable[str] = ()) -> None:
        self._save(record)
        self._remove_row_maps(record.units)
        remove_quietly(self._table.view.io, unused_files)
        tasks = sum(len(self._units[unit].tasks) for unit in record.units)
        self._notify(CommitLanded(snapshot_id=record.snapshot_id, units=record.units, tasks=tasks))

    def _settle(self, record: CommitRecord) -> None:
        """Find out what became of an open commit. While one of its requests may still be accepted, it is sent again: only
        one of them can succeed."""
        if self._submits >= _MAX_SUBMITS:
            raise not_answered(record, self._unknown_reason)
        if self._submits:
            self._clock.sleep(min(0.2 * 2 ** (self._submits - 1), 5.0))
        self._submits += 1
        contents = self._contents([self._units[unit] for unit in record.units])
        try:
            self._table.refresh()
            settled = find_outcome(self._table, self._plan, record, contents.finished)
            if settled is None:
                self._send_again(record, contents)
                if self.log.open is not None:
                    record = self.log.open
                    settled = find_outcome(self._table.refresh(), self._plan, record, contents.finished)
        except ArcticError:  # the request from before is still open
            return
        if settled is not None:
            proved = apply_settled(record, settled, self._clock.now())
            if proved.state == "landed":
                self._record_landed(proved)
            else:
                self._save(proved)

    def _send_again(self, record: CommitRecord, contents: Contents) -> None:
        """Send an open commit again, unless its units cannot be committed any more as the table is now."""
        try:
            if not self._conflicts(record.step, contents.units):
                self._send(record)
                return
        except ArcticError as error:
            if error.retryable:
                raise
        move_branch(self._table, self._plan, record, contents.finished)

    def _save(self, record: CommitRecord) -> None:
        self._store.save_record(record)
        self._events.info(f"commit_{record.state}", snapshot_id=record.snapshot_id, step=record.step, reason=record.reason)
        self.log = self.log.with_record(record)

    def _drop(self, reasons: Mapping[int, str]) -> None:
        self._store.save_dropped(reasons)
        self.log = self.log.with_dropped(reasons)
        self._remove_outputs(self._units[unit] for unit in reasons)
        for unit, reason in reasons.items():
            for each in self._finished([self._units[unit]]):
                self._notify(TaskDropped(task=each.task.id, reason=reason))

    def _finished(self, units: Iterable[CommitUnit]) -> list[FinishedTask]:
        return [self._results[task.id] for unit in units for task in unit.tasks if task.id in self._results]

    def _contents(self, units: Sequence[CommitUnit]) -> Contents:
        return Contents(units=units, finished=self._finished(units))

    def _in_table(self) -> list[FinishedTask]:
        """The tasks that commits of this plan have brought into the table."""
        return self._finished(self._units[unit] for unit in self.log.committed_units)

    def _remove_row_maps(self, units: Iterable[int]) -> None:
        self._outputs.remove_row_maps(self._finished(self._units[unit] for unit in units))

    def _remove_outputs(self, units: Iterable[CommitUnit]) -> None:
        """Remove the files of units that are not in the table, except for those that a request may still bring there."""
        units = list(units)
        in_doubt = {unit for record in self.log.in_doubt for unit in record.units}
        self._remove_row_maps(unit.id for unit in units if unit.id not in in_doubt)
        were_in_table = {unit for record in self.log.records if record.was_in_table for unit in record.units}
        certain = [unit for unit in units if unit.id not in in_doubt | were_in_table]
        self._outputs.remove_written(self._finished(certain))
