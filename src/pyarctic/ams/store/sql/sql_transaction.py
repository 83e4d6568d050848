"""A transaction on a SQL database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NoReturn

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    CursorResult,
    Executable,
    Select,
    bindparam,
    delete,
    false,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from pyarctic.ams.machine import Transition
from pyarctic.ams.rows import EventRow, Row, TaskRow
from pyarctic.ams.store.asking import answer, asked, order_of, without_limit
from pyarctic.ams.store.fields import R, form_of
from pyarctic.ams.store.port import KEYS, Broken, Query
from pyarctic.ams.store.sql.tables import LAST_EVENT, ONE_OPEN_COMMIT, TABLES
from pyarctic.ams.store.writing import CHANGED, OPEN_TWICE, THERE_ALREADY, broken, by_kind, event, key_of

_MOST_VALUES = 10_000
"""In one statement: databases limit the number of parameters, SQLite to 32,766."""
_OLD = "old_"
"""Begins the names of parameters for what a row must have before it is updated."""
Explained = Callable[[], AbstractContextManager[None]]
"""A context that turns errors of the database into ours, but for IntegrityError."""


_BY_KEY: Mapping[type[Any], Select[Any]] = {
    kind: select(table).where(*(table.c[name] == bindparam(name) for name in KEYS[kind])) for kind, table in TABLES.items()
}
"""Made once: these are most of all statements."""


class SqlTransaction:
    """What `begin` and `read` of a `SqlStore` give."""

    def __init__(self, connection: Connection, explained: Explained, *, writes: bool) -> None:
        self._connection = connection
        self._explained = explained
        self._writes = writes
        self._broken: Broken | None = None

    def get(self, kind: type[R], *key: Any) -> R | None:
        found = self._fetch(_BY_KEY[kind], dict(zip(KEYS[kind], key, strict=True)))
        return form_of(kind).row(found[0]) if found else None

    def find(self, kind: type[R], query: Query | None = None, /, **where: Any) -> Sequence[R]:
        whole = asked(kind, query, where)
        parts = list(_parts(whole))
        rows = [row for part in parts for row in self._find(kind, part)]
        return rows if len(parts) == 1 else answer(kind, rows, whole)

    def insert(self, *rows: Row) -> None:
        self._check_writes()
        for kind, some in by_kind(rows).items():
            self._insert(kind, some)

    def update(self, *rows: Row) -> None:
        self._check_writes()
        for kind, some in by_kind(rows).items():
            records = [form_of(kind).record(row) for row in some]
            for record in records:
                record.update({f"{_OLD}{name}": record[name] for name in KEYS[kind]})
                if kind is TaskRow:
                    record[f"{_OLD}version"] = record["version"] - 1
            table = TABLES[kind]
            same = [table.c[name.removeprefix(_OLD)] == bindparam(name) for name in records[0] if name.startswith(_OLD)]
            if self._write(kind, some, update(table).where(*same), records) != len(some):
                self._refuse(kind, CHANGED, some)

    def delete(self, kind: type[Any], query: Query | None = None, /, **where: Any) -> int:
        self._check_writes()
        parts = _parts(asked(kind, without_limit(query), where))
        return sum(self._run(delete(TABLES[kind]).where(*_conditions(kind, part))).rowcount for part in parts)

    def record(self, transitions: Iterable[Transition]) -> None:
        self._check_writes()
        if moves := list(transitions):
            self._run(update(LAST_EVENT).values(number=LAST_EVENT.c.number + len(moves)))
            first = self._fetch(select(LAST_EVENT.c.number))[0][0] - len(moves) + 1
            self._insert(EventRow, [event(number, move) for number, move in enumerate(moves, first)])

    def check(self) -> None:
        """Raise what has broken the transaction."""
        if self._broken is not None:
            raise self._broken

    def _check_writes(self) -> None:
        self.check()
        if not self._writes:
            raise TypeError("this transaction only reads")

    def _insert(self, kind: type[R], rows: Sequence[R]) -> None:
        form = form_of(kind)
        self._write(kind, rows, insert(TABLES[kind]), [form.record(row) for row in rows])

    def _find(self, kind: type[R], query: Query) -> list[R]:
        table, form = TABLES[kind], form_of(kind)
        order = [self._ordered(table.c[name], descending=query.descending) for name in order_of(kind, query)]
        statement = select(table).where(*_conditions(kind, query)).order_by(*order)
        if query.limit is not None:
            statement = statement.limit(query.limit)
        return [form.row(found) for found in self._fetch(statement)]

    def _ordered(self, column: Column[Any], *, descending: bool) -> ColumnElement[Any]:
        order = column.desc() if descending else column.asc()
        if column.nullable and self._connection.dialect.name == "postgresql":  # there null is last unless it is told
            return order.nulls_last() if descending else order.nulls_first()
        return order

    def _write(self, kind: type[Any], rows: Sequence[Row], statement: Executable, records: list[dict[str, Any]]) -> int:
        try:
            return self._run(statement, records).rowcount
        except IntegrityError as error:
            # Databases name the index that is broken; SQLite names its column.
            twice = any(name in str(error.orig) for name in (ONE_OPEN_COMMIT, "commits.table_uuid"))
            self._refuse(kind, OPEN_TWICE if twice else THERE_ALREADY, rows)

    def _run(self, statement: Executable, records: list[dict[str, Any]] | None = None) -> CursorResult[Any]:
        self.check()
        with self._explained():
            return self._connection.execute(statement, records)

    def _fetch(self, statement: Select[Any], parameters: dict[str, Any] | None = None) -> Sequence[Sequence[Any]]:
        self.check()
        with self._explained():
            return self._connection.execute(statement, parameters).all()

    def _refuse(self, kind: type[Any], why: str, rows: Sequence[Row]) -> NoReturn:
        self._broken = broken(kind, why, key_of(rows[0]) if len(rows) == 1 else None)
        raise self._broken


def _conditions(kind: type[Any], query: Query) -> list[ColumnElement[bool]]:
    table, form = TABLES[kind], form_of(kind)
    conditions = []
    for name, values in query.where:
        codec, column = form.searched(name).codec, table.c[name]
        stored = [codec[0](value) if codec else value for value in values if value is not None]
        either = [column == stored[0]] if len(stored) == 1 else [column.in_(stored)] if stored else []
        conditions.append(or_(false(), *either, *([column.is_(None)] if None in values else [])))
    if query.after is not None:
        [name, *_] = order_of(kind, query)
        codec, column = form.searched(name).codec, table.c[name]
        bound = codec[0](query.after) if codec else query.after
        conditions.append(or_(column < bound, column.is_(None)) if query.descending else column > bound)
    return conditions


def _parts(query: Query) -> Iterator[Query]:
    """Queries with fewer values each; together they find the same rows."""
    for position, (name, values) in enumerate(query.where):
        if len(values) > _MOST_VALUES:
            for start in range(0, len(values), _MOST_VALUES):
                part = (name, values[start : start + _MOST_VALUES])
                yield from _parts(replace(query, where=(*query.where[:position], part, *query.where[position + 1 :])))
            return
    yield query
