"""The store in memory and those in databases do the same: whatever is asked of both, answers and errors are equal."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from pyarctic.ams.rows import ClaimRow, CommitRow, EventRow, ProcessRow, Row, TableRow, TaskRow
from pyarctic.ams.states import CommitState, TaskState
from pyarctic.ams.store import Broken, MemoryStore, Query, SqlStore, Store, Transaction
from tests.support.ams_rows import KINDS, NOW, claim, commit, move, process, rows, task, with_key_of
from tests.support.stores import DATABASES, DatabaseUrls, fresh_store

NUMBERS = st.integers(0, 3)
HOURS = st.none() | st.integers(0, 3).map(lambda hour: NOW + timedelta(hours=hour))
TABLES = st.sampled_from(["t1", "t2"])
TASKS = st.builds(
    task,
    NUMBERS,
    process_id=st.sampled_from(["p1", "p2"]),
    version=NUMBERS,
    state=st.sampled_from(TaskState),
    queued_at=HOURS,
    optimizer_id=st.sampled_from([None, "o1"]),
)
COMMITS = st.builds(commit, NUMBERS, table_uuid=TABLES, state=st.sampled_from(CommitState))
CLAIMS = st.builds(claim, st.sampled_from("abcd"), table_uuid=TABLES, process_id=st.sampled_from(["p1", "p2"]))
PROCESSES = st.builds(process, st.sampled_from(["p1", "p2"]), table_uuid=TABLES)
ROWS: st.SearchStrategy[Row] = TASKS | COMMITS | CLAIMS | PROCESSES | rows(TableRow)
CONDITIONS: dict[type[Row], dict[str, st.SearchStrategy[Any]]] = {
    TaskRow: {
        "number": NUMBERS | st.frozensets(NUMBERS),
        "state": st.sampled_from(TaskState) | st.lists(st.sampled_from(TaskState)),
        "queued_at": HOURS | st.lists(HOURS),
        "optimizer_id": st.sampled_from([None, "o1", ("o1", None)]),
    },
    CommitRow: {"table_uuid": TABLES, "state": st.sampled_from(CommitState)},
    ClaimRow: {"process_id": st.sampled_from(["p1", "p2", "p3"]), "key": st.frozensets(st.sampled_from("abc"))},
    ProcessRow: {"table_uuid": TABLES},
    EventRow: {"number": st.frozensets(NUMBERS), "kind": st.just("task"), "table": st.sampled_from([None, "t1"])},
}
SEARCHED = st.sampled_from(list(CONDITIONS)).flatmap(
    lambda kind: st.tuples(st.just(kind), st.fixed_dictionaries({}, optional=CONDITIONS[kind]))
)
ORDERS: dict[type[Row], tuple[str, ...]] = {
    TaskRow: ("number", "queued_at", "state", "version", "process_id"),
    CommitRow: ("snapshot_id", "table_uuid", "changed_at"),
    ClaimRow: ("key", "process_id"),
    ProcessRow: ("id", "table_uuid"),
    EventRow: ("number", "at", "table"),
}


@st.composite
def queries(draw: st.DrawFn, kind: type[Row]) -> Query:
    order = draw(st.none() | st.sampled_from(ORDERS[kind]))
    after = draw(st.none() | CONDITIONS[kind].get(order or "", st.none()))
    return Query(
        order=order,
        descending=draw(st.booleans()),
        after=None if isinstance(after, list | tuple | frozenset) else after,
        limit=draw(st.none() | NUMBERS),
    )


class Stores(RuleBasedStateMachine):
    """A transaction and a view may be open in both stores; what is asked of one is asked of the other."""

    def __init__(self, kind: str, urls: DatabaseUrls) -> None:
        super().__init__()
        self.opened = ExitStack()
        self.stores: tuple[Store, Store] = (MemoryStore(), self.opened.enter_context(opened_store(kind, urls)))
        self.writing: list[Opened] = []
        self.reading: list[Opened] = []

    def teardown(self) -> None:
        self.end(undone=True)
        self.look_away()
        self.opened.close()

    @precondition(lambda self: not self.writing)
    @rule()
    def begin(self) -> None:
        self.writing = [Opened(store.begin()) for store in self.stores]

    @precondition(lambda self: self.writing)
    @rule(undone=st.booleans())
    def end(self, undone: bool) -> None:
        opened, self.writing = self.writing, []
        same(each.end(undone=undone) for each in opened)
        self.compare()

    @precondition(lambda self: not self.reading)
    @rule()
    def look(self) -> None:
        self.reading = [Opened(store.read()) for store in self.stores]

    @precondition(lambda self: self.reading)
    @rule()
    def look_away(self) -> None:
        opened, self.reading = self.reading, []
        same(each.end() for each in opened)

    def ask(self, question: Callable[[Transaction], object]) -> None:
        same(outcome(question, each.transaction) for each in self.writing)

    @precondition(lambda self: self.writing)
    @rule(some=st.lists(ROWS, max_size=3))
    def insert(self, some: list[Row]) -> None:
        self.ask(lambda transaction: transaction.insert(*some))

    @precondition(lambda self: self.writing)
    @rule(data=st.data(), some=st.lists(ROWS, max_size=2))
    def update(self, data: st.DataObject, some: list[Row]) -> None:
        """Rows that are there more often than not, with the next version or another one."""
        there = [row for kind in (TaskRow, CommitRow, ProcessRow) for row in found(self.writing[0].transaction, kind)]
        if there:
            row = data.draw(st.sampled_from(there))
            changes: dict[type[Any], st.SearchStrategy[Any]] = {TaskRow: TASKS, CommitRow: COMMITS, ProcessRow: PROCESSES}
            changed = with_key_of(data.draw(changes[type(row)]), row)
            some = [*some, replace(changed, version=row.version + 1) if isinstance(row, TaskRow) else changed]
        self.ask(lambda transaction: transaction.update(*some))

    @precondition(lambda self: self.writing)
    @rule(searched=SEARCHED)
    def delete(self, searched: tuple[type[Row], dict[str, Any]]) -> None:
        self.ask(lambda transaction: transaction.delete(searched[0], **searched[1]))

    @precondition(lambda self: self.writing)
    @rule(keys=st.lists(st.sampled_from("ab"), max_size=3), table=st.sampled_from([None, "t1"]))
    def record(self, keys: list[str], table: str | None) -> None:
        self.ask(lambda transaction: transaction.record(move(key, table=table) for key in keys))

    @rule(searched=SEARCHED, data=st.data())
    def find(self, searched: tuple[type[Row], dict[str, Any]], data: st.DataObject) -> None:
        kind, where = searched
        query = data.draw(queries(kind))
        for opened in (self.writing, self.reading):
            same(outcome(each.transaction.find, kind, query, **where) for each in opened)

    def compare(self) -> None:
        with self.stores[0].read() as memory, self.stores[1].read() as database:
            for kind in (*KINDS, EventRow):
                same([memory.find(kind), database.find(kind)])
        same(store.events_after(1, limit=2) for store in self.stores)


@contextmanager
def opened_store(kind: str, urls: DatabaseUrls) -> Iterator[Store]:
    """An empty store. Databases of SQLite are copied from one that is made once: that takes longer than an example."""
    if kind != "sqlite":
        with fresh_store(kind, urls) as store:
            yield store
        return
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(empty_file(), f"{folder}/service.db")
        store = SqlStore.open(f"sqlite:///{folder}/service.db")
        try:
            yield store
        finally:
            store.close()


@functools.cache
def empty_file() -> Path:
    file = Path(tempfile.mkdtemp()) / "empty.db"
    atexit.register(shutil.rmtree, file.parent)
    SqlStore.open(f"sqlite:///{file}").close()
    return file


class Opened:
    """A transaction of a store, and how to end it."""

    def __init__(self, context: AbstractContextManager[Transaction]) -> None:
        self._context = context
        self.transaction = context.__enter__()

    def end(self, *, undone: bool = False) -> object:
        error = InterruptedError("undone") if undone else None
        return outcome(self._context.__exit__, type(error) if error else None, error, None)


def outcome(question: Callable[..., object], *arguments: Any, **where: Any) -> object:
    """An answer; or the kind of an error: its words may differ where several guards are broken at once."""
    try:
        return question(*arguments, **where)
    except Broken as error:
        return Broken, error.facts["kind"]


def found(transaction: Transaction, kind: type[Row]) -> Sequence[Row]:
    try:
        return transaction.find(kind)
    except Broken:
        return ()


def same(outcomes: Iterable[object]) -> None:
    every = list(outcomes)
    assert all(each == every[0] for each in every)


@pytest.mark.parametrize("kind", DATABASES)
def test_all_databases_do_as_memory_does(kind: str, database_urls: DatabaseUrls) -> None:
    run_state_machine_as_test(
        lambda: Stores(kind, database_urls),  # type: ignore[arg-type]  # whatever makes one
        settings=settings(max_examples=40, stateful_step_count=30, deadline=None),
    )
