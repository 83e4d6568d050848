"""The service killed at every boundary of a life: before and after each of its transactions, and each of its requests to the
catalog. After a restart it is known what was done, nothing is done twice, and nothing is left over."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

import pyarctic
from pyarctic.ams import HandedTask
from pyarctic.ams.machine import Transition
from pyarctic.ams.rows import EventRow
from pyarctic.ams.states import ProcessState
from pyarctic.ams.store import SqlStore, Store, Transaction
from tests.support import changes
from tests.support.ams import Desk
from tests.support.integrity import leftovers, missing
from tests.support.keyed_tables import CITIES, cities, made, opened
from tests.support.service_checks import all_events, broken_stories, double_commits, strange_outputs, unfinished, wrong_ends

NAME = "lake.db.t"
_SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.int32())])
_MANY_COMMITS = {"write.metadata.previous-versions-max": "100000"}
When = Literal["before", "after"]
What = Literal["transaction", "request"]


class Killed(BaseException):
    """The service ends here. No handler of errors sees it."""


@dataclass(kw_only=True)
class Fate:
    """When the service is killed: before or after the n-th time that it does something."""

    what: What
    when: When
    number: int
    seen: int = 0
    is_dead: bool = False
    moment: list[str] = field(default_factory=list)
    """What was being done."""

    @contextmanager
    def pass_by(self, what: What) -> Iterator[list[str]]:
        """Around something that is done. What a dead service does is not done."""
        if self.is_dead:
            raise Killed
        words: list[str] = []
        is_mine = what == self.what
        self.seen += is_mine
        yield words
        if is_mine and self.seen == self.number:
            self.moment = words

    def strike(self, what: What, when: When) -> None:
        if (what, when, self.seen) == (self.what, self.when, self.number):
            self.is_dead = True
            raise Killed


class MortalStore:
    """A store of which the service may not come back."""

    def __init__(self, store: Store, fate: Fate) -> None:
        self._store = store
        self.fate = fate

    @contextmanager
    def begin(self, lease: int | None = None) -> Iterator[Transaction]:
        with self.fate.pass_by("transaction") as words:
            with self._store.begin(lease) as transaction:
                yield _Told(transaction, words)
                self.fate.moment = words or self.fate.moment
                self.fate.strike("transaction", "before")
            self.fate.strike("transaction", "after")

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        if self.fate.is_dead:
            raise Killed
        with self._store.read() as view:
            yield view

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class _Told:
    """A transaction that tells what moves."""

    def __init__(self, transaction: Transaction, words: list[str]) -> None:
        self._transaction = transaction
        self._words = words

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transaction, name)

    def record(self, transitions: Any) -> None:
        moves: list[Transition] = list(transitions)
        self._words += [f"{move.kind} {move.after}" for move in moves]
        self._transaction.record(moves)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A table, its rows, and work for the service."""

    rows: dict[int, Any]
    fragment: Callable[[], None]

    def read(self) -> dict[int, Any]:
        found = pyarctic.table(NAME).scan().to_arrow().to_pylist()
        assert len({row["id"] for row in found}) == len(found)
        return {row["id"]: tuple(row.values()) for row in found}

    def stores(self) -> list[Any]:
        table = pyarctic.table(NAME)
        return [table._loaded, *([opened().change_store._loaded] if table.primary_key else [])]


def native(lake: Catalog, version: int) -> Case:
    properties = {"commit.retry.min-wait-ms": "1", "self-optimizing.writers-first": "false", **_MANY_COMMITS}
    pyarctic.create_table(NAME, _SCHEMA, (), ("part",), properties, format="iceberg", format_version=version)
    rows: dict[int, Any] = {}
    numbers = itertools.count(step=10)

    def fragment() -> None:
        first = next(numbers)
        for begin in (first, first + 5):
            ids = range(begin, begin + 5)
            rows.update({number: (number, number % 2) for number in ids})
            data = pa.table({"id": [*ids], "part": [number % 2 for number in ids]}, schema=_SCHEMA)
            changes.apply(lake.load_table("db.t"), partial(changes.append, data=data))
        changes.apply(lake.load_table("db.t"), partial(changes.position_delete, where=f"id = {first}"))
        del rows[first]

    return Case(rows=rows, fragment=fragment)


def keyed(_lake: Catalog) -> Case:
    table = made(CITIES, ("city",))
    table.set(_MANY_COMMITS)
    rows: dict[int, Any] = {}
    rounds = itertools.count()

    def fragment() -> None:
        turn = next(rounds)
        given = [(number, "ab"[number % 2], f"{turn}") for number in (turn, turn + 1, turn + 2)]
        rows.update({row[0]: row for row in given})
        opened().write(cities(*given), "upsert")
        dead = rows.pop(turn + 1)
        opened().write(cities(dead), "delete")

    return Case(rows=rows, fragment=fragment)


CASES: dict[str, Callable[[Catalog], Case]] = {
    "native v2": lambda lake: native(lake, 2),
    "native v3": lambda lake: native(lake, 3),
    "keyed": keyed,
}


class Life:
    """A service whose process is killed once, and an optimizer that goes on as if nothing had happened."""

    def __init__(self, folder: Path) -> None:
        self._url = f"sqlite:///{folder}/arctic.db"
        self.desk = Desk(SqlStore.open(self._url))
        self._handed: list[HandedTask] = []
        self._unreported: list[tuple[HandedTask, dict[str, Any]]] = []

    def doom(self, fate: Fate) -> None:
        self.desk.store = MortalStore(self.desk.store, fate)
        self.desk.start()

    def restart(self) -> None:
        self.desk.store.close()
        self.desk.store = SqlStore.open(self._url)
        self.desk.start()

    def live(self) -> None:
        """From wherever it is to the end. Everything is asked for again."""
        desk = self.desk
        desk.discover()
        uuid = desk.table(NAME).uuid
        if not desk.processes():
            desk.ams.looks.demand(uuid, "full", "test")
        for _ in range(30):
            desk.ams.optimizers.heartbeat(desk.optimizer.id, [])
            self._work()
            desk.commit()
            desk.keep()
            desk.clean()
            desk.wait(seconds=31)
            if not desk.unfinished() and all(row.clean_at is None for row in desk.processes()):
                return
        told = [f"{event.kind} {event.before} -> {event.after}: {event.why}" for event in all_events(desk.store)]
        raise AssertionError(f"it does not come to rest: {told}")

    def _work(self) -> None:
        """As an optimizer does: acknowledgments and results without an answer are told again. Tasks that were handed out
        into the void come again."""
        self._report()
        self._handed += self.desk.poll()
        self._report()

    def _report(self) -> None:
        while self._handed:
            handed = self._handed[0]
            self.desk.ams.optimizers.acknowledge(handed.row.key, handed.attempt)
            self._unreported.append((handed, self.desk.execute(handed)))
            self._handed.pop(0)
        while self._unreported:
            self.desk.report(*self._unreported[0])
            self._unreported.pop(0)

    def check(self, case: Case) -> None:
        desk = self.desk
        assert case.read() == case.rows
        assert {row.state for row in desk.processes()} == {ProcessState.SUCCEEDED}
        assert len(desk.processes()) == 1
        stores = case.stores()
        assert [path for store in stores for path in missing(store)] == []
        assert [path for store in stores for path in leftovers(store)] == []
        events: list[EventRow] = all_events(desk.store)
        with desk.store.read() as view:
            assert unfinished(view) == []
            found = [*wrong_ends(view, events), *double_commits(view, stores), *strange_outputs(view, stores)]
        assert [*broken_stories(events), *found] == []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("kind", "what"), [*product(CASES, ["request"]), ("native v2", "transaction"), ("keyed", "transaction")]
)
@pytest.mark.timeout(600)
def test_it_goes_on_after_every_boundary(
    kind: str, what: What, when: When, lake: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[kind](lake)
    fates: list[Fate] = []
    commit_table = SqlCatalog.commit_table

    def fated(*arguments: Any, **more: Any) -> Any:
        fate = fates[-1]
        with fate.pass_by("request"):
            fate.strike("request", "before")
            response = commit_table(*arguments, **more)
            fate.strike("request", "after")
            return response

    reached: list[list[str]] = []
    # `BOUNDARIES=1` goes through all of them, `make test` through every seventh transaction.
    step = 1 if what == "request" else int(os.environ.get("BOUNDARIES", "7"))
    for number in itertools.count(1, step):
        case.fragment()
        folder = tmp_path / f"life-{number}"
        folder.mkdir()
        life = Life(folder)
        fates.append(Fate(what=what, when=when, number=number))
        life.doom(fates[-1])
        with monkeypatch.context() as patched:
            patched.setattr(SqlCatalog, "commit_table", fated)
            try:
                life.live()
            except Killed:
                reached.append(fates[-1].moment)
        is_over = not fates[-1].is_dead
        life.restart()
        life.live()
        life.check(case)
        life.desk.store.close()
        if is_over:
            break
    if what == "request":
        assert reached
        return
    moves = {move for moment in reached for move in moment}
    assert step > 1 or moves >= {
        "process running",
        "task executing",
        "task prepared",
        "commit open",
        "commit landed",
        "process succeeded",
    }
