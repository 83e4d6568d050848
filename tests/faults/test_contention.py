"""Others commit all the time: a change is tried again until the deadline. A catalog that is down is another matter."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException

import pyarctic
from pyarctic.errors import Conflict as ConflictError
from pyarctic.errors import Unavailable
from pyarctic.iceberg.commit import Change, Committed, Conflict, ManifestRewrite, Outcome, RetryPolicy, Unknown, commit
from pyarctic.optimizing import Options, optimize_table
from tests.faults.lab import Kind, Lab, Point, content, make_change, some_rows
from tests.support import changes
from tests.support.integrity import leftovers, missing, sequence_numbers_differ, untrue_totals
from tests.support.keyed_tables import made, opened, rows
from tests.support.optimizing import InProcessEngine

COMMIT = ("commit", "before")


def raced(lab: Lab, table: Any, change: Change | ManifestRewrite, races: int, *, moves: bool = True) -> Outcome:
    """Commit while others come first that often; or are said to, without a commit."""
    numbers = iter(range(races))

    def trap(point: Point) -> None:
        if point != COMMIT or (number := next(numbers, None)) is None:
            return
        if moves:
            with ThreadPoolExecutor() as others:
                others.submit(append_one, lab, table, 200 + number).result()
        raise CommitFailedException("another commit came first")

    with lab.trapped(lambda _: None) as catalog:
        loaded = catalog.load_table(table.name())
        catalog.trap = trap
        return commit(loaded, change)


def append_one(lab: Lab, table: Any, number: int) -> None:
    changes.apply(lab.loaded(table), lambda t: changes.append(t, some_rows(number)))


@pytest.mark.parametrize("kind", ["append", "upsert", "rewrite", "manifests", "properties"])
def test_lost_races_are_tried_again(lab: Lab, kind: Kind) -> None:
    table = lab.table(2)
    change = make_change(table, kind)
    outcome = raced(lab, table, change, 12)
    assert isinstance(outcome, Committed)
    assert outcome.attempts == 13
    loaded = lab.loaded(table)
    assert {(200 + number, number % 2) for number in range(12)} <= content(loaded)
    assert (missing(loaded), untrue_totals(loaded), leftovers(loaded, change)) == ([], [], [])
    assert sequence_numbers_differ(loaded)


def test_the_table_may_limit_retries_and_their_time(lab: Lab) -> None:
    for limit, attempts in (({"commit.retry.num-retries": "6"}, 7), ({"commit.retry.total-timeout-ms": "0"}, 1)):
        table = lab.table(2, **limit)
        outcome = raced(lab, table, make_change(table, "append"), 12)
        assert isinstance(outcome, Conflict)
        assert outcome.attempts == attempts


def test_refusals_though_nobody_committed_are_few(lab: Lab) -> None:
    """As with a lock that a dead process holds."""
    table = lab.table(2)
    outcome = raced(lab, table, make_change(table, "append"), 12, moves=False)
    assert isinstance(outcome, Conflict)
    assert outcome.attempts == 5


def test_answers_that_are_lost_on_a_busy_table_are_few(lab: Lab) -> None:
    table = lab.table(2)
    numbers = iter(range(100))

    def trap(point: Point) -> None:
        if point == COMMIT:
            with ThreadPoolExecutor() as others:
                others.submit(append_one, lab, table, 200 + next(numbers)).result()
            raise TimeoutError

    with lab.trapped(lambda _: None) as catalog:
        loaded = catalog.load_table(table.name())
        catalog.trap = trap
        outcome = commit(loaded, make_change(table, "append"))
    assert isinstance(outcome, Unknown)
    assert outcome.attempts == 5


def test_a_catalog_that_is_down_is_no_contention(lab: Lab) -> None:
    table = lab.table(2)
    change = make_change(table, "rewrite")

    def trap(point: Point) -> None:
        raise ConnectionError

    begin = time.monotonic()
    with lab.trapped(lambda _: None) as catalog:
        loaded = catalog.load_table(table.name())
        catalog.trap = trap
        with pytest.raises(Unavailable):
            commit(loaded, change)
    assert time.monotonic() - begin < 60


def test_the_more_races_are_lost_the_shorter_is_the_wait(lab: Lab) -> None:
    retry = RetryPolicy.of(lab.catalog.create_table("db.plain", ids_only()).metadata)
    assert all(retry.wait_after_lost_race(1) <= 0.1 for _ in range(100))
    assert all(retry.wait_after_lost_race(20) <= 0.005 for _ in range(100))
    assert all(0.4 <= retry.wait_after_failure(4) <= 0.8 for _ in range(100))


def ids_only() -> pa.Schema:
    return pa.schema([("id", pa.int64())])


def race_others(monkeypatch: pytest.MonkeyPatch, store: str, races: int) -> list[int]:
    """Before each of the next commits to a store, somebody else appends nothing to it."""
    take: Any = SqlCatalog.commit_table
    left = list(range(races))

    def commit_table(catalog: SqlCatalog, table: Any, requirements: Any, updates: Any) -> Any:
        if table.name()[-1] == store and left:
            left.pop()
            patch.undo()
            other = pyarctic.table(f"lake.db.{store}") if store != "t" else opened()
            other.commit(Change(start=other.view.snapshot_id, empty=True))
            patch.setattr(SqlCatalog, "commit_table", commit_table)
        return take(catalog, table, requirements, updates)

    patch = monkeypatch
    patch.setattr(SqlCatalog, "commit_table", commit_table)
    return left


def hold_lock(monkeypatch: pytest.MonkeyPatch, store: str) -> list[int]:
    """Refuse all commits to a store, though nobody else commits."""
    take: Any = SqlCatalog.commit_table
    requests: list[int] = []

    def refuse(catalog: SqlCatalog, table: Any, requirements: Any, updates: Any) -> Any:
        if table.name()[-1] != store:
            return take(catalog, table, requirements, updates)
        requests.append(1)
        raise CommitFailedException("the lock is held")

    monkeypatch.setattr(SqlCatalog, "commit_table", refuse)
    return requests


@pytest.mark.parametrize("is_change_store", [False, True])
@pytest.mark.parametrize(("retries", "requests"), [(None, 5), ("0", 1), ("7", 8)])
def test_a_schema_change_asks_a_locked_table_a_few_times(
    lake: Catalog, monkeypatch: pytest.MonkeyPatch, is_change_store: bool, retries: str | None, requests: int
) -> None:
    table = made()
    assert table.change_store is not None
    store = table.change_store.name.rpartition(".")[2] if is_change_store else "t"
    if retries is not None:
        for each in (table, table.change_store):
            each.set({"commit.retry.num-retries": retries})
    with monkeypatch.context() as patch:
        sent = hold_lock(patch, store)
        with pytest.raises(ConflictError, match="the lock is held"):
            opened().evolve(add={"note": "string"})
    assert len(sent) == requests
    if is_change_store:
        opened().evolve(add={"more": "string"})
        assert "note" in opened().change_store.view.metadata.schema().column_names


def test_the_wait_after_many_lost_races_has_a_floor(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    retry = RetryPolicy.of(lab.catalog.create_table("db.plain", ids_only()).metadata)
    assert max(retry.wait_after_lost_race(10_000) for _ in range(200)) > 0.003


def test_lost_races_are_counted_if_retries_are_limited(lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pyarctic.create_table("lake.db.u", ids_only(), properties={"commit.retry.num-retries": "3"})
    table.write(pa.table([[1]], schema=ids_only()))
    left = race_others(monkeypatch, "u", 15)
    with pytest.raises(ConflictError, match="lost against other writers"):
        table.write(pa.table([[2]], schema=ids_only()), "overwrite")
    assert len(left) == 15 - 4


def test_an_overwrite_is_planned_again_until_it_gets_through(lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = ids_only()
    quick = {"commit.retry.min-wait-ms": "1"}
    table = pyarctic.create_table("lake.db.u", schema, properties=quick)
    table.write(pa.table([[1]], schema=schema))
    left = race_others(monkeypatch, "u", 15)
    table.write(pa.table([[2]], schema=schema), "overwrite")
    assert left == []
    assert table.refresh().scan().to_arrow()["id"].to_pylist() == [2]
    table.set({"commit.retry.total-timeout-ms": "0"})
    race_others(monkeypatch, "u", 15)
    with pytest.raises(ConflictError, match="lost against other writers"):
        table.write(pa.table([[3]], schema=schema), "overwrite")


def test_a_merge_of_a_keyed_table_is_tried_until_it_gets_through(lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made()
    for text in "abc":
        table.write(rows(_1=text, _2=text), "upsert")
    left = race_others(monkeypatch, "t", 25)
    report = optimize_table(opened(), InProcessEngine(), Options(kind="full"))
    assert left == []
    assert report.tasks_committed == 1
    assert opened().scan(store="base").to_arrow().to_pylist() == [{"id": 1, "text": "c"}, {"id": 2, "text": "c"}]
