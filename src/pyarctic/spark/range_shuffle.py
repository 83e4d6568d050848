"""A task that is too large for one executor: some read its files, Spark brings the rows of a range together, others sort
and write them.

Spark knows of rows only to which part they go: they travel packed, whatever their types are. Errors of the kernel come back
as data. A writer's files are named by the id of Spark's attempt, which no other attempt has, not even one of a stage that
Spark repeats; what losers left is found by trying the ids that were given meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyarctic.iceberg import remove_quietly
from pyarctic.optimizing.execute import Storage
from pyarctic.optimizing.execute.kernel import (
    JobContext,
    RangePartitioner,
    RangeResult,
    combine_results,
    combine_samples,
    failure_packet,
    sample_keys,
)
from pyarctic.optimizing.protocol import Job, Task, TaskFailure, TaskOutcome, TaskResult
from pyarctic.spark.executors import sent, slots

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_READERS_A_SLOT = 4
_SPARE_ATTEMPTS = 100
"""Ids that other jobs may have got meanwhile, where Spark cannot be asked."""


@dataclass(frozen=True, kw_only=True)
class _Work:
    """What executors get."""

    job: str
    io_properties: dict[str, str]
    task: str
    attempt: int
    sample: bytes = b""

    @cached_property
    def bench(self) -> JobContext:
        return JobContext.open(json.loads(self.job), self.io_properties)

    @cached_property
    def own_task(self) -> Task:
        return Task.from_json(json.loads(self.task))

    @cached_property
    def ranging(self) -> RangePartitioner:
        return RangePartitioner(self.bench, self.own_task, self.sample)

    def failure(self, error: Exception) -> dict[str, Any]:
        return TaskFailure.of(json.loads(self.task)["id"], self.attempt, error).to_json()


@dataclass(frozen=True, kw_only=True)
class Shuffled:
    """What became of a task, and attempts that may have left something."""

    outcome: TaskOutcome
    losers: tuple[int, ...] = ()


class Shuffle:
    """Runs such tasks of one job."""

    def __init__(self, spark: SparkSession, job: Job, io: Storage, *, speculates: bool) -> None:
        self._spark = spark
        self._job = job
        self._io = io
        self._text = json.dumps(job.to_json())
        self._speculates = speculates

    def run(self, task: Task, attempt: int) -> Shuffled:
        """Sample, read, sort and write; errors of Spark are raised."""
        work = _Work(
            job=self._text, io_properties=dict(self._io.properties), task=json.dumps(task.to_json()), attempt=attempt
        )
        samples = self._files(task).mapInArrow(sent(work, sample_files), _SAMPLE_COLUMNS).collect()
        for sample in samples:
            if sample["failure"] is not None:
                return Shuffled(outcome=TaskFailure(**json.loads(sample["failure"])))
        first = max(int(sample["attempt"]) for sample in samples) + 1
        work = replace(work, sample=combine_samples(bytes(sample["sample"]) for sample in samples))
        try:
            answers = self._answers(task, work)
        except Exception as error:
            raise Lost(tuple(range(first, self._next_attempt(first, task)))) from error
        return self._outcome(task, attempt, answers, first)

    def _answers(self, task: Task, work: _Work) -> list[dict[str, Any]]:
        from pyspark.sql import functions as F  # noqa: N812

        bench = JobContext(job=self._job, io=self._io)
        parts = RangePartitioner(bench, task, work.sample).parts
        parcels = self._files(task).mapInArrow(sent(work, read_files), _PARCEL_COLUMNS)
        told = parcels.repartitionById(parts, F.col("part")).mapInArrow(sent(work, write_parts), "answer string").collect()
        return [json.loads(row["answer"]) for row in told]

    def _outcome(self, task: Task, attempt: int, answers: list[dict[str, Any]], first: int) -> Shuffled:
        written = [RangeResult.from_json(answer["written"]) for answer in answers if "written" in answer]
        failures = [answer["failure"] for answer in answers if "failure" in answer]
        outcome: TaskOutcome
        if failures:
            outcome = TaskFailure(**failures[0])
        else:
            outcome = combine_results(JobContext(job=self._job, io=self._io), task, attempt, written)
        if not isinstance(outcome, TaskResult):
            remove_quietly(self._io, [path for one in written for path in one.paths])
        losers = tuple(int(answer["attempt"]) for answer in answers if "failure" in answer)
        if self._speculates or any(answer["number"] for answer in answers):
            winners = {one.attempt for one in written}
            losers = tuple(number for number in range(first, self._next_attempt(first, task)) if number not in winners)
        return Shuffled(outcome=outcome, losers=losers)

    def _files(self, task: Task) -> DataFrame:
        """A row for each data file."""
        files = task.data.height
        return self._spark.range(0, files, 1, min(files, _READERS_A_SLOT * slots(self._spark)))

    def _next_attempt(self, first: int, task: Task) -> int:
        """An id that no attempt has had so far."""
        try:
            [row] = self._spark.range(0, 1, 1, 1).mapInArrow(_told_attempt, "attempt long").collect()
        except Exception:  # noqa: BLE001  # the job is cancelled like the one before
            return first + 2 * (task.data.height + task.ranges) + _SPARE_ATTEMPTS
        return int(row["attempt"])


class Lost(Exception):  # the cause is the error
    """Spark gave a task up; attempts with these ids may have left something."""

    def __init__(self, losers: tuple[int, ...]) -> None:
        super().__init__()
        self.losers = losers


# -- on executors -----------------------------------------------------------------------------------------------------

_SAMPLE_COLUMNS = "sample binary, failure string, attempt long"
_PARCEL_COLUMNS = "part int, account string, rows binary"


def _attempt_of() -> tuple[int, int]:
    """Spark's id of this attempt, and how many there were before it."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return (int(context.taskAttemptId()), int(context.attemptNumber())) if context else (0, 0)


def _told_attempt(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    for _ in batches:
        context = TaskContext.get()
        yield pa.RecordBatch.from_pydict({"attempt": [context.taskAttemptId() if context else 0]})


def sample_files(work: _Work, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Some keys of data files."""
    schema = pa.schema([("sample", pa.binary()), ("failure", pa.string()), ("attempt", pa.int64())])
    for batch in batches:
        row: dict[str, Any] = {"attempt": _attempt_of()[0]}
        try:
            row["sample"] = sample_keys(work.bench, work.own_task, batch.column("id").to_pylist())
        except Exception as error:  # noqa: BLE001  # told to the driver
            row["failure"] = json.dumps(work.failure(error))
        yield pa.RecordBatch.from_pylist([row], schema=schema)


def read_files(work: _Work, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The living rows of data files, packed for the parts they belong to."""
    for batch in batches:
        for source in batch.column("id").to_pylist():
            try:
                yield from work.ranging.read(source)
            except Exception as error:  # noqa: BLE001  # told to the driver
                yield failure_packet(work.failure(error))


def write_parts(work: _Work, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sort and write the rows of a part; the answer as JSON, also when it failed."""
    attempt, number = _attempt_of()
    try:
        answer: dict[str, Any] = {"written": work.ranging.write(batches, attempt).to_json()}
    except Exception as error:  # noqa: BLE001  # told to the driver
        answer = {"failure": work.failure(error)}
    yield pa.RecordBatch.from_arrays([pa.array([json.dumps(answer | {"attempt": attempt, "number": number})])], ["answer"])
