"""What databases with a server of their own have in common: connections that get lost, and errors in our words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from sqlalchemy import URL, ColumnElement, Connection, Engine, create_engine
from sqlalchemy.exc import DBAPIError, IntegrityError, InvalidRequestError
from sqlalchemy.exc import TimeoutError as NoConnection

from pyarctic.errors import ArcticError, ConfigError, Damaged, MissingExtra, Unavailable

CONNECT_SECONDS = 5
ANSWER_SECONDS = 20
"""A server that says nothing for so long is taken for lost."""
_WRITER_IDLE_SECONDS = 8
"""A transaction that writes and is silent for so long is undone by the server: a process that was stopped in the middle of
one does not keep others from taking over."""
_READER_IDLE_SECONDS = 600
UPGRADE_LOCK = "pyarctic.upgrade"
_READERS = 5
_MOST_READERS = 40
_WAIT_HINT = "The service waits for the database, and goes on by itself."


@dataclass(frozen=True, slots=True)
class Fault:
    """What an error of a driver means, and what to do."""

    kind: type[ArcticError]
    hint: str


AWAY = Fault(Unavailable, _WAIT_HINT)
FULL = Fault(Unavailable, "The disk of the database is full. Free some space: the service goes on by itself.")
LOCKED = Fault(Unavailable, "Another program locks tables of the service. If it is no service, end it.")
READ_ONLY = Fault(Unavailable, "The server only reads, as a replica does. Name the primary in service.database.url.")
PASSWORD = Fault(ConfigError, "Check user and password in service.database.url.")
MISSING = Fault(ConfigError, "Create it with `CREATE DATABASE {database}`, or name another in service.database.url.")
RIGHTS = Fault(ConfigError, "The user must be allowed to create, change, read and write tables in {database}.")
BROKEN = Fault(Damaged, "{database} is damaged. Restore it from a backup.")
MANY = Fault(Unavailable, f"The server has too many connections. A service takes up to {_MOST_READERS + 1} of them.")


class ServerDatabase(ABC):
    """A database on a server."""

    driver: ClassVar[str]
    extra: ClassVar[str]
    """What installs the driver."""

    def __init__(self, url: URL, wait_seconds: float) -> None:
        self._url = url.set(drivername=self.driver)
        self._wait_seconds = wait_seconds
        self.name = self._url.set(drivername=self._url.get_backend_name()).render_as_string(hide_password=True)
        self.writer = self._engine("READ COMMITTED", _WRITER_IDLE_SECONDS, connections=1, more=0)
        # A view is of one moment: its statements see nothing newer than the first.
        more = _MOST_READERS - _READERS
        self.reader = self._engine("REPEATABLE READ", _READER_IDLE_SECONDS, connections=_READERS, more=more)

    @property
    @abstractmethod
    def now(self) -> ColumnElement[Any]:
        """The time of the server, in UTC without a zone."""

    @abstractmethod
    def hold_alone(self, connection: Connection) -> AbstractContextManager[None]:
        """Keep other processes from bringing the database up at the same time."""

    @abstractmethod
    def _options(self, wait_seconds: float, idle_seconds: int) -> Mapping[str, Any]:
        """Arguments for the `connect` of the driver. `idle_seconds`: for how long a transaction may be silent."""

    @abstractmethod
    def _fault_of(self, error: BaseException) -> Fault | None:
        """None: the fault is ours."""

    def _engine(self, isolation: Any, idle_seconds: int, *, connections: int, more: int) -> Engine:
        try:
            return create_engine(
                self._url,
                isolation_level=isolation,
                pool_size=connections,
                max_overflow=more,
                pool_timeout=self._wait_seconds,
                connect_args=dict(self._options(self._wait_seconds, idle_seconds)),
            )
        except ImportError as error:
            hint = f"Install it with `pip install 'pyarctic[{self.extra}]'`."
            raise MissingExtra(f"the driver for {self._url.get_backend_name()} is not installed", hint=hint) from error

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise errors of the server as ours, but for those of guards."""
        try:
            yield
        except IntegrityError:
            raise
        except NoConnection as error:
            raise Unavailable(f"the database of the service: all {_MOST_READERS} connections are in use") from error
        except InvalidRequestError as error:
            raise ConfigError(f"the database of the service: {error}", hint="Name a server that is supported.") from error
        except DBAPIError as error:
            fault = self._fault_of(error.orig or error) or (AWAY if error.connection_invalidated else None)
            if fault is None:
                raise
            what, hint = " ".join(str(error.orig).split()), fault.hint.format(database=self._url.database)
            raise fault.kind(f"the database of the service: {what}", hint=hint, database=self.name) from error
