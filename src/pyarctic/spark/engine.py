"""Tasks inside Spark executors: one job of one row for each task, so that Spark schedules, retries and scales them.

Jobs are plain `mapInArrow` calls from driver threads, which every master and Spark Connect understand. Errors of the kernel
come back as data; only a lost executor is Spark's business, and it repeats the task as another attempt. Attempts write
under names of their own, and what the losers left is removed.
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
from pyarctic.iceberg import remove_quietly
from pyarctic.optimizing.execute import MAX_ATTEMPTS, POLL_SECONDS, Storage, remove_attempt_files
from pyarctic.optimizing.protocol import Job, Progress, ProgressListener, Task, TaskFailure, TaskOutcome, TaskResult
from pyarctic.spark.executors import check_version, reach_executors, slots
from pyarctic.spark.failures import reason
from pyarctic.spark.range_shuffle import Lost, Shuffle
from pyarctic.spark.shipping import is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SUBMISSION = 1000
"""Attempts are numbered by submission and, within one, by Spark."""
_KILL_SECONDS = 4.0
"""So long a cancelled task may go on: `spark.python.task.killTimeout`, and a little more."""


class SparkEngine:
    """Runs tasks on a Spark session of any kind: local, standalone, YARN, Kubernetes, Connect."""

    name = "spark"

    def __init__(self, spark: SparkSession, workers: int | None = None) -> None:
        self._spark = spark
        self._workers = workers or slots(spark)

    def run(
        self, job: Job, io: Storage, tasks: Sequence[Task], listen: ProgressListener
    ) -> Generator[TaskOutcome, None, None]:
        reach_executors(self._spark)
        tag = f"arctic-{uuid.uuid4()}"
        work = _Work(self._spark, tag, job, io)
        pool = ThreadPoolExecutor(max_workers=max(min(self._workers, len(tasks)), 1), thread_name_prefix="arctic-spark")
        untaken: set[Future[TaskOutcome]] = {pool.submit(work.outcome, task) for task in tasks}
        try:
            while untaken:
                for done in wait(untaken, POLL_SECONDS, FIRST_COMPLETED).done:
                    outcome = done.result()
                    if isinstance(outcome, TaskResult):
                        listen(Progress(task=outcome.task, rows=outcome.rows_in, bytes=outcome.bytes_read))
                    untaken.remove(done)
                    yield outcome
        finally:
            work.stop(untaken)
            pool.shutdown()
            work.clean(untaken)


class _Work:
    """The tasks of one run."""

    def __init__(self, spark: SparkSession, tag: str, job: Job, io: Storage) -> None:
        self._spark = spark
        self._tag = tag
        self._job = job
        self._io = io
        self._text = json.dumps(job.to_json())
        self._losers: list[tuple[Task, int]] = []
        self._most_failures = int(spark.conf.get("spark.task.maxFailures", None) or 4)
        self._speculates = str(spark.conf.get("spark.speculation", "false")).lower() == "true"
        self._shuffle = Shuffle(spark, job, io, speculates=self._speculates)
        self._is_stopped = False

    def stop(self, open_tasks: Collection[Future[TaskOutcome]]) -> None:
        """Cancel what runs. A job that is about to be submitted cannot be cancelled yet, so it is tried until all have
        ended."""
        self._is_stopped = True
        for future in open_tasks:
            future.cancel()
        while not all(future.done() for future in open_tasks):
            with contextlib.suppress(Exception):  # of a session that was stopped
                self._cancel()
            wait(open_tasks, POLL_SECONDS)

    def _tag_thread(self) -> None:
        """Jobs of this thread can be cancelled from now on. A session's own tags are for Connect only: elsewhere Spark 4.1
        finds no job by them."""
        if is_remote(self._spark):
            self._spark.addTag(self._tag)
        else:
            self._spark.sparkContext.addJobTag(self._tag)

    def _cancel(self) -> None:
        if is_remote(self._spark):
            self._spark.interruptTag(self._tag)
        else:
            self._spark.sparkContext.cancelJobsWithTag(self._tag)

    def outcome(self, task: Task) -> TaskOutcome:
        """Submit a task until it succeeds, or fails for good."""
        self._tag_thread()
        for submission in range(MAX_ATTEMPTS):
            first = submission * _SUBMISSION
            outcome = self._shuffled(task, first) if task.ranges > 1 else self._submitted(task, first)
            if self._is_stopped or not (isinstance(outcome, TaskFailure) and outcome.retryable):
                break
        return outcome

    def _shuffled(self, task: Task, first_attempt: int) -> TaskOutcome:
        """A task that is divided by ranges of keys."""
        try:
            done = self._shuffle.run(task, first_attempt)
        except Lost as lost:
            self._losers += [(task, number) for number in lost.losers]
            return _told(task, first_attempt, lost.__cause__ or lost)
        except Exception as error:  # noqa: BLE001  # of the first look at its files
            return _told(task, first_attempt, error)
        self._losers += [(task, number) for number in done.losers]
        return done.outcome

    def _submitted(self, task: Task, first_attempt: int) -> TaskOutcome:
        outcome = self._answered(task, first_attempt)
        self._note_losers(task, first_attempt, outcome)
        return outcome

    def _answered(self, task: Task, first_attempt: int) -> TaskOutcome:
        run = task_function(self._text, dict(self._io.properties), json.dumps(task.to_json()), first_attempt)
        try:
            answer = self._spark.range(0, 1, 1, 1).mapInArrow(run, "answer string").collect()[0]["answer"]
        except Exception as error:  # noqa: BLE001  # PySpark, Py4J and gRPC have their own
            return _told(task, first_attempt, error)
        message = json.loads(answer)
        if "result" in message:
            return TaskResult.from_json(message["result"], self._job.metadata)
        return TaskFailure(**message["failure"])

    def _note_losers(self, task: Task, first: int, outcome: TaskOutcome) -> None:
        """Attempts that may have left something: those before the one that counts, and with speculation others too."""
        winner = outcome.attempt if isinstance(outcome, TaskResult) else None
        last = self._most_failures + 1 if winner is None or self._speculates else winner - first
        self._losers += [(task, first + number) for number in range(last) if first + number != winner]

    def clean(self, untaken: Collection[Future[TaskOutcome]]) -> None:
        """Remove what losers and cancelled tasks left, and results that nobody took. All jobs have ended."""
        for future in untaken:
            if not future.cancelled() and isinstance(outcome := future.result(), TaskResult):
                remove_quietly(self._io, outcome.paths)
        self._remove_losers()
        if self._losers and (untaken or self._speculates):
            # Spark tells them to end, and gives them some time.
            time.sleep(_KILL_SECONDS)
            self._remove_losers()

    def _remove_losers(self) -> None:
        for task, attempt in self._losers:
            remove_attempt_files(self._job, self._io, task, attempt)


def task_function(
    job: str, io_properties: dict[str, str], task: str, first_attempt: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """What an executor runs. Properties of the storage travel in the closure only: no plan and no log shows them."""
    version = __version__

    def run(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            if batch.num_rows:
                import os

                # Before Polars is loaded: an executor runs as many tasks at a time as it has cores.
                os.environ.setdefault("POLARS_MAX_THREADS", "1")
                from pyspark import TaskContext

                from pyarctic.spark.engine import answered

                context = TaskContext.get()
                number = context.attemptNumber() if context else 0
                answer = answered(job, io_properties, task, first_attempt + number, version)
                yield pa.RecordBatch.from_arrays([pa.array([answer])], ["answer"])

    return run


_benches: dict[str, Any] = {}
"""Of this Python worker: the job it worked on last, with its indexes."""


def answered(job: str, io_properties: dict[str, str], task: str, attempt: int, version: str) -> str:
    """Work on a task in this process; the answer as JSON, also when it failed."""
    document = json.loads(task)
    try:
        result = _executed(json.loads(job), io_properties, Task.from_json(document), attempt, version)
    except Exception as error:  # noqa: BLE001  # told to the driver
        return json.dumps({"failure": TaskFailure.of(document["id"], attempt, error).to_json()})
    return json.dumps({"result": result.to_json()})


def _executed(job: dict[str, Any], io_properties: dict[str, str], task: Task, attempt: int, version: str) -> TaskResult:
    from pyarctic.optimizing.execute.kernel import JobContext, execute

    check_version(version)
    if job["id"] not in _benches:
        _benches.clear()
        _benches[job["id"]] = JobContext.open(job, io_properties)
    return execute(_benches[job["id"]], task, attempt=attempt)


def _told(task: Task, attempt: int, error: BaseException) -> TaskFailure:
    return TaskFailure(
        task=task.id,
        attempt=attempt,
        code="spark",
        detail=f"Spark could not run the task: {reason(error)}",
        hint="Spark's log tells more. Executors need PyArctic's libraries in their Python: docs/spark.md.",
    )
