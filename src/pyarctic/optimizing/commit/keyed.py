"""Finished tasks of a keyed table into Base: all of a partition together, with how far it is merged then.

Readers take changes beyond that number from the change store, and all others from Base. So either all tasks of a partition
are in Base, or none is. Partitions do not wait for each other, and none is lost because of another.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import polars as pl

from pyarctic.errors import Unavailable
from pyarctic.iceberg.commit import Change, Committed, Rejected
from pyarctic.iceberg.delete import PARTITION_KEY, match_deletes
from pyarctic.iceberg.manifest import FILE_IDENTITY, FILE_SCHEMA, IS_DATA, PartitionDecoder
from pyarctic.optimizing.commit.committer import Committer, FinishedTask, was_rolled_back
from pyarctic.optimizing.plan.planning import Plan
from pyarctic.optimizing.protocol.tasks import OPTIMIZING_KINDS, Task
from pyarctic.tables import KeyedTable, Table, remove_outputs
from pyarctic.tables.format import (
    MERGED_SUMMARY,
    Node,
    merged_sequences,
    parse_change_file_names,
    parse_file_names,
    write_merged_sequences,
)
from pyarctic.tables.read import competing_base_files

_ATTEMPTS = 20
"""Times that a change is made anew because others have committed to Base: other partitions of it, mostly."""
_COMMIT_SECONDS = 60.0
Partition = tuple[int, str]


@dataclass(kw_only=True)
class _Part:
    """The tasks of one partition."""

    key: Partition
    path: str
    merged: int
    sequence: int | None
    """How far it was merged and will be; None: it has no changes to merge."""
    waiting: set[int] = field(default_factory=set)
    done: list[FinishedTask] = field(default_factory=list)
    failed: str | None = None


class KeyedCommitter(Committer):
    """Commits partitions whose tasks are all done."""

    def __init__(self, table: Table, plan: Plan, process_id: str, say: Callable[[str], None]) -> None:
        super().__init__(table, plan, process_id, say)
        self._parts = _parts_of(plan)
        self._ready: list[_Part] = []
        self._last_commit = time.monotonic()

    def _took(self, done: FinishedTask) -> None:
        part = self._part_of(done.task)
        part.waiting.discard(done.task.id)
        if part.failed is not None:
            self._drop(done, part.failed)
            return
        part.done.append(done)
        if not part.waiting:
            self._ready.append(part)
        if self._ready and time.monotonic() - self._last_commit > _COMMIT_SECONDS:
            self._commit_ready()

    def fail(self, task: Task) -> None:
        """The partition stays as it is."""
        part = self._part_of(task)
        part.waiting.discard(task.id)
        part.failed = f"task {task.id} of the same partition failed"
        for done in part.done:
            self._drop(done, part.failed)
        part.done.clear()

    def finish(self) -> None:
        self._commit_ready()
        if self._plan.dangling_deletes.height:
            self._commit([])

    def _part_of(self, task: Task) -> _Part:
        return self._parts[_partition(task)]

    def _commit_ready(self) -> None:
        ready, self._ready = self._ready, []
        for kind in OPTIMIZING_KINDS:  # a snapshot tells one for all its files
            if parts := [part for part in ready if part.done[0].task.kind == kind]:
                self._commit(parts)
        self._last_commit = time.monotonic()

    def _commit(self, parts: Sequence[_Part]) -> None:
        """What fits the table as it is by now. Refused together, partitions are tried one by one. Without any, deletes that
        hit nothing are removed."""
        reason = "others kept committing first"
        for _ in range(_ATTEMPTS):
            fitting = self._still_true(self._not_landed(parts))
            if parts and not fitting:
                return
            parts = fitting
            done = [one for part in parts for one in part.done]
            change = self._change(parts, done)
            statistics = [file.statistics_path for file in change.statistics]
            try:
                outcome = self._offered(change, done)
            except Unavailable:  # nothing was sent
                remove_outputs(self._table, statistics, since=change.start)
                raise
            if isinstance(outcome, Committed):
                self._settle(done, outcome, change)
                return
            remove_outputs(self._table, statistics, since=change.start)
            if not (isinstance(outcome, Rejected) and outcome.code == "moved"):
                reason = outcome.reason
                break
        if len(parts) > 1 and not was_rolled_back(outcome):
            for part in parts:
                self._commit([part])
            return
        for one in [one for part in parts for one in part.done]:
            self._drop(one, reason)

    def _not_landed(self, parts: Sequence[_Part]) -> list[_Part]:
        """Those that are not in the table yet: all tasks of a partition are, or none is."""
        waiting = {one.task.id for one in self._without_landed([one for part in parts for one in part.done])}
        return [part for part in parts if all(one.task.id in waiting for one in part.done)]

    def _still_true(self, parts: Sequence[_Part]) -> list[_Part]:
        """Those whose partitions are as the plan knew them; the others are dropped."""
        seen = _Meanwhile(self._table, self._plan)
        fitting: list[_Part] = []
        for part in parts:
            reason = seen.spoils(part)
            if reason is None:
                fitting.append(part)
            for one in part.done if reason else ():
                self._drop(one, reason or "")
        return fitting

    def _change(self, parts: Sequence[_Part], done: Sequence[FinishedTask]) -> Change:
        view = self._table.view
        merged = {part.path: part.sequence for part in parts if part.sequence is not None}
        add = tuple(file for one in done for file in one.result.add)
        remove = pl.concat([self._replaced(done), self._superseded(done)]) if parts else self._plan.dangling_deletes
        change = Change(
            start=self._plan.observation.snapshot_id,
            add=add,
            remove=remove,
            rewrites=not merged,
            empty=not add and remove.is_empty(),
            proof=self._proof(done) if parts else None,
            row_map=self._row_map(done),
            alone=True,
            checked_at=view.snapshot_id,
            snapshot_properties={**self._marks(done), "snapshot.producer": "OPTIMIZE", **MERGED_SUMMARY},
        )
        # Also if nothing more is merged: snapshots before it may be expired, and what they tell with them.
        return replace(change, statistics=(write_merged_sequences(view.metadata, view.io, change.snapshot_id, merged),))

    def _replaced(self, done: Sequence[FinishedTask]) -> pl.DataFrame:
        paths = {path for one in done for path in one.task.replaced["file_path"]}
        return self._plan.evaluation.files.filter(pl.col("file_path").is_in(list(paths))).select(FILE_SCHEMA.names())

    def _superseded(self, done: Sequence[FinishedTask]) -> pl.DataFrame:
        """Position deletes that hit nothing any more but files of which all dead rows are told anew."""
        matches = self._plan.observation.matches
        told = {path for one in done for path in one.task.replaced["file_path"]} | _restated(done)
        columns = FILE_SCHEMA.names()
        deletes = pl.concat([*matches.by_kind.values(), matches.vectors]).select(columns)
        staying = matches.data.filter(~pl.col("file_path").is_in(list(told))).select(columns)
        decoder = PartitionDecoder(self._plan.observation.metadata)
        unused = match_deletes(pl.concat([staying, deletes]), decoder.unpartitioned_specs()).unused().select(columns)
        known = pl.concat([self._plan.dangling_deletes, self.ledger.removed_deletes])
        return unused.join(known, on=FILE_IDENTITY, how="anti", nulls_equal=True)


class _Meanwhile:
    """What others have done to both stores since the plan. Deletes that have arrived mostly do no harm: they are moved over
    to the new files."""

    def __init__(self, table: Table, plan: Plan) -> None:
        assert isinstance(table, KeyedTable)  # noqa: S101
        assert plan.observation.changes is not None  # noqa: S101  # of a keyed table
        self._table, self._plan = table, plan
        self._known = plan.observation.changes.sequence_number

    def spoils(self, part: _Part) -> str | None:
        """Why the tasks of a partition cannot be committed any more."""
        if part.key in self._late and self._late[part.key] <= max(_transaction(one) for one in part.done):
            return "changes of an older transaction were committed meanwhile"
        if part.sequence is None or self._table.view.snapshot_id == self._plan.observation.snapshot_id:
            return None
        if self._merged.get(part.path, -1) != part.merged:
            return "its changes were merged or overwritten by others meanwhile"
        if part.key in self._grown:
            return "others have put rows into its Base meanwhile"
        if part.key in self._lessened and any(_silences_changes(one.task) for one in part.done):
            return "others have deleted rows of its Base meanwhile, which may have won over changes"
        return None

    @cached_property
    def _late(self) -> dict[Partition, int]:
        """The oldest transaction of changes that came since, in each partition. Rows that were written together are as old
        as the youngest of them: an older transaction would not be seen in all of them."""
        listed = self._table.change_store.file_list.frame()
        came = parse_change_file_names(listed.filter(pl.col("data_sequence_number") > self._known))
        oldest = came.group_by(PARTITION_KEY).agg(pl.col("transaction_id").min())
        return {(spec_id, key): number for spec_id, key, number in oldest.iter_rows()}

    @cached_property
    def _merged(self) -> dict[str, int]:
        view = self._table.view
        return merged_sequences(view.metadata, view.io, view.metadata.current_snapshot())

    @cached_property
    def _grown(self) -> set[Partition]:
        data = self._table.file_list.frame().filter(IS_DATA)
        return _places(data.join(self._plan.evaluation.files, on="file_path", how="anti"))

    @cached_property
    def _lessened(self) -> set[Partition]:
        """Where rows were deleted, or whole files."""
        now, matches = self._table.file_list.frame(), self._plan.observation.matches
        known = pl.concat([*matches.by_kind.values(), matches.vectors]).select(FILE_IDENTITY)
        came = now.filter(~IS_DATA).join(known, on=FILE_IDENTITY, how="anti", nulls_equal=True)
        return _places(came) | _places(matches.data.join(now, on="file_path", how="anti"))


def _places(files: pl.DataFrame) -> set[Partition]:
    return set(files.select(PARTITION_KEY).unique().iter_rows())


def _transaction(done: FinishedTask) -> int:
    """That of the new files."""
    assert done.task.keyed is not None  # noqa: S101
    return done.task.keyed.transaction_id


def _silences_changes(task: Task) -> bool:
    """Whether rows of Base may win over rows that were inserted by older transactions. If they go, those count."""
    assert task.keyed is not None  # noqa: S101
    inserts = parse_change_file_names(task.keyed.changes).filter(pl.col("kind") != "ED")
    return competing_base_files(parse_file_names(task.data, "base"), inserts).height > 0


def _restated(done: Sequence[FinishedTask]) -> set[str]:
    """Files that stay, and of which all dead rows are told anew. Of a file above the level that is written, each task tells
    those of its node; so all nodes below it must have told theirs."""
    told: Counter[str] = Counter()
    nodes: dict[str, int] = {}
    for one in done:
        told.update(one.result.restated)
        if one.task.keyed is not None and one.result.restated:
            mask = Node.of_id(one.task.keyed.node_id).mask
            kept = parse_file_names(one.task.data, "base").select("file_path", "node_id")
            for path, node_id in kept.filter(pl.col("file_path").is_in(one.result.restated)).iter_rows():
                own = Node.of_id(node_id).mask
                nodes[path] = (mask + 1) // (own + 1) if own < mask else 1
    return {path for path, count in told.items() if count >= nodes[path]}


def _partition(task: Task) -> Partition:
    assert task.partition_key is not None  # noqa: S101  # a keyed table's rows stay in their partition
    return task.spec_id, task.partition_key


def _parts_of(plan: Plan) -> dict[Partition, _Part]:
    assert plan.keyed is not None  # noqa: S101
    told = {(row["spec_id"], row["partition"]): row for row in plan.keyed.merges.iter_rows(named=True)}
    parts: dict[Partition, _Part] = {}
    for task in plan.tasks:
        key = _partition(task)
        row = told.get(key, {})
        part = _Part(key=key, path=row.get("path", ""), merged=row.get("merged", -1), sequence=row.get("sequence"))
        parts.setdefault(key, part).waiting.add(task.id)
    return parts
