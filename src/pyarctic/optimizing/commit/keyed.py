"""Committing tasks of a keyed table to its base store: all tasks of a partition together, with the sequence number that the
partition is merged up to.

Readers take changes beyond that number from the change store, and all others from the base store. So either all tasks of a
partition are in the base store, or none is. Partitions do not wait for each other, and none is lost because of another.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import polars as pl

from pyarctic.errors import Unavailable
from pyarctic.iceberg.commit import Change, Committed, Conflict, Rejected, RetryPolicy
from pyarctic.iceberg.delete import PARTITION_KEY, match_deletes
from pyarctic.iceberg.manifest import FILE_IDENTITY, FILE_SCHEMA, IS_DATA, PartitionDecoder
from pyarctic.optimizing.commit.committer import BeforeSubmit, Committer, FinishedTask, ignore_requests, may_have_landed
from pyarctic.optimizing.plan.plan import KeyedPlan
from pyarctic.optimizing.protocol.task import OPTIMIZING_KINDS, KeyedTask, Task
from pyarctic.tables import KeyedTable, merge_many_manifests
from pyarctic.tables.format import (
    Node,
    merged_sequences,
    parse_change_file_names,
    parse_file_names,
    record_merged_sequences,
)
from pyarctic.tables.read import competing_base_files

_COMMIT_SECONDS = 60.0
Partition = tuple[int, str]


@dataclass(kw_only=True)
class _PartitionCommit:
    """The tasks of one partition, which are committed together."""

    partition: Partition
    path: str
    merged: int
    """The sequence number that the partition was merged up to."""
    sequence: int | None
    """The one it will be merged up to; None: it has neither changes nor foreign files to merge."""
    tasks: dict[int, KeyedTask] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)
    """Ids of tasks that have not ended."""
    finished: list[FinishedTask] = field(default_factory=list)
    failure: str | None = None

    @property
    def transaction_id(self) -> int:
        """The latest transaction in the new files."""
        return max(task.transaction_id for task in self.tasks.values())


class KeyedCommitter(Committer):
    """Commits partitions whose tasks are all finished."""

    _table: KeyedTable
    _plan: KeyedPlan

    def __init__(
        self,
        table: KeyedTable,
        plan: KeyedPlan,
        process_id: str,
        report: Callable[[str], None],
        before_submit: BeforeSubmit = ignore_requests,
    ) -> None:
        super().__init__(table, plan, process_id, report, before_submit)
        self._by_task = _partition_commits(plan)
        self._ready: list[_PartitionCommit] = []
        self._last_commit = time.monotonic()

    def _enqueue(self, finished: FinishedTask) -> None:
        partition = self._by_task[finished.task.id]
        partition.waiting.discard(finished.task.id)
        if partition.failure is not None:
            self._drop(finished, partition.failure)
            return
        partition.finished.append(finished)
        if not partition.waiting:
            self._ready.append(partition)
        if self._ready and time.monotonic() - self._last_commit > _COMMIT_SECONDS:
            self._commit_ready()

    def fail(self, task: Task) -> None:
        """Drop all tasks of the same partition."""
        partition = self._by_task[task.id]
        partition.waiting.discard(task.id)
        partition.failure = f"task {task.id} of the same partition failed"
        for finished in partition.finished:
            self._drop(finished, partition.failure)
        partition.finished.clear()

    def finish(self) -> None:
        """Commit all partitions that are left, and remove dangling deletes. Merge the manifests of the change store, which
        gets at least one with every commit of a writer."""
        self._commit_ready()
        if self._still_live(self._plan.dangling_deletes).height:
            self._commit([])
        self.log.change_manifests_merged += merge_many_manifests(self._table.change_store)

    def _commit_ready(self) -> None:
        ready, self._ready = self._ready, []
        for kind in OPTIMIZING_KINDS:  # the kind of a snapshot is that of all its files
            if partitions := [partition for partition in ready if partition.finished[0].task.kind == kind]:
                self._commit(partitions)
        self._last_commit = time.monotonic()

    def _commit(self, partitions: Sequence[_PartitionCommit]) -> None:
        """Commit those partitions that still fit the table. Partitions that are refused together are tried one by one.
        Without partitions, dangling deletes are removed."""
        for _ in RetryPolicy.of(self._table.view.metadata).races():  # most others commit to other partitions
            fitting = self._drop_conflicting(self._partitions_not_landed(partitions))
            if partitions and not fitting:
                return
            partitions = fitting
            outcome = self._commit_once(partitions)
            if isinstance(outcome, Committed):
                return
            if not (isinstance(outcome, Rejected) and outcome.code == "moved"):
                reason = outcome.reason
                break
        else:
            reason = "others kept committing first"
        if len(partitions) > 1 and not may_have_landed(outcome):
            for partition in partitions:
                self._commit([partition])
            return
        for finished in _finished_tasks(partitions):
            self._drop(finished, reason)

    def _commit_once(self, partitions: Sequence[_PartitionCommit]) -> Committed | Conflict | Rejected:
        finished = _finished_tasks(partitions)
        change = self._change(partitions, finished)
        statistics = [file.statistics_path for file in change.statistics]
        try:
            outcome = self._submit(change, finished)
        except Unavailable:  # nothing was sent
            self._remove_unless_referenced(statistics)
            raise
        if isinstance(outcome, Committed):
            self._record_committed(finished, outcome, change)
        else:
            self._remove_unless_referenced(statistics)
        return outcome

    def _partitions_not_landed(self, partitions: Sequence[_PartitionCommit]) -> list[_PartitionCommit]:
        """Those that are not in the table yet: all tasks of a partition are, or none is."""
        waiting = {finished.task.id for finished in self._without_landed(_finished_tasks(partitions))}
        return [partition for partition in partitions if all(finished.task.id in waiting for finished in partition.finished)]

    def _drop_conflicting(self, partitions: Sequence[_PartitionCommit]) -> list[_PartitionCommit]:
        """Those that are still as they were planned; the others are dropped."""
        concurrent_changes = _ConcurrentChanges(self._table, self._plan)
        fitting: list[_PartitionCommit] = []
        for partition in partitions:
            reason = concurrent_changes.conflict_with(partition)
            if reason is None:
                fitting.append(partition)
                continue
            for finished in partition.finished:
                self._drop(finished, reason)
        return fitting

    def _change(self, partitions: Sequence[_PartitionCommit], finished: Sequence[FinishedTask]) -> Change:
        view = self._table.view
        merged = {partition.path: partition.sequence for partition in partitions if partition.sequence is not None}
        add = tuple(file for each in finished for file in each.result.add)
        remove = self._removed_files(partitions, finished) if partitions else self._still_live(self._plan.dangling_deletes)
        change = Change(
            start=self._plan.observation.snapshot_id,
            add=add,
            remove=remove,
            rewrites=not merged,
            empty=not add and remove.is_empty(),
            proof=self._proof(finished) if partitions else None,
            row_map=self._row_map(finished),
            alone=True,
            checked_at=view.snapshot_id,
            snapshot_properties={**self._snapshot_properties(finished), "snapshot.producer": "OPTIMIZE"},
        )
        # Also if nothing more is merged: earlier snapshots may be expired, and their merged sequences with them.
        return record_merged_sequences(view.metadata, view.io, change.snapshot_id, merged).add_to(change)

    def _removed_files(self, partitions: Sequence[_PartitionCommit], finished: Sequence[FinishedTask]) -> pl.DataFrame:
        replaced = {path for each in finished for path in each.task.replaced["file_path"]}
        files = self._plan.evaluation.files.filter(pl.col("file_path").is_in(list(replaced)))
        superseded = self._superseded_deletes(replaced | _files_with_rewritten_deletes(partitions))
        return pl.concat([files.select(FILE_SCHEMA.names()), superseded])

    def _superseded_deletes(self, handled: set[str]) -> pl.DataFrame:
        """Position deletes that apply only to files that are replaced, or whose deleted rows are all listed again."""
        matches = self._plan.observation.matches
        columns = FILE_SCHEMA.names()
        deletes = pl.concat([*matches.by_kind.values(), matches.vectors]).select(columns)
        kept = matches.data.filter(~pl.col("file_path").is_in(list(handled))).select(columns)
        decoder = PartitionDecoder(self._plan.observation.metadata)
        unused = match_deletes(pl.concat([kept, deletes]), decoder.unpartitioned_specs()).unused().select(columns)
        removed_elsewhere = pl.concat([self._plan.dangling_deletes, self.log.removed_deletes])
        return unused.join(removed_elsewhere, on=FILE_IDENTITY, how="anti", nulls_equal=True)


class _ConcurrentChanges:
    """What others have done to both stores since the plan was made. Most deletes do no harm: they are moved over to the new
    files."""

    def __init__(self, table: KeyedTable, plan: KeyedPlan) -> None:
        self._table, self._plan = table, plan

    def conflict_with(self, partition: _PartitionCommit) -> str | None:
        """Why the tasks of a partition cannot be committed any more; None: they can."""
        key = partition.partition
        if key in self._late_transactions and self._late_transactions[key] <= partition.transaction_id:
            return "changes of an older transaction were committed meanwhile"
        if partition.sequence is None or self._table.view.snapshot_id == self._plan.observation.snapshot_id:
            return None
        if self._merged.get(partition.path, -1) != partition.merged:
            return "its changes were merged or overwritten by others meanwhile"
        if key in self._with_new_rows:
            return "others have put rows into its Base meanwhile"
        if key in self._with_deleted_rows and any(_may_supersede_inserts(task) for task in partition.tasks.values()):
            return "others have deleted rows of its Base meanwhile, which may have won over changes"
        return None

    @cached_property
    def _late_transactions(self) -> dict[Partition, int]:
        """The oldest transaction of new changes, in each partition. Rows that are written together get the transaction id of
        the latest of them: changes of an older transaction would not apply to all of them."""
        files = self._table.change_store.file_list.frame()
        new_files = files.filter(pl.col("data_sequence_number") > self._plan.changes.sequence_number)
        oldest = parse_change_file_names(new_files).group_by(PARTITION_KEY).agg(pl.col("transaction_id").min())
        return {(spec_id, key): transaction_id for spec_id, key, transaction_id in oldest.iter_rows()}

    @cached_property
    def _merged(self) -> dict[str, int]:
        view = self._table.view
        return merged_sequences(view.metadata, view.io, view.metadata.current_snapshot())

    @cached_property
    def _with_new_rows(self) -> set[Partition]:
        data = self._table.file_list.frame().filter(IS_DATA)
        return _partitions_of(data.join(self._plan.evaluation.files, on="file_path", how="anti"))

    @cached_property
    def _with_deleted_rows(self) -> set[Partition]:
        """The partitions in which rows or files were deleted."""
        files, matches = self._table.file_list.frame(), self._plan.observation.matches
        planned = pl.concat([*matches.by_kind.values(), matches.vectors]).select(FILE_IDENTITY)
        new_deletes = files.filter(~IS_DATA).join(planned, on=FILE_IDENTITY, how="anti", nulls_equal=True)
        return _partitions_of(new_deletes) | _partitions_of(matches.data.join(files, on="file_path", how="anti"))


def _partition_commits(plan: KeyedPlan) -> dict[int, _PartitionCommit]:
    """The commit that each task belongs to, by the id of the task."""
    merges = {(row["spec_id"], row["partition"]): row for row in plan.merges.iter_rows(named=True)}
    by_partition: dict[Partition, _PartitionCommit] = {}
    by_task: dict[int, _PartitionCommit] = {}
    for task in plan.tasks:
        key = (task.spec_id, task.partition_key)
        if key not in by_partition:
            row = merges.get(key, {})
            by_partition[key] = _PartitionCommit(
                partition=key, path=row.get("path", ""), merged=row.get("merged", -1), sequence=row.get("sequence")
            )
        by_task[task.id] = by_partition[key]
        by_task[task.id].tasks[task.id] = task
        by_task[task.id].waiting.add(task.id)
    return by_task


def _finished_tasks(partitions: Sequence[_PartitionCommit]) -> list[FinishedTask]:
    return [finished for partition in partitions for finished in partition.finished]


def _partitions_of(files: pl.DataFrame) -> set[Partition]:
    return set(files.select(PARTITION_KEY).unique().iter_rows())


def _may_supersede_inserts(task: KeyedTask) -> bool:
    """Whether rows of the base store may win over other rows: over those that older transactions inserted, or as rows of a
    foreign file over other base rows. If they go, those count."""
    inserts = parse_change_file_names(task.changes).filter(pl.col("kind") != "ED")
    return bool(task.foreign) or competing_base_files(parse_file_names(task.data, "base"), inserts).height > 0


def _files_with_rewritten_deletes(partitions: Sequence[_PartitionCommit]) -> set[str]:
    """Kept files whose deleted rows are all listed again. For a file above the level that is written, each task lists those
    of its node; so all nodes below it must have listed theirs."""
    listings: Counter[str] = Counter()
    needed: dict[str, int] = {}
    for partition in partitions:
        for finished in partition.finished:
            paths = finished.result.files_with_rewritten_deletes
            if not paths:
                continue
            listings.update(paths)
            task = partition.tasks[finished.task.id]
            mask = Node.of_id(task.node_id).mask
            files = parse_file_names(task.data, "base").filter(pl.col("file_path").is_in(paths))
            for path, node_id in files.select("file_path", "node_id").iter_rows():
                file_mask = Node.of_id(node_id).mask
                needed[path] = (mask + 1) // (file_mask + 1) if file_mask < mask else 1
    return {path for path, count in listings.items() if count >= needed[path]}
