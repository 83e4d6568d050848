"""Others expire and roll back snapshots of a process, between its commits and before their outcome is stored.

Every commit is recorded once and as what became of it; rows stay, and so do files that a snapshot refers to."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

import pyarctic
from pyarctic.iceberg.commit import Change
from pyarctic.iceberg.write import told_snapshot
from pyarctic.optimizing.commit.log import CommitRecord
from pyarctic.tables.format.store_properties import BASE_BUCKETS, CHANGE_BUCKETS
from tests.faults.kept import Kept, dying
from tests.faults.test_steps import CASES, Case
from tests.support import changes
from tests.support.integrity import missing, needed, on_disk
from tests.support.keyed_tables import CITIES, cities, made, opened, texts

kinds = pytest.mark.parametrize("kind", CASES)


def with_upper_nodes(_lake: Catalog, *, has_base: bool = True) -> Case:
    """Base files of the root, which tasks of several nodes share; or changes alone."""
    table = made(CITIES, ("city",))
    rows: dict[int, Any] = {}

    def upsert(text: str, *ids: int) -> None:
        given = [(number, "abc"[number % 3], long) for number, long in texts(ids, text).items()]
        rows.update({row[0]: row for row in given})
        opened().write(cities(*given), "upsert")

    if has_base:
        upsert("first", *range(300))
        pyarctic.optimize(table.name, "full")
    opened().set({BASE_BUCKETS: "4", CHANGE_BUCKETS: "4", "self-optimizing.target-size": "1KB"})
    upsert("second", *range(150, 450 if has_base else 4000))
    return Case(table="lake.db.t", rows=rows, write=lambda random: upsert(f"t{random.random()}", random.randrange(450)))


def move_on(table: str) -> None:
    """A snapshot of somebody else, so that the one before can be expired."""
    handle = pyarctic.table(table)
    handle.commit(Change(start=handle.view.snapshot_id, empty=True))


def expire(lake: Catalog, *snapshots: int) -> None:
    lake.load_table("db.t").maintenance.expire_snapshots().by_ids(list(snapshots)).commit()


def roll_back(lake: Catalog, to: int) -> None:
    lake.load_table("db.t").manage_snapshots().set_current_snapshot(snapshot_id=to).commit()


def there(record: CommitRecord | None) -> CommitRecord:
    assert record is not None
    return record


def check(process: Kept, case: Case) -> None:
    """Rows are those of the model, every file is there, and none of the process is left that nothing refers to."""
    assert case.read() == case.rows
    assert process.log.open is None
    units = process.log.committed_units
    assert len(units) == len(set(units))
    commits = {record.snapshot_id for record in process.log.records}
    for store in case.stores():
        assert missing(store) == []
    files = {path for store in case.stores() for path in on_disk(store)}
    live = {path for store in case.stores() for path in needed(store)}
    of_process = {path for path in files if process.plan.job.id in path or told_snapshot(path) in commits}
    assert of_process - live == set()


@kinds
def test_a_landed_snapshot_is_expired_between_two_commits(lake: Catalog, kind: str) -> None:
    case = CASES[kind](lake)
    process = Kept.planned(case.table)
    first, second, *_ = process.units
    process.commit(process.tasks_of(first))
    process.commit(process.tasks_of(second))
    expire(lake, process.log.landed[0].snapshot_id)
    process.commit()
    process.clean()
    assert sorted(process.log.committed_units) == process.units
    assert dict(process.log.dropped) == {}
    check(process, case)


@pytest.mark.parametrize("is_stored", [False, True], ids=["not stored", "stored"])
@kinds
def test_a_landed_snapshot_is_rolled_back_by_others(lake: Catalog, kind: str, is_stored: bool) -> None:
    """Its results are not committed again, and the other units are."""
    case = CASES[kind](lake)
    before = pyarctic.table(case.table).view.snapshot_id
    process = Kept.planned(case.table)
    first, *others = process.units
    if is_stored:
        process.commit(process.tasks_of(first))
        [record] = process.log.landed
    else:
        with dying(landed=True):
            process.commit(process.tasks_of(first))
        record = there(process.log.open)
    assert before is not None
    roll_back(lake, before)
    process.clean()
    assert case.read() == case.rows
    process.commit()
    process.clean()
    assert first not in [unit for each in process.log.landed for unit in each.units if each is not record]
    if not is_stored:
        [settled] = [each for each in process.log.records if each.snapshot_id == record.snapshot_id]
        assert (settled.state, settled.was_in_table) == ("refused", True)
        assert first in process.log.dropped
    assert {unit for each in process.log.landed for unit in each.units} >= set(others) or kind.startswith("native")
    check(process, case)


@kinds
def test_a_held_request_is_let_through_after_the_process_was_closed(lake: Catalog, kind: str) -> None:
    case = CASES[kind](lake)
    process = Kept.planned(case.table)
    with dying(landed=False) as held:
        process.commit()
    process.clean()
    process.close()
    process.clean()
    [let_through] = held
    with pytest.raises(Exception, match=r"has changed|sequence number"):
        let_through()
    assert process.log.committed_units == []
    check(process, case)


@pytest.mark.parametrize("lands", [True, False])
@kinds
def test_a_held_request_is_let_through_while_a_successor_goes_on(
    lake: Catalog, kind: str, lands: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the successor has sent its own request, which is the same commit, or after it."""
    case = CASES[kind](lake)
    process = Kept.planned(case.table)
    with dying(landed=False) as held:
        process.commit()
    [let_through] = held
    process.clean()
    accept: Any = SqlCatalog.commit_table
    requests: list[int] = []

    def commit_table(*request: Any) -> Any:
        requests.append(1)
        if len(requests) > 1:
            return accept(*request)
        if lands:
            let_through()
            return accept(*request)
        response = accept(*request)
        with pytest.raises(Exception, match=r"has changed|sequence number|already exists"):
            let_through()
        return response

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    process.commit()
    process.clean()
    assert sorted(process.log.committed_units) == process.units
    check(process, case)


@kinds
def test_a_snapshot_is_expired_before_its_outcome_was_stored(lake: Catalog, kind: str) -> None:
    case = CASES[kind](lake)
    process = Kept.planned(case.table)
    with dying(landed=True):
        process.commit()
    record = there(process.log.open)
    move_on(case.table)
    expire(lake, record.snapshot_id)
    process.commit()
    process.clean()
    assert [each.snapshot_id for each in process.log.landed].count(record.snapshot_id) == 1
    assert sorted(process.log.committed_units) == process.units
    check(process, case)


@pytest.mark.parametrize("version", [2, 3])
def test_a_commit_that_added_no_file_is_found_after_its_snapshot_was_expired(lake: Catalog, version: int) -> None:
    """All rows of its files were deleted: nothing but the history of snapshots knows it."""
    case = CASES[f"native v{version}"](lake)
    dead = [number for number, (_, part) in case.rows.items() if part == 0]
    for number in dead:
        del case.rows[number]
    changes.apply(lake.load_table("db.t"), lambda table: changes.position_delete(table, "part = 0"))
    process = Kept.planned(case.table, where="part = 0")
    assert [each.written for each in process.results.values()] == [set()]
    with dying(landed=True):
        process.commit()
    record = there(process.log.open)
    move_on(case.table)
    expire(lake, record.snapshot_id)
    process.commit()
    process.clean()
    assert [each.snapshot_id for each in process.log.landed] == [record.snapshot_id]
    check(process, case)


@pytest.mark.parametrize("has_base", [True, False])
def test_an_open_commit_is_not_sent_again_with_a_part_of_its_results(lake: Catalog, has_base: bool) -> None:
    """A service that starts again gives results one after the other. The changes of all nodes of a partition count as merged
    with the first of them: those of the others would be lost."""
    case = with_upper_nodes(lake, has_base=has_base)
    process = Kept.planned(case.table, "city = 'a'")
    [unit] = process.units
    assert len(process.tasks_of(unit)) > 1
    with dying(landed=False):
        process.commit()
    committer = process.committer(())
    for number in process.tasks_of(unit):
        assert process.log.open is not None
        committer.accept(process.finished[number])
        committer.commit_due()
        assert case.read() == case.rows
    assert process.log.committed_units == [unit]
    process.clean()
    check(process, case)
