"""Engines run tasks and return their outcomes. The local engine runs them in this process or in worker processes."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from typing import Protocol

from pyiceberg.io import FileIO

from pyarctic.errors import Unavailable
from pyarctic.iceberg import remove_quietly
from pyarctic.optimizing.execute.attempt_files import remove_attempt_files
from pyarctic.optimizing.execute.kernel.execution import execute
from pyarctic.optimizing.execute.kernel.inputs import JobContext
from pyarctic.optimizing.execute.worker_processes import WorkerProcess, idle_workers
from pyarctic.optimizing.protocol.job import Job
from pyarctic.optimizing.protocol.result import ProgressListener, TaskFailure, TaskOutcome, TaskResult
from pyarctic.optimizing.protocol.task import Task

Storage = FileIO
"""Where a table's files are, and with which credentials. They may be renewed meanwhile: each attempt takes those of its
start."""
MAX_ATTEMPTS = 3
POLL_SECONDS = 0.2
"""The timeout of a wait, after which a pressed Ctrl-C is noticed: Polars makes the system resume interrupted waits."""
_BYTES_PER_WORKER = 96 << 20
"""A process takes a second of CPU to start; less work than this does not justify another one."""
_IN_PROCESS_BYTES = 64 << 20
"""Less work than this is done here."""
_TASK_BYTES = 1 << 20
"""What a task costs apart from its data, in bytes that could be rewritten instead."""


class Engine(Protocol):
    """Runs tasks, several at a time. A lost attempt is repeated, and its files are removed."""

    @property
    def name(self) -> str:
        """The name of the engine, for people."""
        ...

    def run(
        self, job: Job, io: Storage, tasks: Sequence[Task], listen: ProgressListener
    ) -> Generator[TaskOutcome, None, None]:
        """The outcomes, in the order in which tasks end. Closing the iterator stops the work."""
        ...


def attempts_of(engine: Engine) -> Iterable[int]:
    """The numbers that attempts of an engine at a task may have: those of its `attempts`, or one for each try."""
    return getattr(engine, "attempts", range(MAX_ATTEMPTS))


def parallelism_of(engine: Engine) -> int:
    """How many tasks an engine executes at the same time, if it tells."""
    return int(getattr(engine, "parallelism", 1))


class LocalEngine:
    """Runs tasks on this machine: little work in this process, more in worker processes, with one task at a time in each."""

    name = "local"

    def __init__(self, workers: int | None = None) -> None:
        """`workers`: the maximum number of processes; None: one for each core, and none for little work."""
        self._workers = workers

    @property
    def parallelism(self) -> int:
        """How many tasks are executed at the same time, if there is enough work."""
        return self._workers or available_cores()

    def run(
        self, job: Job, io: Storage, tasks: Sequence[Task], listen: ProgressListener
    ) -> Generator[TaskOutcome, None, None]:
        """The outcomes, in the order in which tasks end. Closing the iterator stops the work."""
        work_bytes = sum(task.work_bytes + _TASK_BYTES for task in tasks)
        if self._workers is None and work_bytes <= _IN_PROCESS_BYTES:
            yield from _run_in_process(job, io, tasks, listen)
            return
        pool = _WorkerPool(job, io, tasks, listen)
        try:
            pool.start(min(self.parallelism, len(tasks), work_bytes // _BYTES_PER_WORKER + 1))
            for _ in tasks:
                outcome = pool.wait_for_outcome()
                pool.hand_over()
                yield outcome
        finally:
            pool.stop()


def _run_in_process(
    job: Job, io: Storage, tasks: Sequence[Task], listen: ProgressListener
) -> Generator[TaskOutcome, None, None]:
    context = JobContext(job=job, io=io)
    for task in tasks:
        for attempt in range(MAX_ATTEMPTS):
            outcome = _execute_in_process(context, task, attempt, listen)
            if isinstance(outcome, TaskResult) or not outcome.retryable:
                break
        yield outcome


def _execute_in_process(context: JobContext, task: Task, attempt: int, listen: ProgressListener) -> TaskOutcome:
    """Execute one attempt. Its files are removed if it fails or is interrupted."""
    try:
        return execute(context, task, attempt=attempt, listen=listen)
    except Exception as error:  # noqa: BLE001  # of a task, and the others go on
        remove_attempt_files(context.job, context.io, task, attempt)
        return TaskFailure.of(task.id, attempt, error, context.job.id)
    except BaseException:
        remove_attempt_files(context.job, context.io, task, attempt)
        raise


class _WorkerPool:
    """Runs tasks in worker processes, each of which is served by a thread."""

    def __init__(self, job: Job, io: Storage, tasks: Sequence[Task], listen: ProgressListener) -> None:
        self._job = job
        self._io = io
        self._waiting = deque((task, 0) for task in tasks)
        """Tasks, and the number of their next attempt."""
        self._listen = listen
        self._outcomes: deque[TaskOutcome | BaseException] = deque()
        self._has_outcome = threading.Event()
        self._threads: list[threading.Thread] = []
        self._workers: set[WorkerProcess] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def start(self, workers: int) -> None:
        for number in range(workers):
            thread = threading.Thread(target=self._serve, name=f"arctic-worker-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def wait_for_outcome(self) -> TaskOutcome:
        """The next outcome. It stays here until it is handed over: an interrupted wait must not lose its files."""
        while not self._outcomes:
            self._has_outcome.wait(POLL_SECONDS)
            self._has_outcome.clear()
        outcome = self._outcomes[0]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def hand_over(self) -> None:
        """From now on the files of that outcome belong to the caller."""
        self._outcomes.popleft()

    def stop(self) -> None:
        """End all workers. Files of results that were not retrieved are removed."""
        with self._lock:
            self._stopped = True
            self._waiting.clear()
            for worker in self._workers:
                worker.kill()
        for thread in self._threads:
            thread.join()
        for outcome in self._outcomes:
            if isinstance(outcome, TaskResult):
                remove_quietly(self._io, outcome.paths)

    def _serve(self) -> None:
        """Run tasks in one worker process until none waits. A lost process is replaced."""
        worker: WorkerProcess | None = None
        try:
            while (attempt := self._next_attempt()) is not None:
                task, number = attempt
                worker = worker or self._start_worker()
                try:
                    worker.open_job(self._job, self._io)
                except Unavailable as error:  # there are no credentials for it now
                    self._handle_outcome(task, number, TaskFailure.of(task.id, number, error, self._job.id))
                    continue
                outcome = worker.execute(self._job, task, number, self._listen)
                if outcome is None:
                    outcome = self._fail_lost(worker, task, number)
                    worker = None
                self._handle_outcome(task, number, outcome)
        except BaseException as error:  # noqa: BLE001  # raised again by `wait_for_outcome`
            if worker is not None and worker.is_busy:
                self._stop_worker(worker)
                worker = None
                remove_attempt_files(self._job, self._io, task, number)
            self._put(error)
        finally:
            if worker is not None:
                self._release_worker(worker)

    def _next_attempt(self) -> tuple[Task, int] | None:
        with self._lock:
            return None if self._stopped or not self._waiting else self._waiting.popleft()

    def _start_worker(self) -> WorkerProcess:
        worker = idle_workers.take()
        with self._lock:
            self._workers.add(worker)
            if self._stopped:
                worker.kill()
        return worker

    def _release_worker(self, worker: WorkerProcess) -> None:
        with self._lock:
            is_reusable = not self._stopped and not worker.is_busy and worker.exit_code is None
            if is_reusable:
                self._workers.discard(worker)
        if is_reusable:
            idle_workers.give_back(worker)
        else:
            self._stop_worker(worker)

    def _stop_worker(self, worker: WorkerProcess) -> None:
        worker.kill()
        worker.stop()
        with self._lock:
            self._workers.discard(worker)

    def _fail_lost(self, worker: WorkerProcess, task: Task, attempt: int) -> TaskFailure:
        self._stop_worker(worker)
        code = worker.exit_code or 0
        was_killed = code < 0
        return TaskFailure(
            task=task.id,
            attempt=attempt,
            code="worker-lost",
            detail="the worker process ended in the middle of the task "
            + (f"(signal {-code})" if was_killed else f"(exit code {code})"),
            hint="If it was killed for lack of memory, use fewer workers." if was_killed else "See its output on stderr.",
            retryable=True,
        )

    def _handle_outcome(self, task: Task, attempt: int, outcome: TaskOutcome) -> None:
        if isinstance(outcome, TaskFailure):
            # Also if the worker is alive: it may not have been able to remove everything.
            remove_attempt_files(self._job, self._io, task, attempt)
        with self._lock:
            may_retry = isinstance(outcome, TaskFailure) and outcome.retryable and attempt + 1 < MAX_ATTEMPTS
            if may_retry and not self._stopped:
                self._waiting.append((task, attempt + 1))
                return
        self._put(outcome)

    def _put(self, outcome: TaskOutcome | BaseException) -> None:
        self._outcomes.append(outcome)
        self._has_outcome.set()


def available_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
