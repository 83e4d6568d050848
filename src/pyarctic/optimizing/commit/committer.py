"""Committing finished tasks: what committers of all tables have in common.

A committer owns the output files of the tasks it has accepted. It removes those of tasks that are not in the table, but
never while the outcome of their commit is open, and never a file that a snapshot refers to.
"""

from __future__ import annotations

import io as memory
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import polars as pl

from pyarctic.errors import ArcticError, OutcomeUnknown, Unavailable
from pyarctic.iceberg import read_bytes, remove_quietly
from pyarctic.iceberg.commit import Change, Committed, Conflict, Outcome, Proof, Rejected, Unknown, referenced_files
from pyarctic.iceberg.manifest import FILE_IDENTITY, FILE_SCHEMA
from pyarctic.optimizing.observe.history import KIND, PROCESS, TASKS, committed_tasks, format_ids
from pyarctic.optimizing.plan.plan import Plan
from pyarctic.optimizing.protocol.result import TaskResult
from pyarctic.optimizing.protocol.task import Task
from pyarctic.tables import Table, remove_outputs

_MAX_SUBMITS = 5
"""How often a change is submitted when others committed first, or when the catalog did not answer."""
_MAX_RUNS_IN_MEMORY = 1_000_000


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

    def extend(self, later: CommitLog) -> None:
        """Add what another plan of the same process has committed."""
        self.commits += later.commits
        self.committed += later.committed
        self.dropped += later.dropped
        self.landed += later.landed
        self.removed_deletes = pl.concat([self.removed_deletes, later.removed_deletes])


class Committer(ABC):
    """Commits the tasks of one plan:

        with NativeCommitter(table, plan, process_id, print) as committer:
            committer.accept(finished_task)  # or committer.fail(task), for each task
            committer.finish()

    If it is interrupted, files of tasks that are not in the table are removed, unless that is not certain."""

    def __init__(self, table: Table, plan: Plan, process_id: str, report: Callable[[str], None]) -> None:
        """`report` receives messages for people."""
        self.log = CommitLog()
        self._table = table
        self._plan = plan
        self._process_id = process_id
        self._report = report
        self._open: dict[int, FinishedTask] = {}
        """Tasks that are accepted and neither committed nor dropped."""
        self._unresolved: set[int] = set()
        """Ids of tasks that were submitted to the catalog and not refused: a snapshot refers to their files, or may do so
        later."""

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
        properties = {PROCESS: self._process_id, KIND: ",".join(kinds)}
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
        local_path = path.removeprefix("file://") if path.startswith(("file:///", "/")) else None
        source = local_path or memory.BytesIO(read_bytes(self._table.view.io, path))
        return pl.scan_parquet(source, glob=False)

    def _submit(self, change: Change, finished: Sequence[FinishedTask]) -> Committed | Conflict | Rejected:
        """Commit a change, and again until the outcome is certain. An interruption leaves the tasks unresolved."""
        tasks = {each.task.id for each in finished}
        attempt = 0
        while True:
            self._unresolved |= tasks
            try:
                outcome = self._table.try_commit(change)
            except Unavailable:  # nothing was sent; after other errors that is not certain
                self._unresolved -= tasks
                raise
            if isinstance(outcome, Unknown):
                return self._resolve_unknown(change, outcome, attempt)
            if isinstance(outcome, Committed) or may_have_landed(outcome):
                return outcome
            self._unresolved -= tasks
            if isinstance(outcome, Rejected) or attempt + 1 == _MAX_SUBMITS:
                return outcome
            time.sleep(_backoff_seconds(attempt))
            attempt += 1

    def _resolve_unknown(self, change: Change, unknown: Unknown, attempt: int) -> Committed | Rejected:
        """Submit a change again until the catalog says whether it was committed. Its tasks stay unresolved."""
        while attempt + 1 < _MAX_SUBMITS:
            time.sleep(_backoff_seconds(attempt))
            attempt += 1
            try:
                outcome = self._table.try_commit(change)
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
        self.log.removed_deletes = pl.concat([self.log.removed_deletes, change.removed_deletes])
        self.log.commits.append(outcome)
        self.log.committed += finished
        for each in finished:
            self._open.pop(each.task.id, None)
        row_maps = [path for each in finished for path in each.result.row_maps]
        remove_quietly(self._table.view.io, [*outcome.unused_files, *row_maps])
        self._report(f"committed {len(finished)} tasks as snapshot {outcome.snapshot_id}")

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
        return deletes.join(self._table.file_list.frame(), on=FILE_IDENTITY, how="semi", nulls_equal=True)

    def _remove_outputs(self, finished: Iterable[FinishedTask]) -> None:
        """Remove the files of tasks that are not in the table, except for those whose outcome is open. Row maps are always
        removed: no snapshot refers to them."""
        finished = list(finished)
        remove_quietly(self._table.view.io, {path for each in finished for path in each.result.row_maps})
        refused = {path for each in finished if each.task.id not in self._unresolved for path in each.result.written}
        self._remove_unless_referenced(refused)

    def _remove_unless_referenced(self, paths: Iterable[str]) -> None:
        observation = self._plan.observation
        uuid = observation.metadata.table_uuid
        remove_outputs(self._table, paths, table_uuid=uuid, since=observation.snapshot_id)


def may_have_landed(outcome: Outcome) -> bool:
    """Whether a snapshot may refer to the files of a refused change: it was rolled back, or the table lost its name."""
    return isinstance(outcome, Rejected) and outcome.may_have_landed


def _backoff_seconds(attempt: int) -> float:
    return float(min(0.2 * 2**attempt, 5))


def _join_hashes(hashes: Sequence[str | None]) -> str | None:
    return " ".join(map(str, hashes)) if all(hashes) else None
