"""Looks at tables while other things happen: what was asked for meanwhile is not forgotten, and nothing is done twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic.ams.looks import Looks, ReportedCommit
from pyarctic.ams.rows import ProcessRow, TableRow
from pyarctic.ams.states import ProcessState, TableState, TaskState
from pyarctic.errors import Unavailable
from pyarctic.optimizing import plan_table
from pyarctic.tables import Table
from tests.support.ams import Desk
from tests.support.fragmented_table import fragmented_table

NAME = "lake.db.t"
FULL = {"self-optimizing.full.trigger.interval": "1h", "self-optimizing.minor.trigger.file-count": "2"}


@pytest.fixture
def desk(lake: Catalog) -> Desk:
    """A service that has found a fragmented table."""
    fragmented_table(lake, "db.t")
    pyarctic.table(NAME).set(FULL)
    desk = Desk()
    desk.discover()
    return desk


def executed(desk: Desk) -> None:
    for each in desk.poll():
        desk.report(each, desk.execute(each))


def written(lake: Catalog, desk: Desk) -> None:
    """A commit of a writer that only reports tell of."""
    lake.load_table("db.t").append(pa.table({"id": [9000], "part": pa.array([0], pa.int32())}))
    uuid = desk.table(NAME).uuid
    desk.ams.looks.report(ReportedCommit(store="base", table_uuid=uuid, snapshot_id=1, sequence_number=99))


def count_plans(monkeypatch: pytest.MonkeyPatch, before: Callable[[], None] = lambda: None) -> list[None]:
    """The evaluations from now on; before each of them something happens."""
    plans: list[None] = []

    def plan(*args: Any, **options: Any) -> Any:
        plans.append(None)
        before()
        return plan_table(*args, **options)

    monkeypatch.setattr("pyarctic.ams.looks.plan_table", plan)
    return plans


def test_a_process_that_ends_during_a_look_leads_to_another(
    desk: Desk, lake: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look has left out what was in work."""
    desk.look()
    executed(desk)
    desk.wait(minutes=2)
    written(lake, desk)

    def end() -> None:
        desk.wait(seconds=1)
        desk.commit()
        assert desk.unfinished() == []

    plans = count_plans(monkeypatch, end)
    desk.look()
    assert (len(plans), desk.table(NAME).must_plan) == (1, True)
    desk.look()
    assert len(plans) == 2


def test_a_look_that_fails_is_made_again_for_the_same(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    [process] = desk.look()
    desk.ams.cancel(process.id, "test")
    desk.commit()
    assert desk.table(NAME).must_plan
    desk.wait(minutes=2)

    def refuse(*_: Any) -> Table:
        raise Unavailable("the catalog does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(Looks, "_open", refuse)
        assert desk.look() == []
    assert desk.table(NAME).problem == "the catalog does not answer"
    desk.wait(seconds=31)
    assert len(desk.look()) == 1


def test_a_reported_commit_outlives_a_look_that_fails(desk: Desk, lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.look()
    desk.settle()
    written(lake, desk)

    def refuse(*_: Any) -> Table:
        raise Unavailable("the catalog does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(Looks, "_open", refuse)
        desk.look()
    assert desk.table(NAME).trigger == "reported"


def test_a_paused_table_is_not_evaluated_again_and_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    uuid = desk.table(NAME).uuid
    desk.ams.pause(uuid, "test")
    desk.look()
    plans = count_plans(monkeypatch)
    for _ in range(60):
        desk.wait(minutes=1)
        assert desk.look() == []
    assert plans == []
    desk.ams.resume(uuid, "test")
    assert len(desk.look()) == 1


def test_a_table_is_optimized_after_a_pause_that_ends_by_itself(desk: Desk) -> None:
    uuid = desk.table(NAME).uuid
    desk.ams.pause(uuid, "test", until=desk.clock.now())
    desk.look()
    desk.wait(minutes=1)
    desk.look()
    desk.keep()
    assert desk.table(NAME).state is TableState.ACTIVE
    assert len(desk.look()) == 1


def test_what_a_process_has_just_replaced_is_not_planned(desk: Desk, lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lands and ends after the table was loaded."""
    desk.look()
    executed(desk)
    desk.wait(minutes=2)
    written(lake, desk)
    opened = Looks._open

    def open_slowly(looks: Looks, row: TableRow) -> Table | None:
        table = opened(looks, row)
        desk.commit()
        return table

    monkeypatch.setattr(Looks, "_open", open_slowly)
    planned = desk.look()
    assert {row.state for row in desk.processes() if row not in planned} == {ProcessState.SUCCEEDED}
    assert planned == []


def test_switching_a_table_off_cancels_what_waits(desk: Desk, lake: Catalog) -> None:
    """What is executed is finished."""
    [process] = desk.look()
    [handed, *_] = desk.poll(1)
    pyarctic.table(NAME).set({"self-optimizing.enabled": "false"})
    desk.wait(hours=1)
    desk.ams.optimizers.heartbeat(desk.optimizer.id, [(handed.row.key, handed.attempt)])
    desk.look()
    assert desk.table(NAME).state is TableState.DISABLED
    assert sorted(task.state for task in desk.tasks(process.id)) == [
        TaskState.CANCELLED,
        TaskState.CANCELLED,
        TaskState.EXECUTING,
    ]
    assert desk.poll() == []
    desk.report(handed, desk.execute(handed))
    desk.commit()
    [ended] = desk.processes()
    assert ended.state is ProcessState.PARTIAL
    assert desk.table(NAME).failed_in_a_row == 0


def test_switching_a_table_off_cancels_processes_that_have_not_begun(desk: Desk) -> None:
    [process] = desk.look()
    pyarctic.table(NAME).set({"self-optimizing.enabled": "false"})
    desk.wait(hours=1)
    desk.look()
    desk.commit()
    assert [row.state for row in desk.processes()] == [ProcessState.CANCELLED]
    assert desk.poll() == []
    assert isinstance(process, ProcessRow)
