"""What a store asks of the kind of database that it is kept in."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from sqlalchemy import ColumnElement, Connection, Engine


class Database(Protocol):
    """A database of one kind, at one place."""

    name: str
    """For messages: without a password."""
    writer: Engine
    """Of transactions that write: one connection. They see what others have committed, and have reached the disk when they
    end."""
    reader: Engine
    """Of transactions that read, each of one moment."""

    @property
    def now(self) -> ColumnElement[Any]:
        """The time, in UTC without a zone: that of the server, if there is one."""
        ...

    def explained(self) -> AbstractContextManager[None]:
        """Raise errors of the database as ours. Those of guards (IntegrityError) are left to the caller, who knows which
        rows they are about."""
        ...

    def hold_alone(self, connection: Connection) -> AbstractContextManager[None]:
        """Keep other processes from bringing the database up at the same time."""
        ...
