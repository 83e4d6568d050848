"""Single attempts in engines: tasks of many tables, attempts that are stopped, and engines of other packages."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.table import Table

import pyarctic
from pyarctic.errors import ConfigError, UsageError
from pyarctic.optimizing import Options
from pyarctic.optimizing.api import plan_table
from pyarctic.optimizing.execute import AttemptFuture, LocalEngine, engine, open_engine
from pyarctic.optimizing.execute.attempt_files import find_attempt_files
from pyarctic.optimizing.plan.commit_plan import CommitPlan
from pyarctic.optimizing.protocol import Job, Progress, Task, TaskFailure, TaskResult
from tests.faults import spoiled
from tests.faults.lab import NAME, Lab
from tests.faults.test_optimize_faults import Spoilt, full_name, is_running, ready
from tests.support.fragmented_table import FIRST, SECOND, TASKS, fragmented_table, name_begins
from tests.support.integrity import on_disk

_STOP_SECONDS = 5.0


def ignore(_: Progress) -> None:
    """Nobody wants to know."""


def plan_of(name: str) -> CommitPlan:
    plan = plan_table(pyarctic.table(name), Options(kind="full"))
    assert plan is not None
    return plan.to_commit_plan(memory_bytes=64 << 20)


def test_one_engine_executes_tasks_of_many_tables(lake: Catalog) -> None:
    """Mixed, with fewer workers than tables: a worker gets another job whenever the task is of another one."""
    for number in range(3):
        fragmented_table(lake, f"db.t{number}")
    local, names = LocalEngine(workers=2), [f"lake.db.t{number}" for number in range(3)]
    plans = [plan_of(name) for name in names]
    futures = [
        (name, local.submit(plan.job, pyarctic.table(name).view.io, plan.tasks[number], 4, ignore))
        for number in range(TASKS)
        for name, plan in zip(names, plans, strict=True)
    ]
    jobs = dict(zip(names, (plan.job.id for plan in plans), strict=True))
    for name, future in futures:
        outcome = future.result(60)
        assert isinstance(outcome, TaskResult)
        assert (outcome.job, outcome.attempt) == (jobs[name], 4)
        assert all(f"-4-{jobs[name]}-" in path for path in outcome.paths)


def stopped(outcome: object, attempt: int) -> bool:
    return isinstance(outcome, TaskFailure) and (outcome.code, outcome.attempt) == ("cancelled", attempt)


def test_an_attempt_that_is_executed_stops_within_seconds(lab: Lab) -> None:
    table, _ = ready(lab)
    files = on_disk(table)
    storage = Spoilt(lab, **{spoiled.HANG: f"^{name_begins(SECOND)}"})
    pyarctic.catalog(NAME, **storage.properties)
    plan, io = plan_of(full_name(table)), pyarctic.table(full_name(table)).view.io
    local = LocalEngine(workers=1)
    hanging = local.submit(plan.job, io, plan.tasks[SECOND], 0, ignore)
    waiting = local.submit(plan.job, io, plan.tasks[FIRST], 7, ignore)
    worker = storage.hanging()
    started = time.monotonic()
    assert hanging.cancel()
    assert stopped(hanging.result(_STOP_SECONDS), 0)
    assert time.monotonic() - started < _STOP_SECONDS
    assert not is_running(worker)
    assert isinstance(waiting.result(60), TaskResult), "others go on, in another worker"
    assert find_attempt_files(plan.job, io, plan.tasks[SECOND], 0) == []
    assert on_disk(table) - files == {path.removeprefix("file://") for path in waiting.result().paths}  # type: ignore[union-attr]
    assert not waiting.cancel(), "it has ended"


def test_an_attempt_that_waits_is_never_begun(lab: Lab) -> None:
    table, _ = ready(lab)
    files = on_disk(table)
    storage = Spoilt(lab, **{spoiled.HANG: f"^{name_begins(SECOND)}"})
    pyarctic.catalog(NAME, **storage.properties)
    plan, io = plan_of(full_name(table)), pyarctic.table(full_name(table)).view.io
    local = LocalEngine(workers=1)
    futures = [local.submit(plan.job, io, plan.tasks[task], 1, ignore) for task in (SECOND, FIRST)]
    storage.hanging()
    for future in reversed(futures):
        future.cancel()
        assert stopped(future.result(_STOP_SECONDS), 1)
    assert on_disk(table) == files


def test_stopping_in_the_end_keeps_the_result(lake: Catalog) -> None:
    fragmented_table(lake, "db.t")
    plan, io = plan_of("lake.db.t"), pyarctic.table("lake.db.t").view.io
    local = LocalEngine(workers=1)
    for attempt in range(10):
        future = local.submit(plan.job, io, plan.tasks[FIRST], attempt, ignore)
        wait([future], attempt * 0.03)
        future.cancel()
        outcome = future.result(_STOP_SECONDS)
        found = set(find_attempt_files(plan.job, io, plan.tasks[FIRST], attempt))
        assert found == (outcome.paths if isinstance(outcome, TaskResult) else set())


class Strange:
    """An engine of another package, which gives back results of another attempt."""

    name = "strange"
    parallelism = 1

    def __init__(self, workers: int | None) -> None:
        self.workers = workers

    def prepare(self, tasks: Sequence[Task]) -> None:
        """It needs no preparation."""

    def submit(self, job: Job, io: FileIO, task: Task, attempt: int, listen: Callable[[Progress], None]) -> AttemptFuture:
        return LocalEngine(workers=1).submit(job, io, task, attempt + 1, listen)


def register(monkeypatch: pytest.MonkeyPatch, *values: str) -> None:
    found = EntryPoints(EntryPoint("strange", value, "pyarctic.engines") for value in values)
    monkeypatch.setattr(engine, "entry_points", lambda **_: found)


def test_engines_of_other_packages_are_found_by_name(lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, f"{__name__}:Strange")
    assert isinstance(opened := open_engine("strange", 3), Strange)
    assert opened.workers == 3
    fragmented: Table = fragmented_table(lake, "db.t")
    before = on_disk(fragmented)
    report = pyarctic.optimize("lake.db.t", "full", engine="strange")  # type: ignore[arg-type]
    assert [failure.code for failure in report.failures] == ["protocol"] * TASKS
    assert "attempt 1" in report.failures[0].detail
    left = {Path(path).name for path in on_disk(fragmented) - before}
    assert all("-1-" in name for name in left), "a stranger's files are not removed if nobody knows whose they are"


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ((), UsageError, "unknown engine: 'strange'"),
        (("a:A", "b:B"), ConfigError, "several packages have an engine 'strange': a:A, b:B"),
        (("no_such_package:A",), ConfigError, "cannot be imported: No module named 'no_such_package'"),
    ],
)
def test_an_engine_that_cannot_be_opened_is_named(
    monkeypatch: pytest.MonkeyPatch, values: tuple[str, ...], error: type[Exception], message: str
) -> None:
    register(monkeypatch, *values)
    with pytest.raises(error, match=message):
        open_engine("strange")


def test_engines_of_our_own_are_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr("pyarctic.spark.engine.session_at", lambda *_: calls.append("session"))
    monkeypatch.setattr("pyarctic.spark.engine.SparkEngine", lambda *given: calls.append(given))
    assert isinstance(open_engine("local", 2), LocalEngine)
    open_engine("spark", 2)
    assert calls == ["session", (None, 2)]
