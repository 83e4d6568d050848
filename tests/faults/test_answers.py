"""Answers of the catalog that are lost, late, wrong or doubled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, repeat

import pytest
import requests
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, ServiceUnavailableError
from pyiceberg.table import Table
from sqlalchemy.exc import OperationalError

from pyarctic.iceberg.commit import Change, Committed, Conflict, ManifestRewrite, Outcome, Unknown, commit
from tests.faults.lab import Kind, Lab, Point, content, make_change, some_rows
from tests.support import changes
from tests.support.integrity import leftovers, missing, sequence_numbers_differ, untrue_totals

LOST = [
    CommitStateUnknownException("the gateway gave up"),
    requests.ConnectionError("connection reset"),
    ServiceUnavailableError("try again later"),
    OperationalError("UPDATE", {}, Exception("server closed the connection")),
]
BEFORE, AFTER, LOAD = ("commit", "before"), ("commit", "after"), ("load", "before")
lost_answers = pytest.mark.parametrize("error", LOST, ids=lambda error: type(error).__name__)
kinds = pytest.mark.parametrize(("kind", "version"), [("append", 2), ("rebase", 2), ("rebase", 3), ("manifests", 3)])


def spoilt(
    lab: Lab,
    table: Table,
    change: Change | ManifestRewrite,
    faults: Sequence[tuple[Point, Exception]],
    *,
    then: Callable[[], object] = lambda: None,
) -> Outcome:
    """Commit while the catalog fails at these points, one after the other; `then` happens after the first."""
    waiting = list(faults)

    def trap(point: Point) -> None:
        if waiting and waiting[0][0] == point:
            _, error = waiting.pop(0)
            if len(waiting) == len(faults) - 1:
                with ThreadPoolExecutor() as others:
                    others.submit(then).result()
            raise error

    with lab.trapped(lambda _: None) as catalog:
        mine = catalog.load_table(table.name())
        catalog.trap = trap
        outcome = commit(mine, change)
    assert waiting == []
    return outcome


def check(lab: Lab, table: Table, change: Change | ManifestRewrite, outcome: Outcome, attempts: int) -> Table:
    """It is in the table, once, and nothing lies about."""
    assert isinstance(outcome, Committed)
    assert outcome.attempts == attempts
    found = whole(lab, table)
    assert [snapshot.snapshot_id for snapshot in found.metadata.snapshots].count(change.snapshot_id) == 1
    assert leftovers(found, change) == []
    return found


def whole(lab: Lab, table: Table) -> Table:
    found = lab.loaded(table)
    assert missing(found) == []
    assert untrue_totals(found) == []
    assert sequence_numbers_differ(found)
    return found


@lost_answers
@pytest.mark.parametrize("point", [BEFORE, AFTER], ids=["before", "after"])
def test_a_lost_answer_is_asked_for_again(lab: Lab, point: Point, error: Exception) -> None:
    table = lab.table(2)
    change = make_change(table, "append")
    found = check(lab, table, change, spoilt(lab, table, change, [(point, error)]), 2)
    assert len(content(found)) == 12


@kinds
@pytest.mark.parametrize("point", [BEFORE, AFTER], ids=["before", "after"])
def test_a_lost_answer_to_any_change(lab: Lab, kind: Kind, version: int, point: Point) -> None:
    twin = lab.table(version)
    assert isinstance(commit(twin, make_change(twin, kind)), Committed)
    table = lab.table(version)
    change = make_change(table, kind)
    # Not even the table can be loaded for a while.
    faults = [(point, LOST[0]), (LOAD, LOST[1]), (LOAD, LOST[2])]
    found = check(lab, table, change, spoilt(lab, table, change, faults), 4)
    assert content(found) == content(lab.loaded(twin))


@kinds
@pytest.mark.parametrize("point", [BEFORE, AFTER], ids=["before", "after"])
def test_others_commit_while_an_answer_is_lost(lab: Lab, kind: Kind, version: int, point: Point) -> None:
    table = lab.table(version)
    change = make_change(table, kind)
    before = len(lab.loaded(table).metadata.snapshots)
    outcome = spoilt(lab, table, change, [(point, LOST[0])], then=lambda: append_one(lab, table))
    found = check(lab, table, change, outcome, 2)
    assert len(found.metadata.snapshots) == before + 2
    assert (200, 0) in content(found)


def append_one(lab: Lab, table: Table) -> None:
    changes.apply(lab.loaded(table), lambda t: changes.append(t, some_rows(200)))


@kinds
def test_answers_that_are_always_lost_leave_it_unknown_and_everything_in_place(lab: Lab, kind: Kind, version: int) -> None:
    table = lab.table(version, **{"commit.retry.num-retries": "2"})
    change = make_change(table, kind)
    before = content(lab.loaded(table))
    outcome = spoilt(lab, table, change, [(BEFORE, error) for error in LOST[:3]])
    assert isinstance(outcome, Unknown)
    assert (outcome.snapshot_id, outcome.attempts) == (change.snapshot_id, 3)
    assert content(whole(lab, table)) == before
    # Those who hold the change ask again. What the first commit left stays: its request may still have been on the way.
    assert isinstance(commit(lab.loaded(table), change), Committed)
    assert isinstance(commit(lab.loaded(table), change), Committed)
    assert len(whole(lab, table).metadata.snapshots) == len(table.metadata.snapshots) + (2 if kind == "rebase" else 1)


@kinds
def test_a_commit_that_landed_is_found_even_when_the_table_could_not_be_loaded_at_last(
    lab: Lab, kind: Kind, version: int
) -> None:
    table = lab.table(version, **{"commit.retry.num-retries": "1"})
    change = make_change(table, kind)
    outcome = spoilt(lab, table, change, [(AFTER, LOST[1]), (LOAD, LOST[1])])
    assert isinstance(outcome, Unknown)
    found = whole(lab, table)
    assert found.metadata.snapshot_by_id(change.snapshot_id) is not None
    again = commit(found, change)
    assert isinstance(again, Committed)
    assert leftovers(whole(lab, table), change) == []


@kinds
@pytest.mark.parametrize("retries", [0, 3])
def test_a_conflict_about_a_commit_that_was_taken_does_not_harm_it(lab: Lab, kind: Kind, version: int, retries: int) -> None:
    table = lab.table(version, **{"commit.retry.num-retries": str(retries)})
    change = make_change(table, kind)
    # As when a proxy sends a request twice and the client hears of the second.
    outcome = spoilt(lab, table, change, [(AFTER, CommitFailedException("the branch has moved"))])
    check(lab, table, change, outcome, 1 + (retries > 0))


@kinds
def test_a_conflict_whose_truth_cannot_be_found_out_is_unknown(lab: Lab, kind: Kind, version: int) -> None:
    table = lab.table(version, **{"commit.retry.num-retries": "0"})
    change = make_change(table, kind)
    refused = CommitFailedException("the branch has moved")
    outcome = spoilt(lab, table, change, [(AFTER, refused), (LOAD, LOST[1])])
    assert isinstance(outcome, Unknown)
    whole(lab, table)
    assert isinstance(commit(lab.loaded(table), change), Committed)


@kinds
def test_conflicts_without_end_leave_nothing_behind(lab: Lab, kind: Kind, version: int) -> None:
    table = lab.table(version, **{"commit.retry.num-retries": "2"})
    change = make_change(table, kind)
    before = lab.loaded(table)
    made = {file.path.removeprefix("file://") for file in change.add} if isinstance(change, Change) else set()
    outcome = spoilt(lab, table, change, list(repeat((BEFORE, CommitFailedException("moved")), 3)))
    assert isinstance(outcome, Conflict)
    assert outcome.attempts == 3
    found = whole(lab, table)
    assert found.metadata_location == before.metadata_location
    assert set(leftovers(found)) <= made
    assert isinstance(commit(found, change), Committed)
    assert leftovers(whole(lab, table), change) == []


def test_a_lost_answer_then_conflicts_then_peace(lab: Lab) -> None:
    table = lab.table(2)
    change = make_change(table, "rebase")
    refused = CommitFailedException("moved")
    faults = [(BEFORE, LOST[0]), (LOAD, LOST[0]), (BEFORE, refused), (LOAD, LOST[2]), (BEFORE, LOST[3])]
    table_before = content(lab.loaded(table))
    found = lab.loaded(table)
    with_room = {"commit.retry.num-retries": "9"}
    commit(found, Change(start=changes.head(found), set_properties=with_room))
    outcome = spoilt(lab, lab.loaded(table), change, faults, then=lambda: append_one(lab, table))
    found = check(lab, table, change, outcome, 6)
    assert content(found) == frozenset(chain(table_before, [(200, 0)]))
