"""A worker process of the local engine: `python -m pyarctic.optimizing.worker`, JSON lines in and out.

    in:   {"job": …, "io": {…}}   once, then   {"task": …, "attempt": 0}   for each task
    out:  {"progress": …}   while it works, then   {"result": …}   or   {"failure": …}

It ends when its input does. If nobody listens any more it gives up and removes what it wrote.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, TextIO

import pyarrow as pa

from pyarctic.iceberg.storage import remove_quietly
from pyarctic.optimizing.kernel import Bench, execute
from pyarctic.optimizing.tasks import Progress, Task, TaskFailure

_PROGRESS_SECONDS = 0.2


def main() -> int:
    # Whatever a library prints goes to stderr: stdout carries answers only.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    pa.set_cpu_count(1)
    begin = json.loads(sys.stdin.readline())
    bench = Bench.opened(begin["job"], begin["io"])
    try:
        for line in sys.stdin:
            _work(bench, json.loads(line), answers)
    except BrokenPipeError:
        return 1
    return 0


def _work(bench: Bench, order: dict[str, Any], answers: TextIO) -> None:
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
        _say(answers, {"failure": TaskFailure.of(task.id, attempt, error).to_json()})
        return
    try:
        _say(answers, {"result": result.to_json()})
    except BrokenPipeError:
        remove_quietly(bench.io, result.paths)
        raise


def _say(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main())
