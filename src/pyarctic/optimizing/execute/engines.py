"""Engines run tasks and return their outcomes. The local engine runs them in worker processes."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import IO, Any, Protocol, cast

from pyiceberg.io import FileIO

from pyarctic.iceberg import remove_quietly
from pyarctic.optimizing.execute.attempt_files import remove_attempt_files
from pyarctic.optimizing.protocol.job import Job
from pyarctic.optimizing.protocol.result import Progress, ProgressListener, TaskFailure, TaskOutcome, TaskResult
from pyarctic.optimizing.protocol.task import Task

Storage = FileIO
"""Where a table's files are, and with which credentials."""
MAX_ATTEMPTS = 3
POLL_SECONDS = 0.2
"""The timeout of a wait, after which a pressed Ctrl-C is noticed: Polars makes the system resume interrupted waits."""
_BYTES_PER_WORKER = 96 << 20
"""A process takes more than a second of CPU to start; less work than this does not justify another one."""


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


class LocalEngine:
    """Worker processes on this machine, with one task at a time in each.

    They are separate programs, started by name: a process that has used Polars hangs when it is forked, and spawning would
    run a user's unguarded script again."""

    name = "local"

    def __init__(self, workers: int | None = None) -> None:
        """`workers`: the maximum number of processes; None: one for each core."""
        self._workers = workers or _available_cores()

    def run(
        self, job: Job, io: Storage, tasks: Sequence[Task], listen: ProgressListener
    ) -> Generator[TaskOutcome, None, None]:
        """The outcomes, in the order in which tasks end. Closing the iterator stops the work."""
        useful_workers = sum(task.work_bytes for task in tasks) // _BYTES_PER_WORKER + 1
        pool = _WorkerPool(job, io, tasks, listen)
        try:
            pool.start(min(self._workers, len(tasks), useful_workers))
            for _ in tasks:
                yield pool.next_outcome()
        finally:
            pool.stop()


class _WorkerPool:
    """Runs tasks in worker processes, each of which is served by a thread."""

    def __init__(self, job: Job, io: Storage, tasks: Sequence[Task], listen: ProgressListener) -> None:
        self._job = job
        self._io = io
        self._waiting = deque((task, 0) for task in tasks)
        """Tasks, and the number of their next attempt."""
        self._listen = listen
        self._outcomes: queue.SimpleQueue[TaskOutcome | BaseException] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._workers: set[_Worker] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def start(self, workers: int) -> None:
        for number in range(workers):
            thread = threading.Thread(target=self._serve, name=f"arctic-worker-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def next_outcome(self) -> TaskOutcome:
        while True:
            try:
                outcome = self._outcomes.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

    def stop(self) -> None:
        """End all workers. Files of results that were not retrieved are removed."""
        with self._lock:
            self._stopped = True
            self._waiting.clear()
            for worker in self._workers:
                worker.kill()
        for thread in self._threads:
            thread.join()
        while not self._outcomes.empty():
            outcome = self._outcomes.get()
            if isinstance(outcome, TaskResult):
                remove_quietly(self._io, outcome.paths)

    def _serve(self) -> None:
        """Run tasks in one worker process until none waits. A lost process is replaced."""
        worker: _Worker | None = None
        try:
            while (attempt := self._next_attempt()) is not None:
                task, number = attempt
                worker = worker or self._start_worker()
                outcome = worker.execute(task, number, self._listen)
                if outcome is None:
                    outcome = self._fail_lost(worker, task, number)
                    worker = None
                self._handle_outcome(task, number, outcome)
        except BaseException as error:  # noqa: BLE001  # raised again by `next_outcome`
            self._outcomes.put(error)
        finally:
            if worker is not None:
                self._stop_worker(worker)

    def _next_attempt(self) -> tuple[Task, int] | None:
        with self._lock:
            return None if self._stopped or not self._waiting else self._waiting.popleft()

    def _start_worker(self) -> _Worker:
        worker = _Worker(self._job)
        with self._lock:
            self._workers.add(worker)
            if self._stopped:
                worker.kill()
        worker.open_job(self._io)
        return worker

    def _stop_worker(self, worker: _Worker) -> None:
        worker.stop()
        with self._lock:
            self._workers.discard(worker)

    def _fail_lost(self, worker: _Worker, task: Task, attempt: int) -> TaskFailure:
        worker.kill()
        self._stop_worker(worker)
        code = worker.exit_code
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
        self._outcomes.put(outcome)


class _Worker:
    """A worker process: JSON lines in and out, as `execute.worker` describes."""

    def __init__(self, job: Job) -> None:
        self._job = job
        # It finds modules where this process does, be it a script's folder or an archive from Spark.
        search_path = os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pyarctic.optimizing.execute.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": search_path},
        )
        self._stdin, self._stdout = cast("IO[str]", self._process.stdin), cast("IO[str]", self._process.stdout)

    @property
    def exit_code(self) -> int:
        """Of a process that has ended."""
        return self._process.returncode

    def open_job(self, io: Storage) -> None:
        # The properties of the storage may hold credentials: they go through the pipe, where no process list shows them.
        self._send({"job": self._job.to_json(), "io": dict(io.properties)})

    def execute(self, task: Task, attempt: int, listen: ProgressListener) -> TaskOutcome | None:
        """Request an attempt, and wait for its outcome; None if the process died."""
        self._send({"task": task.to_json(), "attempt": attempt})
        for line in self._stdout:
            try:
                message = json.loads(line)
            except ValueError:  # it died in the middle of a line
                return None
            if "progress" in message:
                listen(Progress(**message["progress"]))
            elif "result" in message:
                return TaskResult.from_json(message["result"], self._job.metadata)
            else:
                return TaskFailure(**message["failure"])
        return None

    def kill(self) -> None:
        self._process.kill()

    def stop(self) -> None:
        """Let the process end, and wait for it."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        self._process.wait()
        self._stdout.close()

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):  # then there will be no response either
            self._stdin.write(json.dumps(message) + "\n")
            self._stdin.flush()


def _available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
