"""The store on a SQL database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from sqlalchemy import Connection, Engine, make_url, select
from sqlalchemy.exc import ArgumentError, DBAPIError

from pyarctic.ams.rows import EventRow
from pyarctic.ams.store.port import Query, Transaction
from pyarctic.ams.store.sql import sqlite
from pyarctic.ams.store.sql.revisions import is_newest, upgrade
from pyarctic.ams.store.sql.sql_transaction import Explained, SqlTransaction
from pyarctic.ams.store.sql.tables import LAST_EVENT
from pyarctic.ams.store.turns import Turn
from pyarctic.errors import ConfigError


class SqlStore:
    """A `Store` that survives the process.

    store = SqlStore.open("sqlite:///service.db")
    """

    def __init__(self, writer: Engine, reader: Engine, explained: Explained) -> None:
        self._writer = writer
        self._reader = reader
        self._explained = explained
        self._turn = Turn()

    @classmethod
    def open(cls, url: str, *, wait_seconds: float = 30) -> SqlStore:
        """Open a database; create it, or upgrade it, if it has to be. `wait_seconds`: how long to wait for other processes
        that write to it."""
        try:
            parsed = make_url(url)
        except ArgumentError as error:
            raise ConfigError("the URL of the database cannot be read", hint="Write sqlite:///folder/service.db.") from error
        if parsed.drivername not in ("sqlite", "sqlite+pysqlite"):
            raise ConfigError(
                f"databases of {parsed.drivername} are not supported", hint="Write sqlite:///folder/service.db."
            )
        file = sqlite.file_of(parsed)
        writer, reader = sqlite.writer(parsed, wait_seconds), sqlite.reader(parsed, wait_seconds)
        store = cls(writer, reader, lambda: sqlite.explained(file))
        try:
            store._bring_up(str(file))
        except BaseException:
            store.close()
            raise
        return store

    @contextmanager
    def begin(self) -> Iterator[Transaction]:
        with self._turn, self._connected(self._writer) as connection:
            transaction = SqlTransaction(connection, self._explained, writes=True)
            yield transaction
            transaction.check()
            with self._explained():
                connection.commit()

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        with self._connected(self._reader) as connection:
            with self._explained():
                connection.execute(select(LAST_EVENT))  # the view begins with the first statement
            yield SqlTransaction(connection, self._explained, writes=False)

    def events_after(self, number: int, limit: int = 1000) -> Sequence[EventRow]:
        with self.read() as view:
            return view.find(EventRow, Query(after=number, limit=limit))

    def close(self) -> None:
        self._writer.dispose()
        self._reader.dispose()

    def _bring_up(self, where: str) -> None:
        with self._connected(self._writer) as connection, self._explained():
            # The writer has its turn among processes: of several that start at once, one upgrades.
            if not is_newest(connection):
                upgrade(connection, where)
                connection.commit()

    @contextmanager
    def _connected(self, engine: Engine) -> Iterator[Connection]:
        """A connection in a transaction, which is undone unless it is committed."""
        with self._explained():
            connection = engine.connect()
        try:
            with self._explained():
                connection.begin()
            yield connection
        finally:
            with suppress(DBAPIError):  # the connection is given up; what is told is what went wrong before
                connection.close()
