"""Looking at a table before a commit: what has landed, what conflicts, and who else writes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import cast

import polars as pl

from pyarctic.errors import ArcticError
from pyarctic.iceberg.commit import referenced_files
from pyarctic.iceberg.delete import PARTITION_KEY
from pyarctic.iceberg.manifest import FILE_IDENTITY, IS_DATA
from pyarctic.optimizing.commit.log import FinishedTask
from pyarctic.optimizing.commit.units import CommitUnit, Partition
from pyarctic.optimizing.observe.history import (
    CADENCE_EVENTS,
    WRITERS_WINDOW,
    committed_tasks,
    recent_statements,
    writers_activity,
)
from pyarctic.optimizing.plan.commit_plan import CommitPlan
from pyarctic.optimizing.plan.start_files import StartFiles
from pyarctic.optimizing.protocol.task import KeyedTask
from pyarctic.tables import KeyedTable, Table
from pyarctic.tables.format import merged_sequences, parse_change_file_names, parse_file_names
from pyarctic.tables.read import competing_base_files

_MAX_WAIT_SECONDS = 10.0
_WAIT_QUIET_TIMES = 2
"""How long to wait for a pause of writers without a cadence: their statements may take longer than any we have seen."""


def find_landed(
    table: Table, plan: CommitPlan, units: Sequence[CommitUnit], finished: Sequence[FinishedTask]
) -> frozenset[int]:
    """Units that are in the table as it was loaded. The same results may be committed again by a process that does not know
    that they have landed."""
    paths = {path for each in finished for path in each.result.written}
    metadata = table.view.metadata
    try:
        referenced = referenced_files(metadata, table.reader(), paths, since=plan.job.snapshot_id)
    except ArcticError:  # of a snapshot that the commit does not need; the commit itself refuses files that are there
        referenced = set()
    named = committed_tasks(metadata, plan.process_id)  # includes tasks that wrote nothing
    in_table = {each.task.id for each in finished if each.task.id in named or not referenced.isdisjoint(each.result.written)}
    return frozenset(unit.id for unit in units if any(task.id in in_table for task in unit.tasks))


class WriterActivity:
    """Statements of other engines in the partitions of units, as of now."""

    def __init__(self, table: Table, plan: CommitPlan) -> None:
        self._table = table
        self._plan = plan
        self._read: dict[int, pl.DataFrame] = {}
        """The partitions of statements, by snapshot."""

    def of_units(self, units: Sequence[CommitUnit], now: datetime) -> tuple[set[int], timedelta, datetime | None]:
        """The units in partitions where others change rows now, how long to wait for a pause of these writers at most, and
        when the last statement in these partitions was committed."""
        partitions = pl.concat([task.data.select(PARTITION_KEY) for unit in units for task in unit.tasks]).unique()
        metadata = self._table.view.metadata
        statements = recent_statements(metadata, self._table.reader(), now - WRITERS_WINDOW, self._read)
        statements = statements.join(partitions, on=PARTITION_KEY, how="semi")
        activity = writers_activity(statements, self._plan.quiet_time, now).filter(pl.col("busy_until").is_not_null())
        if activity.is_empty():
            return set(), timedelta(0), None
        busy = {
            unit.id
            for unit in units
            if any(task.data.join(activity, on=PARTITION_KEY, how="semi").height for task in unit.tasks)
        }
        last = cast("datetime", activity["last_statement_at"].max())
        return busy, timedelta(seconds=self._pause_seconds(activity, units)), last

    def _pause_seconds(self, activity: pl.DataFrame, units: Sequence[CommitUnit]) -> float:
        """How long to wait for a pause at most: two intervals of a cadence, or some quiet times."""
        two_intervals = pl.min_horizontal(2 * pl.col("cadence_seconds"), _MAX_WAIT_SECONDS)
        quiet_times = self._plan.quiet_time.total_seconds() * _WAIT_QUIET_TIMES
        has_cadence = pl.col("statements") >= CADENCE_EVENTS
        seconds = float(activity.select(pl.when(has_cadence).then(two_intervals).otherwise(quiet_times).max()).item())
        # Conversions replace no data file.
        return min(seconds, _MAX_WAIT_SECONDS if units[0].action == "convert" else math.inf)


class ConcurrentChanges:
    """What others have done to both stores of a keyed table since the plan was made. Most deletes do no harm: they are moved
    over to the new files."""

    def __init__(self, table: KeyedTable, plan: CommitPlan, start: StartFiles) -> None:
        self._table, self._plan, self._matches = table, plan, start.matches

    def conflict_with(self, unit: CommitUnit) -> str | None:
        """Why the tasks of a partition cannot be committed any more; None: they can."""
        key = unit.partition
        if key is None:
            return None
        if key in self._late_transactions and self._late_transactions[key] <= unit.transaction_id:
            return "changes of an older transaction were committed meanwhile"
        if not self._change_files_as_planned(unit):
            return "others have removed changes from the change store meanwhile"
        if unit.merge is None or self._table.view.snapshot_id == self._plan.job.snapshot_id:
            return None
        if self._merged.get(unit.merge.path, -1) != unit.merge.merged:
            return "its changes were merged or overwritten by others meanwhile"
        if key in self._with_new_rows:
            return "others have put rows into its Base meanwhile"
        if key in self._with_deleted_rows and any(_may_supersede_inserts(task) for task in unit.keyed_tasks):
            return "others have deleted rows of its Base meanwhile, which may have won over changes"
        return None

    def _change_files_as_planned(self, unit: CommitUnit) -> bool:
        """Whether all rows that the unit brings into Base are still in the change store. Nobody may delete there; but if
        somebody did, they would come back for good."""
        merged = {path for task in unit.keyed_tasks for path in task.changes["file_path"]}
        return not (merged and self._has_new_deletes) and merged <= self._live_changes

    @cached_property
    def _live_changes(self) -> set[str]:
        return set(self._change_files["file_path"])

    @cached_property
    def _has_new_deletes(self) -> bool:
        sequence_number = self._plan.keyed.change_sequence_number if self._plan.keyed is not None else 0
        return not self._change_files.filter(~IS_DATA & (pl.col("data_sequence_number") > sequence_number)).is_empty()

    @cached_property
    def _change_files(self) -> pl.DataFrame:
        return self._table.change_store.file_list.frame()

    @cached_property
    def _late_transactions(self) -> dict[Partition, int]:
        """The oldest transaction of new changes, in each partition. Rows that are written together get the transaction id of
        the latest of them: changes of an older transaction would not apply to all of them."""
        sequence_number = self._plan.keyed.change_sequence_number if self._plan.keyed is not None else 0
        new_files = self._change_files.filter(pl.col("data_sequence_number") > sequence_number)
        oldest = parse_change_file_names(new_files).group_by(PARTITION_KEY).agg(pl.col("transaction_id").min())
        return {(spec_id, key): transaction_id for spec_id, key, transaction_id in oldest.iter_rows()}

    @cached_property
    def _merged(self) -> dict[str, int]:
        view = self._table.view
        return merged_sequences(view.metadata, view.io, view.metadata.current_snapshot())

    @cached_property
    def _with_new_rows(self) -> set[Partition]:
        data = self._table.file_list.frame().filter(IS_DATA)
        return _partitions_of(data.join(self._matches.data, on="file_path", how="anti"))

    @cached_property
    def _with_deleted_rows(self) -> set[Partition]:
        """The partitions in which rows or files were deleted."""
        files = self._table.file_list.frame()
        planned = pl.concat([*self._matches.by_kind.values(), self._matches.vectors]).select(FILE_IDENTITY)
        new_deletes = files.filter(~IS_DATA).join(planned, on=FILE_IDENTITY, how="anti", nulls_equal=True)
        return _partitions_of(new_deletes) | _partitions_of(self._matches.data.join(files, on="file_path", how="anti"))


def _partitions_of(files: pl.DataFrame) -> set[Partition]:
    return set(files.select(PARTITION_KEY).unique().iter_rows())


def _may_supersede_inserts(task: KeyedTask) -> bool:
    """Whether rows of the base store may win over other rows: over those that older transactions inserted, or as rows of a
    foreign file over other base rows. If they go, those count."""
    inserts = parse_change_file_names(task.changes).filter(pl.col("kind") != "ED")
    return bool(task.foreign) or competing_base_files(parse_file_names(task.data, "base"), inserts).height > 0
