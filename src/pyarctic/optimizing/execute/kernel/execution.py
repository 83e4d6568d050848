"""Executing one attempt at a task."""

from __future__ import annotations

import time
from dataclasses import replace

from pyarctic.optimizing.execute.kernel.convert import convert
from pyarctic.optimizing.execute.kernel.inputs import Attempt, JobContext, peak_bytes
from pyarctic.optimizing.execute.kernel.merge import merge
from pyarctic.optimizing.protocol.tasks import ProgressListener, Task, TaskResult


def execute(bench: JobContext, task: Task, *, attempt: int = 0, listen: ProgressListener = lambda _: None) -> TaskResult:
    """Work on a task. What it wrote is removed if it fails."""
    started = time.process_time()
    work = Attempt(bench=bench, task=task, number=attempt, listen=listen)
    result = merge(work) if task.action == "merge" else convert(work)
    return replace(
        result,
        bytes_read=int(task.files["file_size_bytes"].sum()) if task.action == "merge" else result.bytes_read,
        cpu_seconds=time.process_time() - started,
        peak_bytes=peak_bytes(),
    )
