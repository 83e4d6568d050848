"""A worker process of the local engine: `python -m pyarctic.optimizing.execute.worker`, JSON lines in and out.

    in:   {"job": …, "io": {…}}   once, then   {"task": …, "attempt": 0}   for each task
    out:  {"progress": …}   while it works, then   {"result": …}   or   {"failure": …}

It ends when its input does, also in the middle of a task: then nobody waits for it any more. It removes what it wrote.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, NoReturn, TextIO


class _WithoutPandas:
    """Arrow loads pandas where it is installed, which takes longer than all the rest and is never used here."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


if __name__ == "__main__":
    sys.meta_path.insert(0, _WithoutPandas)

import pyarrow as pa  # noqa: E402

from pyarctic.optimizing.execute.attempt_files import remove_attempt_files  # noqa: E402
from pyarctic.optimizing.execute.kernel.execution import execute  # noqa: E402
from pyarctic.optimizing.execute.kernel.inputs import JobContext  # noqa: E402
from pyarctic.optimizing.protocol.tasks import Progress, Task, TaskFailure  # noqa: E402

_PROGRESS_SECONDS = 0.2


class _Abandoned(BaseException):
    """Nobody waits for the answer any more."""


def main() -> int:
    # Whatever a library prints goes to stderr: stdout carries answers only.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # Ctrl-C reaches all processes of a terminal. What it means is decided where the work was ordered.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pa.set_cpu_count(1)
    orders = _Orders()
    order = bench = None
    try:
        begin = orders.next()
        if begin is None:
            return 0
        bench = JobContext.opened(begin["job"], begin["io"])
        while (order := orders.next()) is not None:
            _work(bench, order, answers, orders)
    except (_Abandoned, BrokenPipeError):
        if bench is not None and order is not None:
            remove_attempt_files(bench.job, bench.io, Task.from_json(order["task"]), order["attempt"])
        os._exit(1)  # quietly: there is no reader for what is still to be flushed
    return 0


def _give_up(_number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Abandoned


class _Orders:
    """Reads orders in a thread of its own, so that their end is noticed in the middle of a task."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._is_busy = False
        threading.Thread(target=self._read, daemon=True).start()

    def next(self) -> dict[str, Any] | None:
        """None when there are no more."""
        line = self._waiting.get()
        if line is None:
            return None
        order: dict[str, Any] = json.loads(line)
        signal.signal(signal.SIGTERM, _give_up)
        self._is_busy = True
        return order

    def done(self) -> None:
        """The answer comes now: from here on the files belong to whoever hears it, and giving up must not remove them."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._is_busy = False

    def _read(self) -> None:
        for line in sys.stdin:
            self._waiting.put(line)
        self._waiting.put(None)
        if self._is_busy:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def _work(bench: JobContext, order: dict[str, Any], answers: TextIO, orders: _Orders) -> None:
    task, attempt = Task.from_json(order["task"]), order["attempt"]
    told = 0.0

    def listen(progress: Progress) -> None:
        nonlocal told
        if time.monotonic() - told > _PROGRESS_SECONDS:
            told = time.monotonic()
            _say(answers, {"progress": {"task": progress.task, "rows": progress.rows, "bytes": progress.bytes}})

    try:
        result = execute(bench, task, attempt=attempt, listen=listen)
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001  # told to whoever ordered the work
        answer: dict[str, Any] = {"failure": TaskFailure.of(task.id, attempt, error).to_json()}
    else:
        answer = {"result": result.to_json()}
    orders.done()
    _say(answers, answer)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _say(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main())
