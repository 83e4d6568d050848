"""SQLite: connections of the one writer and of the readers, and its errors in our words."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from sqlalchemy import URL, ColumnElement, Connection, DateTime, Engine, create_engine, event, func
from sqlalchemy.exc import DBAPIError, IntegrityError

from pyarctic.errors import ArcticError, ConfigError, Damaged, Unavailable

_HINTS: Mapping[int, str] = {
    sqlite3.SQLITE_BUSY: "Another process writes to {file}. If it is no service, end it.",
    sqlite3.SQLITE_LOCKED: "Another process writes to {file}. If it is no service, end it.",
    sqlite3.SQLITE_CANTOPEN: "Check that {file} and its folder may be read and written.",
    sqlite3.SQLITE_PERM: "Check that {file} and its folder may be read and written.",
    sqlite3.SQLITE_READONLY: "Check that {file} and its folder may be written.",
    sqlite3.SQLITE_FULL: "The disk is full. Free some space where {file} is: the service goes on by itself.",
    sqlite3.SQLITE_IOERR: "Check the disk of {file}, its free space and quota: the service goes on by itself.",
}
_DAMAGED: Mapping[int, str] = {
    sqlite3.SQLITE_CORRUPT: "{file} is damaged. Restore it from a backup.",
    sqlite3.SQLITE_NOTADB: "{file} is not a database of SQLite. Name another file.",
}


class SqliteDatabase:
    """A file. Its users are on one host."""

    def __init__(self, url: URL, wait_seconds: float) -> None:
        file = _file_of(url)
        self.name = str(file)
        self._file = file
        options = {"timeout": wait_seconds}
        self.writer = create_engine(url, pool_size=1, max_overflow=0, connect_args=options)
        _prepare(self.writer, "BEGIN IMMEDIATE", "PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL")
        # As many readers as there are threads, beside the writer.
        self.reader = create_engine(url, pool_size=5, max_overflow=-1, connect_args=options)
        _prepare(self.reader, "BEGIN", "PRAGMA query_only=ON")

    @property
    def now(self) -> ColumnElement[Any]:
        return func.strftime("%Y-%m-%d %H:%M:%f000", "now", type_=DateTime())

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise errors of SQLite as ours, but for those of guards."""
        try:
            yield
        except IntegrityError:
            raise
        except DBAPIError as error:
            if isinstance(error.orig, sqlite3.Error) and (told := _explain(error.orig, self._file)):
                raise told from error
            raise

    def hold_alone(self, connection: Connection) -> AbstractContextManager[None]:  # noqa: ARG002  # of the port
        """The writer is alone from the beginning of its transaction."""
        return nullcontext()


def _file_of(url: URL) -> Path:
    """The file of a database; raises ConfigError if it cannot be one."""
    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        raise ConfigError(f"{url} names no file", hint="Write sqlite:///folder/service.db.")
    file = Path(url.database)
    if file.is_dir():
        raise ConfigError(f"{file} is a folder", hint=f"Name a file in it: sqlite:///{file}/service.db.", file=str(file))
    if not file.parent.is_dir():
        hint = f"Create it with `mkdir -p {file.parent}`, or name another."
        raise ConfigError(f"the folder {file.parent} does not exist", hint=hint, file=str(file))
    return file


def _prepare(engine: Engine, begin: str, *first: str) -> None:
    @event.listens_for(engine, "connect")
    def connected(connection: sqlite3.Connection, _: Any) -> None:
        connection.isolation_level = None  # Python's module would begin transactions later, and not for all statements
        for statement in first:
            connection.execute(statement)

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        connection.exec_driver_sql(begin)


def _explain(error: sqlite3.Error, file: Path) -> ArcticError | None:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest of an extended code
    for kind, hints in ((Unavailable, _HINTS), (Damaged, _DAMAGED)):
        if code in hints:
            return kind(f"the database of the service: {error}", hint=hints[code].format(file=file), file=str(file))
    return None
