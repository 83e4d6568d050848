"""Reports of writers and optimizers that are odd: too late, too early, of nothing that there is."""

from __future__ import annotations

import pytest
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic.ams.handing import Registration
from pyarctic.ams.looks import ReportedCommit
from pyarctic.ams.rows import OptimizerRow
from pyarctic.ams.states import ProcessState
from pyarctic.errors import NotFound, StaleAttempt, UsageError
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


def base_commit(desk: Desk, sequence: int) -> ReportedCommit:
    return ReportedCommit(store="base", table_uuid=desk.table(NAME).uuid, snapshot_id=1, sequence_number=sequence)


def test_commits_without_sequence_numbers_are_always_news(desk: Desk) -> None:
    """Those of version 1 of the format."""
    desk.look()
    desk.settle()
    for _ in range(3):
        assert desk.ams.looks.report(base_commit(desk, 0))
        desk.wait(seconds=1)
        desk.look()


def test_a_commit_that_was_reported_too_early_does_not_hide_later_ones(desk: Desk) -> None:
    """A writer that counts wrong, or one whose commit was rolled back."""
    desk.look()
    desk.settle()
    known = desk.table(NAME).base_sequence or 0
    assert desk.ams.looks.report(base_commit(desk, known + 1000))
    desk.wait(seconds=1)
    desk.look()
    assert desk.ams.looks.report(base_commit(desk, known + 1))


def test_commits_of_stores_that_there_are_not_are_refused(desk: Desk) -> None:
    commit = ReportedCommit(store="change", table_uuid=desk.table(NAME).uuid, snapshot_id=1, sequence_number=9)
    with pytest.raises(UsageError, match="change store"):
        desk.ams.looks.report(commit)
    with pytest.raises(NotFound):
        desk.ams.looks.report(ReportedCommit(store="base", table_uuid="x", snapshot_id=1, sequence_number=9))


def test_reports_may_come_again_after_the_plan_is_forgotten(desk: Desk) -> None:
    [process] = desk.look()
    [first, second, third] = desk.poll()
    result = desk.execute(first)
    desk.report(first, result)
    late = desk.execute(second)
    desk.fail(third)
    desk.ams.cancel(process.id, "test")
    desk.commit()
    desk.clean()
    desk.wait(minutes=5)
    desk.clean()
    desk.wait(hours=25)
    desk.ams.cleaning.forget()
    desk.start()
    desk.fail(third)
    for handed, document in ((first, result), (second, late)):
        with pytest.raises(StaleAttempt):
            desk.report(handed, document)
    with pytest.raises(StaleAttempt):
        desk.fail(second)


def test_a_stored_result_may_be_reported_after_the_plan_is_forgotten(desk: Desk) -> None:
    desk.look()
    [first, *others] = desk.poll()
    result = desk.execute(first)
    desk.report(first, result)
    for each in others:
        desk.report(each, desk.execute(each))
    desk.settle()
    desk.wait(hours=25)
    desk.ams.cleaning.forget()
    desk.start()
    desk.report(first, result)
    assert desk.processes()[0].state is ProcessState.SUCCEEDED


def test_optimizers_that_ended_long_ago_are_forgotten(desk: Desk) -> None:
    desk.ams.optimizers.stop(desk.optimizer.id)
    desk.wait(days=29)
    desk.ams.cleaning.forget()
    desk.ams.optimizers.register(Registration(parallelism=1))
    desk.wait(days=2)
    desk.ams.cleaning.forget()
    with desk.store.read() as view:
        assert len(view.find(OptimizerRow)) == 1
