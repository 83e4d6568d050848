"""Whole lives of processes in the service: planned, handed out, executed, committed, cleaned."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic.ams.handing import Registration
from pyarctic.ams.looks import ReportedCommit
from pyarctic.ams.rows import ClaimRow, OptimizerRow, PlanRow
from pyarctic.ams.service import Ams
from pyarctic.ams.settings import ServiceSettings
from pyarctic.ams.states import OptimizerState, ProcessState, TableState, TaskState
from pyarctic.ams.store import MemoryStore, SqlStore, Store
from pyarctic.errors import ProtocolError, StaleAttempt, UnknownOptimizer
from pyarctic.optimizer import Optimizer
from pyarctic.optimizing.execute import LocalEngine
from pyarctic.optimizing.protocol import pack, unpack
from tests.support import changes
from tests.support.ams import AT_ONCE, Desk, DirectService
from tests.support.fragmented_table import TASKS, fragmented_table
from tests.support.integrity import leftovers, missing
from tests.support.keyed_tables import CITIES, cities, made, opened

NAME = "lake.db.t"
FULL = {"self-optimizing.full.trigger.interval": "1h", "self-optimizing.minor.trigger.file-count": "2"}


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else SqlStore.open(f"sqlite:///{tmp_path}/arctic.db")


@pytest.fixture
def native(lake: Catalog) -> Callable[[], dict[int, Any]]:
    """A fragmented table; gives its rows."""
    fragmented_table(lake, "db.t")
    pyarctic.table(NAME).set(FULL)
    return rows


def rows() -> dict[int, Any]:
    found = pyarctic.table(NAME).scan().to_arrow().to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: tuple(row.values()) for row in found}


def check_files(lake: Catalog) -> None:
    table = lake.load_table("db.t")
    assert missing(table) == []
    assert leftovers(table) == []


def demanded(desk: Desk) -> str:
    """A full process over the table."""
    desk.discover()
    process = desk.ams.looks.demand(desk.table(NAME).uuid, "full", "test")
    assert process is not None
    return process.id


def test_a_native_table_is_optimized_by_itself(native: Callable[[], Any], lake: Catalog, store: Store) -> None:
    before, desk = native(), Desk(store)
    desk.discover()
    [process] = desk.look()
    assert (process.state, process.trigger) == (ProcessState.RUNNING, "periodic")
    assert process.reasons
    desk.settle()
    assert native() == before
    states = {row.state for row in desk.processes()}
    assert states == {ProcessState.SUCCEEDED}
    assert desk.table(NAME).figures["files"]["data_files"] == TASKS
    check_files(lake)
    with store.read() as view:
        assert view.find(ClaimRow) == []


def test_a_keyed_table_is_optimized_by_itself(lake: Catalog, store: Store) -> None:
    table = made(CITIES, ("city",))
    table.write(cities((1, "a", "old"), (2, "a", "old"), (3, "b", "old")))
    table.write(cities((1, "a", "new"), (4, "c", "new")), "upsert")
    desk = Desk(store)
    process = demanded(desk)
    desk.settle()
    assert desk.processes()[0].id == process
    assert {row.state for row in desk.processes()} == {ProcessState.SUCCEEDED}
    read = {tuple(row.values()) for row in opened().scan(store="base").to_arrow().to_pylist()}
    assert read == {(1, "a", "new"), (2, "a", "old"), (3, "b", "old"), (4, "c", "new")}
    stores = [lake.load_table(store.name()) for store in (table._loaded, table.change_store._loaded)]
    assert [path for store in stores for path in missing(store)] == []


def test_an_unchanged_table_is_not_planned_again(native: Callable[[], Any]) -> None:
    desk = Desk()
    desk.discover()
    desk.look()
    desk.settle()
    processes = len(desk.processes())
    looked_at = desk.table(NAME).looked_at
    desk.wait(minutes=59)
    assert desk.look() == []
    assert desk.table(NAME).looked_at != looked_at
    assert len(desk.processes()) == processes
    assert desk.table(NAME).look_seconds > AT_ONCE.min_refresh_interval.total_seconds()


def test_a_reported_commit_is_looked_at_at_once(native: Callable[[], Any]) -> None:
    desk = Desk()
    desk.discover()
    desk.look()
    desk.settle()
    assert desk.ams.looks.due() == []
    row = desk.table(NAME)
    known = ReportedCommit(store="base", table_uuid=row.uuid, snapshot_id=1, sequence_number=row.base_sequence or 0)
    assert not desk.ams.looks.report(known)
    assert desk.ams.looks.due() == []
    news = ReportedCommit(store="base", table_uuid=row.uuid, snapshot_id=1, sequence_number=(row.base_sequence or 0) + 1)
    assert desk.ams.looks.report(news)
    assert [each.uuid for each in desk.ams.looks.due()] == [row.uuid]


def test_reports_of_old_attempts_change_nothing(native: Callable[[], Any], lake: Catalog, store: Store) -> None:
    """The first optimizer is lost in the middle; its result comes after somebody else has got the task."""
    before, desk = native(), Desk(store)
    process = demanded(desk)
    handed = desk.poll()
    assert len(handed) == TASKS
    documents = [desk.execute(each) for each in handed]
    late = desk.optimizer
    desk.wait(minutes=2)
    desk.keep()
    assert {task.state for task in desk.tasks(process)} == {TaskState.PENDING}
    with pytest.raises(UnknownOptimizer):
        desk.ams.optimizers.heartbeat(late.id, [])
    for each, document in zip(handed, documents, strict=True):
        with pytest.raises(StaleAttempt):
            desk.report(each, document)
    desk.optimizer, _ = desk.ams.optimizers.register(Registration(parallelism=1))
    desk.settle()
    assert native() == before
    assert [task.attempt for task in desk.tasks(process)] == [1] * TASKS
    assert [task.retries for task in desk.tasks(process)] == [0] * TASKS, "a lost optimizer is no retry"
    check_files(lake)


def test_a_report_may_come_twice(native: Callable[[], Any]) -> None:
    desk = Desk()
    demanded(desk)
    for each in desk.poll():
        document = desk.execute(each)
        desk.report(each, document)
        desk.report(each, document)
    desk.commit()
    [process] = desk.processes()
    assert process.state is ProcessState.SUCCEEDED
    desk.report(each, document)  # after everything is over


def test_a_result_that_does_not_fit_is_refused_and_nothing_is_lost(native: Callable[[], Any]) -> None:
    before, desk = native(), Desk()
    demanded(desk)
    [first, *others] = desk.poll()
    document = desk.execute(first)
    with pytest.raises(ProtocolError, match="rows do not balance"):
        desk.report(first, document | {"rows_out": document["rows_out"] - 1})
    with pytest.raises(ProtocolError):
        desk.report(first, {"type": "result"})
    desk.report(first, document)
    for each in others:
        desk.report(each, desk.execute(each))
    desk.settle()
    assert native() == before


def test_failed_attempts_are_repeated_and_then_given_up(native: Callable[[], Any], lake: Catalog, store: Store) -> None:
    before, desk = native(), Desk(store)
    process = demanded(desk)
    for run in range(4):
        handed = desk.poll()
        assert [each.attempt for each in handed] == [run] * (TASKS if run == 0 else 1)
        for each in handed:
            if each.row.number == 0:
                desk.execute(each)  # it writes files, and loses its result
                desk.fail(each)
                desk.fail(each)
            else:
                desk.report(each, desk.execute(each))
        assert desk.poll() == [], "the retry interval is not over"
        desk.wait(seconds=31)
        desk.ams.optimizers.heartbeat(desk.optimizer.id, [])
        desk.keep()
    [task] = [task for task in desk.tasks(process) if task.number == 0]
    assert (task.state, task.retries, len(task.failures)) == (TaskState.ABANDONED, 3, 4)
    desk.commit()
    [ended] = [row for row in desk.processes() if row.id == process]
    assert ended.state is ProcessState.PARTIAL
    assert "2 of 3 tasks" in str(ended.outcome)
    desk.clean()
    desk.wait(minutes=1)
    desk.clean()
    assert native() == before
    check_files(lake)


def test_a_table_whose_processes_fail_is_paused_and_tried_again(native: Callable[[], Any]) -> None:
    settings = ServiceSettings(commit_interval=timedelta(0))
    desk = Desk(settings=settings)
    desk.discover()
    for failed in range(5):
        desk.ams.optimizers.heartbeat(desk.optimizer.id, [])
        assert len(desk.look()) == 1
        for _ in range(4):
            for each in desk.poll():
                desk.fail(each)
            desk.wait(seconds=31)
            desk.ams.optimizers.heartbeat(desk.optimizer.id, [])
            desk.keep()
        desk.commit()
        row = desk.table(NAME)
        assert row.failed_in_a_row == failed + 1
        assert row.plan_after == desk.clock.now() + timedelta(minutes=2**failed)
        assert desk.look() == []
        desk.wait(minutes=2**failed, seconds=1)
    row = desk.table(NAME)
    assert (row.state, row.paused_by) == (TableState.PAUSED, "service")
    assert "5 processes in a row failed" in str(row.pause_reason)
    assert desk.look() == []
    desk.wait(hours=1)
    desk.keep()
    assert desk.table(NAME).state is TableState.ACTIVE
    assert len(desk.look()) == 1


def test_a_pause_lets_results_through_and_plans_nothing(native: Callable[[], Any], lake: Catalog) -> None:
    before, desk = native(), Desk()
    process = demanded(desk)
    handed = desk.poll()
    desk.ams.pause(desk.table(NAME).uuid, "me", "a migration")
    for each in handed:
        desk.report(each, desk.execute(each))
    desk.commit()
    assert desk.processes()[0].state is ProcessState.SUCCEEDED
    assert desk.processes()[0].id == process
    fragment(lake)
    desk.wait(hours=2)
    assert desk.look() == []
    desk.ams.resume(desk.table(NAME).uuid, "me")
    assert len(desk.look()) == 1
    assert native().keys() >= before.keys()


def test_deletes_are_not_converted_while_files_in_work_need_them(native: Callable[[], Any], lake: Catalog) -> None:
    """Positions for other files would be refused as long as the equality deletes are needed: nothing is planned in vain."""
    native()
    desk = Desk(settings=replace(AT_ONCE, refresh_interval=timedelta(seconds=1), min_refresh_interval=timedelta(seconds=1)))
    pyarctic.table(NAME).set({"self-optimizing.minor.trigger.interval": "1s"})
    process = demanded(desk)
    handed = desk.poll()
    fresh = pa.table({"id": [9000, 9001], "part": pa.array([0, 0], pa.int32())})
    changes.apply(lake.load_table("db.t"), partial(changes.append, data=fresh))
    keys = pa.table({"id": pa.array([9000, 4], pa.int64())})
    changes.apply(lake.load_table("db.t"), partial(changes.equality_delete, keys=keys, partition=(0,)))
    before = native()
    for _ in range(5):
        desk.wait(seconds=20)
        desk.ams.optimizers.heartbeat(desk.optimizer.id, [])
        for each in handed:
            desk.ams.optimizers.progress(each.row.key, each.attempt, 1, 1)
        desk.look()
        desk.work()
        desk.commit()
    assert [row.id for row in desk.processes()] == [process]
    for each in handed:
        desk.report(each, desk.execute(each))
    desk.settle()
    assert native() == before
    assert {row.state for row in desk.processes()} == {ProcessState.SUCCEEDED}


def fragment(lake: Catalog) -> None:
    for number in range(3):
        data = pa.table({"id": [9000 + number], "part": pa.array([0], pa.int32())})
        lake.load_table("db.t").append(data)


def test_a_cancelled_process_leaves_nothing(native: Callable[[], Any], lake: Catalog, store: Store) -> None:
    before, desk = native(), Desk(store)
    process = demanded(desk)
    [first, second, _] = desk.poll()
    desk.report(first, desk.execute(first))
    late = desk.execute(second)
    desk.ams.cancel(process, "me")
    _, stop = desk.ams.optimizers.heartbeat(desk.optimizer.id, [(second.row.key, second.attempt)])
    assert stop == [(second.row.key, 0)]
    with pytest.raises(StaleAttempt):
        desk.report(second, late)
    desk.commit()
    assert desk.processes()[0].state is ProcessState.CANCELLED
    assert {task.state for task in desk.tasks(process)} == {TaskState.CANCELLED}
    desk.clean()
    assert native() == before
    check_files(lake)


def test_a_restart_in_the_middle_changes_nothing(native: Callable[[], Any], lake: Catalog, tmp_path: Path) -> None:
    """The service is started again after every step; attempts and results outlive it."""
    before, url = native(), f"sqlite:///{tmp_path}/arctic.db"
    desk = Desk(SqlStore.open(url))

    def restart() -> None:
        desk.store.close()
        desk.store = SqlStore.open(url)
        desk.start()

    process = demanded(desk)
    restart()
    handed = desk.poll()
    restart()
    for each in handed:
        desk.report(each, desk.execute(each))
        restart()
    desk.commit()
    restart()
    assert desk.processes()[0].state is ProcessState.SUCCEEDED
    assert [task.attempt for task in desk.tasks(process)] == [0] * TASKS
    desk.settle()
    assert native() == before
    check_files(lake)


def test_a_full_queue_lets_processes_wait(native: Callable[[], Any]) -> None:
    desk = Desk(settings=ServiceSettings(commit_interval=timedelta(0), queue_capacity=0))
    process = demanded(desk)
    assert desk.processes()[0].state is ProcessState.WAITING
    assert desk.poll() == []
    desk.settings = AT_ONCE
    desk.start()
    desk.keep()
    assert desk.processes()[0].state is ProcessState.RUNNING
    assert len(desk.poll()) == len(desk.tasks(process)) == TASKS


def test_a_dropped_table_is_given_up(native: Callable[[], Any]) -> None:
    desk = Desk()
    demanded(desk)
    desk.poll()
    pyarctic.drop_table(NAME)
    desk.wait(minutes=20)
    desk.discover()
    assert desk.table(NAME).state is TableState.GONE
    desk.commit()
    assert desk.processes()[0].state is ProcessState.CANCELLED
    assert desk.unfinished() == []


def test_optimizers_work_by_themselves(native: Callable[[], Any], lake: Catalog, tmp_path: Path) -> None:
    """The real loops, and an optimizer with worker processes."""
    before = native()
    ams = Ams(SqlStore.open(f"sqlite:///{tmp_path}/arctic.db"), AT_ONCE)
    service = DirectService(ams)
    optimizer = Optimizer(service, LocalEngine(workers=2), heartbeat_seconds=1)
    thread = Thread(target=optimizer.run)
    ams.start()
    thread.start()
    try:
        desk = Desk(ams.core.store)
        desk.ams.optimizers.stop(desk.optimizer.id)
        deadline = time.monotonic() + 60
        while not (desk.processes() and not desk.unfinished()):
            assert time.monotonic() < deadline, [loop.last_error for loop in ams.loops]
            time.sleep(0.1)
        assert native() == before
        assert {row.state for row in desk.processes()} == {ProcessState.SUCCEEDED}
    finally:
        optimizer.drain()
        thread.join(30)
        ams.stop()
    assert not thread.is_alive()
    with ams.core.store.read() as view:
        assert {row.state for row in view.find(OptimizerRow)} == {OptimizerState.STOPPED}
    check_files(lake)


def test_a_plan_that_cannot_be_read_holds_nobody_up(native: Callable[[], Any], lake: Catalog) -> None:
    """It is of a newer release, to which somebody will go back."""
    fragmented_table(lake, "db.other")
    desk = Desk()
    unread = demanded(desk)
    other = desk.ams.looks.demand(desk.table("lake.db.other").uuid, "full", "test")
    assert other is not None
    desk.start()
    with desk.store.begin() as transaction:
        plan = transaction.get(PlanRow, unread)
        assert plan is not None
        transaction.update(replace(plan, data=pack(unpack(plan.data) | {"version": 99})))
    assert {each.row.process_id for each in desk.poll()} == {other.id}
