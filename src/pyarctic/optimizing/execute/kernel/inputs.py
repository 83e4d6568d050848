"""The context of an attempt: what all tasks of a job in one process share, what a task reads, and where it writes."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pyiceberg.io import FileIO, load_file_io
from pyiceberg.types import NestedField

from pyarctic.iceberg.delete import DeleteMatches, EqualityDeletes, PositionDeletes, match_deletes
from pyarctic.iceberg.manifest import PartitionDecoder
from pyarctic.iceberg.read import LAST_UPDATED, ROW_ID, TableReader, newest_first
from pyarctic.iceberg.write import FileNames, FileTarget
from pyarctic.optimizing.protocol.job import Job
from pyarctic.optimizing.protocol.result import Progress, ProgressListener
from pyarctic.optimizing.protocol.task import KeyedTask, Task
from pyarctic.tables.format import StoreFileNames, StoreTarget

EXECUTION_FILES = 100_000
"""Files of an execution are numbered from this many times its number."""
MEMORY_SHARES = 4
"""The memory is divided by this among deletes in memory, rows that are sorted, and rows that are encoded."""


def ignore_progress(_progress: Progress) -> None:
    """A listener for attempts whose progress nobody wants to know."""


@dataclass(kw_only=True)
class JobContext:
    """What tasks of one job in one process share: the job, its storage, and indexes that the next task may need again."""

    job: Job
    io: FileIO

    @classmethod
    def open(cls, job: Mapping[str, Any], io_properties: Mapping[str, str]) -> Self:
        """The context of a job in JSON. It has all that a task needs; no catalog is contacted."""
        parsed = Job.from_json(job)
        return cls(job=parsed, io=load_file_io(dict(io_properties), parsed.metadata.location))

    @cached_property
    def decoder(self) -> PartitionDecoder:
        """Decodes partition keys of the table."""
        return PartitionDecoder(self.job.metadata)

    @cached_property
    def equality(self) -> EqualityDeletes:
        """Equality deletes that were read."""
        schemas = [self.job.metadata.schema(), *newest_first(self.job.metadata)]
        return EqualityDeletes(self.io, schemas, self.job.memory_bytes // MEMORY_SHARES)

    @property
    def lineage(self) -> tuple[NestedField, ...]:
        """The columns of row lineage that outputs have."""
        return (ROW_ID, LAST_UPDATED) if self.job.keeps_lineage else ()

    @property
    def output_fields(self) -> tuple[NestedField, ...]:
        """All columns that outputs have."""
        return (*self.job.metadata.schema().fields, *self.lineage)


@dataclass(kw_only=True)
class Attempt:
    """One execution of an attempt at a task."""

    context: JobContext
    task: Task
    number: int = 0
    execution: int = 0
    """An engine may execute an attempt several times, if it lost an executor. Their files have different names."""
    listen: ProgressListener = ignore_progress
    names: FileNames = field(init=False)
    rows: int = 0
    bytes: int = 0

    def __post_init__(self) -> None:
        self.names = self.new_names()

    @property
    def job(self) -> Job:
        """The job that the task belongs to."""
        return self.context.job

    @cached_property
    def matches(self) -> DeleteMatches:
        """The data files with the deletes that apply to them."""
        return match_deletes(self.task.files, self.context.decoder.unpartitioned_specs())

    def new_names(self) -> FileNames:
        """The names of the attempt's files, from the first one on."""
        return FileNames(self.task.id, self.number, self.job.id, self.execution * EXECUTION_FILES + 1)

    def reader(self) -> TableReader:
        """Reads the data files of the task."""
        paths = self.task.data["file_path"].to_list()
        positions = PositionDeletes(self.context.io, self.job.memory_bytes // MEMORY_SHARES, paths)
        return TableReader(self.job.metadata, self.context.io, self.matches, positions, self.context.equality)

    def target(self, spec_id: int | None = None, partition_key: str | None = None) -> FileTarget:
        """Where files of a partition are written; by default that of the task. A task for several partitions uses the folder
        of none: its files must be found by name if it is lost."""
        task = self.task
        own_folder = task.partition_key is not None and task.action == "merge"
        return FileTarget(**self._partition(spec_id, partition_key), own_folder=own_folder)

    def _partition(self, spec_id: int | None, partition_key: str | None) -> dict[str, Any]:
        spec_id = self.task.spec_id if spec_id is None else spec_id
        partition_key = self.task.partition_key if partition_key is None else partition_key
        if partition_key is None:
            values: tuple[object, ...] = (None,) * len(self.job.metadata.specs()[spec_id].fields)
        else:
            values = self.context.decoder.values(spec_id, partition_key)
        return {
            "metadata": self.job.metadata,
            "io": self.context.io,
            "spec_id": spec_id,
            "partition": values,
            "names": self.names,
        }

    def restart(self) -> None:
        """Count progress from the beginning."""
        self.rows, self.bytes = 0, 0

    def progress(self, rows: int, size: int) -> None:
        """Report that more rows were read."""
        self.rows += rows
        self.bytes += size
        self.listen(Progress(task=self.task.id, rows=self.rows, bytes=self.bytes))


@dataclass(kw_only=True)
class KeyedAttempt(Attempt):
    """One execution of an attempt at a task of a keyed table."""

    task: KeyedTask

    def new_names(self) -> StoreFileNames:
        """The names of the attempt's files, from the first one on."""
        return StoreFileNames(self.task.id, self.number, self.job.id, self.execution * EXECUTION_FILES + 1)

    def target(self, spec_id: int | None = None, partition_key: str | None = None) -> StoreTarget:
        """Where files of the base store are written."""
        task = self.task
        partition = self._partition(spec_id, partition_key)
        return StoreTarget(**partition, node_id=task.node_id, kind="B", transaction_id=task.transaction_id)


def new_attempt(
    context: JobContext, task: Task, number: int = 0, execution: int = 0, listen: ProgressListener = ignore_progress
) -> Attempt | KeyedAttempt:
    """An attempt at a task of any table."""
    if isinstance(task, KeyedTask):
        return KeyedAttempt(context=context, task=task, number=number, execution=execution, listen=listen)
    return Attempt(context=context, task=task, number=number, execution=execution, listen=listen)


def peak_bytes() -> int:
    """The peak memory of this process so far."""
    # Not getrusage where it can be avoided: on Linux its maximum is inherited from the parent process.
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
