"""Plans: the tasks of one optimizing process, and what they are expected to read and write."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import polars as pl
from pyiceberg.table.metadata import TableMetadataV1

from pyarctic.iceberg.delete import PARTITION_KEY
from pyarctic.optimizing.evaluate.evaluation import Evaluation
from pyarctic.optimizing.observe.changes import PendingChanges
from pyarctic.optimizing.observe.observation import Observation
from pyarctic.optimizing.plan.commit_plan import CommitPlan, KeyedPart, Merge
from pyarctic.optimizing.plan.keyed import waiting_partitions
from pyarctic.optimizing.protocol.job import Job, job_metadata
from pyarctic.optimizing.protocol.task import Action, KeyedTask, Task
from pyarctic.optimizing.protocol.wire import id_to_text
from pyarctic.units import format_count, format_timestamp

COMMIT_TASKS = 64
"""The number of merges of a native table that are committed together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingChanges:
    """Changes of a keyed table that are not merged yet, because a transaction was begun before them and is not committed."""

    transaction: int
    """The oldest such transaction."""
    until: datetime | None
    """Until when it is waited for."""
    change_files: int
    partitions: int
    """The number of partitions that are not merged as far as they could be, or not optimized at all."""

    def to_dict(self) -> dict[str, Any]:
        """These changes as a JSON document."""
        return asdict(self) | {"until": None if self.until is None else format_timestamp(self.until)}

    def __str__(self) -> str:
        until = "" if self.until is None else f", until {format_timestamp(self.until)} at the latest"
        amount = f"files: {format_count(self.change_files)}, partitions: {format_count(self.partitions)}"
        return (
            f"changes wait for transaction {self.transaction}, which was begun and is neither committed nor ended{until} "
            f"({amount})"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan(ABC):
    """What is to be done, and what it is expected to come to."""

    process_id: str
    job_id: str
    """The names of all files that tasks write contain it."""
    evaluation: Evaluation
    partitions: pl.DataFrame
    """The requested partitions of the evaluation, with the kind that was chosen for each, and its causes."""
    tasks: tuple[Task, ...]
    dangling_deletes: pl.DataFrame
    """Delete files that apply to nothing and can be removed at once."""
    left_out: int
    """The number of partitions that need optimizing and did not fit into this plan."""

    def __bool__(self) -> bool:
        return bool(self.tasks) or self.dangling_deletes.height > 0

    @property
    def observation(self) -> Observation:
        """The table as it was when it was planned."""
        return self.evaluation.observation

    @property
    def held_back(self) -> pl.DataFrame:
        """Partitions that need optimizing and wait for their writers."""
        return self.partitions.filter(pl.col("kind").is_not_null() & pl.col("is_busy"))

    @property
    def waiting_changes(self) -> WaitingChanges | None:
        """The changes that wait for a transaction."""
        return None

    @property
    def change_files(self) -> int:
        """The number of files of the change store that are merged."""
        return 0

    def tasks_of(self, action: Action) -> list[Task]:
        """The tasks with this action."""
        return [task for task in self.tasks if task.action == action]

    def figures(self) -> dict[str, int]:
        """What the plan is expected to read and write."""
        merges, converts = self.tasks_of("merge"), self.tasks_of("convert")
        return {
            "tasks": len(self.tasks),
            "data_files_in": sum(task.replaced.height for task in merges),
            "data_files_out": sum(expected_files(task) for task in merges),
            "data_files_out_least": sum(task.files_out[0] if task.files_out else expected_files(task) for task in merges),
            "data_files_out_most": sum(task.files_out[2] if task.files_out else expected_files(task) for task in merges),
            "change_files_in": self.change_files,
            "read_bytes": sum(task.input_bytes for task in merges),
            "written_bytes": sum(task.expected_bytes for task in merges),
            "rows_out": sum(task.expected_rows for task in merges),
            "data_files_converted": sum(task.data.height for task in converts),
            "dangling_delete_files": self.dangling_deletes.height,
            "commits": self._count_commits(),
        }

    def to_json(self) -> dict[str, Any]:
        """The tasks with their inputs; without secrets, for readers in any language."""
        return {
            "table": self.observation.table,
            "snapshot_id": id_to_text(self.observation.snapshot_id),
            "expected": self.figures(),
            "tasks": [task.to_json() for task in self.tasks],
            "dangling_deletes": json.loads(self.dangling_deletes.select("file_path", "content_offset").write_json()),
        }

    def make_job(self, *, memory_bytes: int, verify: bool = False) -> Job:
        """What the tasks share when they are executed. `memory_bytes`: the memory of one task."""
        return Job(
            id=self.job_id,
            table=self.observation.table,
            metadata=job_metadata(self.observation.metadata),
            snapshot_id=self.observation.snapshot_id,
            sequence_number=self._sequence_number(),
            memory_bytes=memory_bytes,
            verify=verify,
        )

    def to_commit_plan(self, *, memory_bytes: int, verify: bool = False) -> CommitPlan:
        """The part of this plan that executing and committing need. `memory_bytes`: the memory of one task."""
        return CommitPlan(
            process_id=self.process_id,
            job=self.make_job(memory_bytes=memory_bytes, verify=verify),
            tasks=self.tasks,
            dangling_deletes=self.dangling_deletes,
            ignores_writers=self._ignores_writers(),
            marks_rollback=self._marks_rollback(),
            quiet_time=self.observation.settings.quiet_time,
            keyed=self._keyed_part(),
            figures=self.figures(),
        )

    @abstractmethod
    def _count_commits(self) -> int:
        """The number of commits, if tasks take less than a minute."""

    @abstractmethod
    def _sequence_number(self) -> int | None: ...

    @abstractmethod
    def _ignores_writers(self) -> bool: ...

    @abstractmethod
    def _marks_rollback(self) -> bool: ...

    @abstractmethod
    def _keyed_part(self) -> KeyedPart | None: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class NativePlan(Plan):
    """The plan of an Iceberg table without a primary key."""

    ignores_writers: bool

    def _count_commits(self) -> int:
        merges = self.tasks_of("merge")
        full = sum(task.kind == "full" for task in merges)
        batches = -(-full // COMMIT_TASKS) - (-(len(merges) - full) // COMMIT_TASKS)
        return batches + bool(self.tasks_of("convert")) + bool(self.dangling_deletes.height)

    def _sequence_number(self) -> int | None:
        """Rewritten files keep the sequence number they were planned at, so that later equality deletes apply to them."""
        metadata, snapshot_id = self.observation.metadata, self.observation.snapshot_id
        if snapshot_id is None or isinstance(metadata, TableMetadataV1):
            return None
        snapshot = metadata.snapshot_by_id(snapshot_id)
        return (snapshot.sequence_number if snapshot else None) or 0

    def _ignores_writers(self) -> bool:
        return self.ignores_writers or not self.observation.settings.writers_first

    def _marks_rollback(self) -> bool:
        return self.observation.settings.writers_first

    def _keyed_part(self) -> KeyedPart | None:
        return None


@dataclass(frozen=True, kw_only=True, eq=False)
class KeyedPlan(Plan):
    """The plan of a keyed table: changes are merged into the base store."""

    tasks: tuple[KeyedTask, ...]
    changes: PendingChanges
    """The change store as it was when it was planned."""
    merges: pl.DataFrame
    """The partitions that are merged: `path`, `merged` (the sequence number they were merged up to) and `sequence` (the one
    they will be merged up to)."""
    tree: pl.DataFrame
    """A row for each node with files: `base_files`, `insert_files`, `delete_files`, `bytes`, the `root` of its sub-tree, the
    number of key ranges (`groups`) in that, and the `mask` of the level it is written at."""

    @property
    def waiting_changes(self) -> WaitingChanges | None:
        """The changes that wait for a transaction, and the partitions that wait with them."""
        oldest_open = self.changes.oldest_open
        held = self.changes.partitions.filter(pl.col("held_files") > 0)
        held = held.join(self.partitions, on=PARTITION_KEY, how="semi")
        due = self.partitions.filter(pl.col("kind").is_not_null())
        waiting = due.join(waiting_partitions(self.evaluation, self.changes), on=PARTITION_KEY, how="semi")
        partitions = pl.concat([held.select(PARTITION_KEY), waiting.select(PARTITION_KEY)]).n_unique()
        if oldest_open is None or not partitions:
            return None
        files = int(held["held_files"].sum())
        return WaitingChanges(
            transaction=oldest_open, until=self.changes.open_until, change_files=files, partitions=partitions
        )

    @property
    def change_files(self) -> int:
        """The number of files of the change store that are merged."""
        return int(self.tree["insert_files"].sum()) + int(self.tree["delete_files"].sum())

    def _count_commits(self) -> int:
        return len({task.kind for task in self.tasks}) + bool(self.dangling_deletes.height)

    def _sequence_number(self) -> int | None:
        return None  # the base store has no equality deletes

    def _ignores_writers(self) -> bool:
        return True  # they append to the change store, and conflict with nothing

    def _marks_rollback(self) -> bool:
        return False

    def _keyed_part(self) -> KeyedPart:
        return KeyedPart(
            change_snapshot_id=self.changes.snapshot_id,
            change_sequence_number=self.changes.sequence_number,
            merges={
                (row["spec_id"], row["partition"]): Merge(path=row["path"], merged=row["merged"], sequence=row["sequence"])
                for row in self.merges.iter_rows(named=True)
            },
        )


def expected_files(task: Task) -> int:
    """How many files a task is expected to write."""
    if task.files_out is not None:
        return task.files_out[1]
    return max(round(task.expected_bytes / task.target_bytes), 1) if task.expected_rows else 0
