"""Waiting partitions of a keyed table are planned anew when changes come, and keep their turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyarctic.ams import looks
from pyarctic.ams.handing import HandedTask
from pyarctic.ams.planning import store_plan
from pyarctic.ams.rows import ClaimRow, ProcessRow
from pyarctic.ams.states import ProcessState, TaskState
from pyarctic.ams.store import MemoryStore, SqlStore, Store
from pyarctic.tables.keyed_table import KeyedTable
from tests.integration.ams.test_keyed_partitions import base, execute, report, table, upsert
from tests.support.ams import Desk

__all__ = ["table"]


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else SqlStore.open(f"sqlite:///{tmp_path}/arctic.db")


@pytest.fixture
def desk(table: KeyedTable, store: Store) -> Desk:
    """A service with tasks of two partitions, all of which wait."""
    upsert(table, (1, "a", "one"), (1, "a", "two"), (2, "b", "one"), (2, "b", "two"))
    desk = Desk(store)
    desk.discover()
    [process] = desk.look()
    assert process.tasks == 2
    desk.wait(seconds=1)
    return desk


def states(desk: Desk, process: str) -> dict[str, TaskState]:
    return {task.partition: task.state for task in desk.tasks(process)}


def claims(desk: Desk, process: str) -> set[str]:
    with desk.store.read() as view:
        return {claim.key for claim in view.find(ClaimRow, process_id=process)}


def test_waiting_tasks_are_replaced_in_place(desk: Desk, table: KeyedTable) -> None:
    [first] = desk.processes()
    [old] = [task for task in desk.tasks(first.id) if task.partition == "city=a"]
    desk.wait(seconds=10)
    upsert(table, (1, "a", "three"))
    report(desk)
    [second] = desk.look()
    assert states(desk, first.id) == {"city=a": TaskState.REPLACED, "city=b": TaskState.PENDING}
    [new] = desk.tasks(second.id)
    assert (new.partition, new.state, new.queued_at) == ("city=a", TaskState.PENDING, old.queued_at)
    assert 'partition 0 ["a"]' in claims(desk, second.id)
    assert claims(desk, first.id)
    assert not any("city=a" in key or '"a"' in key for key in claims(desk, first.id))
    handed = desk.poll()
    assert len(handed) == 2
    execute(desk, handed)
    desk.commit()
    assert base() == {(1, "a", "three"), (2, "b", "two")}
    assert {row.state for row in desk.processes()} == {ProcessState.SUCCEEDED}
    assert claims(desk, first.id) == claims(desk, second.id) == set()


def test_a_process_all_of_whose_tasks_are_replaced_ends(desk: Desk, table: KeyedTable) -> None:
    [first] = desk.processes()
    upsert(table, (1, "a", "three"), (2, "b", "three"))
    report(desk)
    [second] = desk.look()
    desk.commit()
    ended, running = desk.processes()
    assert (ended.id, ended.state, running.id) == (first.id, ProcessState.SUCCEEDED, second.id)
    assert ended.outcome == "a newer plan has taken its place"
    desk.settle()
    assert base() == {(1, "a", "three"), (2, "b", "three")}


def test_tasks_that_are_executed_are_left_alone(desk: Desk, table: KeyedTable) -> None:
    [handed] = desk.poll(1)
    busy = handed.row.partition
    upsert(table, (1, "a", "three"), (2, "b", "three"))
    report(desk)
    [second] = desk.look()
    assert {task.partition for task in desk.tasks(second.id)} == {"city=a", "city=b"} - {busy}
    assert states(desk, handed.row.process_id)[busy] is TaskState.EXECUTING


def test_the_rest_of_a_process_goes_on_across_restarts(desk: Desk, table: KeyedTable) -> None:
    """One of its partitions is executed while the other one is replaced."""
    [handed] = desk.poll(1)
    upsert(table, (1, "a", "three"), (2, "b", "three"))
    report(desk)
    desk.start()
    desk.look()
    desk.start()
    execute(desk, [handed])
    desk.start()
    desk.commit()
    first = desk.processes()[0]
    assert first.state is ProcessState.SUCCEEDED
    desk.start()
    execute(desk, desk.poll())
    desk.commit()
    desk.wait(minutes=2)
    desk.settle()
    rows = base()
    assert {row[2] for row in rows} <= {"two", "three"}
    assert {row for row in rows if row[1] != handed.row.partition.removeprefix("city=")} <= {
        (1, "a", "three"),
        (2, "b", "three"),
    }
    assert desk.unfinished() == []


def test_a_task_that_is_handed_out_meanwhile_is_not_replaced(
    desk: Desk, table: KeyedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between planning and storing."""
    upsert(table, (1, "a", "three"))
    report(desk)
    stored = store_plan

    def store_late(*args: Any) -> ProcessRow:
        handed.extend(desk.poll())
        return stored(*args)

    handed: list[HandedTask] = []
    monkeypatch.setattr(looks, "store_plan", store_late)
    assert desk.look() == []
    monkeypatch.undo()
    assert len(handed) == 2
    execute(desk, handed)
    desk.commit()
    assert base() == {(1, "a", "two"), (2, "b", "two")}
    upsert(table, (1, "a", "four"))
    desk.wait(minutes=2)
    desk.settle()
    assert (1, "a", "four") in base()


def test_failed_runs_count_on(desk: Desk, table: KeyedTable) -> None:
    """Else a task that always fails would be tried for ever, as long as changes come."""
    for run in range(4):
        handed = [each for each in desk.poll() if each.row.partition == "city=a"]
        assert [each.attempt for each in handed] == [run]
        desk.fail(handed[0])
        desk.wait(seconds=1)
        upsert(table, (1, "a", f"new {run}"))
        report(desk)
        if run < 3:
            assert len(desk.look()) == 1
    assert TaskState.ABANDONED in {task.state for task in desk.tasks()}


def test_looks_without_changes_replace_nothing(desk: Desk) -> None:
    [first] = desk.processes()
    desk.wait(minutes=10)
    assert desk.look() == []
    assert states(desk, first.id) == {"city=a": TaskState.PENDING, "city=b": TaskState.PENDING}
