"""A worker process of the local engine: `python -m pyarctic.optimizing.execute.worker`, JSON lines in and out.

    in:   {"job": …}   before its first task,   {"io": {…}}   after each job, and whenever credentials are renewed,
          {"task": …, "attempt": 0, "request": 1}   for each task
    out:  {"progress": …}   while it works, then   {"result": …}   or   {"failure": …},   each with the number of the request

It ends when its input ends, even in the middle of a task: then nobody waits for the response. It removes what it wrote.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from dataclasses import asdict
from types import FrameType
from typing import Any, NoReturn, TextIO

from pyarctic._program import prepare_program

if __name__ == "__main__":
    prepare_program()

import pyarrow as pa

from pyarctic.optimizing.execute.attempt_files import remove_attempt_files
from pyarctic.optimizing.execute.kernel.execution import execute
from pyarctic.optimizing.execute.kernel.inputs import JobContext
from pyarctic.optimizing.protocol.result import Progress, TaskFailure
from pyarctic.optimizing.protocol.task import Task

_PROGRESS_SECONDS = 0.2


class _Abandoned(BaseException):
    """Nobody waits for the response any more."""


def main() -> int:
    """Handle requests until there are no more."""
    # Whatever a library prints goes to stderr: stdout carries responses only.
    responses = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # Ctrl-C reaches all processes of a terminal. The engine decides what to do about it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pa.set_cpu_count(1)
    requests = _Requests()
    request = context = None
    try:
        job: dict[str, Any] = {}
        while (request := requests.next()) is not None:
            if "job" in request:
                job = request["job"]
            elif "io" in request:
                context = JobContext.open(job, request["io"])
            elif context is not None:
                _handle(context, request, responses, requests)
                request = None  # from here on its files belong to the engine
    except (_Abandoned, BrokenPipeError):
        if context is not None and request is not None and "task" in request:
            remove_attempt_files(context.job, context.io, Task.from_json(request["task"]), request["attempt"])
        os._exit(1)  # without flushing: nobody reads it
    return 0


def _abandon(_number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Abandoned


class _Requests:
    """Reads requests in a separate thread, so that their end is noticed in the middle of a task."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._is_busy = False
        threading.Thread(target=self._read, daemon=True).start()

    def next(self) -> dict[str, Any] | None:
        """The next request; None when there are no more."""
        line = self._lines.get()
        if line is None:
            return None
        request: dict[str, Any] = json.loads(line)
        signal.signal(signal.SIGTERM, _abandon)
        self._is_busy = True
        return request

    def finish(self) -> None:
        """The response is sent now: from here on the files belong to the engine, and must not be removed here."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._is_busy = False

    def _read(self) -> None:
        for line in sys.stdin:
            self._lines.put(line)
        self._lines.put(None)
        if self._is_busy:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def _handle(context: JobContext, request: dict[str, Any], responses: TextIO, requests: _Requests) -> None:
    task, attempt = Task.from_json(request["task"]), request["attempt"]
    answer = {"request": request["request"]}
    last_progress = 0.0

    def listen(progress: Progress) -> None:
        nonlocal last_progress
        if time.monotonic() - last_progress > _PROGRESS_SECONDS:
            last_progress = time.monotonic()
            _send(responses, answer | {"progress": asdict(progress)})

    try:
        result = execute(context, task, attempt=attempt, listen=listen)
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001  # reported to the engine
        response: dict[str, Any] = {"failure": TaskFailure.of(task.id, attempt, error, context.job.id).to_json()}
    else:
        response = {"result": result.to_json()}
    requests.finish()
    _send(responses, answer | response)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _send(responses: TextIO, message: dict[str, Any]) -> None:
    responses.write(json.dumps(message) + "\n")
    responses.flush()


if __name__ == "__main__":
    sys.exit(main())
