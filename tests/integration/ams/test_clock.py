"""Somebody sets the clock of the machine: no work is lost, and nothing waits for a day."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic.ams.handing import Registration
from pyarctic.ams.settings import ServiceSettings
from pyarctic.ams.states import OptimizerState, ProcessState, TaskState
from tests.support.ams import Desk
from tests.support.fragmented_table import TASKS, fragmented_table
from tests.support.integrity import leftovers

NAME = "lake.db.t"
FULL = {"self-optimizing.full.trigger.interval": "1h", "self-optimizing.minor.trigger.file-count": "2"}
RESTARTS = pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])


@pytest.fixture
def desk(lake: Catalog) -> Desk:
    """A service that has found a fragmented table."""
    fragmented_table(lake, "db.t")
    pyarctic.table(NAME).set(FULL)
    desk = Desk(settings=ServiceSettings(dead_attempt_grace=timedelta(seconds=30)))
    desk.discover()
    return desk


def set_clock(desk: Desk, *, restarts: bool = False, **duration: Any) -> None:
    desk.ams.core.clock.now()
    desk.clock.set(**duration)
    if restarts:
        desk.start()
    desk.ams.core.clock.now()


def beat(desk: Desk) -> OptimizerState:
    state, _ = desk.ams.optimizers.heartbeat(desk.optimizer.id, [])
    return state


@RESTARTS
@pytest.mark.parametrize("days", [-1, 1])
def test_attempts_and_optimizers_have_their_full_time(desk: Desk, days: int, restarts: bool) -> None:
    desk.look()
    for each in desk.poll():
        desk.ams.optimizers.acknowledge(each.row.key, each.attempt)
    desk.wait(seconds=10)
    set_clock(desk, restarts=restarts, days=days)
    desk.keep()
    assert {task.state for task in desk.tasks()} == {TaskState.EXECUTING}
    assert beat(desk) is OptimizerState.ACTIVE
    for _ in range(11):
        desk.wait(minutes=6)
        beat(desk)
    desk.keep()
    assert {task.state for task in desk.tasks()} == {TaskState.FAILED}, "an hour without progress"


@RESTARTS
@pytest.mark.parametrize("days", [-1, 1])
def test_a_silent_optimizer_is_lost_all_the_same(desk: Desk, days: int, restarts: bool) -> None:
    desk.look()
    desk.poll()
    set_clock(desk, restarts=restarts, days=days)
    desk.wait(seconds=61)
    desk.keep()
    assert {task.state for task in desk.tasks()} == {TaskState.PENDING}


@RESTARTS
def test_nothing_waits_for_a_day(desk: Desk, lake: Catalog, restarts: bool) -> None:
    """Looks, retries, commits and cleaning, after the clock was set back."""
    desk.look()
    [first, *others] = desk.poll()
    for each in others:
        desk.report(each, desk.execute(each))
    desk.commit()
    desk.fail(first)
    set_clock(desk, restarts=restarts, days=-1)
    desk.wait(seconds=31)
    beat(desk)
    desk.keep()
    for each in desk.poll():
        desk.report(each, desk.execute(each))
    desk.wait(minutes=6)
    desk.commit()
    assert [row.state for row in desk.processes()] == [ProcessState.SUCCEEDED]
    set_clock(desk, restarts=restarts, days=-1)
    desk.wait(minutes=2)
    desk.clean()
    desk.wait(minutes=2)
    desk.clean()
    assert [row.clean_at for row in desk.processes()] == [None]
    assert leftovers(lake.load_table("db.t")) == []
    assert [row.uuid for row in desk.ams.looks.due()] == [desk.table(NAME).uuid]


def test_dead_attempts_have_their_full_grace(desk: Desk) -> None:
    """They may still write files."""
    [process] = desk.look()
    assert len(desk.poll()) == TASKS
    desk.ams.cancel(process.id, "test")
    desk.commit()
    set_clock(desk, days=1)
    desk.clean()
    assert [row.clean_at for row in desk.processes()] != [None]
    desk.wait(minutes=1)
    desk.clean()
    assert [row.clean_at for row in desk.processes()] == [None]


def test_dead_attempts_of_optimizers_that_are_seldom_heard_of_have_more_time(desk: Desk) -> None:
    """Without an answer they stop after three heartbeats."""
    desk.optimizer, _ = desk.ams.optimizers.register(Registration(parallelism=1, heartbeat_seconds=600))
    [process] = desk.look()
    desk.poll()
    desk.ams.cancel(process.id, "test")
    desk.commit()
    desk.wait(minutes=29)
    desk.clean()
    assert [row.clean_at for row in desk.processes()] != [None]
    desk.wait(minutes=1)
    desk.clean()
    assert [row.clean_at for row in desk.processes()] == [None]
