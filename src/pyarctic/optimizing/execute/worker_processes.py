"""Worker processes: separate programs that execute tasks, JSON lines in and out, as `execute.worker` describes.

They are started by name: a process that has used Polars hangs when it is forked, and spawning would run a user's unguarded
script again. Starting one takes about a second of CPU, so that idle ones are kept for a while, for the next table.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any, cast

import pyarrow as pa
from pyiceberg.io import FileIO

from pyarctic.iceberg import storage_properties
from pyarctic.optimizing.protocol.job import Job
from pyarctic.optimizing.protocol.result import Progress, ProgressListener, TaskFailure, TaskOutcome, TaskResult
from pyarctic.optimizing.protocol.task import Task

_IDLE_SECONDS = 10.0
"""How long a worker without work is kept. It takes some 200 MB of memory meanwhile."""
_ONE_THREAD = {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Parallelism comes from tasks."""


class WorkerProcess:
    """A worker process, with one task at a time."""

    def __init__(self) -> None:
        self.is_busy = False
        """Whether it works on a task whose response was not read."""
        self._requests = 0
        self._is_killed = False
        self._job: str | None = None
        """The id of the job that it was given last."""
        self._storage: dict[str, str] | None = None
        """The properties of the storage that the process has."""
        self.surroundings = _surroundings()
        environment, search_path, _ = self.surroundings
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pyarctic.optimizing.execute.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**_memory_pool(), **environment, **_ONE_THREAD, "PYTHONPATH": search_path},
        )
        self._stdin, self._stdout = cast("IO[str]", self._process.stdin), cast("IO[str]", self._process.stdout)

    @property
    def exit_code(self) -> int | None:
        """None: it has not ended."""
        return self._process.poll()

    @property
    def is_usable(self) -> bool:
        """Whether it can execute another attempt."""
        return not self.is_busy and not self._is_killed and self.exit_code is None

    def open_job(self, job: Job, io: FileIO) -> None:
        """Pass on the job, and the properties of its storage, whenever they have changed. They may hold credentials: they go
        through the pipe, where no process list shows them, apart from the task, which may be stored and shown."""
        properties = storage_properties(io)
        if job.id != self._job:
            self._job, self._storage = job.id, None
            self._send({"job": job.to_json()})
        if properties != self._storage:
            self._storage = properties
            self._send({"io": properties})

    def execute(self, job: Job, task: Task, attempt: int, listen: ProgressListener) -> TaskOutcome | None:
        """Request an attempt at a task of the open job, and wait for its outcome; None if the process died, or answers
        another request. After an exception it is still busy, and of no use any more."""
        self.is_busy = True
        self._requests += 1
        self._send({"task": task.to_json(), "attempt": attempt, "request": self._requests})
        for line in self._stdout:
            try:
                message = json.loads(line)
            except ValueError:  # it died in the middle of a line
                return None
            if message["request"] != self._requests:
                return None
            if "progress" in message:
                listen(Progress(**message["progress"]))
                continue
            self.is_busy = False
            if "result" in message:
                return TaskResult.from_json(message["result"], job.metadata)
            return TaskFailure.from_json(message["failure"])
        return None

    def kill(self) -> None:
        """End the process at once."""
        self._is_killed = True
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


def _surroundings() -> tuple[dict[str, str], str, str]:
    """What a worker has from this process when it starts: environment, search path of modules, and working directory. It
    finds modules where this process does, be it a script's folder or an archive from Spark."""
    folder = str(Path.cwd())
    return dict(os.environ), os.pathsep.join(each or folder for each in sys.path), folder


def _memory_pool() -> dict[str, str]:
    """The allocator of Arrow in workers, unless the user has set it: a merge takes a quarter less memory with this one."""
    return {"ARROW_DEFAULT_MEMORY_POOL": "jemalloc"} if "jemalloc" in pa.supported_memory_backends() else {}


class IdleWorkers:
    """The workers of this process that wait for the next job. They are ended after some seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: list[tuple[WorkerProcess, float]] = []
        """With the time when they became idle, the oldest first."""
        self._is_watched = False

    def take(self) -> WorkerProcess:
        """A worker that was idle and has the surroundings of now, or a new one."""
        with self._lock:
            while self._workers:
                worker, _ = self._workers.pop()
                if worker.exit_code is None and worker.surroundings == _surroundings():
                    return worker
                _end(worker)
        return WorkerProcess()

    def give_back(self, worker: WorkerProcess) -> None:
        """A worker that has finished its task."""
        with self._lock:
            self._workers.append((worker, time.monotonic()))
            if not self._is_watched:
                self._is_watched = True
                threading.Thread(target=self._end_idle, name="arctic-idle-workers", daemon=True).start()

    def stop(self) -> None:
        """End all of them."""
        with self._lock:
            workers, self._workers = self._workers, []
        for worker, _ in workers:
            _end(worker)

    def forget(self) -> None:
        """In a child process: the workers belong to the parent."""
        self._lock, self._workers, self._is_watched = threading.Lock(), [], False

    def _end_idle(self) -> None:
        while True:
            time.sleep(_IDLE_SECONDS / 4)
            with self._lock:
                until = time.monotonic() - _IDLE_SECONDS
                ended = [worker for worker, since in self._workers if since <= until]
                self._workers = [(worker, since) for worker, since in self._workers if since > until]
                self._is_watched = bool(self._workers)
                is_done = not self._is_watched
            for worker in ended:
                _end(worker)
            if is_done:
                return


def _end(worker: WorkerProcess) -> None:
    worker.kill()  # it has nothing to clean up
    worker.stop()


idle_workers = IdleWorkers()
atexit.register(idle_workers.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=idle_workers.forget)
