"""Run a task that is too large for one executor: some executors read its files, Spark shuffles the rows by key range, others
sort and write them.

Spark knows only which part a row belongs to: rows are sent as packed bytes, independent of their types. Errors of the kernel
are returned as data. The files of a writer are named by Spark's attempt id, which is unique even among repeated stages;
files that failed attempts left behind are found by trying the ids that were assigned meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyarctic.iceberg import remove_quietly, storage_properties
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
from pyarctic.spark.executors import executor_function, task_slots

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_READERS_PER_SLOT = 4
_SPARE_ATTEMPTS = 100
"""Attempt ids that other jobs may have taken meanwhile, if the current one cannot be queried."""


@dataclass(frozen=True, kw_only=True)
class _ShuffleWork:
    """What is sent to executors."""

    job: str
    io_properties: dict[str, str]
    task: str
    attempt: int
    sample: bytes = b""

    @cached_property
    def context(self) -> JobContext:
        return JobContext.open(json.loads(self.job), self.io_properties)

    @cached_property
    def parsed_task(self) -> Task:
        return Task.from_json(json.loads(self.task))

    @cached_property
    def partitioner(self) -> RangePartitioner:
        return RangePartitioner(self.context, self.parsed_task, self.sample)

    def failure(self, error: Exception) -> dict[str, Any]:
        return TaskFailure.of(json.loads(self.task)["id"], self.attempt, error).to_json()


@dataclass(frozen=True, kw_only=True)
class ShuffleResult:
    """The outcome of a task, and the attempts that may have left files behind."""

    outcome: TaskOutcome
    stale_attempts: tuple[int, ...] = ()


class RangeShuffle:
    """Runs the large tasks of one job."""

    def __init__(self, spark: SparkSession, job: Job, io: Storage, *, speculates: bool) -> None:
        self._spark = spark
        self._job = job
        self._io = io
        self._text = json.dumps(job.to_json())
        self._speculates = speculates

    def run(self, task: Task, attempt: int) -> ShuffleResult:
        """Sample, read, sort and write. Raises errors of Spark before the shuffle, and `ShuffleFailed` after its start."""
        work = _ShuffleWork(
            job=self._text, io_properties=storage_properties(self._io), task=json.dumps(task.to_json()), attempt=attempt
        )
        samples = self._files(task).mapInArrow(executor_function(work, sample_files), _SAMPLE_COLUMNS).collect()
        for sample in samples:
            if sample["failure"] is not None:
                return ShuffleResult(outcome=TaskFailure.from_json(json.loads(sample["failure"])))
        first = max(int(sample["attempt"]) for sample in samples) + 1
        work = replace(work, sample=combine_samples(bytes(sample["sample"]) for sample in samples))
        try:
            answers = self._collect_answers(task, work)
        except Exception as error:
            raise ShuffleFailed(tuple(range(first, self._next_attempt(first, task)))) from error
        return self._combine(task, attempt, answers, first)

    def _collect_answers(self, task: Task, work: _ShuffleWork) -> list[dict[str, Any]]:
        from pyspark.sql import functions as F  # noqa: N812

        context = JobContext(job=self._job, io=self._io)
        parts = RangePartitioner(context, task, work.sample).parts
        packets = self._files(task).mapInArrow(executor_function(work, read_files), _PACKET_COLUMNS)
        shuffled = packets.repartitionById(parts, F.col("part"))
        rows = shuffled.mapInArrow(executor_function(work, write_parts), "answer string").collect()
        return [json.loads(row["answer"]) for row in rows]

    def _combine(self, task: Task, attempt: int, answers: list[dict[str, Any]], first: int) -> ShuffleResult:
        """Combine the answers of all writers; the files of a task that failed are removed."""
        written = [RangeResult.from_json(answer["written"]) for answer in answers if "written" in answer]
        failures = [TaskFailure.from_json(answer["failure"]) for answer in answers if "failure" in answer]
        outcome: TaskOutcome
        if failures:
            outcome = failures[0]
        else:
            outcome = combine_results(JobContext(job=self._job, io=self._io), task, attempt, written)
        if not isinstance(outcome, TaskResult):
            remove_quietly(self._io, [path for result in written for path in result.paths])
        winners = {result.attempt for result in written}
        return ShuffleResult(outcome=outcome, stale_attempts=self._stale_attempts(task, answers, winners, first))

    def _stale_attempts(self, task: Task, answers: list[dict[str, Any]], winners: set[int], first: int) -> tuple[int, ...]:
        """Attempts since `first` that may have left files behind."""
        if not self._speculates and not any(answer["number"] for answer in answers):
            return tuple(int(answer["attempt"]) for answer in answers if "failure" in answer)
        return tuple(number for number in range(first, self._next_attempt(first, task)) if number not in winners)

    def _files(self, task: Task) -> DataFrame:
        """A frame with one row for each data file."""
        files = task.data.height
        return self._spark.range(0, files, 1, min(files, _READERS_PER_SLOT * task_slots(self._spark)))

    def _next_attempt(self, first: int, task: Task) -> int:
        """An attempt id greater than all that were assigned so far."""
        try:
            [row] = self._spark.range(0, 1, 1, 1).mapInArrow(_report_attempt, "attempt long").collect()
        except Exception:  # noqa: BLE001  # this job is cancelled like the previous one
            return first + 2 * (task.data.height + task.ranges) + _SPARE_ATTEMPTS
        return int(row["attempt"])


class ShuffleFailed(Exception):
    """Spark failed to run a task (see `__cause__`); attempts with these ids may have left files behind."""

    def __init__(self, stale_attempts: tuple[int, ...]) -> None:
        super().__init__()
        self.stale_attempts = stale_attempts


# -- on executors -----------------------------------------------------------------------------------------------------

_SAMPLE_COLUMNS = "sample binary, failure string, attempt long"
_PACKET_COLUMNS = "part int, account string, rows binary"


def _current_attempt() -> tuple[int, int]:
    """Spark's id of this attempt, and the number of attempts before it."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return (int(context.taskAttemptId()), int(context.attemptNumber())) if context else (0, 0)


def _report_attempt(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    for _ in batches:
        context = TaskContext.get()
        yield pa.RecordBatch.from_pydict({"attempt": [context.taskAttemptId() if context else 0]})


def sample_files(work: _ShuffleWork, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sample the keys of data files."""
    schema = pa.schema([("sample", pa.binary()), ("failure", pa.string()), ("attempt", pa.int64())])
    for batch in batches:
        row: dict[str, Any] = {"attempt": _current_attempt()[0]}
        try:
            row["sample"] = sample_keys(work.context, work.parsed_task, batch.column("id").to_pylist())
        except Exception as error:  # noqa: BLE001  # returned to the driver
            row["failure"] = json.dumps(work.failure(error))
        yield pa.RecordBatch.from_pylist([row], schema=schema)


def read_files(work: _ShuffleWork, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the live rows of data files, packed by the parts they belong to."""
    for batch in batches:
        for file_number in batch.column("id").to_pylist():
            try:
                yield from work.partitioner.read(file_number)
            except Exception as error:  # noqa: BLE001  # returned to the driver
                yield failure_packet(work.failure(error))


def write_parts(work: _ShuffleWork, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sort and write the rows of a part; returns the result or the failure as JSON."""
    attempt, number = _current_attempt()
    try:
        answer: dict[str, Any] = {"written": work.partitioner.write(batches, attempt).to_json()}
    except Exception as error:  # noqa: BLE001  # returned to the driver
        answer = {"failure": work.failure(error)}
    yield pa.RecordBatch.from_arrays([pa.array([json.dumps(answer | {"attempt": attempt, "number": number})])], ["answer"])
