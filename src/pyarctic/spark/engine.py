"""Run tasks in Spark executors: one Spark job with one row for each attempt, so that Spark schedules and scales them.

Jobs are plain `mapInArrow` calls from driver threads, which every master and Spark Connect support. Errors of the kernel
are returned as data; only the loss of an executor is handled by Spark, which executes the attempt again. Every execution
writes files under unique names, and those of all but the successful one are removed.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyarctic._version import __version__
from pyarctic.errors import Unavailable
from pyarctic.iceberg import storage_properties
from pyarctic.optimizing.execute import AttemptFuture, Storage, cancelled, remove_attempt_files
from pyarctic.optimizing.protocol import Job, Progress, ProgressListener, Task, TaskFailure, TaskOutcome, TaskResult
from pyarctic.spark.executors import check_version, prepare_executors, room_for_tasks
from pyarctic.spark.failures import failure_reason
from pyarctic.spark.range_shuffle import RangeShuffle
from pyarctic.spark.sessions import session_at
from pyarctic.spark.shipping import is_remote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

_KILL_SECONDS = 4.0
"""How long a cancelled task may continue: `spark.python.task.killTimeout` and a little more."""
_MOST_ATTEMPTS = 1000
_CANCEL_SECONDS = 0.2
"""How often Spark is told to cancel: a job that is about to be submitted cannot be cancelled yet."""


class SparkEngine:
    """Executes attempts on any Spark session: local, standalone, YARN, Kubernetes or Connect."""

    name = "spark"

    def __init__(self, spark: SparkSession, workers: int | None = None) -> None:
        """`workers`: how many attempts are executed at the same time; None: as many as there is room for in the executors,
        which may come and go."""
        self._spark = spark
        self._workers = workers
        self._pool = ThreadPoolExecutor(max_workers=workers or _MOST_ATTEMPTS, thread_name_prefix="arctic-spark")
        self._preparing = threading.Lock()
        self._is_prepared = False

    @property
    def parallelism(self) -> int:
        """How many attempts are executed at the same time."""
        return min(self._workers or room_for_tasks(self._spark), _MOST_ATTEMPTS)

    def prepare(self, tasks: Sequence[Task]) -> None:  # noqa: ARG002  # Spark takes as many executors as it has
        """Make sure that executors can import PyArctic."""
        with self._preparing:
            if not self._is_prepared:
                prepare_executors(self._spark)
                self._is_prepared = True

    def submit(self, job: Job, io: Storage, task: Task, attempt: int, listen: ProgressListener) -> AttemptFuture:
        """Execute an attempt in an executor; one that is divided by key ranges in several."""
        self.prepare([task])
        run = _AttemptRun(self._spark, job, io, task, attempt, listen)
        self._pool.submit(run.run)
        return run.future


def open_spark_engine(
    workers: int | None = None, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkEngine:
    """The engine named `spark`: that of the current session, or of a new one. `master`: such as `spark://host:7077`, or
    `sc://host` for Spark Connect; `settings`: of Spark."""
    return SparkEngine(session_at(master, **settings or {}), workers)


class _AttemptRun:
    """One attempt."""

    def __init__(
        self, spark: SparkSession, job: Job, io: Storage, task: Task, attempt: int, listen: ProgressListener
    ) -> None:
        self.future = AttemptFuture(lambda _: self._stop())
        self._spark = spark
        self._job = job
        self._io = io
        self._task = task
        self._attempt = attempt
        self._listen = listen
        self._tag = f"arctic-{uuid.uuid4()}"
        self._speculates = str(spark.conf.get("spark.speculation", "false")).lower() == "true"
        self._is_stopped = threading.Event()
        self._has_ended = threading.Event()

    def run(self) -> None:
        """Execute it in this thread."""
        try:
            outcome, may_have_left = self._execute()
            if isinstance(outcome, TaskResult):
                self._listen(Progress(task=outcome.task, rows=outcome.rows_in, bytes=outcome.bytes_read))
            self._remove_files(outcome, may_have_left=may_have_left)
        except BaseException as error:  # noqa: BLE001  # of a listener: whoever waits for the attempt gets it
            self._has_ended.set()
            with contextlib.suppress(Exception):
                remove_attempt_files(self._job, self._io, self._task, self._attempt)
            self.future.set_exception(error)
        else:
            self.future.set_result(outcome)

    def _execute(self) -> tuple[TaskOutcome, bool]:
        """The outcome, and whether executions may have left files that it does not name."""
        if self._is_stopped.is_set():
            return cancelled(self._job, self._task, self._attempt), False
        try:
            self._tag_thread()
            if self._task.ranges > 1:
                return RangeShuffle(self._spark, self._job, self._io).run(self._task, self._attempt)
            return self._run_on_one_executor()
        except Unavailable as error:
            return TaskFailure.of(self._task.id, self._attempt, error, self._job.id), False
        except Exception as error:  # noqa: BLE001  # PySpark, Py4J and gRPC have different ones
            if self._is_stopped.is_set():
                return cancelled(self._job, self._task, self._attempt), True
            return self._failure(error), True
        finally:
            self._has_ended.set()

    def _run_on_one_executor(self) -> tuple[TaskOutcome, bool]:
        job, task = json.dumps(self._job.to_json()), json.dumps(self._task.to_json())
        run = task_function(job, storage_properties(self._io), task, self._attempt)
        answer = json.loads(self._spark.range(0, 1, 1, 1).mapInArrow(run, "answer string").collect()[0]["answer"])
        if "result" in answer:
            return TaskResult.from_json(answer["result"], self._job.metadata), answer["execution"] > 0
        return TaskFailure.from_json(answer["failure"]), True

    def _tag_thread(self) -> None:
        """Make the jobs of this attempt cancellable. Session tags work with Connect only: elsewhere Spark 4.1 finds no job
        by them."""
        if is_remote(self._spark):
            self._spark.clearTags()
            self._spark.addTag(self._tag)
        else:
            self._spark.sparkContext.clearJobTags()
            self._spark.sparkContext.addJobTag(self._tag)

    def _stop(self) -> None:
        if not self._is_stopped.is_set():
            self._is_stopped.set()
            threading.Thread(target=self._cancel_until_ended, name="arctic-spark-cancel", daemon=True).start()

    def _cancel_until_ended(self) -> None:
        while not self._has_ended.is_set():
            with contextlib.suppress(Exception):  # the session may be stopped already
                if is_remote(self._spark):
                    self._spark.interruptTag(self._tag)
                else:
                    self._spark.sparkContext.cancelJobsWithTag(self._tag)
            self._has_ended.wait(_CANCEL_SECONDS)

    def _remove_files(self, outcome: TaskOutcome, *, may_have_left: bool) -> None:
        """Remove the files of all executions but the successful one."""
        if not (may_have_left or self._speculates):
            return
        named = outcome.paths if isinstance(outcome, TaskResult) else frozenset()
        with contextlib.suppress(Exception):  # the storage is out of reach: they stay, and are found by name later
            remove_attempt_files(self._job, self._io, self._task, self._attempt, named)
            if self._is_stopped.is_set() or self._speculates:
                # Spark asks these executions to end and gives them some time.
                time.sleep(_KILL_SECONDS)
                remove_attempt_files(self._job, self._io, self._task, self._attempt, named)

    def _failure(self, error: BaseException) -> TaskFailure:
        return TaskFailure(
            job=self._job.id,
            task=self._task.id,
            attempt=self._attempt,
            code="spark",
            detail=f"Spark could not run the task: {failure_reason(error)}",
            hint="See Spark's log. Executors need PyArctic's dependencies in their Python: docs/how-to/spark-clusters.md.",
        )


def task_function(
    job: str, io_properties: dict[str, str], task: str, attempt: int
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
                execution = context.attemptNumber() if context else 0
                answer = run_task(job, io_properties, task, attempt, execution, version)
                yield pa.RecordBatch.from_arrays([pa.array([answer])], ["answer"])

    return run


_job_contexts: dict[tuple[str, str], Any] = {}
"""The job that this Python worker worked on last, by its id and the storage, whose credentials are renewed."""


def run_task(job: str, io_properties: dict[str, str], task: str, attempt: int, execution: int, version: str) -> str:
    """Execute an attempt in this process and return the result or the failure as JSON."""
    document, opened = json.loads(task), json.loads(job)
    try:
        result = _execute(opened, io_properties, Task.from_json(document), attempt, execution, version)
    except Exception as error:  # noqa: BLE001  # returned to the driver
        failure = TaskFailure.of(document["id"], attempt, error, opened["id"])
        return json.dumps({"failure": failure.to_json(), "execution": execution})
    return json.dumps({"result": result.to_json(), "execution": execution})


def _execute(
    job: dict[str, Any], io_properties: dict[str, str], task: Task, attempt: int, execution: int, version: str
) -> TaskResult:
    from pyarctic.optimizing.execute.kernel import JobContext, execute

    check_version(version)
    key = (job["id"], json.dumps(io_properties, sort_keys=True))
    if key not in _job_contexts:
        _job_contexts.clear()
        _job_contexts[key] = JobContext.open(job, io_properties)
    return execute(_job_contexts[key], task, attempt=attempt, execution=execution)
