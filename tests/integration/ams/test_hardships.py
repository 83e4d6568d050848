"""What happens beside the plan: threads meet, settings change, results and plans are bad, clocks are set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic.ams.handing import Registration
from pyarctic.ams.processes import pause_table
from pyarctic.ams.rows import CommitRow, EventRow, OptimizerRow, PlanRow, TableRow, TaskRow
from pyarctic.ams.settings import ServiceSettings
from pyarctic.ams.states import OptimizerState, ProcessState, TableState, TaskState
from pyarctic.ams.store import Store, Transaction
from pyarctic.errors import ArcticError, Damaged, Unavailable
from pyarctic.optimizing.protocol import pack, unpack
from pyarctic.tables import Table
from tests.support.ams import AT_ONCE, Desk
from tests.support.fragmented_table import fragmented_table
from tests.support.integrity import leftovers, missing
from tests.support.keyed_tables import CITIES, cities, made, opened

NAME = "lake.db.t"
DUE = {"self-optimizing.full.trigger.interval": "1h", "self-optimizing.minor.trigger.file-count": "2"}


@pytest.fixture
def desk(lake: Catalog) -> Desk:
    fragmented_table(lake, "db.t")
    pyarctic.table(NAME).set(DUE)
    desk = Desk()
    desk.discover()
    return desk


class Racing:
    """A store in which something happens before the next view is opened, as by another thread."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.before: Callable[[], None] | None = None

    def read(self) -> AbstractContextManager[Transaction]:
        before, self.before = self.before, None
        if before is not None:
            before()
        return self._inner.read()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def race(desk: Desk) -> Racing:
    store = Racing(desk.store)
    desk.store = store
    desk.start()
    return store


def only_task(desk: Desk, number: int) -> TaskRow:
    return next(task for task in desk.tasks() if task.number == number)


# Threads that meet


def test_a_heartbeat_that_comes_while_the_keeper_looks(desk: Desk) -> None:
    store = race(desk)
    for _ in range(7):
        desk.wait(seconds=10)
        desk.ams.optimizers.heartbeat(desk.optimizer.id, [])

    def beat() -> None:
        desk.wait(seconds=0.001)
        desk.ams.optimizers.heartbeat(desk.optimizer.id, [])

    store.before = beat
    desk.keep()
    with desk.store.read() as view:
        row = view.get(OptimizerRow, desk.optimizer.id)
    assert row is not None
    assert row.state is OptimizerState.ACTIVE


def test_progress_that_comes_while_the_keeper_looks(desk: Desk) -> None:
    desk.look()
    store = race(desk)
    desk.wait(seconds=3700)
    desk.ams.optimizers.heartbeat(desk.optimizer.id, [])
    [handed, *_] = desk.poll()
    desk.ams.optimizers.acknowledge(handed.row.key, handed.attempt)

    def progress() -> None:
        desk.wait(seconds=0.001)
        desk.ams.optimizers.progress(handed.row.key, handed.attempt, 1, 1)

    store.before = progress
    desk.ams.keeper._end_overdue_attempts()
    task = only_task(desk, handed.row.number)
    assert (task.state, task.retries) == (TaskState.EXECUTING, 0)


def test_a_task_that_is_handed_out_while_the_keeper_looks(desk: Desk) -> None:
    desk.look()
    store = race(desk)
    desk.wait(seconds=40)
    desk.ams.optimizers.heartbeat(desk.optimizer.id, [])

    def poll() -> None:
        desk.wait(seconds=0.001)
        assert desk.poll()

    store.before = poll
    desk.ams.keeper._end_overdue_attempts()
    assert {task.state for task in desk.tasks()} == {TaskState.EXECUTING}


# Plans and results


def spoil_plan(desk: Desk, process_id: str) -> None:
    """It is of a newer release."""
    with desk.store.begin() as transaction:
        plan = transaction.get(PlanRow, process_id)
        assert plan is not None
        transaction.update(replace(plan, data=pack(unpack(plan.data) | {"version": 99})))
    desk.start()


def test_plans_that_cannot_be_read_take_no_place_of_others(desk: Desk, lake: Catalog) -> None:
    fragmented_table(lake, "db.other")
    desk.discover()
    first = desk.ams.looks.demand(desk.table(NAME).uuid, "full", "test")
    desk.wait(seconds=1)
    second = desk.ams.looks.demand(desk.table("lake.db.other").uuid, "full", "test")
    assert first is not None
    assert second is not None
    spoil_plan(desk, first.id)
    assert [handed.row.process_id for handed in desk.poll(slots=2)] == [second.id] * 2


def test_a_keyed_table_with_a_plan_that_cannot_be_read_is_looked_at_and_can_be_cancelled(lake: Catalog) -> None:
    made(CITIES, ("city",))
    for _ in range(3):
        opened().write(cities((1, "a", "one")), "upsert")
    desk = Desk()
    desk.discover()
    process = desk.ams.looks.demand(desk.table(NAME).uuid, "full", "test")
    assert process is not None
    spoil_plan(desk, process.id)
    desk.wait(hours=2)
    assert desk.look() == []
    assert desk.ams.looks.due() == []
    assert desk.table(NAME).problem is None
    desk.ams.cancel(process.id, "test")
    desk.commit()
    assert [row.state for row in desk.processes()] == [ProcessState.CANCELLED]


@pytest.mark.parametrize("error", [Damaged("a file is missing"), ValueError("a bug")], ids=["ours", "another"])
def test_a_commit_that_cannot_be_built_is_given_up(desk: Desk, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Units that can be committed are, one by one; the others end."""
    desk.look()
    desk.work()
    bad = min(task.unit for task in desk.tasks())
    commit = Table.try_commit

    def try_commit(table: Table, change: Any, *rest: Any) -> Any:
        if any(f"/{bad:05d}-" in file.path for file in change.add):
            raise error
        return commit(table, change, *rest)

    monkeypatch.setattr(Table, "try_commit", try_commit)
    for _ in range(8):
        desk.commit()
        desk.wait(minutes=2)
    states = {task.unit: task.state for task in desk.tasks()}
    assert states.pop(bad) is TaskState.ABANDONED
    assert set(states.values()) == {TaskState.COMMITTED}
    assert [row.state for row in desk.processes()] == [ProcessState.PARTIAL]


def test_a_row_map_that_is_missing_ends_in_a_partial_process(desk: Desk, lake: Catalog) -> None:
    desk.look()
    [first, *others] = desk.poll()
    result = desk.execute(first)
    assert result["row_map"] is not None
    desk.report(first, result | {"row_map": result["row_map"].replace("-rowmap", "-no-rowmap")})
    for each in others:
        desk.report(each, desk.execute(each))
    for _ in range(8):
        desk.commit()
        desk.wait(minutes=2)
    assert [row.state for row in desk.processes()] == [ProcessState.PARTIAL]
    desk.settle()
    table = lake.load_table("db.t")
    assert missing(table) == []


def test_an_outage_of_the_storage_leaves_few_rows(desk: Desk, lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.look()
    desk.work()

    def try_commit(*_: Any) -> Any:
        raise Unavailable("the storage is down")

    with monkeypatch.context() as patched:
        patched.setattr(Table, "try_commit", try_commit)
        for _ in range(240):  # 20 minutes
            desk.commit()
            desk.wait(seconds=5)
    with desk.store.read() as view:
        assert 10 < len(view.find(CommitRow)) < 30
    desk.settle()
    assert [row.state for row in desk.processes()] == [ProcessState.SUCCEEDED]
    table = lake.load_table("db.t")
    assert (missing(table), leftovers(table)) == ([], [])


@pytest.mark.parametrize(
    "wrong",
    [
        {"file_format": "FOO"},
        {"equality_ids": [1]},
        {"content_offset": 4},
        {"sort_order_id": 7},
        {"lower_bounds": "AA=="},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_files_that_no_reader_would_understand_are_refused(desk: Desk, wrong: dict[str, Any]) -> None:
    desk.look()
    [handed, *_] = desk.poll()
    result = desk.execute(handed)
    [file, *_] = result["add"]
    if "lower_bounds" in wrong:
        file["metrics"]["lower_bounds"] = {"1": wrong["lower_bounds"]}
    else:
        file.update(wrong)
    with pytest.raises(ArcticError, match="cannot be added"):
        desk.report(handed, result)
    assert only_task(desk, handed.row.number).state is TaskState.EXECUTING


def test_a_failure_is_told_in_a_text_that_somebody_may_read(desk: Desk) -> None:
    desk.look()
    [handed, *_] = desk.poll()
    document = {
        "type": "failure",
        "version": 1,
        "task": handed.row.number,
        "attempt": handed.attempt,
        "job": handed.plan.job.id,
    }
    desk.ams.optimizers.fail(handed.row.key, handed.attempt, document | {"code": "x", "detail": "y" * 1_000_000})
    [failure] = only_task(desk, handed.row.number).failures
    assert len(failure["detail"]) < 5000
    assert max(len(event.why) for event in desk.store.events_after(0)) < 10_000


# Tables


def test_settings_that_change_count_as_a_change(lake: Catalog) -> None:
    fragmented_table(lake, "db.t")
    quiet = {"self-optimizing.minor.trigger.interval": "-1", "self-optimizing.minor.trigger.file-count": "100"}
    pyarctic.table(NAME).set(quiet)
    desk = Desk()
    desk.discover()
    assert desk.look() == []
    desk.wait(hours=2)
    assert desk.look() == []
    pyarctic.table(NAME).set(DUE)
    desk.wait(hours=2)
    assert len(desk.look()) == 1


def test_a_pause_outlives_a_rename(desk: Desk, lake: Catalog) -> None:
    uuid = desk.table(NAME).uuid
    desk.ams.pause(uuid, "operator", "a migration")
    lake.rename_table("db.t", "db.renamed")
    desk.wait(hours=2)
    desk.look()
    assert desk.table(NAME).state is TableState.GONE
    desk.discover()
    row = desk.table("lake.db.renamed")
    assert (row.uuid, row.state, row.paused_by, row.pause_reason) == (uuid, TableState.PAUSED, "operator", "a migration")
    assert desk.look() == []
    assert desk.ams.resume(uuid, "operator").paused_by is None


def test_a_pause_of_the_service_ends_whatever_the_clock_says(desk: Desk) -> None:
    now, uuid = desk.clock.now(), desk.table(NAME).uuid
    with desk.store.begin() as transaction:
        row = transaction.get(TableRow, uuid)
        assert row is not None
        transaction.update(pause_table(row, "five failed", "service", now + timedelta(hours=1), now).row)
    desk.clock.set(days=-30)
    desk.keep()
    assert desk.table(NAME).state is TableState.ACTIVE
    desk.ams.pause(uuid, "operator", until=desk.clock.now() + timedelta(days=2))
    desk.keep()
    assert desk.table(NAME).state is TableState.PAUSED, "people may pause for longer"


def test_what_waits_goes_to_the_new_group_of_its_table(desk: Desk) -> None:
    pyarctic.table(NAME).set({"self-optimizing.group": "nobody"})
    [process] = desk.look()
    assert desk.poll() == []
    pyarctic.table(NAME).set({"self-optimizing.group": "default"})
    desk.wait(hours=1)
    desk.ams.optimizers.heartbeat(desk.optimizer.id, [])
    desk.look()
    assert {handed.row.process_id for handed in desk.poll()} == {process.id}
    assert [row.group for row in desk.processes()] == ["default"]


def test_an_excluded_table_is_left_alone(desk: Desk) -> None:
    desk.look()
    [handed, *_] = desk.poll(slots=1)
    desk.settings = replace(AT_ONCE, exclude=("*.t",))
    desk.start()
    desk.discover()
    assert desk.table(NAME).state is TableState.GONE
    assert desk.poll() == [], "what waits is cancelled"
    catalogs = desk.ams.core.catalogs
    with opens_counted(catalogs) as names:
        for _ in range(60):
            desk.commit()
            desk.wait(seconds=1)
    assert len(names) <= 2
    desk.report(handed, desk.execute(handed))
    desk.commit()
    assert desk.unfinished() == []


@contextmanager
def opens_counted(catalogs: Any) -> Iterator[list[str]]:
    names: list[str] = []
    original = catalogs.open

    def opened_again(name: str) -> Table:
        names.append(name)
        table: Table = original(name)
        return table

    catalogs.open = opened_again
    yield names
    del catalogs.open


# History


def test_the_past_is_forgotten_in_pieces(desk: Desk, lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyarctic.ams.cleaning._BATCH", 2)
    desk.settings = ServiceSettings(
        commit_interval=timedelta(0), keep_history=timedelta(days=2), keep_plans=timedelta(hours=1)
    )
    desk.start()
    optimizers = [desk.ams.optimizers.register(Registration(parallelism=1))[0] for _ in range(3)]
    for turn in range(3):
        fragmented_table(lake, f"db.passing{turn}")
        pyarctic.table(f"lake.db.passing{turn}").set(DUE)
        desk.discover()
        desk.settle()
        lake.drop_table(f"db.passing{turn}")
        desk.discover()
        desk.settle()
    desk.wait(hours=2)
    desk.keep()
    with desk.store.read() as view:
        assert len(view.find(OptimizerRow, state=OptimizerState.LOST)) >= len(optimizers)
    desk.clean()
    desk.ams.cleaning.forget()
    with desk.store.read() as view:
        assert view.find(PlanRow) == []
        assert len(view.find(TableRow)) == 4
        assert len(desk.processes()) > 3
    desk.wait(days=3)
    desk.ams.optimizers.register(Registration(parallelism=1))
    desk.ams.cleaning.forget()
    with desk.store.read() as view:
        assert [row.name for row in view.find(TableRow)] == [NAME]
        assert desk.processes() == []
        assert [event.after for event in view.find(EventRow)] == ["active"]


def test_a_secret_may_stop_twice(desk: Desk) -> None:
    optimizer, secret = desk.ams.optimizers.register(Registration(parallelism=1))
    for _ in range(2):
        desk.ams.optimizers.check_secret(optimizer.id, secret, may_have_stopped=True)
        desk.ams.optimizers.stop(optimizer.id)
    with pytest.raises(ArcticError):
        desk.ams.optimizers.check_secret(optimizer.id, "another", may_have_stopped=True)
