"""What every store keeps: rows as they are, transactions as a whole, guards, the meaning of queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyarctic.ams.rows import ClaimRow, CommitRow, EventRow, PlanRow, ProcessRow, Row, TaskRow
from pyarctic.ams.states import CommitState, TaskState
from pyarctic.ams.store import Broken, Query, Store, Transaction
from pyarctic.ams.store.port import KEYS
from tests.support.ams_rows import KINDS, NOW, claim, commit, key_of, move, process, rows, task, with_key_of

ONE_STORE = settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])


def kept(store: Store, row: Row) -> Row | None:
    with store.read() as view:
        return view.get(type(row), *key_of(row))


# Rows


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
@ONE_STORE
def test_rows_are_kept_as_they_are(store: Store, kind: type[Row], data: st.DataObject) -> None:
    row = data.draw(rows(kind))
    other = with_key_of(data.draw(rows(kind)), row)
    if isinstance(row, TaskRow) and isinstance(other, TaskRow):
        row, other = replace(row, version=5), replace(other, version=6)
    clear(store)
    assert kept(store, row) is None
    with store.begin() as transaction:
        transaction.insert(row)
        assert transaction.get(kind, *key_of(row)) == row
    assert kept(store, row) == row
    with store.begin() as transaction:
        transaction.update(other)
        assert transaction.find(kind) == [other]
    found = kept(store, row)
    assert found is not None
    assert found == other
    assert_same_types(found, other)
    with store.begin() as transaction:
        assert transaction.delete(kind, **{name: getattr(row, name) for name in KEYS[kind]}) == 1
        assert transaction.find(kind) == []
    assert kept(store, row) is None


def assert_same_types(found: Row, expected: Row) -> None:
    for name in type(found).__dataclass_fields__:
        value = getattr(found, name)
        assert isinstance(value, type(getattr(expected, name)))
        if isinstance(value, datetime):
            assert value.utcoffset() == timedelta(0)


def test_large_plans_are_kept(store: Store) -> None:
    large = PlanRow(process_id="p1", data=bytes(range(256)) * (5 << 12))
    empty = PlanRow(process_id="p2", data=b"")
    with store.begin() as transaction:
        transaction.insert(large, empty)
    assert kept(store, large) == large
    assert kept(store, empty) == empty


def test_a_row_is_apart_from_the_document_it_was_made_of(store: Store) -> None:
    document: dict[str, Any] = {"files": [1]}
    with store.begin() as transaction:
        transaction.insert(commit(record=document))
    document["files"].append(2)
    with store.read() as view:
        assert [row.record for row in view.find(CommitRow)] == [{"files": [1]}]


@pytest.mark.parametrize(
    "row",
    [task(created_at=datetime(2026, 1, 1)), commit(record={"at": NOW}), commit(record={"ratio": float("nan")})],  # noqa: DTZ001
    ids=["naive", "no JSON", "not a number"],
)
def test_values_that_no_database_has_are_refused(store: Store, row: Row) -> None:
    with pytest.raises((TypeError, ValueError)), store.begin() as transaction:
        transaction.insert(row)
    assert kept(store, row) is None


# Transactions


def test_an_exception_undoes_all_of_a_transaction(store: Store) -> None:
    with store.begin() as transaction:
        transaction.insert(task(1), task(2), claim())
        transaction.record([move()])
    with suppress(KeyError), store.begin() as transaction:
        transaction.update(task(1, version=1, rows_done=7))
        transaction.delete(TaskRow, number=2)
        transaction.insert(process())
        transaction.delete(ClaimRow)
        transaction.record([move("x")])
        raise KeyError
    with store.read() as view:
        assert view.find(TaskRow) == [task(1), task(2)]
        assert view.find(ClaimRow) == [claim()]
        assert view.find(ProcessRow) == []
    with store.begin() as transaction:
        transaction.record([move("y")])
    assert [(event.number, event.key) for event in store.events_after(0)] == [(1, "p1.1"), (2, "y")]


def test_a_view_does_not_change_and_waits_for_nobody(store: Store) -> None:
    with store.begin() as transaction:
        transaction.insert(task(1))
    with store.read() as before:
        with store.begin() as transaction:
            transaction.update(task(1, version=1))
            transaction.insert(task(2))
            with store.read() as meanwhile:
                assert meanwhile.find(TaskRow) == [task(1)]
        assert before.find(TaskRow) == [task(1)]
        assert before.get(TaskRow, "p1", 2) is None
    with store.read() as after:
        assert after.find(TaskRow) == [task(1, version=1), task(2)]


@pytest.mark.parametrize(
    "write",
    [
        lambda view: view.insert(task()),
        lambda view: view.update(task()),
        lambda view: view.delete(TaskRow),
        lambda view: view.record([move()]),
    ],
)
def test_a_view_is_for_reading_only(store: Store, write: Callable[[Transaction], object]) -> None:
    with store.read() as view, pytest.raises(TypeError, match="only reads"):
        write(view)


def test_a_thread_does_not_wait_for_itself(store: Store) -> None:
    with store.begin(), pytest.raises(RuntimeError, match="has not ended"), store.begin():
        pass
    with store.begin() as transaction:
        transaction.insert(task())


# Guards


def refused(store: Store, *before: Row, write: Callable[[Transaction], object]) -> Broken:
    """The error for a write that breaks a guard. The transaction is undone, also if the caller goes on."""
    with store.begin() as transaction:
        transaction.insert(*before)
    content = everything(store)

    def go_on() -> None:
        with store.begin() as transaction:
            transaction.insert(process("fine"))
            with pytest.raises(Broken):
                write(transaction)
            with suppress(Broken):
                transaction.insert(process("later"))

    with pytest.raises(Broken) as told:
        go_on()
    assert everything(store) == content
    return told.value


def everything(store: Store) -> dict[str, Sequence[Row]]:
    with store.read() as view:
        return {kind.__name__: view.find(kind) for kind in (*KINDS, EventRow)}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
@ONE_STORE
def test_there_is_one_row_with_a_key(store: Store, kind: type[Row], data: st.DataObject) -> None:
    row = data.draw(rows(kind))
    other = with_key_of(data.draw(rows(kind)), row)
    clear(store)
    error = refused(store, row, write=lambda transaction: transaction.insert(other))
    assert str(key_of(row)[-1]) in error.message
    # Two open commits with one key break two guards; which of them is told is not fixed.
    assert kind is CommitRow or "is there already" in error.message


def clear(store: Store) -> None:
    with store.begin() as transaction:
        for kind in KINDS:
            transaction.delete(kind)


def test_one_of_many_rows_that_is_there_already_undoes_all(store: Store) -> None:
    many = [claim(f"{number}.parquet", process_id="p2") for number in range(1000)]
    error = refused(store, claim("500.parquet"), write=lambda transaction: transaction.insert(*many))
    assert error.facts["kind"] == "claim"
    assert error.retryable


@pytest.mark.parametrize("row", [task(version=1), process(), commit(), claim()], ids=lambda row: type(row).__name__)
def test_a_row_that_is_not_there_is_not_updated(store: Store, row: Row) -> None:
    error = refused(store, claim("other"), write=lambda transaction: transaction.update(row))
    assert "is not there any more" in error.message


@pytest.mark.parametrize("version", [0, 3, 4, 6])
def test_who_updates_a_task_has_seen_its_last_version(store: Store, version: int) -> None:
    error = refused(store, task(version=4), write=lambda transaction: transaction.update(task(version=version)))
    assert error.facts == {"kind": "task", "key": "p1.1"}


def test_a_task_is_updated_version_by_version(store: Store) -> None:
    with store.begin() as transaction:
        transaction.insert(task())
        transaction.update(task(version=1), task(version=2))
        transaction.update(task(version=3, rows_done=9))
    assert kept(store, task()) == task(version=3, rows_done=9)


@pytest.mark.parametrize(
    ("before", "write"),
    [
        ([commit(1)], lambda transaction: transaction.insert(commit(2))),
        ([], lambda transaction: transaction.insert(commit(1), commit(2))),
        ([commit(1), commit(2, state=CommitState.LANDED)], lambda transaction: transaction.update(commit(2))),
    ],
    ids=["inserted", "together", "updated"],
)
def test_a_table_has_one_open_commit(store: Store, before: list[Row], write: Callable[[Transaction], object]) -> None:
    assert "open" in refused(store, *before, write=write).message


def test_the_next_commit_opens_when_the_last_one_is_settled(store: Store) -> None:
    with store.begin() as transaction:
        transaction.insert(commit(1), commit(3, table_uuid="t2"))
        transaction.update(commit(1, state=CommitState.REFUSED), commit(3, table_uuid="t2", position=1))
        transaction.insert(commit(2))
    with store.read() as view:
        assert [row.snapshot_id for row in view.find(CommitRow, state=CommitState.OPEN)] == [2, 3]


def test_events_are_not_written_like_rows(store: Store) -> None:
    event = EventRow(number=9, at=NOW, kind="task", key="x", table=None, before=None, after="a", why="", by="")
    with store.begin() as transaction:
        for write in (transaction.insert, transaction.update):
            with pytest.raises(TypeError, match="recorded"):
                write(event)


# Queries


def numbers(store: Store, query: Query | None = None, /, **where: Any) -> list[int]:
    with store.read() as view:
        return [row.number for row in view.find(TaskRow, query, **where)]


@pytest.fixture
def queued(store: Store) -> Store:
    """Tasks 1 to 6: the first two queued at the same time, the fourth never."""
    hours = {1: 2, 2: 2, 3: 1, 4: None, 5: 5, 6: 4}
    states = {3: TaskState.EXECUTING, 4: TaskState.INIT, 6: TaskState.FAILED}
    with store.begin() as transaction:
        transaction.insert(
            *(
                task(
                    number,
                    state=states.get(number, TaskState.PENDING),
                    queued_at=None if hour is None else NOW + timedelta(hours=hour),
                    optimizer_id="o1" if number == 3 else None,
                )
                for number, hour in reversed(hours.items())
            )
        )
    return store


def test_rows_are_found_by_their_fields(queued: Store) -> None:
    assert numbers(queued) == [1, 2, 3, 4, 5, 6]
    assert numbers(queued, state=TaskState.PENDING) == [1, 2, 5]
    assert numbers(queued, state={TaskState.INIT, TaskState.FAILED}, process_id="p1") == [4, 6]
    assert numbers(queued, state=[TaskState.INIT, TaskState.INIT]) == [4]
    assert numbers(queued, state=()) == []
    assert numbers(queued, process_id="p2") == []
    assert numbers(queued, optimizer_id=None) == [1, 2, 4, 5, 6]
    assert numbers(queued, optimizer_id=(None, "o1")) == [1, 2, 3, 4, 5, 6]
    assert numbers(queued, queued_at=NOW + timedelta(hours=4)) == [6]
    assert numbers(queued, kind="minor", number={2, 3}) == [2, 3]
    assert numbers(queued, Query(where=(("number", (2, 3, 4)), ("number", (3, 4, 5)))), number=4) == [4]


def test_rows_come_in_order(queued: Store) -> None:
    assert numbers(queued, Query(order="queued_at")) == [4, 3, 1, 2, 6, 5]
    assert numbers(queued, Query(order="queued_at", descending=True)) == [5, 6, 2, 1, 3, 4]
    assert numbers(queued, Query(order="number", descending=True, limit=2)) == [6, 5]
    assert numbers(queued, Query(limit=0)) == []


def test_a_query_goes_on_after_a_value(queued: Store) -> None:
    assert numbers(queued, Query(order="number", after=4)) == [5, 6]
    assert numbers(queued, Query(order="number", after=4, descending=True, limit=2)) == [3, 2]
    assert numbers(queued, Query(order="queued_at", after=NOW + timedelta(hours=2))) == [6, 5]
    assert numbers(queued, Query(order="queued_at", after=NOW + timedelta(hours=2), descending=True)) == [3, 4]


def test_a_transaction_finds_what_it_wrote(queued: Store) -> None:
    with queued.begin() as transaction:
        transaction.update(task(4, version=1, queued_at=NOW))
        transaction.insert(task(7))
        assert transaction.delete(TaskRow, number=(1, 2, 99)) == 2
        assert [row.number for row in transaction.find(TaskRow, Query(order="queued_at"), state=TaskState.PENDING)] == [
            7,
            4,
            5,
        ]
    assert numbers(queued) == [3, 4, 5, 6, 7]


def test_tens_of_thousands_of_values(store: Store) -> None:
    claims = [claim(f"{number:05}.parquet") for number in range(30_000)]
    with store.begin() as transaction:
        transaction.insert(*reversed(claims))
        found = transaction.find(ClaimRow, Query(order="key", limit=20_000), key=[each.key for each in claims[::-1]])
        assert found == claims[:20_000]
        assert transaction.delete(ClaimRow, key={each.key for each in claims[:25_000]}) == 25_000
        assert transaction.find(ClaimRow) == claims[25_000:]


@pytest.mark.parametrize("field", ["nothing", "failures"])
def test_only_plain_fields_are_searched(store: Store, field: str) -> None:
    with store.read() as view:
        for query in (Query(order=field), Query(where=((field, (1,)),))):
            with pytest.raises(TypeError, match=field):
                view.find(TaskRow, query)


# Events


def test_events_are_numbered_in_their_order(store: Store) -> None:
    with store.begin() as transaction:
        transaction.record([move("a", before=None, table=None), move("b", by="ada")])
        transaction.record([])
        transaction.record(move(key) for key in "cd")
    first, second, *rest = store.events_after(0)
    assert first == EventRow(
        number=1,
        at=NOW,
        kind="task",
        key="a",
        table=None,
        before=None,
        after="executing",
        why="it is handed out",
        by="service",
    )
    assert (second.by, [event.number for event in rest]) == ("ada", [3, 4])
    assert [event.key for event in store.events_after(1, limit=2)] == ["b", "c"]
    assert store.events_after(4) == []
    with store.read() as view:
        assert [event.number for event in view.find(EventRow, kind="task", key=("b", "d"))] == [2, 4]


def test_numbers_of_removed_events_are_not_given_again(store: Store) -> None:
    with store.begin() as transaction:
        transaction.record([move(), move()])
        assert transaction.delete(EventRow) == 2
    with store.begin() as transaction:
        transaction.record([move()])
    assert [event.number for event in store.events_after(0)] == [3]


def test_old_events_are_found(store: Store) -> None:
    with store.begin() as transaction:
        transaction.record(move(at=NOW + timedelta(days=day)) for day in range(5))
        old = transaction.find(EventRow, Query(order="at", descending=True, after=NOW + timedelta(days=2)))
        assert [event.number for event in old] == [2, 1]
