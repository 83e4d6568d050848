"""What others do to the table between the plan and the commit, or between two attempts."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from pyarctic.errors import NotFound, UsageError
from pyarctic.iceberg.commit import Change, Committed, ManifestRewrite, Outcome, Rejected, commit
from tests.faults.lab import KINDS, SCHEMA, SPEC, Kind, Lab, Point, content, make_change, some_rows, there
from tests.support import changes
from tests.support.integrity import leftovers, missing, row_ids_differ, sequence_numbers_differ, untrue_totals

Meanwhile = Callable[[], object]


def between_attempts(lab: Lab, table: Table, change: Change | ManifestRewrite, meanwhile: Meanwhile) -> Outcome:
    """The first attempt loses a race against `meanwhile`."""
    raced: list[Point] = []

    def trap(point: Point) -> None:
        if point == ("commit", "before") and not raced:
            raced.append(point)
            # In a thread of its own, as others are: within a commit PyArctic watches what the catalog's client writes.
            with ThreadPoolExecutor() as others:
                others.submit(meanwhile).result()
            raise CommitFailedException("another commit came first")

    with lab.trapped(lambda _: None) as catalog:
        mine = catalog.load_table(table.name())
        catalog.trap = trap
        outcome = commit(mine, change)
    assert raced
    return outcome


def before_commit(lab: Lab, table: Table, change: Change | ManifestRewrite, meanwhile: Meanwhile) -> Outcome:
    """Everything happens after the plan."""
    meanwhile()
    return commit(table, change)


MOMENTS = [before_commit, between_attempts]
moments = pytest.mark.parametrize("commit_with", MOMENTS)


def check_whole(lab: Lab, table: Table) -> Table:
    """Whole, and without files of the commit that was refused; those of the change are its maker's."""
    found = lab.loaded(table)
    assert missing(found) == []
    assert untrue_totals(found) == []
    assert sequence_numbers_differ(found)
    return found


@moments
def test_position_deletes_that_meet_a_rewrite_are_refused(lab: Lab, commit_with: Callable[..., Outcome]) -> None:
    table = lab.table(2)
    change = there(changes.position_delete(table, "id in (2, 3, 12, 13)"))
    before = content(table)
    assert any(file.referenced_data_file is None for file in change.add)  # one file about many is the harder case
    outcome = commit_with(lab, table, change, lambda: changes.apply(table, changes.rewrite))
    assert isinstance(outcome, Rejected)
    assert outcome.code == "not-live"
    found = check_whole(lab, table)
    assert content(found) == before
    assert leftovers(found, change) == []


@moments
@pytest.mark.parametrize("kind", KINDS)
def test_an_upgrade_meanwhile_refuses_position_delete_files_only(
    lab: Lab, kind: Kind, commit_with: Callable[..., Outcome]
) -> None:
    twin = lab.table(2)
    assert isinstance(commit(twin, make_change(twin, kind)), Committed)
    table = lab.table(2)
    change = make_change(table, kind)
    before = content(lab.loaded(table))
    outcome = commit_with(lab, table, change, lambda: lab.upgrade(table))
    found = check_whole(lab, table)
    assert found.format_version == 3
    if kind == "position-delete":
        assert isinstance(outcome, Rejected)
        assert outcome.code == "format"
        assert content(found) == before
    else:
        assert isinstance(outcome, Committed)
        assert content(found) == content(lab.loaded(twin))
        assert kind == "properties" or row_ids_differ(found)
    assert leftovers(found, change) == []


@moments
@pytest.mark.parametrize("kind", ["append", "rebase", "manifests"])
def test_a_dropped_table_is_not_found(lab: Lab, kind: Kind, commit_with: Callable[..., Outcome]) -> None:
    table = lab.table(2)
    change = make_change(table, kind)
    with pytest.raises(NotFound, match="does not exist"):
        commit_with(lab, table, change, lambda: lab.catalog.drop_table(table.name()))
    assert not lab.catalog.table_exists(table.name())
    assert missing(table) == []  # whoever dropped it may register it again


@moments
@pytest.mark.parametrize("kind", ["append", "rebase", "manifests", "properties"])
def test_another_table_of_the_same_name_is_left_alone(lab: Lab, kind: Kind, commit_with: Callable[..., Outcome]) -> None:
    table = lab.table(2)
    change = make_change(table, kind)

    def replace() -> None:
        lab.catalog.drop_table(table.name())
        elsewhere = f"{table.location()}-anew"
        lab.catalog.create_table(table.name(), SCHEMA, partition_spec=SPEC, location=elsewhere)

    outcome = commit_with(lab, table, change, replace)
    assert isinstance(outcome, Rejected)
    assert outcome.code == "replaced-table"
    found = check_whole(lab, table)
    assert found.metadata.snapshots == []
    assert "owner" not in found.properties


@moments
def test_after_a_rollback_it_is_refused(lab: Lab, commit_with: Callable[..., Outcome]) -> None:
    """Also an append: it may have been committed and rolled back."""
    for kind in ("rewrite", "position-delete", "append"):
        table = lab.table(2)
        change = make_change(table, kind)
        outcome = commit_with(lab, table, change, lambda table=table: roll_back(table))
        assert isinstance(outcome, Rejected)
        assert outcome.code == "history-lost"
        assert len(content(check_whole(lab, table))) == 12


def roll_back(table: Table) -> None:
    """To the snapshot before the last one."""
    fresh = table.catalog.load_table(table.name())
    head = fresh.metadata.current_snapshot()
    assert head is not None
    assert head.parent_snapshot_id is not None
    fresh.manage_snapshots().set_current_snapshot(snapshot_id=head.parent_snapshot_id).commit()


@moments
def test_when_the_start_was_expired_it_is_refused(lab: Lab, commit_with: Callable[..., Outcome]) -> None:
    def expire(table: Table) -> None:
        start = changes.head(table)
        assert start is not None
        changes.apply(table, lambda t: changes.append(t, some_rows(200)))
        lab.loaded(table).maintenance.expire_snapshots().by_id(start).commit()

    for kind in ("rewrite", "position-delete", "append"):
        table = lab.table(2)
        outcome = commit_with(lab, table, make_change(table, kind), lambda table=table: expire(table))
        assert isinstance(outcome, Rejected)
        assert outcome.code == "history-lost"
        assert len(content(check_whole(lab, table))) == 11


def test_an_append_that_landed_and_was_expired_is_not_repeated(lab: Lab) -> None:
    table = lab.table(2)
    change = make_change(table, "append")
    assert isinstance(commit(table, change), Committed)
    changes.apply(table, lambda t: changes.append(t, some_rows(200)))
    lab.loaded(table).maintenance.expire_snapshots().by_id(change.snapshot_id).commit()
    outcome = commit(lab.loaded(table), change)
    assert isinstance(outcome, Rejected)
    assert outcome.code == "history-lost"
    assert len(content(check_whole(lab, table))) == 13


def test_an_append_that_landed_and_was_replaced_and_expired_is_not_repeated(lab: Lab) -> None:
    """Nothing of it is in the table any more but its rows."""
    table = lab.table(2)
    change = make_change(table, "append")
    assert isinstance(commit(table, change), Committed)
    changes.apply(table, changes.rewrite)
    lab.loaded(table).maintenance.expire_snapshots().by_id(change.snapshot_id).commit()
    outcome = commit(lab.loaded(table), change)
    assert isinstance(outcome, Rejected)
    assert (outcome.code, outcome.may_have_landed) == ("history-lost", True)
    assert len(content(check_whole(lab, table))) == 12


@pytest.mark.parametrize("version", [2, 3])
def test_commits_to_two_branches_at_once(lab: Lab, version: int) -> None:
    table = lab.table(version)
    start = changes.head(table)
    files = tuple(changes.write_data(table, some_rows(300)))
    change = Change(start=start, add=files, branch="audit")  # a branch that is not there yet
    outcome = between_attempts(lab, table, change, lambda: changes.apply(table, lambda t: changes.append(t, some_rows(200))))
    assert isinstance(outcome, Committed)
    found = check_whole(lab, table)
    assert found.metadata.refs["audit"].snapshot_id == change.snapshot_id
    assert {row["id"] for row in changes.rows(found, branch="audit").to_pylist()} >= {200, 300}
    assert {row["id"] for row in changes.rows(found).to_pylist()} & {200, 300} == {200}
    # Now the branch is there, and main moves while it is committed to.
    more = Change(start=change.snapshot_id, add=tuple(changes.write_data(table, some_rows(301))), branch="audit")
    moved = between_attempts(lab, table, more, lambda: changes.apply(table, lambda t: changes.append(t, some_rows(201))))
    assert isinstance(moved, Committed)
    found = check_whole(lab, table)
    assert {row["id"] for row in changes.rows(found, branch="audit").to_pylist()} & {201, 300, 301} == {300, 301}
    assert leftovers(found, more) == []


@pytest.mark.parametrize("version", [2, 3])
def test_a_number_that_a_commit_to_another_branch_took_is_a_conflict_and_tried_again(lab: Lab, version: int) -> None:
    table = lab.table(version)
    assert isinstance(
        commit(table, Change(start=None, add=tuple(changes.write_data(table, some_rows(300))), branch="b")), Committed
    )
    change = make_change(table, "append")
    raced: list[Point] = []

    def trap(point: Point) -> None:
        # Not refused by hand as above: the catalog itself must notice.
        if point == ("commit", "before") and not raced:
            raced.append(point)
            other = Change(start=None, add=tuple(changes.write_data(table, some_rows(301))), branch="b")
            assert isinstance(commit(lab.loaded(table), other), Committed)

    with lab.trapped(lambda _: None) as catalog:
        mine = catalog.load_table(table.name())
        catalog.trap = trap
        outcome = commit(mine, change)
    assert isinstance(outcome, Committed)
    assert outcome.attempts == 2
    found = check_whole(lab, table)
    assert leftovers(found) == []
    assert version == 2 or row_ids_differ(found)


def test_a_tag_does_not_move(lab: Lab) -> None:
    table = lab.table(2)
    head = changes.head(table)
    assert head is not None
    table.manage_snapshots().create_tag(head, "end-of-year").commit()
    change = Change(start=head, add=tuple(changes.write_data(table, some_rows(300))), branch="end-of-year")
    with pytest.raises(UsageError, match="is a tag"):
        commit(lab.loaded(table), change)
    found = check_whole(lab, table)
    assert found.metadata.refs["end-of-year"].snapshot_id == head
    assert leftovers(found, change) == []
