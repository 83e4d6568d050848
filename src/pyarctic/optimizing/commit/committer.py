"""Committing finished tasks: what committers of all tables have in common.

A committer owns the output files of the tasks it has accepted. It removes those of tasks that are not in the table, but
never while the outcome of their commit is open, and never a file that a snapshot refers to.
"""

from __future__ import annotations

import io as memory
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import polars as pl
from pyiceberg.table.metadata import TableMetadata

from pyarctic.errors import ArcticError, OutcomeUnknown, Unavailable
from pyarctic.errors import Conflict as ConflictError
from pyarctic.iceberg import open_input, read_bytes, remove_quietly
from pyarctic.iceberg.commit import (
    Change,
    Committed,
    Conflict,
    Outcome,
    Proof,
    Rejected,
    RetryPolicy,
    Unknown,
    referenced_files,
)
from pyarctic.iceberg.manifest import FILE_IDENTITY, FILE_SCHEMA, ancestors
from pyarctic.iceberg.write.parquet import RowGroupSource, check_pages
from pyarctic.optimizing.observe.history import KIND, PROCESS, SPEC, TASKS, committed_tasks, format_ids
from pyarctic.optimizing.plan.plan import Plan
from pyarctic.optimizing.protocol.result import TaskResult
from pyarctic.optimizing.protocol.task import Task
from pyarctic.tables import Table, remove_outputs
from pyarctic.units import format_quantity

_MAX_SUBMITS = 5
"""How often a change is submitted when others committed first, or when the catalog did not answer."""
_MAX_RUNS_IN_MEMORY = 1_000_000

BeforeSubmit = Callable[[Collection[int], int | None], None]
"""Is called before every request with the ids of its tasks and the head of the branch that it requires. If it raises an
error, the request is not sent."""


def ignore_requests(_tasks: Collection[int], _head: int | None) -> None:
    """Nobody keeps account of requests."""


@dataclass(frozen=True, kw_only=True)
class FinishedTask:
    """A task and its result."""

    task: Task
    result: TaskResult


@dataclass(kw_only=True)
class CommitLog:
    """What a process has committed so far."""

    commits: list[Committed] = field(default_factory=list)
    committed: list[FinishedTask] = field(default_factory=list)
    dropped: list[tuple[FinishedTask, str]] = field(default_factory=list)
    """Tasks whose results were discarded, and why."""
    landed: list[FinishedTask] = field(default_factory=list)
    """Tasks that were in the table already, by an earlier commit of the same results."""
    removed_deletes: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=FILE_SCHEMA))
    rolled_back: list[int] = field(default_factory=list)
    """Snapshots of the process that are not in the history of the table any more."""
    change_manifests_merged: int = 0
    """Manifests of the change store of a keyed table that were merged into others."""
    _contents: dict[int, tuple[Sequence[FinishedTask], pl.DataFrame]] = field(default_factory=dict)
    """The tasks and the removed deletes of each snapshot."""

    def add(self, outcome: Committed, finished: Sequence[FinishedTask], removed_deletes: pl.DataFrame) -> None:
        """Note a commit."""
        self.commits.append(outcome)
        self.committed += finished
        self.removed_deletes = pl.concat([self.removed_deletes, removed_deletes])
        if outcome.snapshot_id is not None:
            self._contents[outcome.snapshot_id] = (finished, removed_deletes)

    def drop_rolled_back(self, metadata: TableMetadata, start: int | None) -> None:
        """Find out which commits the table has lost: somebody rolled them back, or the catalog did so in favour of a writer.
        `start` is the snapshot the process was planned on: if it is not in the history either, snapshots were expired, and
        nothing can be said."""
        history = {snapshot.snapshot_id for snapshot in ancestors(metadata, metadata.current_snapshot())}
        if start is not None and start not in history:
            return
        for snapshot_id in [snapshot_id for snapshot_id in self._contents if snapshot_id not in history]:
            finished, deletes = self._contents.pop(snapshot_id)
            reason = f"its snapshot {snapshot_id} was rolled back in favour of another writer"
            self.rolled_back.append(snapshot_id)
            self.commits = [commit for commit in self.commits if commit.snapshot_id != snapshot_id]
            self.committed = [each for each in self.committed if each not in finished]
            self.dropped += [(each, reason) for each in finished]
            self.removed_deletes = self.removed_deletes.join(deletes, on=FILE_IDENTITY, how="anti", nulls_equal=True)


class Committer(ABC):
    """Commits the tasks of one plan:

        with NativeCommitter(table, plan, process_id, print) as committer:
            committer.accept(finished_task)  # or committer.fail(task), for each task
            committer.finish()

    If it is interrupted, files of tasks that are not in the table are removed, unless that is not certain."""

    def __init__(
        self,
        table: Table,
        plan: Plan,
        process_id: str,
        report: Callable[[str], None],
        before_submit: BeforeSubmit = ignore_requests,
    ) -> None:
        """`report` receives messages for people."""
        self.log = CommitLog()
        self._table = table
        self._plan = plan
        self._process_id = process_id
        self._report = report
        self._before_submit = before_submit
        self._removal_failed = False
        self._open: dict[int, FinishedTask] = {}
        """Tasks that are accepted and neither committed nor dropped."""
        self._unresolved: set[int] = set()
        """Ids of tasks that were submitted to the catalog and not refused: a snapshot refers to their files, or may do so
        later."""

    @property
    def leaves_files(self) -> bool:
        """Whether there are files that are not in the table and could not be removed: a snapshot may refer to them later, or
        the catalog did not answer."""
        in_table = {each.task.id for each in (*self.log.committed, *self.log.landed)}
        return self._removal_failed or not self._unresolved <= in_table

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self._remove_outputs(self._open.values())

    def accept(self, finished: FinishedTask) -> None:
        """Take over the files of a task, and commit it, now or later."""
        self._open[finished.task.id] = finished
        self._enqueue(finished)

    @abstractmethod
    def _enqueue(self, finished: FinishedTask) -> None: ...

    @abstractmethod
    def fail(self, task: Task) -> None:
        """Note that a task has failed."""

    @abstractmethod
    def finish(self) -> None:
        """Commit everything that is left: all tasks have ended."""

    def _proof(self, finished: Sequence[FinishedTask]) -> Proof:
        results = [each.result for each in finished]
        return Proof(
            rows_in=sum(result.rows_in for result in results),
            rows_deleted=sum(result.rows_deleted for result in results),
            rows_out=sum(result.rows_out for result in results),
            rows_from_changes=sum(result.rows_from_changes for result in results),
            hash_in=_join_hashes([result.hash_in for result in results]),
            hash_out=_join_hashes([result.hash_out for result in results]),
        )

    def _snapshot_properties(self, finished: Sequence[FinishedTask]) -> dict[str, str]:
        kinds = sorted({each.task.kind for each in finished}) or ["minor"]
        spec_id = self._plan.observation.metadata.default_spec_id
        properties = {PROCESS: self._process_id, KIND: ",".join(kinds), SPEC: str(spec_id)}
        if finished:
            properties[TASKS] = format_ids(each.task.id for each in finished)
        return properties

    def _row_map(self, finished: Sequence[FinishedTask]) -> pl.DataFrame | pl.LazyFrame | None:
        row_maps = [self._scan_row_map(path) for each in finished for path in each.result.row_maps]
        if not row_maps:
            return None
        runs = pl.concat(row_maps)
        is_small = runs.select(pl.len()).collect().item() <= _MAX_RUNS_IN_MEMORY
        return runs.collect() if is_small else runs

    def _scan_row_map(self, path: str) -> pl.LazyFrame:
        # Polars does not compare pages with their checksums, and a wrong position would delete another row.
        local_path = path.removeprefix("file://") if path.startswith(("file:///", "/")) else None
        if local_path is not None:
            with open_input(self._table.view.io, path) as stream:
                check_pages(RowGroupSource.open(stream, path))
            return pl.scan_parquet(local_path, glob=False)
        data = read_bytes(self._table.view.io, path)
        check_pages(RowGroupSource.of_bytes(data, path))
        return pl.scan_parquet(memory.BytesIO(data), glob=False)

    def _submit(self, change: Change, finished: Sequence[FinishedTask]) -> Committed | Conflict | Rejected:
        """Commit a change, and again until the outcome is certain. An interruption leaves the tasks unresolved."""
        tasks = {each.task.id for each in finished}
        retry = RetryPolicy.of(self._table.view.metadata)
        attempt = 0
        while True:
            try:
                outcome = self._send(change, tasks)
            except (Unavailable, ConflictError):  # no request is on its way; after other errors that is not certain
                self._unresolved -= tasks
                raise
            if isinstance(outcome, Unknown):
                return self._resolve_unknown(change, tasks, outcome, attempt)
            if isinstance(outcome, Committed) or may_have_landed(outcome):
                return outcome
            self._unresolved -= tasks
            if isinstance(outcome, Rejected) or attempt + 1 == _MAX_SUBMITS or retry.is_over:
                return outcome
            time.sleep(_backoff_seconds(attempt))
            attempt += 1

    def _send(self, change: Change, tasks: Collection[int]) -> Outcome:
        def before_send(head: int | None) -> None:
            self._before_submit(tasks, head)
            self._unresolved.update(tasks)

        return self._table.try_commit(change, before_send)

    def _resolve_unknown(
        self, change: Change, tasks: Collection[int], unknown: Unknown, attempt: int
    ) -> Committed | Rejected:
        """Submit a change again until the catalog says whether it was committed. Its tasks stay unresolved."""
        while attempt + 1 < _MAX_SUBMITS:
            time.sleep(_backoff_seconds(attempt))
            attempt += 1
            try:
                outcome = self._send(change, tasks)
            except ArcticError:
                continue
            match outcome:
                case Committed() | Rejected(may_have_landed=True):
                    return outcome
                case Rejected():  # it was in the table for a while: its snapshot may still exist
                    break
                case Unknown():
                    unknown = outcome
        raise OutcomeUnknown(
            f"the catalog did not answer the commit of snapshot {unknown.snapshot_id}: {unknown.reason}",
            hint="The process was stopped, and nothing was removed. Run it again when the catalog answers.",
            snapshot_id=unknown.snapshot_id,
        )

    def _record_committed(self, finished: Sequence[FinishedTask], outcome: Committed, change: Change) -> None:
        self.log.add(outcome, finished, change.removed_deletes)
        for each in finished:
            self._open.pop(each.task.id, None)
        row_maps = [path for each in finished for path in each.result.row_maps]
        remove_quietly(self._table.view.io, [*outcome.unused_files, *row_maps])
        self._report(f"committed {format_quantity(len(finished), 'task')} as snapshot {outcome.snapshot_id}")

    def _drop(self, finished: FinishedTask, reason: str) -> None:
        self.log.dropped.append((finished, reason))
        self._open.pop(finished.task.id, None)
        self._remove_outputs([finished])
        self._report(f"task {finished.task.id} was dropped: {reason}")

    def _without_landed(self, finished: Sequence[FinishedTask]) -> list[FinishedTask]:
        """Those that are not in the table yet. The same results may be committed again by a process that does not know that
        they have landed."""
        self._table.refresh()
        paths = {path for each in finished for path in each.result.written}
        metadata, since = self._table.view.metadata, self._plan.observation.snapshot_id
        try:
            referenced = referenced_files(metadata, self._table.reader(), paths, since=since)
        except ArcticError:  # of a snapshot that the commit does not need; the commit itself refuses files that are there
            referenced = set()
        committed_ids = committed_tasks(metadata, self._process_id)  # includes tasks that wrote nothing
        waiting = []
        for each in finished:
            if each.task.id not in committed_ids and referenced.isdisjoint(each.result.written):
                waiting.append(each)
                continue
            self.log.landed.append(each)
            self._open.pop(each.task.id, None)
            self._report(f"task {each.task.id} is in the table already")
        return waiting

    def _still_live(self, deletes: pl.DataFrame) -> pl.DataFrame:
        """Those that the commits of this process have left in the table: a commit also removes deletes that name a replaced
        file."""
        if deletes.is_empty() or not self.log.commits:
            return deletes
        # The table keeps the list of the planned files, whose manifests the next commit is going to need.
        reader = self._table.reader()
        live = reader.files_of(reader.manifests(self._table.view.metadata.current_snapshot()))
        return deletes.join(live, on=FILE_IDENTITY, how="semi", nulls_equal=True)

    def _remove_outputs(self, finished: Iterable[FinishedTask]) -> None:
        """Remove the files of tasks that are not in the table, except for those whose outcome is open. Row maps are always
        removed: no snapshot refers to them."""
        finished = list(finished)
        row_maps = {path for each in finished for path in each.result.row_maps}
        self._removal_failed |= bool(remove_quietly(self._table.view.io, row_maps))
        refused = {path for each in finished if each.task.id not in self._unresolved for path in each.result.written}
        self._remove_unless_referenced(refused)

    def _remove_unless_referenced(self, paths: Iterable[str]) -> None:
        observation = self._plan.observation
        uuid = observation.metadata.table_uuid
        removal = remove_outputs(self._table, paths, table_uuid=uuid, since=observation.snapshot_id)
        self._removal_failed |= bool(removal.failed)


def may_have_landed(outcome: Outcome) -> bool:
    """Whether a snapshot may refer to the files of a refused change: it was rolled back, or the table lost its name."""
    return isinstance(outcome, Rejected) and outcome.may_have_landed


def _backoff_seconds(attempt: int) -> float:
    return float(min(0.2 * 2**attempt, 5))


def _join_hashes(hashes: Sequence[str | None]) -> str | None:
    return " ".join(map(str, hashes)) if all(hashes) else None
