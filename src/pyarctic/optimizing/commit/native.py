"""Finished tasks into the table: any of them together, so that none waits for another or is lost because of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import polars as pl

from pyarctic.errors import ArcticError
from pyarctic.iceberg.commit import Change, Committed, Proof, Rejected
from pyarctic.iceberg.delete import PARTITION_KEY, match_deletes
from pyarctic.iceberg.manifest import EQUALITY_DELETES, FILE_IDENTITY, FILE_SCHEMA, POSITION_DELETES, PartitionDecoder
from pyarctic.optimizing.commit.committer import Committer, FinishedTask
from pyarctic.optimizing.observe.history import (
    CADENCE_EVENTS,
    STATEMENTS,
    WRITERS_WINDOW,
    recent_statements,
    writers_activity,
)
from pyarctic.optimizing.plan.planning import Plan
from pyarctic.optimizing.protocol.tasks import Task
from pyarctic.tables import Table

_COMMIT_TASKS = 64
_COMMIT_SECONDS = 60.0
_GAP_LOOK_SECONDS = 0.1
_LONGEST_WAIT_SECONDS = 10.0
_JUST_NOW_SECONDS = 0.5


class NativeCommitter(Committer):
    """Commits the tasks of one plan. Rejected together, they are tried one by one: only those whose files others have
    replaced are lost."""

    def __init__(self, table: Table, plan: Plan, process_id: str, say: Callable[[str], None]) -> None:
        super().__init__(table, plan, process_id, say)
        self._merges: list[FinishedTask] = []
        self._converts: list[FinishedTask] = []
        self._last_commit = time.monotonic()

    def _took(self, done: FinishedTask) -> None:
        if done.task.action == "convert":  # they are committed after merges, which make some of them needless
            self._converts.append(done)
            return
        self._merges.append(done)
        if len(self._merges) >= _COMMIT_TASKS or time.monotonic() - self._last_commit > _COMMIT_SECONDS:
            merged, self._merges = self._merges, []
            self.commit(merged)
            self._last_commit = time.monotonic()

    def fail(self, task: Task) -> None:
        """Others do not need it."""

    def finish(self) -> None:
        self.commit(self._merges)
        if self._converts:
            self.commit_converted(self._converts)
        self.commit_idle()

    def commit(self, done: Sequence[FinishedTask]) -> None:
        """Merged files. Deletes that hit nothing any more leave with the files they were for."""
        done = self._without_landed(done) if done else done
        if not done:
            return
        full = [one for one in done if one.task.kind == "full"]
        if full and len(full) < len(done):  # a snapshot tells for all its files whether everything was rewritten
            self.commit(full)
            self.commit([one for one in done if one.task.kind != "full"])
            return
        self._between_statements(done)
        change = self._merged(done, self._idle(done))
        outcome = self._offered(change, done)
        is_gone = isinstance(outcome, Rejected) and outcome.code in ("files-gone", "not-live")
        if is_gone and len(done) == 1 and change.removed_deletes.height:
            # Perhaps somebody else has removed the deletes that it would take along.
            change = self._merged(done, pl.DataFrame(schema=FILE_SCHEMA))
            outcome = self._offered(change, done)
        if isinstance(outcome, Committed):
            self._settle(done, outcome, change)
        else:
            self._refused(done, outcome, self.commit)

    def commit_converted(self, done: Sequence[FinishedTask]) -> None:
        """Positions instead of equality deletes, for data files that stay. Equality deletes leave when everything that they
        hit was asked or rewritten."""
        done = self._without_landed(done)
        if not done:
            return
        idle = self._idle(done)
        # Positions beside equality deletes that other files still need would have to be found again the next time.
        if idle.filter(pl.col("content") == EQUALITY_DELETES).is_empty():
            for one in done:
                self._drop(one, "the equality deletes are still needed by files that could not be rewritten")
            return
        self._between_statements(done)
        change = self._change(done, remove=idle, converts=True)
        outcome = self._offered(change, done)
        if isinstance(outcome, Committed):
            self._settle(done, outcome, change)
        else:
            self._refused(done, outcome, self.commit_converted)

    def commit_idle(self) -> None:
        """Deletes that hit nothing and that no other commit took along: most never were for a file of this run."""
        idle = self._without_data([])
        if idle.height:
            change = self._change([], remove=idle)
            outcome = self._offered(change, [])
            if isinstance(outcome, Committed):
                self._settle([], outcome, change)

    def _merged(self, done: Sequence[FinishedTask], idle: pl.DataFrame) -> Change:
        data = pl.concat([one.task.data.select("file_path") for one in done])
        replaced = self._plan.evaluation.files.join(data, on="file_path", how="semi")
        return self._change(done, remove=pl.concat([replaced.select(FILE_SCHEMA.names()), idle]), proof=self._proof(done))

    def _change(
        self, done: Sequence[FinishedTask], *, remove: pl.DataFrame, proof: Proof | None = None, converts: bool = False
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

    def _idle(self, done: Sequence[FinishedTask]) -> pl.DataFrame:
        """Deletes that hit something until these tasks are in the table. Those that never did are left for a commit of their
        own: what becomes of them must not concern these tasks."""
        return self._without_data(done).join(self._plan.dangling_deletes, on=FILE_IDENTITY, how="anti", nulls_equal=True)

    def _without_data(self, done: Sequence[FinishedTask]) -> pl.DataFrame:
        """Deletes of the planned snapshot that hit nothing once these tasks are in the table."""
        matches = self._plan.observation.matches
        known = [*self.ledger.committed, *done]
        merged = {path for one in known if one.task.action == "merge" for path in one.task.data["file_path"]}
        asked = {path for one in known if one.task.action == "convert" for path in one.task.data["file_path"]}
        with_vectors = {file.referenced_data_file for one in known for file in one.result.add if file.is_vector}
        deletes = pl.concat([*matches.by_kind.values(), matches.vectors]).select(FILE_SCHEMA.names())
        deletes = deletes.join(self.ledger.removed_deletes, on=FILE_IDENTITY, how="anti", nulls_equal=True)
        staying = matches.data.select(FILE_SCHEMA.names()).filter(~pl.col("file_path").is_in(list(merged)))
        idle = [self._hitting_nothing(deletes, staying)]
        for content, answered in ((EQUALITY_DELETES, asked), (POSITION_DELETES, with_vectors)):
            if answered:  # keys that were asked for, positions that a vector holds: such deletes have nothing more to say
                of_content = deletes.filter(pl.col("content") == content)
                idle.append(self._hitting_nothing(of_content, staying.filter(~pl.col("file_path").is_in(list(answered)))))
        return pl.concat(idle).unique(FILE_IDENTITY, maintain_order=True)

    def _hitting_nothing(self, deletes: pl.DataFrame, data: pl.DataFrame) -> pl.DataFrame:
        unpartitioned = PartitionDecoder(self._plan.observation.metadata).unpartitioned_specs()
        return match_deletes(pl.concat([data, deletes]), unpartitioned).unused().select(FILE_SCHEMA.names())

    def _between_statements(self, done: Sequence[FinishedTask]) -> None:
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
