"""Where tasks run. An engine takes tasks and gives back what became of each; the local one has worker processes."""

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
from typing import Any, Protocol

from pyiceberg.io import FileIO

from pyarctic.iceberg import remove_quietly
from pyarctic.optimizing.execute.attempt_files import remove_attempt_files
from pyarctic.optimizing.protocol.tasks import Job, Progress, ProgressListener, Task, TaskFailure, TaskOutcome, TaskResult

Storage = FileIO
"""Where a table's files are, and with which credentials."""
MAX_ATTEMPTS = 3
POLL_SECONDS = 0.2
"""How long a wait lasts before somebody looks whether Ctrl-C was pressed: Polars has the system go on waiting instead."""
_BYTES_WORTH_A_WORKER = 96 << 20
"""A process takes more than a second of CPU to start; less work than this is not worth another one."""


class Engine(Protocol):
    """Runs tasks, some at a time. A lost attempt is repeated; what it left is removed."""

    @property
    def name(self) -> str: ...

    def run(
        self, job: Job, io: Storage, tasks: Sequence[Task], listen: ProgressListener
    ) -> Generator[TaskOutcome, None, None]:
        """The outcomes, in the order in which tasks end. Closing the iterator stops the work."""
        ...


class LocalEngine:
    """Worker processes on this machine, one task at a time in each.

    They are programs of their own, started by name: forking a process that has used Polars would hang, and spawning would
    run a user's unguarded script once more."""

    name = "local"

    def __init__(self, workers: int | None = None) -> None:
        self._workers = workers or _cores()

    def run(
        self, job: Job, io: Storage, tasks: Sequence[Task], listen: ProgressListener
    ) -> Generator[TaskOutcome, None, None]:
        waiting = deque((task, 0) for task in tasks)
        worth = sum(task.work_bytes for task in tasks) // _BYTES_WORTH_A_WORKER + 1
        crew = _Crew(job, io, waiting, listen)
        try:
            crew.start(min(self._workers, len(tasks), worth))
            for _ in tasks:
                yield crew.next_outcome()
        finally:
            crew.stop()


class _Crew:
    def __init__(self, job: Job, io: Storage, waiting: deque[tuple[Task, int]], listen: ProgressListener) -> None:
        self._job = job
        self._io = io
        self._waiting = waiting
        self._listen = listen
        self._outcomes: queue.SimpleQueue[TaskOutcome | BaseException] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._processes: set[subprocess.Popen[str]] = set()
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
        with self._lock:
            self._stopped = True
            self._waiting.clear()
            for process in self._processes:
                process.kill()
        for thread in self._threads:
            thread.join()
        self._forget()

    def _forget(self) -> None:
        """Results that nobody has asked for: their files belong to nothing."""
        while not self._outcomes.empty():
            outcome = self._outcomes.get()
            if isinstance(outcome, TaskResult):
                remove_quietly(self._io, outcome.paths)

    def _serve(self) -> None:
        """One worker process, and the next when it is lost, until no task waits."""
        process: subprocess.Popen[str] | None = None
        try:
            while True:
                with self._lock:
                    if self._stopped or not self._waiting:
                        break
                    task, attempt = self._waiting.popleft()
                process = process or self._hired()
                outcome = self._ordered(process, task, attempt)
                if outcome is None:
                    outcome = self._lost(process, task, attempt)
                    process = None
                self._settle(task, attempt, outcome)
        except BaseException as error:  # noqa: BLE001  # raised again where the outcomes are waited for
            self._outcomes.put(error)
        finally:
            if process is not None:
                self._dismiss(process)

    def _hired(self) -> subprocess.Popen[str]:
        # It finds modules where this process does, be it a script's folder or an archive that Spark brought.
        found = os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path)
        environment = {**os.environ, "POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": found}
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pyarctic.optimizing.execute.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        with self._lock:
            self._processes.add(process)
            if self._stopped:
                process.kill()
        # Properties of the storage may hold credentials: they go through the pipe, where no list of processes shows them.
        self._tell(process, {"job": self._job.to_json(), "io": dict(self._io.properties)})
        return process

    def _dismiss(self, process: subprocess.Popen[str]) -> None:
        with contextlib.suppress(BrokenPipeError):
            assert process.stdin is not None  # noqa: S101  # a pipe was asked for
            process.stdin.close()
        process.wait()
        assert process.stdout is not None  # noqa: S101
        process.stdout.close()
        with self._lock:
            self._processes.discard(process)

    def _ordered(self, process: subprocess.Popen[str], task: Task, attempt: int) -> TaskOutcome | None:
        """What the worker answers; None when it died."""
        self._tell(process, {"task": task.to_json(), "attempt": attempt})
        assert process.stdout is not None  # noqa: S101
        for line in process.stdout:
            try:
                message = json.loads(line)
            except ValueError:  # it died in the middle of a word
                return None
            if "progress" in message:
                self._listen(Progress(**message["progress"]))
            elif "result" in message:
                return TaskResult.from_json(message["result"], self._job.metadata)
            else:
                return TaskFailure(**message["failure"])
        return None

    def _lost(self, process: subprocess.Popen[str], task: Task, attempt: int) -> TaskFailure:
        process.kill()
        self._dismiss(process)
        code = process.returncode
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        memory = "If it was killed for want of memory, use fewer workers."
        return TaskFailure(
            task=task.id,
            attempt=attempt,
            code="worker-lost",
            detail=f"the worker process ended in the middle of the task ({how})",
            hint=memory if code < 0 else "What it wrote to stderr tells more.",
            retryable=True,
        )

    def _settle(self, task: Task, attempt: int, outcome: TaskOutcome) -> None:
        if isinstance(outcome, TaskFailure):
            # Also when the worker lives: it may not have got round to removing everything.
            remove_attempt_files(self._job, self._io, task, attempt)
        with self._lock:
            again = isinstance(outcome, TaskFailure) and outcome.retryable and attempt + 1 < MAX_ATTEMPTS
            if again and not self._stopped:
                self._waiting.append((task, attempt + 1))
                return
        self._outcomes.put(outcome)

    @staticmethod
    def _tell(process: subprocess.Popen[str], message: dict[str, Any]) -> None:
        assert process.stdin is not None  # noqa: S101
        with contextlib.suppress(BrokenPipeError):  # its answer, or the lack of one, will tell
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
