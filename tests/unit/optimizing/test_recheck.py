"""When a partition with unfinished tasks is looked at again, and what becomes of those that wait."""

from __future__ import annotations

import json
from dataclasses import replace

import polars as pl
import pytest

from pyarctic.iceberg.manifest import FILE_SCHEMA
from pyarctic.optimizing.plan.recheck import Recheck, TaskState, TrackedTask, choose_recheck, replace_waiting
from pyarctic.optimizing.protocol.task import KeyedTask, Task

NO_FILES = pl.DataFrame(schema=FILE_SCHEMA)


def known(*states: TaskState) -> list[TrackedTask]:
    return [TrackedTask(id=number, node_id=4 + number, state=state) for number, state in enumerate(states)]


def task(number: int, node_id: int) -> KeyedTask:
    return KeyedTask(
        id=number,
        action="merge",
        kind="minor",
        partition="",
        files=NO_FILES,
        spec_id=0,
        partition_key="",
        target_bytes=1,
        expected_rows=0,
        expected_bytes=0,
        node_id=node_id,
        changes=NO_FILES,
        kept=(),
        transaction_id=1,
    )


@pytest.mark.parametrize(
    ("states", "planned", "newest", "look"),
    [
        ([], 3, 5, "evaluate"),
        (["committed", "cancelled"], 5, 9, "evaluate"),
        (["pending", "executing"], 5, 9, "skip"),
        (["prepared", "failed"], 5, 9, "skip"),
        (["committing"], 5, 9, "skip"),
        (["init", "pending", "failed"], 5, 9, "plan"),
        (["init", "pending", "failed"], 5, 5, "skip"),
        (["pending", "committed"], 5, 6, "plan"),
        (["failed"], -1, 1, "plan"),  # planned without changes, and now there are some
        (["failed"], -1, None, "skip"),
    ],
)
def test_looks(states: list[TaskState], planned: int, newest: int | None, look: Recheck) -> None:
    assert choose_recheck(known(*states), planned, newest) == look


def test_waiting_tasks_are_replaced_in_place_and_more_are_added() -> None:
    new = [task(10, 5), task(11, 4), task(12, 6)]
    found = replace_waiting(known("pending", "failed"), new)
    assert found is not None
    assert {old: task.id for old, task in found.in_place.items()} == {0: 11, 1: 10}
    assert [task.id for task in found.extra] == [12]


def test_two_tasks_of_a_node_need_two_others() -> None:
    waiting = [TrackedTask(id=number, node_id=4, state="pending") for number in (1, 2)]
    assert replace_waiting(waiting, [task(10, 4)]) is None
    found = replace_waiting(waiting, [task(10, 4), task(11, 4)])
    assert found is not None
    assert {old: task.id for old, task in found.in_place.items()} == {1: 10, 2: 11}
    assert found.extra == ()


def test_tasks_that_are_not_covered_stay() -> None:
    assert replace_waiting(known("init", "pending"), [task(10, 4), task(11, 6)]) is None


def test_finished_tasks_need_no_cover() -> None:
    found = replace_waiting(known("committed", "pending"), [task(10, 5)])
    assert found is not None
    assert list(found.in_place) == [1]


def test_a_keyed_task_survives_json() -> None:
    before = replace(task(3, 5), kept=("a", "b"), shareable=("c",), foreign=("a",))
    after = Task.from_json(json.loads(json.dumps(before.to_json())))
    assert isinstance(after, KeyedTask)
    assert before.to_json()["keyed"] == {
        "node_id": "5",
        "changes": [],
        "kept": ["a", "b"],
        "transaction_id": "1",
        "shareable": ["c"],
        "foreign": ["a"],
    }
    assert after.to_json() == before.to_json()
