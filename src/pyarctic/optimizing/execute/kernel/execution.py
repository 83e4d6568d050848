"""Executing one attempt at a task."""

from __future__ import annotations

import time
from dataclasses import replace

from pyarctic.optimizing.execute.kernel.convert import convert
from pyarctic.optimizing.execute.kernel.inputs import JobContext, ignore_progress, new_attempt, peak_bytes
from pyarctic.optimizing.execute.kernel.merge import merge
from pyarctic.optimizing.protocol.result import ProgressListener, TaskResult
from pyarctic.optimizing.protocol.task import Task


def execute(context: JobContext, task: Task, *, attempt: int = 0, listen: ProgressListener = ignore_progress) -> TaskResult:
    """Execute a task. Its files are removed if it fails."""
    started = time.process_time()
    running = new_attempt(context, task, attempt, listen)
    result = merge(running) if task.action == "merge" else convert(running)
    return replace(
        result,
        bytes_read=int(task.files["file_size_bytes"].sum()) if task.action == "merge" else result.bytes_read,
        cpu_seconds=time.process_time() - started,
        peak_bytes=peak_bytes(),
    )
