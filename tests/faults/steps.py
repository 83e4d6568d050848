"""The steps of a process over one table, each in an operating system process of its own, with everything that must be known
between them in a folder: the plan, results of attempts, and the log of commits.

A step may be told to die with SIGKILL at one of its boundaries: before and after everything it stores or sends.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog

import pyarctic
from pyarctic.optimizing import KindChoice, Options
from pyarctic.optimizing.api import plan_table
from pyarctic.optimizing.commit.committer import Committer
from pyarctic.optimizing.commit.decision import CommitPolicy
from pyarctic.optimizing.commit.log import CommitLog, CommitRecord, FinishedTask
from pyarctic.optimizing.commit.unneeded_files import remove_unneeded_files
from pyarctic.optimizing.execute.kernel import JobContext, execute
from pyarctic.optimizing.plan.commit_plan import CommitPlan
from pyarctic.optimizing.plan.start_files import load_start
from pyarctic.optimizing.protocol import TaskResult

_SPAWN = multiprocessing.get_context("forkserver")
_SPAWN.set_forkserver_preload(["tests.faults.steps"])


@dataclass(frozen=True, kw_only=True)
class Steps:
    """A process over a table, and the folder in which it is kept."""

    folder: Path
    catalog: Mapping[str, str]
    table: str
    kind: KindChoice = "full"

    def run(self, step: Callable[..., None], *arguments: Any, die_at: int | None = None) -> bool:
        """Run a step in a process of its own; tells whether it came to its end."""
        child = _SPAWN.Process(target=_run, args=(self, step, arguments, die_at))
        child.start()
        child.join(120)
        if child.exitcode not in (0, -signal.SIGKILL):
            raise AssertionError(f"{step.__name__} ended with {child.exitcode}")
        return child.exitcode == 0

    @property
    def plan(self) -> CommitPlan:
        return CommitPlan.from_bytes((self.folder / "plan").read_bytes())

    @property
    def is_planned(self) -> bool:
        return (self.folder / "plan").exists()

    @property
    def log(self) -> CommitLog:
        records = [CommitRecord.from_json(json.loads(path.read_text())) for path in self.folder.glob("commit-*.json")]
        log = CommitLog(records=tuple(sorted(records, key=lambda record: record.changed_at)))
        for path in self.folder.glob("dropped-*.json"):
            log = log.with_dropped({int(unit): reason for unit, reason in json.loads(path.read_text()).items()})
        for path in self.folder.glob("found-*.json"):
            log = log.with_found(json.loads(path.read_text()))
        return log

    @property
    def results(self) -> dict[int, TaskResult]:
        """The first result of each task that was stored."""
        metadata = self.plan.job.metadata
        documents = [json.loads(path.read_text()) for path in sorted(self.folder.glob("result-*.json"))]
        results = [TaskResult.from_json(document, metadata) for document in documents]
        return {result.task: result for result in reversed(results)}

    @property
    def attempts(self) -> dict[int, list[int]]:
        """The numbers that were given to attempts."""
        numbers: dict[int, list[int]] = {}
        for path in self.folder.glob("attempt-*"):
            _, task, number = path.name.split("-")
            numbers.setdefault(int(task), []).append(int(number))
        return numbers

    def save(self, name: str, data: bytes) -> None:
        """Store, or replace, atomically."""
        boundary(f"before {name}")
        beside = self.folder / f"{name}.{uuid.uuid4()}.tmp"
        beside.write_bytes(data)
        beside.rename(self.folder / name)
        boundary(f"after {name}")

    # ---- as a store of the log ------------------------------------------------------------------------------------------

    def save_record(self, record: CommitRecord) -> None:
        self.save(f"commit-{record.snapshot_id}.json", json.dumps(record.to_json()).encode())

    def save_dropped(self, reasons: Mapping[int, str]) -> None:
        self.save(f"dropped-{uuid.uuid4()}.json", json.dumps({str(unit): why for unit, why in reasons.items()}).encode())

    def save_found(self, units: Sequence[int]) -> None:
        self.save(f"found-{uuid.uuid4()}.json", json.dumps(list(units)).encode())


_die_at: int | None = None
_boundaries = 0


def boundary(_name: str) -> None:
    """Die here, if it is the turn of this boundary."""
    global _boundaries  # noqa: PLW0603  # of a process that has one step
    _boundaries += 1
    if _boundaries == _die_at:
        os.kill(os.getpid(), signal.SIGKILL)


def _run(steps: Steps, step: Callable[..., None], arguments: Sequence[Any], die_at: int | None) -> None:
    global _die_at  # noqa: PLW0603
    _die_at = die_at
    accept: Any = SqlCatalog.commit_table

    def commit_table(*request: Any) -> Any:
        boundary("before the request")
        response = accept(*request)
        boundary("after the request")
        return response

    SqlCatalog.commit_table = commit_table  # type: ignore[method-assign, assignment]
    pyarctic.catalog(steps.table.partition(".")[0], **steps.catalog)
    step(steps, *arguments)


def make_plan(steps: Steps) -> None:
    """Plan, unless that is done."""
    if steps.is_planned:
        return
    plan = plan_table(pyarctic.table(steps.table), Options(kind=steps.kind, ignore_writers=True))
    assert plan is not None
    steps.save("plan", plan.to_commit_plan(memory_bytes=64 << 20).to_bytes())


def run_task(steps: Steps, task_id: int) -> None:
    """Execute a task under a new attempt number, unless there is a result."""
    if task_id in steps.results:
        return
    plan = steps.plan
    task = next(task for task in plan.tasks if task.id == task_id)
    number = max(steps.attempts.get(task_id, [-1])) + 1
    steps.save(f"attempt-{task_id}-{number}", b"")
    context = JobContext(job=plan.job, io=pyarctic.table(steps.table).view.io)
    result = execute(context, task, attempt=number, listen=lambda _: boundary("progress"))
    boundary("executed")
    steps.save(f"result-{task_id}-{number}.json", json.dumps(result.to_json()).encode())


def commit_results(steps: Steps) -> None:
    """Commit all results there are."""
    table, plan = pyarctic.table(steps.table), steps.plan
    # Some tasks may have no result yet, and nobody waits for them.
    policy = replace(CommitPolicy.of(table.view.metadata), interval=timedelta(0))
    committer = Committer(table, plan, load_start(table, plan), log=steps.log, store=steps, policy=policy)
    by_id, now = {task.id: task for task in plan.tasks}, datetime.now(UTC)
    for number, result in steps.results.items():
        committer.accept(FinishedTask(task=by_id[number], result=result, received_at=now))
    committer.finish()


def clean(steps: Steps) -> None:
    """Remove what is not needed any more."""
    boundary("before cleaning")
    removal = remove_unneeded_files(pyarctic.table(steps.table), steps.plan, steps.log, steps.results, steps.attempts)
    assert not removal.failed
    boundary("after cleaning")
