"""The local engine: executes little work in this process, more in worker processes with one attempt at a time in each."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from pyarctic.errors import Unavailable
from pyarctic.optimizing.execute.attempt_files import remove_attempt_files
from pyarctic.optimizing.execute.engine import AttemptFuture, Storage, cancelled
from pyarctic.optimizing.execute.kernel.execution import execute
from pyarctic.optimizing.execute.kernel.inputs import JobContext
from pyarctic.optimizing.execute.worker_processes import WorkerProcess, idle_workers
from pyarctic.optimizing.protocol.job import Job
from pyarctic.optimizing.protocol.result import ProgressListener, TaskFailure, TaskOutcome, TaskResult
from pyarctic.optimizing.protocol.task import Task

_BYTES_PER_WORKER = 96 << 20
"""A process takes a second of CPU to start; less work than this does not justify another one."""
_IN_PROCESS_BYTES = 64 << 20
"""Less work than this is done here."""
_TASK_BYTES = 1 << 20
"""What a task costs apart from its data, in bytes that could be rewritten instead."""


class LocalEngine:
    """Executes attempts on this machine: little work in this process, more in worker processes."""

    name = "local"

    def __init__(self, workers: int | None = None) -> None:
        """`workers`: the maximum number of processes; None: one for each core, and none for little work."""
        self._workers = workers
        self._is_little = False
        self._context: JobContext | None = None
        """Of the job of which this process has executed tasks."""
        self._pool = _WorkerPool(self.parallelism)

    @property
    def parallelism(self) -> int:
        """How many attempts are executed at the same time, if there is enough work."""
        return self._workers or available_cores()

    def prepare(self, tasks: Sequence[Task]) -> None:
        """Tells which tasks are going to be submitted, so that no more processes are started than they justify."""
        work_bytes = sum(task.work_bytes + _TASK_BYTES for task in tasks)
        self._is_little = self._workers is None and work_bytes <= _IN_PROCESS_BYTES
        self._pool.limit(min(self.parallelism, len(tasks), work_bytes // _BYTES_PER_WORKER + 1))

    def submit(self, job: Job, io: Storage, task: Task, attempt: int, listen: ProgressListener) -> AttemptFuture:
        """Execute an attempt; if there is little work, at once."""
        if not self._is_little:
            return self._pool.submit(job, io, task, attempt, listen)
        if self._context is None or self._context.job is not job:
            self._context = JobContext(job=job, io=io)
        return AttemptFuture.of(_execute_here(self._context, task, attempt, listen))


def _execute_here(context: JobContext, task: Task, attempt: int, listen: ProgressListener) -> TaskOutcome:
    """Execute an attempt in this thread. Its files are removed if it fails or is interrupted."""
    try:
        return execute(context, task, attempt=attempt, listen=listen)
    except Exception as error:  # noqa: BLE001  # of a task, and the others go on
        remove_attempt_files(context.job, context.io, task, attempt)
        return TaskFailure.of(task.id, attempt, error, context.job.id)
    except BaseException:
        remove_attempt_files(context.job, context.io, task, attempt)
        raise


@dataclass(frozen=True, kw_only=True, eq=False)
class _Order:
    """An attempt that was submitted."""

    job: Job
    io: Storage
    task: Task
    attempt: int
    listen: ProgressListener
    future: AttemptFuture

    def end(self, ended: TaskOutcome | BaseException) -> None:
        """Tell how it ended. Files of an attempt without a result are removed first, also if its worker is alive: it may not
        have been able to remove all."""
        if not isinstance(ended, TaskResult):
            with contextlib.suppress(Exception):  # the storage is out of reach: they stay, and are found by name later
                remove_attempt_files(self.job, self.io, self.task, self.attempt)
        if isinstance(ended, BaseException):
            self.future.set_exception(ended)
        else:
            self.future.set_result(ended)


class _WorkerPool:
    """Executes attempts in worker processes, each of which is served by a thread as long as attempts wait."""

    def __init__(self, max_workers: int) -> None:
        self._max_workers = max_workers
        self._threads = 0
        self._waiting: deque[_Order] = deque()
        self._working: dict[AttemptFuture, WorkerProcess | None] = {}
        """Attempts that a thread has taken, and their workers."""
        self._stopped: set[AttemptFuture] = set()
        """Those of them that are to be stopped."""
        self._lock = threading.Lock()

    def limit(self, workers: int) -> None:
        """Use at most so many workers."""
        self._max_workers = max(workers, 1)

    def submit(self, job: Job, io: Storage, task: Task, attempt: int, listen: ProgressListener) -> AttemptFuture:
        future = AttemptFuture(self._stop)
        order = _Order(job=job, io=io, task=task, attempt=attempt, listen=listen, future=future)
        with self._lock:
            self._waiting.append(order)
            if self._threads < self._max_workers:
                self._threads += 1
                threading.Thread(target=self._serve, name="arctic-worker", daemon=True).start()
        return future

    def _stop(self, future: AttemptFuture) -> None:
        with self._lock:
            waiting = next((order for order in self._waiting if order.future is future), None)
            if waiting is not None:
                self._waiting.remove(waiting)
            elif future in self._working:
                self._stopped.add(future)
                if (worker := self._working[future]) is not None:
                    worker.kill()
        if waiting is not None:
            future.set_result(cancelled(waiting.job, waiting.task, waiting.attempt))

    def _serve(self) -> None:
        """Execute attempts in one worker process until none waits. A lost process is replaced."""
        worker: WorkerProcess | None = None
        while (order := self._take()) is not None:
            ended: TaskOutcome | BaseException
            try:
                worker = worker or idle_workers.take()
                ended = self._execute(worker, order)
            except BaseException as error:  # noqa: BLE001  # of a listener: whoever waits for the attempt gets it
                ended = error
            with self._lock:
                del self._working[order.future]
                self._stopped.discard(order.future)
            if worker is not None and not worker.is_usable:
                worker.kill()
                worker.stop()
                worker = None
            order.end(ended)
        if worker is not None:
            idle_workers.give_back(worker)

    def _take(self) -> _Order | None:
        """The next attempt. None: the thread ends."""
        with self._lock:
            if not self._waiting or self._threads > self._max_workers:
                self._threads -= 1
                return None
            order = self._waiting.popleft()
            self._working[order.future] = None
            return order

    def _execute(self, worker: WorkerProcess, order: _Order) -> TaskOutcome:
        with self._lock:
            self._working[order.future] = worker
            if order.future in self._stopped:
                return cancelled(order.job, order.task, order.attempt)
        try:
            worker.open_job(order.job, order.io)
        except Unavailable as error:  # there are no credentials for it now
            return TaskFailure.of(order.task.id, order.attempt, error, order.job.id)
        outcome = worker.execute(order.job, order.task, order.attempt, order.listen)
        if outcome is not None:
            return outcome
        with self._lock:
            if order.future in self._stopped:
                return cancelled(order.job, order.task, order.attempt)
        return _lost(worker, order)


def _lost(worker: WorkerProcess, order: _Order) -> TaskFailure:
    worker.kill()
    worker.stop()
    code = worker.exit_code or 0
    was_killed = code < 0
    return TaskFailure(
        job=order.job.id,
        task=order.task.id,
        attempt=order.attempt,
        code="worker-lost",
        detail="the worker process ended in the middle of the task "
        + (f"(signal {-code})" if was_killed else f"(exit code {code})"),
        hint="If it was killed for lack of memory, use fewer workers." if was_killed else "See its output on stderr.",
        retryable=True,
    )


def available_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
