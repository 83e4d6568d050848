"""Tasks inside Spark executors: one job of one row for each task, so that Spark schedules, retries and scales them.

Jobs are plain `mapInArrow` calls from driver threads, which every master and Spark Connect understand. Errors of the kernel
come back as data; only a lost executor is Spark's business, and it repeats the task as another attempt. Attempts write
under names of their own, and what the losers left is removed."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyarctic.optimizing import Job, Progress, Task, TaskFailure, TaskOutcome, TaskResult
from pyarctic.optimizing.engines import MOST_ATTEMPTS, Listener, Storage
from pyarctic.optimizing.leftovers import remove_attempt
from pyarctic.spark.session import is_local
from pyarctic.spark.shipping import is_remote, ship

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SUBMISSION = 1000
"""Attempts are numbered by submission and, within one, by Spark."""
_REMOTE_TASKS_AT_A_TIME = 8
_ANSWER = pa.schema([("answer", pa.string())])


class SparkEngine:
    """Runs tasks on a Spark session of any kind: local, standalone, YARN, Kubernetes, Connect."""

    name = "spark"

    def __init__(self, spark: SparkSession, workers: int | None = None) -> None:
        self._spark = spark
        self._workers = workers or _slots(spark)

    def run(self, job: Job, io: Storage, tasks: Sequence[Task], listen: Listener) -> Generator[TaskOutcome, None, None]:
        if is_remote(self._spark) or not is_local(str(self._spark.sparkContext.master)):
            ship(self._spark)
        tag = f"arctic-{uuid.uuid4()}"
        work = _Work(self._spark, tag, job, io)
        pool = ThreadPoolExecutor(max_workers=max(min(self._workers, len(tasks)), 1), thread_name_prefix="arctic-spark")
        waiting: set[Future[TaskOutcome]] = {pool.submit(work.outcome, task) for task in tasks}
        try:
            for done in as_completed(waiting):
                outcome = done.result()
                if isinstance(outcome, TaskResult):
                    listen(Progress(task=outcome.task, rows=outcome.rows_in, bytes=outcome.bytes_read))
                yield outcome
        finally:
            for future in waiting:
                future.cancel()
            if not all(future.done() for future in waiting):
                self._spark.interruptTag(tag)
            pool.shutdown()
            work.clean()


class _Work:
    """The tasks of one run."""

    def __init__(self, spark: SparkSession, tag: str, job: Job, io: Storage) -> None:
        self._spark = spark
        self._tag = tag
        self._job = job
        self._io = io
        self._text = json.dumps(job.to_json())
        self._losers: list[tuple[Task, int]] = []
        self._speculates = str(spark.conf.get("spark.speculation", "false")).lower() == "true"

    def outcome(self, task: Task) -> TaskOutcome:
        """Submit a task until it succeeds, or fails for good."""
        self._spark.addTag(self._tag)
        for submission in range(MOST_ATTEMPTS):
            first = submission * _SUBMISSION
            outcome = self._submitted(task, first)
            self._note_losers(task, first, outcome)
            if not (isinstance(outcome, TaskFailure) and outcome.retryable):
                break
        return outcome

    def _submitted(self, task: Task, first_attempt: int) -> TaskOutcome:
        from pyspark.errors import PySparkException

        run = task_function(self._text, dict(self._io.properties), json.dumps(task.to_json()), first_attempt)
        try:
            answer = self._spark.range(0, 1, 1, 1).mapInArrow(run, "answer string").collect()[0]["answer"]
        except PySparkException as error:
            return _told(task, first_attempt, error)
        except Exception as error:  # noqa: BLE001  # Py4J and gRPC have their own
            return _told(task, first_attempt, error)
        message = json.loads(answer)
        if "result" in message:
            return TaskResult.from_json(message["result"], self._job.metadata)
        return TaskFailure(**message["failure"])

    def _note_losers(self, task: Task, first: int, outcome: TaskOutcome) -> None:
        """Attempts that may have left something: those before the one that counts, and with speculation the next."""
        if isinstance(outcome, TaskResult):
            last = outcome.attempt - first + (2 if self._speculates else 1)
            winner = outcome.attempt
        else:
            last, winner = int(self._spark.conf.get("spark.task.maxFailures") or 4) + 1, -1
        self._losers += [(task, first + number) for number in range(last) if first + number != winner]

    def clean(self) -> None:
        """When all jobs have ended, so that no loser writes any more."""
        for task, attempt in self._losers:
            remove_attempt(self._job, self._io, task, attempt)


def task_function(
    job: str, io_properties: dict[str, str], task: str, first_attempt: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """What an executor runs. Properties of the storage travel in the closure only: no plan and no log shows them."""

    def run(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            if batch.num_rows:
                from pyspark import TaskContext

                from pyarctic.spark.engine import answered

                context = TaskContext.get()
                number = context.attemptNumber() if context else 0
                answer = answered(job, io_properties, task, first_attempt + number)
                yield pa.RecordBatch.from_arrays([pa.array([answer])], ["answer"])

    return run


_benches: dict[str, Any] = {}
"""Of this Python worker: the job it worked on last, with its indexes."""


def answered(job: str, io_properties: dict[str, str], task: str, attempt: int) -> str:
    """Work on a task in this process; the answer as JSON, also when it failed."""
    # Before Polars is loaded: an executor runs as many tasks at a time as it has cores.
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    from pyarctic.optimizing.kernel import Bench, execute

    document = json.loads(job)
    if document["id"] not in _benches:
        _benches.clear()
        _benches[document["id"]] = Bench.opened(document, io_properties)
    understood = Task.from_json(json.loads(task))
    try:
        result = execute(_benches[document["id"]], understood, attempt=attempt)
    except Exception as error:  # noqa: BLE001  # told to the driver
        return json.dumps({"failure": TaskFailure.of(understood.id, attempt, error).to_json()})
    return json.dumps({"result": result.to_json()})


def _told(task: Task, attempt: int, error: Exception) -> TaskFailure:
    return TaskFailure(
        task=task.id,
        attempt=attempt,
        code="spark",
        detail=f"Spark could not run the task: {next(iter(str(error).splitlines()), type(error).__name__)}",
        hint="Spark's log tells more. Executors need PyArctic's libraries in their Python: docs/spark.md.",
    )


def _slots(spark: SparkSession) -> int:
    return _REMOTE_TASKS_AT_A_TIME if is_remote(spark) else int(spark.sparkContext.defaultParallelism)
