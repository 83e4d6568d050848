"""Offering finished tasks to the catalog, and what becomes of their files: what committing has in common for all tables."""

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
from pyarctic.iceberg.manifest import FILE_SCHEMA
from pyarctic.optimizing.observe.history import KIND, PROCESS, TASKS, committed_tasks, format_ids
from pyarctic.optimizing.plan.planning import Plan
from pyarctic.optimizing.protocol.tasks import Task, TaskResult
from pyarctic.tables import Table, remove_outputs

_PATIENCE = 5
"""Times that a change is offered again when others came first, or when the catalog did not answer."""
_RUNS_IN_MEMORY = 1_000_000


@dataclass(frozen=True, kw_only=True)
class FinishedTask:
    """A task and what it made."""

    task: Task
    result: TaskResult


@dataclass(kw_only=True)
class CommitLog:
    """What a run has committed so far."""

    commits: list[Committed] = field(default_factory=list)
    committed: list[FinishedTask] = field(default_factory=list)
    dropped: list[tuple[FinishedTask, str]] = field(default_factory=list)
    landed: list[FinishedTask] = field(default_factory=list)
    """Tasks that were in the table already, by an earlier commit of the same results."""
    removed_deletes: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=FILE_SCHEMA))

    def add(self, later: CommitLog) -> None:
        """What another round has committed."""
        self.commits += later.commits
        self.committed += later.committed
        self.dropped += later.dropped
        self.landed += later.landed
        self.removed_deletes = pl.concat([self.removed_deletes, later.removed_deletes])


class Committer(ABC):
    """Commits the tasks of one plan: `with …: take, fail, finish`. Whatever interrupts it, files of tasks that did not get
    into the table are removed; but none of which that is not certain."""

    def __init__(self, table: Table, plan: Plan, process_id: str, say: Callable[[str], None]) -> None:
        self.ledger = CommitLog()
        self._table = table
        self._plan = plan
        self._process_id = process_id
        self._say = say
        self._open: dict[int, FinishedTask] = {}
        """Tasks that are done and not settled."""
        self._in_doubt: set[int] = set()
        """Those that were offered to the catalog and not refused: a snapshot has their files, or may get them yet."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self._remove_outputs(self._open.values())

    def take(self, done: FinishedTask) -> None:
        """Be responsible for the files of a task from now on, and commit it, now or later."""
        self._open[done.task.id] = done
        self._took(done)

    @abstractmethod
    def _took(self, done: FinishedTask) -> None: ...

    @abstractmethod
    def fail(self, task: Task) -> None:
        """A task came to nothing."""

    @abstractmethod
    def finish(self) -> None:
        """All tasks have ended: commit what is left."""

    def _proof(self, done: Sequence[FinishedTask]) -> Proof:
        results = [one.result for one in done]
        return Proof(
            rows_in=sum(result.rows_in for result in results),
            rows_deleted=sum(result.rows_deleted for result in results),
            rows_out=sum(result.rows_out for result in results),
            rows_from_changes=sum(result.rows_from_changes for result in results),
            hash_in=_joined([result.hash_in for result in results]),
            hash_out=_joined([result.hash_out for result in results]),
        )

    def _marks(self, done: Sequence[FinishedTask]) -> dict[str, str]:
        kinds = sorted({one.task.kind for one in done}) or ["minor"]
        marks = {PROCESS: self._process_id, KIND: ",".join(kinds)}
        return marks | {TASKS: format_ids(one.task.id for one in done)} if done else marks

    def _row_map(self, done: Sequence[FinishedTask]) -> pl.DataFrame | pl.LazyFrame | None:
        maps = [self._read_map(path) for one in done for path in one.result.row_maps]
        if not maps:
            return None
        runs = pl.concat(maps)
        small = runs.select(pl.len()).collect().item() <= _RUNS_IN_MEMORY
        return runs.collect() if small else runs

    def _read_map(self, path: str) -> pl.LazyFrame:
        local = path.removeprefix("file://") if path.startswith(("file:///", "/")) else None
        source = local or memory.BytesIO(read_bytes(self._table.view.io, path))
        return pl.scan_parquet(source, glob=False)

    def _offered(self, change: Change, done: Sequence[FinishedTask]) -> Committed | Conflict | Rejected:
        """Commit until there is an answer that does not depend on luck. Whatever interrupts it leaves the tasks in doubt."""
        tasks = {one.task.id for one in done}
        doubtful: Unknown | None = None
        for again in range(_PATIENCE):
            self._in_doubt |= tasks
            outcome: Outcome
            try:
                outcome = self._table.try_commit(change)
            except ArcticError as error:
                if doubtful is None:
                    if isinstance(error, Unavailable):  # nothing was sent; of others that is not certain
                        self._in_doubt -= tasks
                    raise
                outcome = doubtful
            match outcome:
                case Unknown():
                    doubtful = outcome
                case Committed() | Rejected(has_landed=True):
                    return outcome
                case _ if doubtful is None:
                    self._in_doubt -= tasks
                    if isinstance(outcome, Rejected):
                        return outcome
                case Rejected():  # it was in the table for a while: its snapshot may still be there
                    break
            time.sleep(min(0.2 * 2**again, 5))
        if doubtful is not None:
            raise OutcomeUnknown(
                f"the catalog did not answer the commit of snapshot {doubtful.snapshot_id}: {doubtful.reason}",
                hint="The run was stopped, and nothing was removed. Run it again when the catalog answers.",
                snapshot_id=doubtful.snapshot_id,
            )
        assert isinstance(outcome, Conflict)  # noqa: S101  # all others have returned
        return outcome

    def _settle(self, done: Sequence[FinishedTask], outcome: Committed, change: Change) -> None:
        ledger, io = self.ledger, self._table.view.io
        ledger.removed_deletes = pl.concat([ledger.removed_deletes, change.removed_deletes])
        ledger.commits.append(outcome)
        ledger.committed += done
        for one in done:
            self._open.pop(one.task.id, None)
        remove_quietly(io, [*outcome.unused_files, *(path for one in done for path in one.result.row_maps)])
        self._say(f"committed {len(done)} tasks as snapshot {outcome.snapshot_id}")

    def _refused(
        self, done: Sequence[FinishedTask], outcome: Conflict | Rejected, offer: Callable[[Sequence[FinishedTask]], None]
    ) -> None:
        """Together they do not fit: one by one some may. What others have taken back is not offered again."""
        if len(done) > 1 and not was_rolled_back(outcome):
            for one in done:
                offer([one])
            return
        for one in done:
            self._drop(one, outcome.reason)

    def _drop(self, done: FinishedTask, reason: str) -> None:
        self.ledger.dropped.append((done, reason))
        self._open.pop(done.task.id, None)
        self._remove_outputs([done])
        self._say(f"task {done.task.id} was dropped: {reason}")

    def _without_landed(self, done: Sequence[FinishedTask]) -> list[FinishedTask]:
        """Those that are not in the table yet. The same results may be committed again by somebody who does not know that
        they have landed."""
        self._table.refresh()
        paths = {path for one in done for path in one.result.written}
        view = self._table.view
        held = referenced_files(view.metadata, self._table.reader(), paths, since=self._plan.observation.snapshot_id)
        told = committed_tasks(view.metadata, self._process_id)  # also of tasks that wrote nothing
        waiting = []
        for one in done:
            if one.task.id not in told and held.isdisjoint(one.result.written):
                waiting.append(one)
                continue
            self.ledger.landed.append(one)
            self._open.pop(one.task.id, None)
            self._say(f"task {one.task.id} is in the table already")
        return waiting

    def _remove_outputs(self, done: Iterable[FinishedTask]) -> None:
        """Remove what tasks wrote that are not in the table, but nothing whose outcome is open. Row maps go in any case: no
        snapshot ever has them."""
        done = list(done)
        remove_quietly(self._table.view.io, {path for one in done for path in one.result.row_maps})
        refused = {path for one in done if one.task.id not in self._in_doubt for path in one.result.written}
        remove_outputs(self._table, refused, since=self._plan.observation.snapshot_id)


def was_rolled_back(outcome: Outcome) -> bool:
    """Whether it was committed, and rolled back by others at once."""
    return isinstance(outcome, Rejected) and outcome.has_landed


def _joined(hashes: Sequence[str | None]) -> str | None:
    return " ".join(map(str, hashes)) if all(hashes) else None
