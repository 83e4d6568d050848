"""The part of a plan that executing and committing need, as data: whoever has it can commit results of its tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Self

import polars as pl

from pyarctic.optimizing.protocol.job import Job
from pyarctic.optimizing.protocol.task import Task
from pyarctic.optimizing.protocol.task_files import FileNumbers, NumberedFiles
from pyarctic.optimizing.protocol.wire import Fields, id_to_text, pack, to_document, unpack


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """What is merged into one partition of a keyed table."""

    path: str
    """The name of the partition in the list of merged sequences."""
    merged: int
    """The sequence number of the change store that it was merged up to when it was planned; -1: nothing was."""
    sequence: int
    """The one that it will be merged up to."""


@dataclass(frozen=True, kw_only=True, eq=False)
class KeyedPart:
    """What only plans of keyed tables have."""

    change_snapshot_id: int | None
    """The snapshot of the change store when it was planned."""
    change_sequence_number: int
    """The newest commit of the change store that was seen."""
    merges: Mapping[tuple[int, str], Merge]
    """By spec id and partition key. Partitions without changes and foreign files have none."""

    def to_json(self) -> dict[str, Any]:
        """This part of the document of a plan."""
        return {
            "change_snapshot_id": id_to_text(self.change_snapshot_id),
            "change_sequence_number": self.change_sequence_number,
            "merges": [
                {"spec_id": spec_id, "partition_key": key, **asdict(merge)} for (spec_id, key), merge in self.merges.items()
            ],
        }

    @classmethod
    def from_json(cls, document: object) -> Self:
        """The part of a document."""
        given = Fields(document, "plan")
        merges = [Fields(merge, "plan") for merge in given.objects("merges")]
        return cls(
            change_snapshot_id=given.optional_id("change_snapshot_id"),
            change_sequence_number=given.number("change_sequence_number"),
            merges={
                (merge.number("spec_id"), merge.text("partition_key")): Merge(
                    path=merge.text("path"), merged=merge.number("merged"), sequence=merge.number("sequence")
                )
                for merge in merges
            },
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class CommitPlan:
    """A plan without the evaluation that led to it. With the table, which still has the start snapshot (`load_start`), it is
    all that is needed to execute its tasks and to commit their results."""

    process_id: str
    job: Job
    tasks: tuple[Task, ...]
    dangling_deletes: pl.DataFrame
    """Delete files that applied to nothing when it was planned, as FILE_SCHEMA."""
    ignores_writers: bool
    """Whether commits do not wait for a pause of other writers."""
    marks_rollback: bool
    """Whether commits of merges are marked so that the catalog may roll them back in favour of a writer."""
    quiet_time: timedelta
    """How long after a statement its writer counts as active."""
    keyed: KeyedPart | None
    figures: Mapping[str, int]
    """What it is expected to read and write, as `Plan.figures`."""

    def to_bytes(self) -> bytes:
        """This plan as it is stored."""
        return pack(self.to_json())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """A stored plan."""
        return cls.from_json(unpack(data))

    def to_json(self) -> dict[str, Any]:
        """This plan as a JSON document."""
        numbers = FileNumbers()
        values = {
            "process_id": self.process_id,
            "job": self.job.to_json(),
            "tasks": [task.to_fields(numbers) for task in self.tasks],
            "dangling_deletes": numbers.write_files(self.dangling_deletes),
            "ignores_writers": self.ignores_writers,
            "marks_rollback": self.marks_rollback,
            "quiet_seconds": self.quiet_time.total_seconds(),
            "keyed": None if self.keyed is None else self.keyed.to_json(),
            "expected": dict(self.figures),
        }
        return to_document("plan", values | {"files": numbers.to_json()})

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The plan of a JSON document."""
        given = Fields.of(document, "plan")
        files = NumberedFiles.from_json(given, "files")
        expected = Fields(given.value("expected"), "plan")
        return cls(
            process_id=given.text("process_id"),
            job=Job.from_json(given.value("job")),
            tasks=tuple(Task.from_fields(Fields(task, "task"), files) for task in given.objects("tasks")),
            dangling_deletes=files.read_files(given, "dangling_deletes"),
            ignores_writers=given.flag("ignores_writers"),
            marks_rollback=given.flag("marks_rollback"),
            quiet_time=timedelta(seconds=given.decimal("quiet_seconds")),
            keyed=None if given.value("keyed") is None else KeyedPart.from_json(given.value("keyed")),
            figures={name: expected.number(name) for name in given.value("expected")},
        )
