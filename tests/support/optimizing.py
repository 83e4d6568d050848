"""Optimizing in this process, with hooks for others who write to the table meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pyarrow as pa
from pyiceberg.io import FileIO

from pyarctic.iceberg import storage_properties
from pyarctic.optimizing import KindChoice, Options, Report
from pyarctic.optimizing.api import optimize_table
from pyarctic.optimizing.events import CommitLanded, Planned, ProcessEvent, TaskEnded, TaskProgressed
from pyarctic.optimizing.execute import AttemptFuture
from pyarctic.optimizing.execute.kernel import JobContext, execute
from pyarctic.optimizing.execute.kernel.key_ranges import (
    RangePartitioner,
    RangeResult,
    combine_results,
    combine_samples,
    sample_keys,
)
from pyarctic.optimizing.plan import Plan
from pyarctic.optimizing.protocol import Job, Progress, Task, TaskFailure, TaskOutcome, TaskResult
from pyarctic.optimizing.protocol.acceptance import accept_result
from pyarctic.tables import Table

Meanwhile = Callable[[], None]


def nobody() -> None:
    """Nobody else writes."""


class InProcessEngine:
    """Executes tasks one after the other, without processes. Jobs, tasks and results go through JSON, as with workers,
    and results are accepted as those of strangers are."""

    name = "in-process"
    parallelism = 1

    def __init__(self, after_task: Meanwhile = nobody, before_commit: Meanwhile = nobody, *, divides: bool = False) -> None:
        """`after_task` is called after each task but the last, `before_commit` after the last: their commit comes next.
        With `divides` tasks are divided by key ranges where they may be, as on Spark."""
        self._divides = divides
        self.after_task = after_task
        self.before_commit = before_commit
        self.tasks: list[Task] = []
        self.results: list[TaskOutcome] = []
        self._left = 0
        self._context: JobContext | None = None

    def prepare(self, tasks: Sequence[Task]) -> None:
        self._left = len(tasks)

    def submit(self, job: Job, io: FileIO, task: Task, attempt: int, listen: Callable[[Progress], None]) -> AttemptFuture:
        if self._context is None or self._context.job.id != job.id:
            self._context = JobContext.open(json.loads(json.dumps(job.to_json())), storage_properties(io))
        divides = self._divides and task.ranges > 1
        outcome = (
            self._execute_ranges(self._context, task, attempt)
            if divides
            else self._execute(self._context, task, attempt, listen)
        )
        self.tasks.append(task)
        self.results.append(outcome)
        self._left -= 1
        (self.after_task if self._left else self.before_commit)()
        return AttemptFuture.of(outcome)

    @staticmethod
    def _execute(context: JobContext, task: Task, attempt: int, listen: Callable[[Progress], None]) -> TaskOutcome:
        sent = Task.from_json(json.loads(json.dumps(task.to_json())))
        try:
            result = execute(context, sent, attempt=attempt, listen=listen)
        except Exception as error:  # noqa: BLE001  # as workers do
            return TaskFailure.of(task.id, attempt, error)
        return accept_result(context.job, task, attempt, json.loads(json.dumps(result.to_json())))

    @staticmethod
    def _execute_ranges(context: JobContext, task: Task, attempt: int) -> TaskOutcome:
        task = Task.from_json(json.loads(json.dumps(task.to_json())))
        sources = range(task.data.height)
        sample = combine_samples([sample_keys(context, task, [source]) for source in sources])
        partitioner = RangePartitioner(context, task, sample)
        packets: dict[int, list[pa.RecordBatch]] = {part: [] for part in range(partitioner.parts)}
        for source in reversed(sources):
            for packet in partitioner.read(source):
                packets[packet["part"][0].as_py()].append(packet)
        results = [partitioner.write(of_part, attempt, part) for part, of_part in packets.items()]
        received = [RangeResult.from_json(json.loads(json.dumps(result.to_json()))) for result in results]
        outcome = combine_results(context, task, attempt, received)
        return accept_result(context.job, task, attempt, outcome) if isinstance(outcome, TaskResult) else outcome


class RecordingListener:
    """Records plans and messages, and lets others write after every commit of the process."""

    def __init__(self, after_commit: Meanwhile = nobody) -> None:
        self._after_commit = after_commit
        self.plans: list[Plan] = []
        self.messages: list[str] = []

    def __call__(self, event: ProcessEvent) -> None:
        match event:
            case Planned():
                self.plans.append(event.plan)
            case TaskProgressed() | TaskEnded():
                pass
            case _:
                self.messages.append(str(event))
        if isinstance(event, CommitLanded):
            self._after_commit()


def optimize(
    table: Table,
    kind: KindChoice = "auto",
    *,
    verify: bool = True,
    meanwhile: Meanwhile = nobody,
    memory_bytes: int = 64 << 20,
    divides: bool = False,
) -> Report:
    """Optimize once in this process, reading all rows twice; `meanwhile` is called right before the first commit."""
    options = Options(kind=kind, verify=verify, memory_bytes=memory_bytes)
    return optimize_table(table.refresh(), InProcessEngine(before_commit=meanwhile, divides=divides), options)
