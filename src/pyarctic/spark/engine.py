"""Run tasks in Spark executors: one Spark job with one row for each task, so that Spark schedules, retries and scales them.

Jobs are plain `mapInArrow` calls from driver threads, which every master and Spark Connect support. Errors of the kernel
are returned as data; only the loss of an executor is handled by Spark, which repeats the task as another attempt. Attempts
write files under unique names, and files of stale attempts (all but the successful one) are removed.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyarctic._version import __version__
from pyarctic.errors import Unavailable
from pyarctic.iceberg import remove_quietly, storage_properties
from pyarctic.optimizing.execute import MAX_ATTEMPTS, POLL_SECONDS, Storage, remove_attempt_files
from pyarctic.optimizing.protocol import Job, Progress, ProgressListener, Task, TaskFailure, TaskOutcome, TaskResult
from pyarctic.spark.executors import check_version, prepare_executors, task_slots
from pyarctic.spark.failures import failure_reason
from pyarctic.spark.range_shuffle import RangeShuffle, ShuffleFailed
from pyarctic.spark.shipping import is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ATTEMPTS_PER_SUBMISSION = 1000
"""Attempt numbers: each submission has its own range, in which Spark counts."""
_KILL_SECONDS = 4.0
"""How long a cancelled task may continue: `spark.python.task.killTimeout` and a little more."""


class SparkEngine:
    """Runs optimizer tasks on any Spark session: local, standalone, YARN, Kubernetes or Connect."""

    name = "spark"

    def __init__(self, spark: SparkSession, workers: int | None = None) -> None:
        self._spark = spark
        self._workers = workers or task_slots(spark)

    @property
    def parallelism(self) -> int:
        """How many tasks are executed at the same time."""
        return self._workers

    @property
    def attempts(self) -> list[int]:
        """The numbers that attempts at a task may have, unless it is divided by key ranges."""
        firsts = range(0, MAX_ATTEMPTS * _ATTEMPTS_PER_SUBMISSION, _ATTEMPTS_PER_SUBMISSION)
        return [first + number for first in firsts for number in range(_max_failures(self._spark) + 1)]

    def run(
        self, job: Job, io: Storage, tasks: Sequence[Task], listen: ProgressListener
    ) -> Generator[TaskOutcome, None, None]:
        prepare_executors(self._spark)
        tag = f"arctic-{uuid.uuid4()}"
        runner = _TaskRunner(self._spark, tag, job, io)
        pool = ThreadPoolExecutor(max_workers=max(min(self._workers, len(tasks)), 1), thread_name_prefix="arctic-spark")
        pending: set[Future[TaskOutcome]] = {pool.submit(runner.run, task) for task in tasks}
        try:
            while pending:
                for future in wait(pending, POLL_SECONDS, FIRST_COMPLETED).done:
                    outcome = future.result()
                    if isinstance(outcome, TaskResult):
                        listen(Progress(task=outcome.task, rows=outcome.rows_in, bytes=outcome.bytes_read))
                    pending.remove(future)
                    yield outcome
        finally:
            runner.stop(pending)
            pool.shutdown()
            runner.clean(pending)


class _TaskRunner:
    """Runs the tasks of one job."""

    def __init__(self, spark: SparkSession, tag: str, job: Job, io: Storage) -> None:
        self._spark = spark
        self._tag = tag
        self._job = job
        self._io = io
        self._text = json.dumps(job.to_json())
        self._stale_attempts: list[tuple[Task, int]] = []
        self._max_failures = _max_failures(spark)
        self._speculates = str(spark.conf.get("spark.speculation", "false")).lower() == "true"
        self._shuffle = RangeShuffle(spark, job, io, speculates=self._speculates)
        self._is_stopped = False

    def stop(self, open_tasks: Collection[Future[TaskOutcome]]) -> None:
        """Cancel running tasks. A job that is about to be submitted cannot be cancelled yet, so this is repeated until all
        have ended."""
        self._is_stopped = True
        for future in open_tasks:
            future.cancel()
        while not all(future.done() for future in open_tasks):
            with contextlib.suppress(Exception):  # the session may be stopped already
                self._cancel()
            wait(open_tasks, POLL_SECONDS)

    def _tag_thread(self) -> None:
        """Make the jobs of this thread cancellable. Session tags work with Connect only: elsewhere Spark 4.1 finds no job by
        them."""
        if is_remote(self._spark):
            self._spark.addTag(self._tag)
        else:
            self._spark.sparkContext.addJobTag(self._tag)

    def _cancel(self) -> None:
        if is_remote(self._spark):
            self._spark.interruptTag(self._tag)
        else:
            self._spark.sparkContext.cancelJobsWithTag(self._tag)

    def run(self, task: Task) -> TaskOutcome:
        """Submit a task until it succeeds or fails permanently."""
        self._tag_thread()
        for submission in range(MAX_ATTEMPTS):
            first = submission * _ATTEMPTS_PER_SUBMISSION
            outcome = self._run_shuffle(task, first) if task.ranges > 1 else self._run_on_one_executor(task, first)
            if self._is_stopped or not (isinstance(outcome, TaskFailure) and outcome.retryable):
                break
        return outcome

    def _run_shuffle(self, task: Task, first_attempt: int) -> TaskOutcome:
        """Run a task that is divided by key ranges."""
        try:
            result = self._shuffle.run(task, first_attempt)
        except ShuffleFailed as failure:
            self._stale_attempts += [(task, number) for number in failure.stale_attempts]
            return _spark_failure(task, first_attempt, failure.__cause__ or failure)
        except Unavailable as error:
            return TaskFailure.of(task.id, first_attempt, error, self._job.id)
        except Exception as error:  # noqa: BLE001  # raised while sampling
            return _spark_failure(task, first_attempt, error)
        self._stale_attempts += [(task, number) for number in result.stale_attempts]
        return result.outcome

    def _run_on_one_executor(self, task: Task, first_attempt: int) -> TaskOutcome:
        outcome = self._submit(task, first_attempt)
        self._record_stale_attempts(task, first_attempt, outcome)
        return outcome

    def _submit(self, task: Task, first_attempt: int) -> TaskOutcome:
        try:
            run = task_function(self._text, storage_properties(self._io), json.dumps(task.to_json()), first_attempt)
            answer = self._spark.range(0, 1, 1, 1).mapInArrow(run, "answer string").collect()[0]["answer"]
        except Unavailable as error:
            return TaskFailure.of(task.id, first_attempt, error, self._job.id)
        except Exception as error:  # noqa: BLE001  # PySpark, Py4J and gRPC have different ones
            return _spark_failure(task, first_attempt, error)
        message = json.loads(answer)
        if "result" in message:
            return TaskResult.from_json(message["result"], self._job.metadata)
        return TaskFailure.from_json(message["failure"])

    def _record_stale_attempts(self, task: Task, first: int, outcome: TaskOutcome) -> None:
        """Record attempts that may have left files behind: those before the winner, and with speculation others too."""
        winner = outcome.attempt if isinstance(outcome, TaskResult) else None
        last = self._max_failures + 1 if winner is None or self._speculates else winner - first
        self._stale_attempts += [(task, first + number) for number in range(last) if first + number != winner]

    def clean(self, pending: Collection[Future[TaskOutcome]]) -> None:
        """Remove files of stale attempts and cancelled tasks, and results that were not consumed. All jobs have ended."""
        for future in pending:
            if not future.cancelled() and isinstance(outcome := future.result(), TaskResult):
                remove_quietly(self._io, outcome.paths)
        self._remove_stale_files()
        if self._stale_attempts and (pending or self._speculates):
            # Spark asks these tasks to end and gives them some time.
            time.sleep(_KILL_SECONDS)
            self._remove_stale_files()

    def _remove_stale_files(self) -> None:
        for task, attempt in self._stale_attempts:
            remove_attempt_files(self._job, self._io, task, attempt)


def task_function(
    job: str, io_properties: dict[str, str], task: str, first_attempt: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """The function that an executor runs. Storage properties are in its closure only: plans and logs do not show them."""
    version = __version__

    def run(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            if batch.num_rows:
                import os

                # Before Polars is imported: an executor runs as many concurrent tasks as it has cores.
                os.environ.setdefault("POLARS_MAX_THREADS", "1")
                from pyspark import TaskContext

                from pyarctic.spark.engine import run_task

                context = TaskContext.get()
                number = context.attemptNumber() if context else 0
                answer = run_task(job, io_properties, task, first_attempt + number, version)
                yield pa.RecordBatch.from_arrays([pa.array([answer])], ["answer"])

    return run


_job_contexts: dict[tuple[str, str], Any] = {}
"""The job that this Python worker worked on last, by its id and the storage, whose credentials are renewed."""


def run_task(job: str, io_properties: dict[str, str], task: str, attempt: int, version: str) -> str:
    """Run a task in this process and return the result or the failure as JSON."""
    document = json.loads(task)
    try:
        result = _execute(json.loads(job), io_properties, Task.from_json(document), attempt, version)
    except Exception as error:  # noqa: BLE001  # returned to the driver
        return json.dumps({"failure": TaskFailure.of(document["id"], attempt, error).to_json()})
    return json.dumps({"result": result.to_json()})


def _execute(job: dict[str, Any], io_properties: dict[str, str], task: Task, attempt: int, version: str) -> TaskResult:
    from pyarctic.optimizing.execute.kernel import JobContext, execute

    check_version(version)
    key = (job["id"], json.dumps(io_properties, sort_keys=True))
    if key not in _job_contexts:
        _job_contexts.clear()
        _job_contexts[key] = JobContext.open(job, io_properties)
    return execute(_job_contexts[key], task, attempt=attempt)


def _max_failures(spark: SparkSession) -> int:
    return int(spark.conf.get("spark.task.maxFailures", None) or 4)


def _spark_failure(task: Task, attempt: int, error: BaseException) -> TaskFailure:
    return TaskFailure(
        task=task.id,
        attempt=attempt,
        code="spark",
        detail=f"Spark could not run the task: {failure_reason(error)}",
        hint="See Spark's log. Executors need PyArctic's dependencies in their Python: docs/how-to/spark-clusters.md.",
    )
