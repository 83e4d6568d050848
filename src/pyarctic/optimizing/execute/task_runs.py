"""Executing the tasks of one process: failed attempts are repeated, here and nowhere else."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait

from pyarctic.errors import ProtocolError
from pyarctic.iceberg import remove_quietly
from pyarctic.logs import get_logger
from pyarctic.optimizing.execute.attempt_files import remove_attempt_files
from pyarctic.optimizing.execute.engine import AttemptFuture, Engine, Storage
from pyarctic.optimizing.protocol.acceptance import accept_failure, accept_result
from pyarctic.optimizing.protocol.job import Job
from pyarctic.optimizing.protocol.result import ProgressListener, TaskFailure, TaskOutcome, TaskResult
from pyarctic.optimizing.protocol.task import Task

MAX_ATTEMPTS = 3
"""How often a task is tried."""
_POLL_SECONDS = 0.2
"""The timeout of a wait, after which a pressed Ctrl-C is noticed: Polars makes the system resume interrupted waits."""


def run_tasks(
    engine: Engine, job: Job, io: Storage, tasks: Sequence[Task], listen: ProgressListener
) -> Generator[TaskOutcome, None, None]:
    """Execute tasks, and give the final outcome of each as soon as there is one. Closing the iterator stops all attempts,
    and removes the files of results that were not given away."""
    engine.prepare(tasks)
    runs = _TaskRuns(engine, job, io, tasks, listen)
    try:
        while runs.has_more:
            outcome = runs.wait_for_outcome()
            runs.hand_over(outcome)
            yield outcome
    finally:
        runs.stop()


class _TaskRuns:
    def __init__(self, engine: Engine, job: Job, io: Storage, tasks: Sequence[Task], listen: ProgressListener) -> None:
        self._engine = engine
        self._job = job
        self._io = io
        self._listen = listen
        self._tasks = {task.id: task for task in tasks}
        self._waiting = deque((task.id, 0) for task in tasks)
        """Tasks, and the number of their next attempt."""
        self._log = get_logger(__name__).bind(table=job.table, job_id=job.id, engine=engine.name)
        self._running: dict[int, tuple[int, AttemptFuture]] = {}
        """The number and the outcome of attempts, by task, in the order in which they were submitted."""

    @property
    def has_more(self) -> bool:
        return bool(self._waiting or self._running)

    def wait_for_outcome(self) -> TaskOutcome:
        """The next final outcome. It stays here until it is handed over: an interrupted wait must not lose its files."""
        while True:
            self._submit_waiting()
            for task, (attempt, future) in list(self._running.items()):
                if future.done() and self._is_final(outcome := self._accept(task, attempt, future.result())):
                    return outcome
            wait([future for _, future in self._running.values()], _POLL_SECONDS, FIRST_COMPLETED)

    def hand_over(self, outcome: TaskOutcome) -> None:
        """From now on the files of that outcome belong to the caller."""
        del self._running[outcome.task]

    def _accept(self, task: int, attempt: int, outcome: TaskOutcome) -> TaskOutcome:
        """The outcome; a failure if it is not that of the attempt, or a result that cannot be committed."""
        try:
            if isinstance(outcome, TaskFailure):
                return accept_failure(self._job, self._tasks[task], attempt, outcome)
            return accept_result(self._job, self._tasks[task], attempt, outcome)
        except ProtocolError as error:
            with contextlib.suppress(Exception):  # they are found by name later
                remove_attempt_files(self._job, self._io, self._tasks[task], attempt)
            return TaskFailure.of(task, attempt, error, self._job.id)

    def _is_final(self, outcome: TaskOutcome) -> bool:
        """Whether the task has this outcome. If not, it waits for its next attempt."""
        if isinstance(outcome, TaskResult):
            return True
        is_last = not outcome.retryable or outcome.attempt + 1 >= MAX_ATTEMPTS
        self._log.warning(
            "attempt_failed",
            task_id=outcome.task,
            attempt=outcome.attempt,
            code=outcome.code,
            detail=outcome.detail,
            is_repeated=not is_last,
        )
        if is_last:
            return True
        del self._running[outcome.task]
        self._waiting.append((outcome.task, outcome.attempt + 1))
        return False

    def _submit_waiting(self) -> None:
        while self._waiting:
            task, attempt = self._waiting.popleft()
            self._log.debug("attempt_submitted", task_id=task, attempt=attempt)
            future = self._engine.submit(self._job, self._io, self._tasks[task], attempt, self._listen)
            self._running[task] = attempt, future
            if future.done():  # the engine executes in this thread: the caller may use the result first
                return

    def stop(self) -> None:
        futures = [future for _, future in self._running.values()]
        for future in futures:
            future.cancel()
        wait(futures)
        for future in futures:
            with contextlib.suppress(BaseException):  # the engine failed, which the caller knows already
                if isinstance(outcome := future.result(), TaskResult):
                    remove_quietly(self._io, sorted(outcome.paths, reverse=True))
