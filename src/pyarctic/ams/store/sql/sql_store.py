"""The store on a SQL database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Engine, Select, select, update
from sqlalchemy.exc import DBAPIError

from pyarctic.ams.rows import EventRow
from pyarctic.ams.store.port import Lease, Query, Transaction
from pyarctic.ams.store.sql.database import Database
from pyarctic.ams.store.sql.databases import database_of
from pyarctic.ams.store.sql.revisions import is_newest, upgrade
from pyarctic.ams.store.sql.sql_transaction import SqlTransaction
from pyarctic.ams.store.sql.tables import LAST_EVENT, LEASE
from pyarctic.ams.store.turns import Turn
from pyarctic.errors import NotLeading

_LOCKED_LEASE = select(LEASE).with_for_update()
"""The first statement of whoever writes: it waits for those of other processes."""


class SqlStore:
    """A `Store` that survives the process.

    store = SqlStore.open("sqlite:///service.db")
    """

    def __init__(self, database: Database) -> None:
        self.name = database.name
        """Where it is, without a password."""
        self._database = database
        self._turn = Turn()

    @classmethod
    def open(cls, url: str, *, wait_seconds: float = 30) -> SqlStore:
        """Open a database; create it, or upgrade it, if it has to be. `wait_seconds`: how long to wait for other processes
        that write to it."""
        store = cls(database_of(url, wait_seconds=wait_seconds))
        try:
            store._bring_up()
        except BaseException:
            store.close()
            raise
        return store

    @contextmanager
    def begin(self, lease: int | None = None) -> Iterator[Transaction]:
        with self._turn, self._connected(self._database.writer, _LOCKED_LEASE) as (connection, found):
            if lease is not None and found.number != lease:
                raise NotLeading.at(found.url)
            transaction = SqlTransaction(connection, self._database.explained, writes=True)
            yield transaction
            transaction.check()
            with self._database.explained():
                connection.commit()

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        # The view begins with the first statement.
        with self._connected(self._database.reader, select(LAST_EVENT)) as (connection, _):
            yield SqlTransaction(connection, self._database.explained, writes=False)

    def events_after(self, number: int, limit: int = 1000) -> Sequence[EventRow]:
        with self.read() as view:
            return view.find(EventRow, Query(after=number, limit=limit))

    def lease(self) -> Lease:
        with self._connected(self._database.reader, select(LEASE)) as (connection, found):
            return self._as_lease(connection, found)

    def hold_lease(self, holder: str, url: str, seconds: float) -> Lease:
        with self._turn, self._connected(self._database.writer, _LOCKED_LEASE) as (connection, found):
            current = self._as_lease(connection, found)
            if current.holder == holder or current.seconds <= 0:
                number = current.number + (current.holder != holder)
                current = Lease(number=number, holder=holder, url=url, seconds=seconds)
                self._store_lease(connection, current)
            return current

    def release_lease(self, number: int) -> None:
        with self._turn, self._connected(self._database.writer, _LOCKED_LEASE) as (connection, found):
            if found.number == number:
                self._store_lease(connection, replace(self._as_lease(connection, found), holder="", seconds=0))

    def close(self) -> None:
        self._database.writer.dispose()
        self._database.reader.dispose()

    def _as_lease(self, connection: Connection, found: Any) -> Lease:
        with self._database.explained():  # the time after the lock was waited for
            now = connection.execute(select(self._database.now)).scalar_one()
        return Lease(
            number=found.number, holder=found.holder, url=found.url, seconds=(found.expires_at - now).total_seconds()
        )

    def _store_lease(self, connection: Connection, lease: Lease) -> None:
        with self._database.explained():
            now = connection.execute(select(self._database.now)).scalar_one()
            until = now + timedelta(seconds=lease.seconds)
            columns = {"number": lease.number, "holder": lease.holder, "url": lease.url, "expires_at": until}
            connection.execute(update(LEASE).values(columns))
            connection.commit()

    def _bring_up(self) -> None:
        with self._connected(self._database.writer, None) as (connection, _), self._database.explained():
            if is_newest(connection):
                return
            # Of several that start at once, one upgrades, and the others find it done.
            with self._database.hold_alone(connection):
                if not is_newest(connection):
                    upgrade(connection, self.name)
                    connection.commit()

    @contextmanager
    def _connected(self, engine: Engine, first: Select[Any] | None) -> Iterator[tuple[Connection, Any]]:
        """A connection in a transaction, which is undone unless it is committed, and the row that its first statement
        gives."""
        with self._database.explained():
            connection, row = _begun(engine, first)
        try:
            yield connection, row
        finally:
            with suppress(DBAPIError):  # the connection is given up; what is told is what went wrong before
                connection.close()


def _begun(engine: Engine, first: Select[Any] | None) -> tuple[Connection, Any]:
    try:
        return _try_to_begin(engine, first)
    except DBAPIError as error:
        if not error.connection_invalidated:
            raise
    # The server has been restarted since the connection was used last. Nothing was begun: it is tried on a new one.
    return _try_to_begin(engine, first)


def _try_to_begin(engine: Engine, first: Select[Any] | None) -> tuple[Connection, Any]:
    connection = engine.connect()
    try:
        connection.begin()
        return connection, None if first is None else connection.execute(first).one()
    except BaseException:
        with suppress(DBAPIError):
            connection.close()
        raise
