"""What a task reads, and what all tasks of a job in one process share."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pyiceberg.io import FileIO, load_file_io
from pyiceberg.types import NestedField

from pyarctic.iceberg.catalog import apply_patches
from pyarctic.iceberg.delete import DeleteMatches, EqualityDeletes, PositionDeletes, match_deletes
from pyarctic.iceberg.manifest import PartitionDecoder
from pyarctic.iceberg.read import LAST_UPDATED, ROW_ID, TableReader, newest_first
from pyarctic.iceberg.write import FileNames, FileTarget
from pyarctic.optimizing.protocol.tasks import Job, Progress, ProgressListener, Task
from pyarctic.tables.format import StoreFileNames, StoreTarget

SHARE = 4
"""Deletes that are asked, rows that are sorted and rows that are encoded get this part of the memory each."""


@dataclass(kw_only=True)
class JobContext:
    """Where tasks of one job are worked on: the job, its storage, and indexes that the next task may need again."""

    job: Job
    io: FileIO

    @classmethod
    def opened(cls, job: Mapping[str, Any], io_properties: Mapping[str, str]) -> Self:
        """For a job as JSON. No catalog is asked: all that a task needs is in it."""
        apply_patches()  # before metadata of version 3 is read
        understood = Job.from_json(job)
        return cls(job=understood, io=load_file_io(dict(io_properties), understood.metadata.location))

    @cached_property
    def decoder(self) -> PartitionDecoder:
        return PartitionDecoder(self.job.metadata)

    @cached_property
    def equality(self) -> EqualityDeletes:
        schemas = [self.job.metadata.schema(), *newest_first(self.job.metadata)]
        return EqualityDeletes(self.io, schemas, self.job.memory_bytes // SHARE)

    @property
    def lineage(self) -> tuple[NestedField, ...]:
        return (ROW_ID, LAST_UPDATED) if self.job.keeps_lineage else ()


@dataclass(kw_only=True)
class Attempt:
    """One execution of a task."""

    bench: JobContext
    task: Task
    number: int
    listen: ProgressListener
    names: FileNames = field(init=False)
    rows: int = 0
    bytes: int = 0

    def __post_init__(self) -> None:
        named = FileNames if self.task.keyed is None else StoreFileNames
        self.names = named(self.task.id, self.number, self.bench.job.id)

    @property
    def job(self) -> Job:
        return self.bench.job

    @cached_property
    def matches(self) -> DeleteMatches:
        """The data files with the deletes that hit them."""
        return match_deletes(self.task.files, self.bench.decoder.unpartitioned_specs())

    def reading(self) -> TableReader:
        bench = self.bench
        wanted = self.task.data["file_path"].to_list()
        positions = PositionDeletes(bench.io, self.job.memory_bytes // SHARE, wanted)
        return TableReader(self.job.metadata, bench.io, self.matches, positions, bench.equality)

    def target(self, spec_id: int | None = None, key: str | None = None) -> FileTarget:
        """Where files of a partition go; by default that of the task. A task that is about several partitions uses the
        folder of none: its files are found by name if it is lost."""
        task = self.task
        spec = task.spec_id if spec_id is None else spec_id
        chosen = task.partition_key if key is None else key
        if chosen is None:
            values: tuple[object, ...] = (None,) * len(self.job.metadata.specs()[spec].fields)
        else:
            values = self.bench.decoder.values(spec, chosen)
        place: dict[str, Any] = {
            "metadata": self.job.metadata,
            "io": self.bench.io,
            "spec_id": spec,
            "partition": values,
            "names": self.names,
        }
        if task.keyed is not None:
            return StoreTarget(**place, node_id=task.keyed.node_id, kind="B", transaction_id=task.keyed.transaction_id)
        return FileTarget(**place, own_folder=task.partition_key is not None and task.action == "merge")

    def progress(self, rows: int, size: int) -> None:
        self.rows += rows
        self.bytes += size
        self.listen(Progress(task=self.task.id, rows=self.rows, bytes=self.bytes))


def peak_bytes() -> int:
    """Most memory that this process has had so far."""
    # Not getrusage where it can be helped: on Linux its maximum is inherited from the parent process.
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
