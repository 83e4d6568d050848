"""Plans: the tasks of one optimizing process, and what they are expected to read and write."""

from __future__ import annotations

import json
import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import polars as pl
from pyiceberg.table.metadata import TableMetadataV1

from pyarctic.iceberg.write import random_id
from pyarctic.optimizing.evaluate.evaluation import Evaluation
from pyarctic.optimizing.observe.changes import PendingChanges
from pyarctic.optimizing.observe.observation import Observation
from pyarctic.optimizing.protocol.job import Job, job_metadata
from pyarctic.optimizing.protocol.task import Action, KeyedTask, Task


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan(ABC):
    """What is to be done, and what it is expected to come to."""

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
            "change_files_in": self.change_files,
            "read_bytes": sum(task.input_bytes for task in merges),
            "written_bytes": sum(task.expected_bytes for task in merges),
            "rows_out": sum(task.expected_rows for task in merges),
            "data_files_converted": sum(task.data.height for task in converts),
            "dangling_delete_files": self.dangling_deletes.height,
        }

    def to_json(self) -> dict[str, Any]:
        """The tasks with their inputs; without secrets, for readers in any language."""
        return {
            "table": self.observation.table,
            "snapshot_id": str(self.observation.snapshot_id),
            "expected": self.figures(),
            "tasks": [task.to_json() for task in self.tasks],
            "dangling_deletes": json.loads(self.dangling_deletes.select("file_path", "content_offset").write_json()),
        }

    def make_job(self, *, memory_bytes: int, verify: bool = False) -> Job:
        """What the tasks share when they are executed. `memory_bytes`: the memory of one task."""
        return Job(
            id=self._new_job_id(),
            table=self.observation.table,
            metadata=job_metadata(self.observation.metadata),
            snapshot_id=self.observation.snapshot_id,
            sequence_number=self._sequence_number(),
            memory_bytes=memory_bytes,
            verify=verify,
        )

    @abstractmethod
    def _new_job_id(self) -> str: ...

    @abstractmethod
    def _sequence_number(self) -> int | None: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class NativePlan(Plan):
    """The plan of an Iceberg table without a primary key."""

    ignores_writers: bool

    def _new_job_id(self) -> str:
        return str(uuid.uuid4())

    def _sequence_number(self) -> int | None:
        """Rewritten files keep the sequence number they were planned at, so that later equality deletes apply to them."""
        metadata, snapshot_id = self.observation.metadata, self.observation.snapshot_id
        if snapshot_id is None or isinstance(metadata, TableMetadataV1):
            return None
        snapshot = metadata.snapshot_by_id(snapshot_id)
        return (snapshot.sequence_number if snapshot else None) or 0


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
    def change_files(self) -> int:
        """The number of files of the change store that are merged."""
        return int(self.tree["insert_files"].sum()) + int(self.tree["delete_files"].sum())

    def _new_job_id(self) -> str:
        return str(random_id())  # file names of the shared format have a number in its place

    def _sequence_number(self) -> int | None:
        return None  # the base store has no equality deletes


def expected_files(task: Task) -> int:
    """How many files a task is expected to write."""
    return max(round(task.expected_bytes / task.target_bytes), 1) if task.expected_rows else 0
