"""The parts of an optimizer: getting tasks, executing them, and reporting what came of them."""

from __future__ import annotations

import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pyiceberg.io import FileIO, load_file_io

from pyarctic.errors import ArcticError, StaleAttempt, Unavailable
from pyarctic.logs import get_logger
from pyarctic.optimizer.port import TaskService
from pyarctic.optimizing.execute import CANCELLED, AttemptFuture, Engine, cancelled
from pyarctic.optimizing.protocol import Job, Progress, Task, TaskFailure, TaskOutcome, TaskResult

_log = get_logger(__name__)
_KEPT_JOBS = 16
_PROGRESS_SECONDS = 5.0
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 5.0
_REPORT_SECONDS = 1800.0
"""A report that cannot be delivered for so long is left to the service, which has given the task to others by then."""
_INSIST_SECONDS = 15.0
"""A service that is started again answers within this time."""
Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True, eq=False)
class PolledTask:
    """A task that was handed out."""

    id: str
    """Of the task, in the service."""
    attempt: int
    job: Job
    task: Task


class TaskPoller:
    """Asks for tasks, and acknowledges them."""

    def __init__(self, service: TaskService, memory_bytes: int | None = None) -> None:
        """`memory_bytes`: of one task; by default what the service says."""
        self._service = service
        self._memory_bytes = memory_bytes
        self._jobs: OrderedDict[str, Job] = OrderedDict()

    def poll(self, slots: int, wait_seconds: float) -> list[PolledTask]:
        """Tasks that this optimizer has from now on. Those that cannot be acknowledged go to others."""
        polled: list[PolledTask] = []
        documents: list[Any] = self._service.poll(slots, wait_seconds)
        for document in documents:
            try:
                polled.append(self._take(document))
            except Exception as error:  # noqa: BLE001  # of one task: the service sees to it, the rest is executed
                task_id = document.get("task_id") if isinstance(document, Mapping) else None
                _log.warning("task_not_taken", task_id=task_id, reason=f"{type(error).__name__}: {error}")
        return polled

    def _take(self, document: Mapping[str, Any]) -> PolledTask:
        """Acknowledge a task. One whose document has not even the parts that each has is not acknowledged."""
        task_id, attempt = str(document["task_id"]), int(document["attempt"])
        job_document, task_document = dict(document["job"]), dict(document["task"])
        self._acknowledge(task_id, attempt)
        try:
            job, task = self._job(job_document), Task.from_json(task_document)
        except Exception as error:  # it is of a version that this optimizer does not know, or spoilt
            number = int(task_id.rpartition(".")[2])
            self._refuse(task_id, attempt, TaskFailure.of(number, attempt, error, str(job_document.get("id", ""))))
            raise
        return PolledTask(id=task_id, attempt=attempt, job=job, task=task)

    def _acknowledge(self, task_id: str, attempt: int) -> None:
        """Without an answer it may have been taken down, and nobody else would get the task for long: it is executed all the
        same. If others have it meanwhile, heartbeats tell that it is to be stopped."""
        try:
            _insist(lambda: self._service.acknowledge(task_id, attempt))
        except Unavailable as error:
            _log.warning("acknowledgment_not_answered", task_id=task_id, attempt=attempt, reason=str(error))

    def _job(self, document: Mapping[str, Any]) -> Job:
        """All tasks of a process have the same one."""
        key = str(document.get("id"))
        job = self._jobs.get(key) or Job.from_json(document)
        if self._memory_bytes is not None:
            job = replace(job, memory_bytes=self._memory_bytes)
        self._jobs[key] = job
        while len(self._jobs) > _KEPT_JOBS:
            self._jobs.popitem(last=False)
        return job

    def _refuse(self, task_id: str, attempt: int, failure: TaskFailure) -> None:
        try:
            self._service.fail(task_id, attempt, failure.to_json())
        except ArcticError as cause:
            _log.warning("task_not_refused", task_id=task_id, attempt=attempt, reason=str(cause))


class TaskExecutor:
    """Executes tasks with an engine."""

    def __init__(
        self,
        service: TaskService,
        engine: Engine,
        ended: Callable[[PolledTask, TaskOutcome], None],
        freed: Callable[[], None] = lambda: None,
    ) -> None:
        """`ended` is called with the outcome of each attempt, by other threads; after that it is not running any more, and
        `freed` is called."""
        self._service = service
        self._engine = engine
        self._ended = ended
        self._freed = freed
        self._running: dict[tuple[str, int], AttemptFuture] = {}
        self._told: dict[tuple[str, int], float] = {}
        """When the progress of attempts was told last."""
        self._lock = threading.Lock()

    @property
    def running(self) -> list[tuple[str, int]]:
        """The attempts that are executed."""
        with self._lock:
            return list(self._running)

    def start(self, polled: PolledTask) -> None:
        """Execute a task. If that cannot even begin, it has failed."""
        key = (polled.id, polled.attempt)
        try:
            io = self._open_storage(polled)
            future = self._engine.submit(polled.job, io, polled.task, polled.attempt, self._listener(polled))
        except Exception as error:  # noqa: BLE001  # reported as every other failure
            self._ended(polled, TaskFailure.of(polled.task.id, polled.attempt, error, polled.job.id))
            return
        with self._lock:
            self._running[key] = future
        future.add_done_callback(lambda ended: self._end(polled, ended))  # type: ignore[arg-type]

    def stop(self, attempts: list[tuple[str, int]]) -> None:
        """Stop these attempts."""
        with self._lock:
            futures = [self._running[key] for key in attempts if key in self._running]
        for future in futures:
            future.cancel()

    def _end(self, polled: PolledTask, future: AttemptFuture) -> None:
        try:
            self._ended(polled, _outcome_of(polled, future))
        finally:  # not before: who waits until nothing runs would miss the outcome
            with self._lock:
                self._running.pop((polled.id, polled.attempt), None)
                self._told.pop((polled.id, polled.attempt), None)
            self._freed()

    def _open_storage(self, polled: PolledTask) -> FileIO:
        properties = _insist(lambda: self._service.storage(polled.id, polled.attempt))
        return load_file_io(dict(properties), polled.job.metadata.location)

    def _listener(self, polled: PolledTask) -> Callable[[Progress], None]:
        key = (polled.id, polled.attempt)

        def listen(progress: Progress) -> None:
            now = time.monotonic()
            if now - self._told.get(key, 0.0) < _PROGRESS_SECONDS:
                return
            self._told[key] = now
            try:
                self._service.progress(polled.id, polled.attempt, progress.rows, progress.bytes)
            except ArcticError as error:  # the next one may come through; heartbeats tell what to stop
                _log.debug("progress_not_told", task_id=polled.id, attempt=polled.attempt, reason=str(error))

        return listen


def _outcome_of(polled: PolledTask, future: AttemptFuture) -> TaskOutcome:
    try:
        error = future.exception()
    except CancelledError:  # engines of others may have plain futures
        return cancelled(polled.job, polled.task, polled.attempt)
    return future.result() if error is None else TaskFailure.of(polled.task.id, polled.attempt, error, polled.job.id)


def _insist(ask: Callable[[], Answer]) -> Answer:
    """The answer to a request that may be sent again, from a service that may be about to start: that is no failure of a
    task."""
    end, wait = time.monotonic() + _INSIST_SECONDS, _FIRST_WAIT
    while True:
        try:
            return ask()
        except Unavailable:
            if time.monotonic() + wait > end:
                raise
        time.sleep(wait)
        wait *= 2


class TaskReporter:
    """Reports outcomes, again and again until the service answers: after a result was sent, its files are the service's, and
    only the service may remove them."""

    def __init__(self, service: TaskService) -> None:
        self._service = service
        self._reports: queue.SimpleQueue[tuple[PolledTask, TaskOutcome, float] | None] = queue.SimpleQueue()
        self._open = 0
        self._lock = threading.Lock()
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="arctic-reports", daemon=True)
        self._thread.start()

    @property
    def open(self) -> int:
        """How many outcomes are not reported yet."""
        with self._lock:
            return self._open

    def report(self, polled: PolledTask, outcome: TaskOutcome) -> None:
        """Report an outcome. That of an attempt that was stopped is of no interest to anybody."""
        if isinstance(outcome, TaskFailure) and outcome.code == CANCELLED:
            return
        with self._lock:
            self._open += 1
        self._reports.put((polled, outcome, time.monotonic()))

    def stop(self, seconds: float) -> None:
        """Report what is open, for so long at most."""
        self._reports.put(None)
        self._thread.join(seconds)
        self._is_stopped.set()

    def _run(self) -> None:
        while (report := self._reports.get()) is not None:
            polled, outcome, since = report
            try:
                self._deliver(polled, outcome, since)
            except Exception as error:  # noqa: BLE001  # of one report: the service puts the state right
                reason = f"{type(error).__name__}: {error}"
                _log.warning("report_not_taken", task_id=polled.id, attempt=polled.attempt, reason=reason)
            finally:
                with self._lock:
                    self._open -= 1

    def _deliver(self, polled: PolledTask, outcome: TaskOutcome, since: float) -> None:
        wait = _FIRST_WAIT
        while True:
            try:
                self._send(polled, outcome)
                return
            except Unavailable:
                if time.monotonic() - since > _REPORT_SECONDS or self._is_stopped.wait(wait):
                    raise
                wait = min(2 * wait, _LONGEST_WAIT)

    def _send(self, polled: PolledTask, outcome: TaskOutcome) -> None:
        """A result that is refused, for whatever reason, is a failure: else the service would wait for it for long."""
        if isinstance(outcome, TaskResult):
            try:
                self._service.complete(polled.id, polled.attempt, outcome.to_json())
                return
            except (StaleAttempt, Unavailable):
                raise
            except Exception as refusal:  # noqa: BLE001  # reported as every other failure
                reason = f"{type(refusal).__name__}: {refusal}"
                _log.warning("result_refused", task_id=polled.id, attempt=polled.attempt, reason=reason)
                outcome = TaskFailure.of(polled.task.id, polled.attempt, refusal, polled.job.id)
        self._service.fail(polled.id, polled.attempt, outcome.to_json())
