"""Run a task that is too large for one executor: some executors read its files, Spark shuffles the rows by key range, others
sort and write them.

Spark knows only which part a row belongs to: rows are sent as packed bytes, independent of their types. Errors of the kernel
are returned as data. The files of a writer are named by Spark's id of its execution, which no other one has, even of a
repeated stage.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyarctic.iceberg import storage_properties
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
from pyarctic.optimizing.protocol import Job, Task, TaskFailure, TaskOutcome
from pyarctic.spark.executors import executor_function, task_slots

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_READERS_PER_SLOT = 4


@dataclass(frozen=True, kw_only=True)
class _ShuffleWork:
    """What is sent to executors."""

    job: str
    io_properties: dict[str, str]
    task: str
    attempt: int
    first: int = 0
    """An id that Spark has assigned to an execution before. Writers number theirs from there."""
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


class RangeShuffle:
    """Runs the large tasks of one job."""

    def __init__(self, spark: SparkSession, job: Job, io: Storage) -> None:
        self._spark = spark
        self._job = job
        self._io = io

    def run(self, task: Task, attempt: int) -> tuple[TaskOutcome, bool]:
        """Sample, read, sort and write; raises errors of Spark. Tells also whether executions may have left files that the
        outcome does not name."""
        work = _ShuffleWork(
            job=json.dumps(self._job.to_json()),
            io_properties=storage_properties(self._io),
            task=json.dumps(task.to_json()),
            attempt=attempt,
        )
        samples = self._files(task).mapInArrow(executor_function(work, sample_files), _SAMPLE_COLUMNS).collect()
        for sample in samples:
            if sample["failure"] is not None:
                return TaskFailure.from_json(json.loads(sample["failure"])), False
        first = max(int(sample["execution"]) for sample in samples)
        work = replace(work, first=first, sample=combine_samples(bytes(sample["sample"]) for sample in samples))
        return self._combine(task, attempt, self._collect_answers(task, work))

    def _collect_answers(self, task: Task, work: _ShuffleWork) -> list[dict[str, Any]]:
        from pyspark.sql import functions as F  # noqa: N812

        context = JobContext(job=self._job, io=self._io)
        parts = RangePartitioner(context, task, work.sample).parts
        packets = self._files(task).mapInArrow(executor_function(work, read_files), _PACKET_COLUMNS)
        shuffled = packets.repartitionById(parts, F.col("part"))
        rows = shuffled.mapInArrow(executor_function(work, write_parts), "answer string").collect()
        return [json.loads(row["answer"]) for row in rows]

    def _combine(self, task: Task, attempt: int, answers: list[dict[str, Any]]) -> tuple[TaskOutcome, bool]:
        written = [RangeResult.from_json(answer["written"]) for answer in answers if "written" in answer]
        failures = [TaskFailure.from_json(answer["failure"]) for answer in answers if "failure" in answer]
        were_repeated = any(answer["repeated"] for answer in answers)
        if failures:
            return failures[0], True
        outcome = combine_results(JobContext(job=self._job, io=self._io), task, attempt, written)
        return outcome, were_repeated or isinstance(outcome, TaskFailure)

    def _files(self, task: Task) -> DataFrame:
        """A frame with one row for each data file."""
        files = task.data.height
        return self._spark.range(0, files, 1, min(files, _READERS_PER_SLOT * task_slots(self._spark)))


# -- on executors -----------------------------------------------------------------------------------------------------

_SAMPLE_COLUMNS = "sample binary, failure string, execution long"
_PACKET_COLUMNS = "part int, account string, rows binary"


def _current_execution() -> tuple[int, int]:
    """Spark's id of this execution, and the number of executions before it."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return (int(context.taskAttemptId()), int(context.attemptNumber())) if context else (0, 0)


def sample_files(work: _ShuffleWork, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sample the keys of data files."""
    schema = pa.schema([("sample", pa.binary()), ("failure", pa.string()), ("execution", pa.int64())])
    for batch in batches:
        row: dict[str, Any] = {"execution": _current_execution()[0]}
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
    execution, before = _current_execution()
    try:
        answer: dict[str, Any] = {"written": work.partitioner.write(batches, work.attempt, execution - work.first).to_json()}
    except Exception as error:  # noqa: BLE001  # returned to the driver
        answer = {"failure": work.failure(error)}
    yield pa.RecordBatch.from_arrays([pa.array([json.dumps(answer | {"repeated": before > 0})])], ["answer"])
