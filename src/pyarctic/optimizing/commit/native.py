"""Committing tasks of a native table: any of them together, so that none waits for another or is lost because of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import polars as pl

from pyarctic.errors import ArcticError
from pyarctic.iceberg.commit import ROLLBACK_ON_CONFLICT, Change, Committed, Conflict, Proof, Rejected
from pyarctic.iceberg.delete import PARTITION_KEY, match_deletes
from pyarctic.iceberg.manifest import EQUALITY_DELETES, FILE_IDENTITY, FILE_SCHEMA, POSITION_DELETES, PartitionDecoder
from pyarctic.optimizing.commit.committer import BeforeSubmit, Committer, FinishedTask, ignore_requests, may_have_landed
from pyarctic.optimizing.observe.history import (
    CADENCE_EVENTS,
    STATEMENTS,
    WRITERS_WINDOW,
    recent_statements,
    writers_activity,
)
from pyarctic.optimizing.plan.plan import COMMIT_TASKS, NativePlan
from pyarctic.optimizing.protocol.task import Task
from pyarctic.tables import Table

_COMMIT_SECONDS = 60.0
_POLL_SECONDS = 0.1
_POLL_SHARE = 0.05
"""The longer a wait takes, the less often the table is loaded: ten times a second at first, every second in the end."""
_MAX_POLL_SECONDS = 1.0
_MAX_WAIT_SECONDS = 10.0
_WAIT_QUIET_TIMES = 2
"""How long to wait for a pause of writers without a cadence: their statements may take longer than any we have seen."""
_JUST_NOW_SECONDS = 0.5


class NativeCommitter(Committer):
    """Commits the tasks of one plan. Tasks that are rejected together are tried one by one: only those whose files others
    have replaced are lost."""

    _plan: NativePlan

    def __init__(
        self,
        table: Table,
        plan: NativePlan,
        process_id: str,
        report: Callable[[str], None],
        before_submit: BeforeSubmit = ignore_requests,
    ) -> None:
        super().__init__(table, plan, process_id, report, before_submit)
        self._merges: list[FinishedTask] = []
        self._full_merges: list[FinishedTask] = []
        """The kind of a snapshot is that of all its files, so these have commits of their own."""
        self._conversions: list[FinishedTask] = []
        self._statements_read: dict[int, pl.DataFrame] = {}
        """The partitions of other writers' statements, by snapshot."""
        self._last_commit = time.monotonic()

    def _enqueue(self, finished: FinishedTask) -> None:
        if finished.task.action == "convert":  # committed after merges, which make some of them needless
            self._conversions.append(finished)
            return
        merges = self._full_merges if finished.task.kind == "full" else self._merges
        merges.append(finished)
        if time.monotonic() - self._last_commit > _COMMIT_SECONDS:
            self._commit_waiting()
        elif len(merges) >= COMMIT_TASKS:
            waiting = merges.copy()
            merges.clear()
            self._commit_merges(waiting)
            self._last_commit = time.monotonic()

    def _commit_waiting(self) -> None:
        full_merges, self._full_merges = self._full_merges, []
        merges, self._merges = self._merges, []
        self._commit_merges(full_merges)
        self._commit_merges(merges)
        self._last_commit = time.monotonic()

    def fail(self, task: Task) -> None:
        """Do nothing: no other task depends on it."""

    def finish(self) -> None:
        """Commit everything that is left, and remove dangling deletes."""
        self._commit_waiting()
        if self._conversions:
            self._commit_conversions(self._conversions)
        self._commit_dangling_deletes()

    def _commit_merges(self, finished: Sequence[FinishedTask]) -> None:
        """Commit merged files, in as few commits as possible."""
        finished = self._without_landed(finished) if finished else finished
        if not finished:
            return
        groups = [group for group in self._split_by_writers(finished) if group]
        if len(groups) > 1:
            for group in groups:
                self._commit_merges(group)
        else:
            self._wait_for_pause(finished)
            self._commit_together(finished)

    def _commit_together(self, finished: Sequence[FinishedTask]) -> None:
        """Commit merged files. Deletes that apply to nothing any more are removed with the files they were for."""
        change = self._merge_change(finished, self._new_dangling_deletes(finished))
        outcome = self._submit(change, finished)
        is_missing_files = isinstance(outcome, Rejected) and outcome.code in ("files-gone", "not-live")
        if is_missing_files and len(finished) == 1 and change.removed_deletes.height:
            # Others may have removed the deletes that it would remove.
            change = self._merge_change(finished, pl.DataFrame(schema=FILE_SCHEMA))
            outcome = self._submit(change, finished)
        if isinstance(outcome, Committed):
            self._record_committed(finished, outcome, change)
        else:
            self._handle_refusal(finished, outcome, self._commit_merges)

    def _commit_conversions(self, finished: Sequence[FinishedTask]) -> None:
        """Commit positions that replace equality deletes, for kept data files. Equality deletes are removed when all files
        they apply to were probed or rewritten."""
        finished = self._without_landed(finished)
        if not finished:
            return
        dangling = self._new_dangling_deletes(finished)
        # Positions beside equality deletes that other files still need would have to be found again by the next process.
        if dangling.filter(pl.col("content") == EQUALITY_DELETES).is_empty():
            for each in finished:
                self._drop(each, "the equality deletes are still needed by files that could not be rewritten")
            return
        self._wait_for_pause(finished, longest_seconds=_MAX_WAIT_SECONDS)  # they replace no data file
        change = self._change(finished, remove=dangling, converts=True)
        outcome = self._submit(change, finished)
        if isinstance(outcome, Committed):
            self._record_committed(finished, outcome, change)
        else:
            self._handle_refusal(finished, outcome, self._commit_conversions)

    def _commit_dangling_deletes(self) -> None:
        """Remove dangling deletes that no other commit removed: most never applied to a file of this plan."""
        dangling = self._still_live(self._dangling_deletes([]))
        if dangling.height:
            change = self._change([], remove=dangling)
            outcome = self._submit(change, [])
            if isinstance(outcome, Committed):
                self._record_committed([], outcome, change)

    def _handle_refusal(
        self,
        finished: Sequence[FinishedTask],
        outcome: Conflict | Rejected,
        commit: Callable[[Sequence[FinishedTask]], None],
    ) -> None:
        """Commit tasks one by one that were refused together. What others have rolled back is not submitted again."""
        if len(finished) > 1 and not may_have_landed(outcome):
            for each in finished:
                commit([each])
            return
        for each in finished:
            self._drop(each, outcome.reason)

    def _merge_change(self, finished: Sequence[FinishedTask], dangling: pl.DataFrame) -> Change:
        paths = pl.concat([each.task.data.select("file_path") for each in finished])
        replaced = self._plan.evaluation.files.join(paths, on="file_path", how="semi").select(FILE_SCHEMA.names())
        return self._change(finished, remove=pl.concat([replaced, dangling]), proof=self._proof(finished))

    def _change(
        self, finished: Sequence[FinishedTask], *, remove: pl.DataFrame, proof: Proof | None = None, converts: bool = False
    ) -> Change:
        marks = {} if converts or not self._plan.observation.settings.writers_first else ROLLBACK_ON_CONFLICT
        return Change(
            start=self._plan.observation.snapshot_id,
            add=tuple(file for each in finished for file in each.result.add),
            remove=remove,
            rewrites=True,
            converts=converts,
            proof=proof,
            row_map=None if converts or not finished else self._row_map(finished),
            requires=tuple(commit.snapshot_id for commit in self.log.commits if commit.snapshot_id is not None),
            snapshot_properties=self._snapshot_properties(finished) | marks,
        )

    def _new_dangling_deletes(self, finished: Sequence[FinishedTask]) -> pl.DataFrame:
        """Deletes that apply to nothing once these tasks are in the table, and did so before. Those that never did get a
        commit of their own: its outcome must not concern these tasks."""
        dangling = self._dangling_deletes(finished)
        return dangling.join(self._plan.dangling_deletes, on=FILE_IDENTITY, how="anti", nulls_equal=True)

    def _dangling_deletes(self, finished: Sequence[FinishedTask]) -> pl.DataFrame:
        """Deletes of the planned snapshot that apply to nothing once these tasks are in the table."""
        matches = self._plan.observation.matches
        deletes = pl.concat([*matches.by_kind.values(), matches.vectors]).select(FILE_SCHEMA.names())
        if deletes.is_empty():
            return deletes
        in_table = [*self.log.committed, *finished]
        merged = {path for each in in_table if each.task.action == "merge" for path in each.task.data["file_path"]}
        probed = {path for each in in_table if each.task.action == "convert" for path in each.task.data["file_path"]}
        with_vectors = {file.referenced_data_file for each in in_table for file in each.result.add if file.is_vector}
        deletes = deletes.join(self.log.removed_deletes, on=FILE_IDENTITY, how="anti", nulls_equal=True)
        kept = matches.data.select(FILE_SCHEMA.names()).filter(~pl.col("file_path").is_in(list(merged)))
        dangling = [self._unmatched_deletes(deletes, kept)]
        # Equality deletes whose keys were probed, and positions that a vector has, are not needed by these files any more.
        for content, handled in ((EQUALITY_DELETES, probed), (POSITION_DELETES, with_vectors)):
            if handled:
                of_content = deletes.filter(pl.col("content") == content)
                unhandled = kept.filter(~pl.col("file_path").is_in(list(handled)))
                dangling.append(self._unmatched_deletes(of_content, unhandled))
        return pl.concat(dangling).unique(FILE_IDENTITY, maintain_order=True)

    def _unmatched_deletes(self, deletes: pl.DataFrame, data: pl.DataFrame) -> pl.DataFrame:
        unpartitioned = PartitionDecoder(self._plan.observation.metadata).unpartitioned_specs()
        return match_deletes(pl.concat([data, deletes]), unpartitioned).unused().select(FILE_SCHEMA.names())

    def _split_by_writers(self, finished: Sequence[FinishedTask]) -> tuple[list[FinishedTask], list[FinishedTask]]:
        """Tasks in partitions that nobody else is changing, and those that have to wait for a pause."""
        if self._ignores_writers:
            return list(finished), []
        activity = self._activity(_partitions_of(finished))
        busy = {
            each.task.id
            for each in finished
            if activity.height and each.task.data.join(activity, on=PARTITION_KEY, how="semi").height
        }
        return [each for each in finished if each.task.id not in busy], [each for each in finished if each.task.id in busy]

    def _wait_for_pause(self, finished: Sequence[FinishedTask], *, longest_seconds: float = math.inf) -> None:
        """If others change rows in these partitions, wait until one of their statements has been committed: the next one has
        most likely not begun."""
        if self._ignores_writers:
            return
        partitions = _partitions_of(finished)
        since = datetime.now(UTC) - timedelta(seconds=_JUST_NOW_SECONDS)
        seconds = min(self._pause_seconds(self._activity(partitions)), longest_seconds)
        if seconds > _MAX_WAIT_SECONDS:
            self._report(f"others change rows in the same partitions: waiting {seconds:.0f} s at most for a pause")
        start = time.monotonic()
        while (waited := time.monotonic() - start) < seconds and self._statements(partitions, since).is_empty():
            time.sleep(min(max(_POLL_SECONDS, waited * _POLL_SHARE), _MAX_POLL_SECONDS))

    @property
    def _ignores_writers(self) -> bool:
        return self._plan.ignores_writers or not self._plan.observation.settings.writers_first

    def _activity(self, partitions: pl.DataFrame) -> pl.DataFrame:
        """Those of the partitions that others change rows in now."""
        now = datetime.now(UTC)
        statements = self._statements(partitions, now - WRITERS_WINDOW)
        activity = writers_activity(statements, self._plan.observation.settings.quiet_time, now)
        return activity.filter(pl.col("busy_until").is_not_null())

    def _pause_seconds(self, activity: pl.DataFrame) -> float:
        """How long to wait for a pause at most: two intervals of a cadence, or some quiet times."""
        if activity.is_empty():
            return 0.0
        two_intervals = pl.min_horizontal(2 * pl.col("cadence_seconds"), _MAX_WAIT_SECONDS)
        quiet_times = self._plan.observation.settings.quiet_time.total_seconds() * _WAIT_QUIET_TIMES
        has_cadence = pl.col("statements") >= CADENCE_EVENTS
        return float(activity.select(pl.when(has_cadence).then(two_intervals).otherwise(quiet_times).max()).item())

    def _statements(self, partitions: pl.DataFrame, since: datetime) -> pl.DataFrame:
        """Statements of others in these partitions, as of now."""
        try:
            self._table.refresh()
        except ArcticError:  # the commit will fail with the same error
            return pl.DataFrame(schema=STATEMENTS)
        statements = recent_statements(self._table.view.metadata, self._table.reader(), since, self._statements_read)
        return statements.join(partitions, on=PARTITION_KEY, how="semi")


def _partitions_of(finished: Sequence[FinishedTask]) -> pl.DataFrame:
    return pl.concat([each.task.data.select(PARTITION_KEY) for each in finished]).unique()
