"""A process of optimizing that is interrupted at every line of committing: no file that a snapshot has may be removed."""

from __future__ import annotations

import inspect
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table as IcebergTable

from pyarctic.config import parse_table_name
from pyarctic.iceberg.commit import referenced_files
from pyarctic.optimizing import Options, optimize_table
from pyarctic.optimizing.api import plan_table
from pyarctic.optimizing.commit.changes import ChangeBuilder
from pyarctic.optimizing.commit.committer import Committer
from pyarctic.optimizing.commit.decision import choose_next
from pyarctic.optimizing.commit.log import CommitLog, FinishedTask
from pyarctic.optimizing.commit.settling import find_outcome
from pyarctic.optimizing.commit.summary import CommitSummary
from pyarctic.optimizing.commit.table_now import find_landed
from pyarctic.optimizing.execute.task_runs import run_tasks
from pyarctic.optimizing.plan.start_files import load_start
from pyarctic.optimizing.protocol import TaskResult
from pyarctic.tables import Table, remove_outputs
from tests.faults.lab import NAME, Lab
from tests.support.fragmented_table import fragmented_table
from tests.support.integrity import missing, on_disk
from tests.support.keyed_tables import CITIES, cities, made, opened
from tests.support.metadata_files import point
from tests.support.optimizing import InProcessEngine

Line = tuple[str, int]
_WATCHED = {
    inspect.getfile(watched)
    for watched in (
        Committer,
        ChangeBuilder,
        CommitLog,
        choose_next,
        find_landed,
        find_outcome,
        remove_outputs,
        referenced_files,
    )
}
_PARTS = 4
"""The lines are divided among so many tests, which can run at the same time."""


class Interrupted(Exception):
    """Something unexpected."""


def press_ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def fail() -> None:
    raise Interrupted


class Tracing:
    """Calls `on_line` before every line of the watched modules, also in functions that have begun already."""

    def __init__(self, on_line: Callable[[Line], None]) -> None:
        self._on_line = on_line
        self._before = sys.gettrace()

    def start(self) -> None:
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if self._is_watched(frame):
                frame.f_trace = self._trace_line
            frame = frame.f_back
        sys.settrace(self._trace_call)

    def stop(self) -> None:
        sys.settrace(self._before)

    def _trace_call(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        return self._trace_line if self._is_watched(frame) else None

    def _trace_line(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            self._on_line((frame.f_code.co_filename, frame.f_lineno))
        return self._trace_line

    @staticmethod
    def _is_watched(frame: FrameType) -> bool:
        return frame.f_code.co_filename in _WATCHED


@dataclass(frozen=True, kw_only=True)
class Case:
    """A table that can be brought back to the state in which it needs optimizing."""

    stores: tuple[IcebergTable, ...]
    open: Callable[[], Table]
    read: Callable[[], set[tuple[Any, ...]]]

    def optimize(self, on_line: Callable[[Line], None] = lambda _: None) -> None:
        """From the moment on in which the last task is done: nothing is committed before."""
        tracing = Tracing(on_line)
        try:
            optimize_table(self.open(), InProcessEngine(before_commit=tracing.start), Options(kind="full"))
        finally:
            tracing.stop()

    def rewind(self, keep: set[str]) -> None:
        for store in self.stores:
            point(store, store.metadata_location)
            for path in on_disk(store) - keep:
                Path(path).unlink()

    def files(self) -> set[str]:
        return {path for store in self.stores for path in on_disk(store)}

    def missing(self) -> list[str]:
        return [path for store in self.stores for path in missing(store.catalog.load_table(store.name()))]


@pytest.fixture
def native(lab: Lab) -> Case:
    table = fragmented_table(lab.catalog, "db.fragmented")

    def open_table() -> Table:
        return Table(parse_table_name(f"{NAME}.db.fragmented"), lab.catalog.load_table("db.fragmented"))

    return Case(stores=(table,), open=open_table, read=lambda: contents(open_table()))


@pytest.fixture
def keyed(lake: Catalog) -> Case:
    """Two partitions that were never merged, and one that was: all are merged by the next round."""
    table = made(CITIES, ("city",))
    table.write(cities((1, "a", "old"), (2, "a", "old")))
    optimize_table(opened(), InProcessEngine(), Options(kind="full"))
    table = opened()
    table.write(cities((1, "a", "new"), (3, "b", "new"), (4, "c", "new")), "upsert")
    table.write(cities((2, "a", ""), (4, "c", "")), "delete")
    table = opened()
    return Case(stores=(table._loaded, table.change_store._loaded), open=opened, read=lambda: contents(opened()))


def contents(table: Table) -> set[tuple[Any, ...]]:
    found = [tuple(row.values()) for row in table.scan().to_arrow().to_pylist()]
    assert len(set(found)) == len(found)
    return set(found)


def check_every_line(case: Case, part: int) -> None:
    rows, files = case.read(), case.files()
    lines: list[Line] = []
    case.optimize(lambda line: lines.append(line) if line not in lines else None)
    assert len(lines) > 50
    for number, line in [*enumerate(lines)][part::_PARTS]:
        case.rewind(files)
        interrupt = (press_ctrl_c, fail)[number // _PARTS % 2]
        pending = [line]

        def on_line(reached: Line, pending: list[Line] = pending, interrupt: Callable[[], None] = interrupt) -> None:
            if reached in pending:
                pending.clear()
                interrupt()

        with pytest.raises((KeyboardInterrupt, Interrupted)):
            case.optimize(on_line)
        where = f"{interrupt.__name__} at {Path(line[0]).name}:{line[1]}"
        assert case.missing() == [], where
        assert case.read() == rows, where
    case.optimize()
    assert case.read() == rows


@pytest.mark.parametrize("part", range(_PARTS))
def test_an_interrupted_process_over_a_native_table_removes_no_file_of_a_snapshot(native: Case, part: int) -> None:
    check_every_line(native, part)


@pytest.mark.parametrize("part", range(_PARTS))
def test_an_interrupted_process_over_a_keyed_table_removes_no_file_of_a_snapshot(keyed: Case, part: int) -> None:
    check_every_line(keyed, part)


def test_results_of_a_native_table_that_have_landed_are_not_committed_again(native: Case) -> None:
    check_second_commit(native)


def test_results_of_a_keyed_table_that_have_landed_are_not_committed_again(keyed: Case) -> None:
    check_second_commit(keyed)


def check_second_commit(case: Case) -> None:
    """By somebody who does not know of the first one, and by somebody who is interrupted in it."""
    rows, table = case.read(), case.open()
    engine = InProcessEngine()
    plan = plan_table(table, Options(kind="full"))
    assert plan is not None
    commit_plan = plan.to_commit_plan(memory_bytes=Options().memory_bytes)
    outcomes = [*run_tasks(engine, commit_plan.job, table.view.io, plan.tasks, lambda _: None)]
    results = {outcome.task: outcome for outcome in outcomes if isinstance(outcome, TaskResult)}
    now = datetime.now(UTC)
    done = [FinishedTask(task=task, result=results[task.id], received_at=now) for task in plan.tasks]

    def commit_all(*, interrupted: bool = False) -> CommitSummary:
        opened = case.open()
        with Committer(opened, commit_plan, load_start(opened, commit_plan)) as committer:
            for one in done:
                committer.accept(one)
            if interrupted:
                raise Interrupted
            committer.finish()
        return committer.summary()

    first = commit_all()
    assert len(first.committed) == len(done)
    files = case.files()
    second = commit_all()
    assert sorted(one.task.id for one in second.found) == [task.id for task in plan.tasks]
    assert (second.snapshot_ids, second.committed, second.dropped) == ((), [], [])
    with pytest.raises(Interrupted):
        commit_all(interrupted=True)
    assert case.files() == files
    assert case.missing() == []
    assert case.read() == rows
