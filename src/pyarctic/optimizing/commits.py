"""Finished tasks into the table: any of them together, so that none waits for another or is lost because of it."""

from __future__ import annotations

import io as memory
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self

import polars as pl

from pyarctic.errors import ArcticError, OutcomeUnknown, Unavailable
from pyarctic.iceberg import FILE_SCHEMA, PartitionDecoder, match_deletes
from pyarctic.iceberg.committing import Change, Committed, Conflict, Outcome, Proof, Rejected, Unknown
from pyarctic.iceberg.deletes import PARTITION_KEY
from pyarctic.iceberg.filelist import FILE_IDENTITY
from pyarctic.iceberg.manifests import EQUALITY_DELETES
from pyarctic.iceberg.storage import read_bytes, remove_quietly
from pyarctic.optimizing.history import (
    CADENCE_EVENTS,
    KIND,
    PROCESS,
    STATEMENTS,
    WRITERS_WINDOW,
    recent_statements,
    writers_activity,
)
from pyarctic.optimizing.plan import Plan
from pyarctic.optimizing.tasks import Task, TaskResult
from pyarctic.tables import Table

_PATIENCE = 5
"""Times that a change is offered again when others came first, or when the catalog did not answer."""
_RUNS_IN_MEMORY = 1_000_000
_GAP_LOOK_SECONDS = 0.1
_LONGEST_WAIT_SECONDS = 10.0
_JUST_NOW_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class Done:
    """A task and what it made."""

    task: Task
    result: TaskResult


@dataclass(kw_only=True)
class Ledger:
    """What a run has committed so far."""

    commits: list[Committed] = field(default_factory=list)
    committed: list[Done] = field(default_factory=list)
    dropped: list[tuple[Done, str]] = field(default_factory=list)
    removed_deletes: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=FILE_SCHEMA))

    def add(self, later: Ledger) -> None:
        """What another round has committed."""
        self.commits += later.commits
        self.committed += later.committed
        self.dropped += later.dropped
        self.removed_deletes = pl.concat([self.removed_deletes, later.removed_deletes])


class Committer:
    """Commits the tasks of one plan. Rejected together, they are tried one by one: only those whose files others have
    replaced are lost."""

    def __init__(self, table: Table, plan: Plan, process_id: str, say: Callable[[str], None]) -> None:
        self.ledger = Ledger()
        self._table = table
        self._plan = plan
        self._process_id = process_id
        self._say = say
        self._open: dict[int, Done] = {}
        """Tasks that are done and not settled."""
        self._in_doubt: set[int] = set()
        """Those that were offered to the catalog, and nobody knows what became of it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Remove what did not get into the table; but nothing of which that is not certain."""
        if kind is not None:
            useless = [done.result.paths for number, done in self._open.items() if number not in self._in_doubt]
            maps = {path for done in self._open.values() for path in done.result.row_maps}
            remove_quietly(self._table.view.io, maps.union(*useless))

    def take(self, done: Done) -> None:
        """Be responsible for the files of a task from now on."""
        self._open[done.task.id] = done

    def commit(self, done: Sequence[Done]) -> None:
        """Merged files. Deletes that hit nothing any more leave with the files they were for."""
        if not done:
            return
        self._between_statements(done)
        change = self._merged(done, self._idle(done))
        outcome = self._offered(change, done)
        if not isinstance(outcome, Committed) and len(done) == 1 and change.removed_deletes.height:
            # Perhaps somebody else has removed the deletes that it would take along.
            change = self._merged(done, pl.DataFrame(schema=FILE_SCHEMA))
            outcome = self._offered(change, done)
        if isinstance(outcome, Committed):
            self._settle(done, outcome, change)
        elif len(done) > 1:
            for one in done:
                self.commit([one])
        else:
            self._drop(done[0], outcome.reason)

    def commit_converted(self, done: Sequence[Done]) -> None:
        """Positions instead of equality deletes, for data files that stay. Equality deletes leave when everything that they
        hit was asked or rewritten."""
        change = self._converted(done)
        if change is None:
            for one in done:
                self._drop(one, "the equality deletes are still needed by files that could not be rewritten")
            return
        self._between_statements(done)
        outcome = self._offered(change, done)
        if isinstance(outcome, Committed):
            self._settle(done, outcome, change)
        elif len(done) > 1:
            for one in done:
                self.commit_converted([one])
        else:
            self._drop(done[0], outcome.reason)

    def commit_idle(self) -> None:
        """Deletes that hit nothing and that no other commit took along: most never were for a file of this run."""
        idle = self._without_data([])
        if idle.height:
            change = self._change([], remove=idle)
            outcome = self._offered(change, [])
            if isinstance(outcome, Committed):
                self._settle([], outcome, change)

    def _merged(self, done: Sequence[Done], idle: pl.DataFrame) -> Change:
        data = pl.concat([one.task.data.select("file_path") for one in done])
        replaced = self._plan.evaluation.files.join(data, on="file_path", how="semi")
        results = [one.result for one in done]
        proof = Proof(
            rows_in=sum(result.rows_in for result in results),
            rows_deleted=sum(result.rows_deleted for result in results),
            rows_out=sum(result.rows_out for result in results),
            hash_in=_joined([result.hash_in for result in results]),
            hash_out=_joined([result.hash_out for result in results]),
        )
        return self._change(done, remove=pl.concat([replaced.select(FILE_SCHEMA.names()), idle]), proof=proof)

    def _converted(self, done: Sequence[Done]) -> Change | None:
        add = [file for one in done for file in one.result.add]
        with_vectors = {file.referenced_data_file for file in add if file.is_vector}
        matches = self._plan.observation.matches
        superseded = matches.vectors.filter(pl.col("referenced_data_file").is_in(list(with_vectors)))
        remove = pl.concat([superseded.select(FILE_SCHEMA.names()), self._idle(done)])
        # Positions beside equality deletes that other files still need would have to be found again the next time.
        if remove.filter(pl.col("content") == EQUALITY_DELETES).is_empty():
            return None
        return self._change(done, remove=remove, converts=True)

    def _change(
        self, done: Sequence[Done], *, remove: pl.DataFrame, proof: Proof | None = None, converts: bool = False
    ) -> Change:
        return Change(
            start=self._plan.observation.snapshot_id,
            add=tuple(file for one in done for file in one.result.add),
            remove=remove,
            rewrites=True,
            converts=converts,
            proof=proof,
            row_map=None if converts or not done else self._row_map(done),
            snapshot_properties=self._marks(done),
        )

    def _marks(self, done: Sequence[Done]) -> dict[str, str]:
        kinds = sorted({one.task.kind for one in done}) or ["minor"]
        return {PROCESS: self._process_id, KIND: ",".join(kinds)}

    def _idle(self, done: Sequence[Done]) -> pl.DataFrame:
        """Deletes that hit something until these tasks are in the table. Those that never did are left for a commit of their
        own: what becomes of them must not concern these tasks."""
        return self._without_data(done).join(self._plan.idle_deletes, on=FILE_IDENTITY, how="anti", nulls_equal=True)

    def _without_data(self, done: Sequence[Done]) -> pl.DataFrame:
        """Deletes of the planned snapshot that hit nothing once these tasks are in the table."""
        matches = self._plan.observation.matches
        known = [*self.ledger.committed, *done]
        settled = [one.task.data.select("file_path") for one in known if one.task.action == "merge"]
        asked = [one.task.data.select("file_path") for one in known if one.task.action == "convert"]
        deletes = pl.concat([*matches.by_kind.values(), matches.vectors]).select(FILE_SCHEMA.names())
        deletes = deletes.join(self.ledger.removed_deletes, on=FILE_IDENTITY, how="anti", nulls_equal=True)
        data = matches.data.select(FILE_SCHEMA.names())
        staying = data.join(pl.concat(settled), on="file_path", how="anti") if settled else data
        decoder = PartitionDecoder(self._plan.observation.metadata)
        unused = match_deletes(pl.concat([staying, deletes]), decoder.unpartitioned_specs()).unused()
        if not asked:
            return unused.select(FILE_SCHEMA.names())
        # Of files that were asked about their keys, equality deletes have nothing more to say.
        unasked = staying.join(pl.concat(asked), on="file_path", how="anti")
        equality = deletes.filter(pl.col("content") == EQUALITY_DELETES)
        answered = match_deletes(pl.concat([unasked, equality]), decoder.unpartitioned_specs()).unused()
        both = pl.concat([unused.select(FILE_SCHEMA.names()), answered.select(FILE_SCHEMA.names())])
        return both.unique(FILE_IDENTITY, maintain_order=True)

    def _row_map(self, done: Sequence[Done]) -> pl.DataFrame | pl.LazyFrame | None:
        maps = [self._read_map(path) for one in done for path in one.result.row_maps]
        if not maps:
            return None
        runs = pl.concat(maps)
        small = runs.select(pl.len()).collect().item() <= _RUNS_IN_MEMORY
        return runs.collect() if small else runs

    def _read_map(self, path: str) -> pl.LazyFrame:
        local = path.removeprefix("file://") if path.startswith(("file:///", "/")) else None
        source = local or memory.BytesIO(read_bytes(self._table.view.io, path))
        return pl.scan_parquet(source)

    def _offered(self, change: Change, done: Sequence[Done]) -> Committed | Conflict | Rejected:
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
                case Committed():
                    self._in_doubt -= tasks
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

    def _settle(self, done: Sequence[Done], outcome: Committed, change: Change) -> None:
        ledger, io = self.ledger, self._table.view.io
        ledger.removed_deletes = pl.concat([ledger.removed_deletes, change.removed_deletes])
        ledger.commits.append(outcome)
        ledger.committed += done
        for one in done:
            self._open.pop(one.task.id, None)
        remove_quietly(io, [*outcome.unused_files, *(path for one in done for path in one.result.row_maps)])
        self._say(f"committed {len(done)} tasks as snapshot {outcome.snapshot_id}")

    def _drop(self, done: Done, reason: str) -> None:
        self.ledger.dropped.append((done, reason))
        self._open.pop(done.task.id, None)
        remove_quietly(self._table.view.io, done.result.paths)
        self._say(f"task {done.task.id} was dropped: {reason}")

    def _between_statements(self, done: Sequence[Done]) -> None:
        """If others change rows in these partitions at the moment, commit right after one of them did: the next statement of
        theirs has most likely not begun."""
        settings = self._plan.observation.settings
        if not settings.writers_first or self._plan.ignores_writers:
            return
        ours = pl.concat([one.task.data.select(PARTITION_KEY) for one in done]).unique()
        beat = self._beat(ours)
        if beat is None:
            return
        deadline = time.monotonic() + min(2 * beat, _LONGEST_WAIT_SECONDS)
        begun = datetime.now(UTC) - timedelta(seconds=_JUST_NOW_SECONDS)
        while time.monotonic() < deadline and self._statements(ours, begun).is_empty():
            time.sleep(_GAP_LOOK_SECONDS)

    def _beat(self, partitions: pl.DataFrame) -> float | None:
        """The seconds between two statements of others in these partitions; None if there is no rhythm, or none any more."""
        now = datetime.now(UTC)
        statements = self._statements(partitions, now - WRITERS_WINDOW)
        activity = writers_activity(statements, self._plan.observation.settings.quiet_time, now)
        beats = activity.filter(pl.col("busy_until").is_not_null() & (pl.col("statements") >= CADENCE_EVENTS))
        return None if beats.is_empty() else float(beats.select(pl.col("cadence_seconds").min()).item())

    def _statements(self, partitions: pl.DataFrame, since: datetime) -> pl.DataFrame:
        """Statements of others in these partitions, as the table is now."""
        try:
            self._table.refresh()
        except ArcticError:  # the commit will tell what is wrong
            return pl.DataFrame(schema=STATEMENTS)
        statements = recent_statements(self._table.view.metadata, self._table.reader(), since)
        return statements.join(partitions, on=PARTITION_KEY, how="semi")


def _joined(hashes: Sequence[str | None]) -> str | None:
    return " ".join(map(str, hashes)) if all(hashes) else None
