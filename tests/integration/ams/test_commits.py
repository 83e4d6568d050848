"""Committing while tables come and go, requests stay open, and results are not complete."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic.ams.handing import HandedTask
from pyarctic.ams.process_log import ProcessLog
from pyarctic.ams.rows import CommitRow
from pyarctic.ams.states import CommitState, ProcessState, TableState, TaskState
from pyarctic.errors import Unavailable
from pyarctic.optimizing.commit import Committer, Nothing
from pyarctic.tables import Table
from tests.support.ams import Desk
from tests.support.fragmented_table import fragmented_table
from tests.support.integrity import leftovers, missing

NAME, RENAMED = "lake.db.t", "lake.db.renamed"
FULL = {"self-optimizing.full.trigger.interval": "1h", "self-optimizing.minor.trigger.file-count": "2"}


@pytest.fixture
def desk(lake: Catalog) -> Desk:
    """A service with a process over a fragmented table."""
    fragmented_table(lake, "db.t")
    pyarctic.table(NAME).set(FULL)
    desk = Desk()
    desk.discover()
    desk.look()
    return desk


def execute(desk: Desk, handed: list[HandedTask]) -> None:
    for each in handed:
        desk.report(each, desk.execute(each))


def commits(desk: Desk) -> list[CommitState]:
    with desk.store.read() as view:
        return [row.state for row in view.find(CommitRow)]


def leave_open(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request is stored, and the service is killed before it is sent."""

    with monkeypatch.context() as patched:
        send = Table.try_commit

        def try_commit(table: Table, change: Any, before_send: Any = None, **options: Any) -> Any:
            def before(head: int | None) -> None:
                before_send(head)
                raise KeyboardInterrupt

            return send(table, change, before, **options)

        patched.setattr(Table, "try_commit", try_commit)
        with pytest.raises(KeyboardInterrupt):
            desk.commit()
    desk.start()
    assert commits(desk) == [CommitState.OPEN]


def test_results_that_cannot_be_committed_yet_are_not_looked_at_again_and_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others of their unit are still executed, which may take hours."""
    [first, second, third] = desk.poll()
    execute(desk, [first])
    with monkeypatch.context() as patched:
        patched.setattr(Committer, "commit_due", lambda _: Nothing())
        assert len(desk.ams.commits.due()) == 1
        desk.commit()
        assert desk.ams.commits.due() == []
        execute(desk, [second])
        assert len(desk.ams.commits.due()) == 1
        desk.commit()
    execute(desk, [third])
    desk.commit()
    assert [row.state for row in desk.processes()] == [ProcessState.SUCCEEDED]


def test_a_renamed_table_keeps_its_processes(desk: Desk, lake: Catalog) -> None:
    handed = desk.poll()
    documents = [desk.execute(each) for each in handed]
    lake.rename_table("db.t", "db.renamed")
    desk.discover()
    row = desk.table(RENAMED)
    assert row.state is TableState.ACTIVE
    for each, document in zip(handed, documents, strict=True):
        desk.report(each, document)
    desk.commit()
    assert [process.state for process in desk.processes()] == [ProcessState.SUCCEEDED]
    desk.wait(minutes=1)
    desk.clean()
    table = lake.load_table("db.renamed")
    assert (missing(table), leftovers(table)) == ([], [])


def test_a_table_that_is_gone_for_a_while_can_be_committed_to_afterwards(
    desk: Desk, lake: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was renamed in the middle of a commit, and nobody has told the service."""
    execute(desk, desk.poll())
    leave_open(desk, monkeypatch)
    uuid = desk.table(NAME).uuid
    lake.rename_table("db.t", "db.away")
    desk.ams.looks._lose(uuid, NAME, "it is not listed", desk.clock.now())
    desk.commit()
    assert [process.state for process in desk.processes()] == [ProcessState.CANCELLED]
    assert CommitState.OPEN not in commits(desk)
    desk.clean()
    lake.rename_table("db.away", "db.t")
    desk.discover()
    assert desk.table(NAME).state is TableState.ACTIVE
    desk.wait(hours=2)
    desk.settle()
    assert [process.state for process in desk.processes()] == [ProcessState.CANCELLED, ProcessState.SUCCEEDED]
    table = lake.load_table("db.t")
    assert missing(table) == []


def test_files_of_a_table_that_was_renamed_are_removed(desk: Desk, lake: Catalog) -> None:
    """By its new name: the process ended under the old one."""
    [first, *_] = desk.poll()
    execute(desk, [first])
    [process] = desk.processes()
    desk.ams.cancel(process.id, "test")
    desk.commit()
    lake.rename_table("db.t", "db.renamed")
    desk.discover()
    desk.clean()
    desk.wait(minutes=1)
    desk.clean()
    assert leftovers(lake.load_table("db.renamed")) == []


def test_a_killed_commit_is_settled_by_the_next_service(desk: Desk, lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    execute(desk, desk.poll())
    leave_open(desk, monkeypatch)
    desk.wait(minutes=10)
    desk.settle()
    assert desk.processes()[0].state is ProcessState.SUCCEEDED
    table = lake.load_table("db.t")
    assert (missing(table), leftovers(table)) == ([], [])


def test_a_cancelled_process_with_an_open_commit_waits_for_the_catalog(
    desk: Desk, lake: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has in work is not free before the outcome is certain."""
    execute(desk, desk.poll())
    leave_open(desk, monkeypatch)
    [process] = desk.processes()
    desk.ams.cancel(process.id, "test")

    def silent(*_: Any, **__: Any) -> Any:
        raise Unavailable("the catalog does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(Table, "refresh", silent)
        desk.commit()
        desk.wait(seconds=6)
        desk.commit()
    assert [row.state for row in desk.processes()] == [ProcessState.CANCELLING]
    assert {task.state for task in desk.tasks()} == {TaskState.COMMITTING}
    desk.wait(seconds=11)  # longer after each failure
    desk.commit()
    assert [row.state for row in desk.processes()] == [ProcessState.CANCELLED]
    assert commits(desk) == [CommitState.REFUSED]
    desk.clean()
    table = lake.load_table("db.t")
    assert (missing(table), leftovers(table)) == ([], [])


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("turn", range(3))
def test_the_service_may_be_killed_at_every_step_of_a_commit(
    desk: Desk, lake: Catalog, monkeypatch: pytest.MonkeyPatch, when: str, turn: int
) -> None:
    before = sorted(pyarctic.table(NAME).scan().to_arrow()["id"].to_pylist())
    execute(desk, desk.poll())
    save, calls = ProcessLog.save_record, [0]

    def killed(log: ProcessLog, *args: Any) -> None:
        calls[0] += 1
        if calls[0] == turn + 1 and when == "before":
            raise KeyboardInterrupt
        save(log, *args)
        if calls[0] == turn + 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(ProcessLog, "save_record", killed)
    try:
        desk.commit()
    except KeyboardInterrupt:
        desk.start()
    monkeypatch.undo()
    desk.settle()
    assert [row.state for row in desk.processes()] == [ProcessState.SUCCEEDED]
    assert sorted(pyarctic.table(NAME).scan().to_arrow()["id"].to_pylist()) == before
    assert len([state for state in commits(desk) if state is CommitState.LANDED]) == 1
    table = lake.load_table("db.t")
    assert (missing(table), leftovers(table)) == ([], [])
