"""Executing one attempt at a task."""

from __future__ import annotations

import time
from dataclasses import replace

from pyarctic.iceberg import keep_small_files
from pyarctic.optimizing.execute.kernel.convert import convert
from pyarctic.optimizing.execute.kernel.inputs import MEMORY_SHARES, JobContext, ignore_progress, new_attempt, peak_bytes
from pyarctic.optimizing.execute.kernel.merge import merge
from pyarctic.optimizing.protocol.result import ProgressListener, TaskResult
from pyarctic.optimizing.protocol.task import Task

_KEPT_BYTES = 32 << 20
"""Some files of a task are opened several times: for their footers, by which its course is decided, and for their rows."""


def execute(
    context: JobContext,
    task: Task,
    *,
    attempt: int = 0,
    execution: int = 0,
    listen: ProgressListener = ignore_progress,
) -> TaskResult:
    """Execute a task. Its files are removed if it fails. `execution`: how often the engine has executed this attempt
    before."""
    started = time.process_time()
    running = new_attempt(context, task, attempt, execution, listen)
    with keep_small_files(min(context.job.memory_bytes // MEMORY_SHARES, _KEPT_BYTES)):
        result = merge(running) if task.action == "merge" else convert(running)
    return replace(
        result,
        job=context.job.id,
        bytes_read=int(task.files["file_size_bytes"].sum()) if task.action == "merge" else result.bytes_read,
        cpu_seconds=time.process_time() - started,
        peak_bytes=peak_bytes(),
    )
