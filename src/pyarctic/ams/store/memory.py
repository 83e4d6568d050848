"""The store in memory: for tests, and for a service of one call. It keeps what SQL keeps, as long as the process lives."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn, cast

from pyarctic.ams.machine import Transition
from pyarctic.ams.rows import CommitRow, EventRow, Row, TaskRow
from pyarctic.ams.states import CommitState
from pyarctic.ams.store.asking import answer, asked, without_limit
from pyarctic.ams.store.fields import R, form_of
from pyarctic.ams.store.port import KEYS, Broken, Lease, Query, Transaction
from pyarctic.ams.store.turns import Turn
from pyarctic.ams.store.writing import CHANGED, OPEN_TWICE, THERE_ALREADY, broken, by_kind, event, key_of
from pyarctic.errors import NotLeading

Rows = dict[tuple[Any, ...], Row]


class MemoryStore:
    """A `Store` without a database. A transaction keeps its writes apart until it ends. Rows that somebody reads are copied
    before the next write, so that reading waits for nobody."""

    def __init__(self) -> None:
        self._turn = Turn()
        self._taking_over = threading.Lock()
        """Held for moments, when a transaction ends or a view is opened."""
        self._rows: Mapping[type[Any], Rows] = {kind: {} for kind in KEYS}
        self._being_read: set[type[Any]] = set()
        self._last_event = 0
        self._lease = Lease(number=0, holder="", url="", seconds=0)
        self._lease_ends = 0.0

    @contextmanager
    def begin(self, lease: int | None = None) -> Iterator[Transaction]:
        with self._turn:
            if lease is not None and lease != self._lease.number:
                raise NotLeading.at(self._lease.url)
            transaction = _MemoryTransaction(self._rows, self._last_event, writes=True)
            yield transaction
            transaction.check()
            with self._taking_over:
                self._take_over(transaction.changes)
                self._last_event = transaction.last_event

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        with self._taking_over:
            self._being_read.update(KEYS)
            view = _MemoryTransaction(self._rows, self._last_event, writes=False)
        yield view

    def events_after(self, number: int, limit: int = 1000) -> Sequence[EventRow]:
        with self.read() as view:
            return view.find(EventRow, Query(after=number, limit=limit))

    def lease(self) -> Lease:
        return replace(self._lease, seconds=self._lease_ends - time.monotonic())

    def hold_lease(self, holder: str, url: str, seconds: float) -> Lease:
        with self._turn:
            current = self.lease()
            if current.holder == holder or current.seconds <= 0:
                number = current.number + (current.holder != holder)
                self._lease = current = Lease(number=number, holder=holder, url=url, seconds=seconds)
                self._lease_ends = time.monotonic() + seconds
            return current

    def release_lease(self, number: int) -> None:
        with self._turn:
            if self._lease.number == number:
                self._lease, self._lease_ends = replace(self._lease, holder=""), time.monotonic()

    def close(self) -> None:
        """There are no connections."""

    def _take_over(self, changes: Mapping[type[Any], Mapping[tuple[Any, ...], Row | None]]) -> None:
        rows = dict(self._rows)
        for kind, changed in changes.items():
            if kind in self._being_read:
                self._being_read.discard(kind)
                rows[kind] = dict(rows[kind])
            for key, row in changed.items():
                if row is None:
                    rows[kind].pop(key, None)
                else:
                    rows[kind][key] = row
        self._rows = rows


class _MemoryTransaction:
    """Changes over the rows as they were at the beginning."""

    def __init__(self, rows: Mapping[type[Any], Rows], last_event: int, *, writes: bool) -> None:
        self._before = rows
        self._writes = writes
        self._broken: Broken | None = None
        self.changes: defaultdict[type[Any], dict[tuple[Any, ...], Row | None]] = defaultdict(dict)
        """None: the row is removed."""
        self.last_event = last_event

    def get(self, kind: type[R], *key: Any) -> R | None:
        self.check()
        changes = self.changes[kind]
        return cast("R | None", changes[key] if key in changes else self._before[kind].get(key))

    def find(self, kind: type[R], query: Query | None = None, /, **where: Any) -> Sequence[R]:
        self.check()
        return answer(kind, self._all(kind), asked(kind, query, where))

    def insert(self, *rows: Row) -> None:
        self._check_writes()
        for kind, some in by_kind(rows).items():
            for row in some:
                if self.get(kind, *key_of(row)) is not None:
                    self._refuse(row, THERE_ALREADY)
                self._put(row)

    def update(self, *rows: Row) -> None:
        self._check_writes()
        for kind, some in by_kind(rows).items():
            for row in some:
                last = self.get(kind, *key_of(row))
                if last is None or (isinstance(row, TaskRow) and cast("TaskRow", last).version != row.version - 1):
                    self._refuse(row, CHANGED)
                self._put(row)

    def delete(self, kind: type[Any], query: Query | None = None, /, **where: Any) -> int:
        self._check_writes()
        found = self.find(kind, without_limit(query), **where)
        self.changes[kind].update(dict.fromkeys(map(key_of, found)))
        return len(found)

    def record(self, transitions: Iterable[Transition]) -> None:
        self._check_writes()
        for each in transitions:
            self.last_event += 1
            self._put(event(self.last_event, each))

    def check(self) -> None:
        """Raise what has broken the transaction."""
        if self._broken is not None:
            raise self._broken

    def _check_writes(self) -> None:
        self.check()
        if not self._writes:
            raise TypeError("this transaction only reads")

    def _all(self, kind: type[R]) -> Iterator[R]:
        changes = self.changes[kind]
        yield from (cast("R", row) for key, row in self._before[kind].items() if key not in changes)
        yield from (cast("R", row) for row in changes.values() if row is not None)

    def _put(self, row: Row) -> None:
        form = form_of(type(row))
        kept = form.row(list(form.record(row).values()))
        if isinstance(kept, CommitRow) and kept.state is CommitState.OPEN:
            others = (each for each in self._all(CommitRow) if each.snapshot_id != kept.snapshot_id)
            if any(each.state is CommitState.OPEN and each.table_uuid == kept.table_uuid for each in others):
                self._refuse(row, OPEN_TWICE)
        self.changes[type(row)][key_of(row)] = kept

    def _refuse(self, row: Row, why: str) -> NoReturn:
        self._broken = broken(type(row), why, key_of(row))
        raise self._broken
