"""The changes that commit units of a plan make: pure, apart from reading row maps and merged sequences."""

from __future__ import annotations

import io as memory
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from pyarctic.errors import UsageError
from pyarctic.iceberg import open_input, read_bytes
from pyarctic.iceberg.commit import ROLLBACK_ON_CONFLICT, Change, Proof
from pyarctic.iceberg.delete import match_deletes
from pyarctic.iceberg.manifest import EQUALITY_DELETES, FILE_IDENTITY, FILE_SCHEMA, POSITION_DELETES, PartitionDecoder
from pyarctic.iceberg.write.parquet import RowGroupSource, check_pages
from pyarctic.optimizing.commit.log import CommitLog, CommitRecord, FinishedTask
from pyarctic.optimizing.commit.units import CommitUnit
from pyarctic.optimizing.observe.history import KIND, PROCESS, SPEC, TASKS, format_ids
from pyarctic.optimizing.plan.commit_plan import CommitPlan
from pyarctic.optimizing.plan.start_files import StartFiles
from pyarctic.optimizing.protocol.task import KeyedTask
from pyarctic.tables import Table
from pyarctic.tables.format import Node, parse_file_names, record_merged_sequences

_MAX_RUNS_IN_MEMORY = 1_000_000
UNITS = "arctic.units"
"""In the summary: the ids of the commit units of a snapshot, as ranges."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Contents:
    """What a commit is made of: units with the results of all their tasks."""

    units: Sequence[CommitUnit]
    finished: Sequence[FinishedTask]

    @property
    def is_complete(self) -> bool:
        """Whether no result is missing."""
        return {task.id for unit in self.units for task in unit.tasks} == {each.task.id for each in self.finished}

    @property
    def replaced(self) -> set[str]:
        """The data files that are replaced."""
        return {path for each in self.finished for path in each.task.replaced["file_path"]}


class ChangeBuilder:
    """Builds the changes of one plan."""

    def __init__(self, table: Table, plan: CommitPlan, start: StartFiles) -> None:
        self._table = table
        self._plan = plan
        self._matches = start.matches
        columns = FILE_SCHEMA.names()
        self._deletes = pl.concat([*start.matches.by_kind.values(), start.matches.vectors]).select(columns)
        self._data = start.matches.data.select(columns)

    def removable_deletes(self, contents: Contents, in_table: Sequence[FinishedTask], log: CommitLog) -> pl.DataFrame:
        """Deletes of the planned snapshot that apply to nothing once these units are in the table, and did so before. Those
        that never did get a commit of their own: its outcome must not concern these units."""
        removed = pl.concat([self._plan.dangling_deletes, log.removed_deletes])
        if self._plan.keyed is not None:
            handled = contents.replaced | _files_with_rewritten_deletes(contents)
            return _without(self._unmatched(self._deletes, handled), removed)
        return _without(self._dangling([*in_table, *contents.finished], log), removed)

    def live_dangling_deletes(self, in_table: Sequence[FinishedTask], log: CommitLog) -> pl.DataFrame:
        """Those that are still in the table: a commit also removes deletes that name a replaced file, and other processes
        may remove the same ones."""
        deletes = self.dangling_deletes(in_table, log)
        if deletes.is_empty() or self._table.view.snapshot_id == self._plan.job.snapshot_id:
            return deletes
        # The table keeps the list of the planned files, whose manifests the next commit is going to need.
        reader = self._table.reader()
        live = reader.files_of(reader.manifests(self._table.view.metadata.current_snapshot()))
        return deletes.join(live, on=FILE_IDENTITY, how="semi", nulls_equal=True)

    def dangling_deletes(self, in_table: Sequence[FinishedTask], log: CommitLog) -> pl.DataFrame:
        """Deletes of the planned snapshot that apply to nothing, and that no commit of the plan has removed."""
        if self._plan.keyed is not None:
            return self._plan.dangling_deletes
        return self._dangling(in_table, log)

    def build(self, record: CommitRecord, contents: Contents, log: CommitLog) -> Change:
        """The change of a record. The same record gives the same change, whoever asks for it."""
        if [unit.id for unit in contents.units] != list(record.units) or not contents.is_complete:
            raise UsageError(
                f"the commit of snapshot {record.snapshot_id} needs the results of all its tasks",
                hint="Give the committer all results that are stored.",
            )
        if self._plan.keyed is not None:
            return self._keyed_change(record, contents)
        converts = record.step == "convert"
        replaced = self._data.filter(pl.col("file_path").is_in(list(contents.replaced)))
        marks = ROLLBACK_ON_CONFLICT if self._plan.marks_rollback and not converts else {}
        is_merge = record.step == "merge"
        return Change(
            start=self._plan.job.snapshot_id,
            add=tuple(file for each in contents.finished for file in each.result.add),
            remove=pl.concat([replaced, record.removed_deletes]),
            rewrites=True,
            converts=converts,
            proof=_proof(contents.finished) if is_merge else None,
            row_map=self._row_map(contents.finished) if is_merge else None,
            requires=tuple(each.snapshot_id for each in log.landed),
            snapshot_properties=_snapshot_properties(self._plan, contents) | marks,
            snapshot_id=record.snapshot_id,
        )

    def _keyed_change(self, record: CommitRecord, contents: Contents) -> Change:
        view = self._table.view
        merged = {unit.merge.path: unit.merge.sequence for unit in contents.units if unit.merge is not None}
        add = tuple(file for each in contents.finished for file in each.result.add)
        replaced = self._data.filter(pl.col("file_path").is_in(list(contents.replaced)))
        remove = pl.concat([replaced, record.removed_deletes])
        change = Change(
            start=self._plan.job.snapshot_id,
            add=add,
            remove=remove,
            rewrites=not merged,
            empty=not add and remove.is_empty(),
            proof=_proof(contents.finished) if contents.units else None,
            row_map=self._row_map(contents.finished),
            alone=True,
            checked_at=view.snapshot_id,
            snapshot_properties={**_snapshot_properties(self._plan, contents), "snapshot.producer": "OPTIMIZE"},
            snapshot_id=record.snapshot_id,
        )
        # Also if nothing more is merged: earlier snapshots may be expired, and their merged sequences with them.
        return record_merged_sequences(view.metadata, view.io, change.snapshot_id, merged).add_to(change)

    def _dangling(self, in_table: Sequence[FinishedTask], log: CommitLog) -> pl.DataFrame:
        deletes = _without(self._deletes, log.removed_deletes)
        if deletes.is_empty():
            return deletes
        merged = {path for each in in_table if each.task.action == "merge" for path in each.task.data["file_path"]}
        probed = {path for each in in_table if each.task.action == "convert" for path in each.task.data["file_path"]}
        with_vectors = {str(file.referenced_data_file) for each in in_table for file in each.result.add if file.is_vector}
        dangling = [self._unmatched(deletes, merged)]
        # Equality deletes whose keys were probed, and positions that a vector has, are not needed by these files any more.
        for content, handled in ((EQUALITY_DELETES, probed), (POSITION_DELETES, with_vectors)):
            if handled:
                dangling.append(self._unmatched(deletes.filter(pl.col("content") == content), merged | handled))
        return pl.concat(dangling).unique(FILE_IDENTITY, maintain_order=True)

    def _unmatched(self, deletes: pl.DataFrame, handled: set[str]) -> pl.DataFrame:
        """Deletes that apply to no data file but those that are handled."""
        kept = self._data.filter(~pl.col("file_path").is_in(list(handled)))
        unpartitioned = PartitionDecoder(self._plan.job.metadata).unpartitioned_specs()
        return match_deletes(pl.concat([kept, deletes]), unpartitioned).unused().select(FILE_SCHEMA.names())

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


def empty_change(table: Table, plan: CommitPlan, record: CommitRecord) -> Change:
    """A snapshot without files, which moves the branch on. Its metadata files count as those of the record that is ended."""
    # Alone: on another head it is not needed, and would bring back merged sequences that others have changed since.
    view = table.view
    properties = _snapshot_properties(plan, Contents(units=(), finished=()))
    ended = record.snapshot_id
    change = Change(start=view.snapshot_id, empty=True, alone=True, snapshot_properties=properties, written_for=ended)
    if plan.keyed is None:
        return change
    return record_merged_sequences(view.metadata, view.io, change.snapshot_id, {}, names_of=ended).add_to(change)


def _snapshot_properties(plan: CommitPlan, contents: Contents) -> dict[str, str]:
    kinds = sorted({unit.kind for unit in contents.units}) or ["minor"]
    properties = {PROCESS: plan.process_id, KIND: ",".join(kinds), SPEC: str(plan.job.metadata.default_spec_id)}
    if contents.units:
        properties |= {
            UNITS: format_ids(unit.id for unit in contents.units),
            TASKS: format_ids(each.task.id for each in contents.finished),
        }
    return properties


def _without(deletes: pl.DataFrame, removed: pl.DataFrame) -> pl.DataFrame:
    return deletes.join(removed, on=FILE_IDENTITY, how="anti", nulls_equal=True)


def _proof(finished: Sequence[FinishedTask]) -> Proof:
    results = [each.result for each in finished]
    return Proof(
        rows_in=sum(result.rows_in for result in results),
        rows_deleted=sum(result.rows_deleted for result in results),
        rows_out=sum(result.rows_out for result in results),
        rows_from_changes=sum(result.rows_from_changes for result in results),
        hash_in=_join_hashes([result.hash_in for result in results]),
        hash_out=_join_hashes([result.hash_out for result in results]),
    )


def _join_hashes(hashes: Sequence[str | None]) -> str | None:
    return " ".join(map(str, hashes)) if all(hashes) else None


def _files_with_rewritten_deletes(contents: Contents) -> set[str]:
    """Kept files whose deleted rows are all listed again. For a file above the level that is written, each task lists those
    of its node; so all nodes below it must have listed theirs."""
    listings: Counter[str] = Counter()
    needed: dict[str, int] = {}
    for each in contents.finished:
        paths, task = each.result.files_with_rewritten_deletes, each.task
        if not paths or not isinstance(task, KeyedTask):
            continue
        listings.update(paths)
        mask = Node.of_id(task.node_id).mask
        files = parse_file_names(task.data, "base").filter(pl.col("file_path").is_in(paths))
        for path, node_id in files.select("file_path", "node_id").iter_rows():
            file_mask = Node.of_id(node_id).mask
            needed[path] = (mask + 1) // (file_mask + 1) if file_mask < mask else 1
    return {path for path, count in listings.items() if count >= needed[path]}
