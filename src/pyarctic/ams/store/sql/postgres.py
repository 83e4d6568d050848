"""PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import ColumnElement, Connection, DateTime, func, text

from pyarctic.ams.store.sql.server import (
    ANSWER_SECONDS,
    AWAY,
    BROKEN,
    CONNECT_SECONDS,
    FULL,
    LOCKED,
    MANY,
    MISSING,
    PASSWORD,
    READ_ONLY,
    RIGHTS,
    UPGRADE_LOCK,
    Fault,
    ServerDatabase,
)

# By SQLSTATE, or by its class: its first two characters.
_FAULTS: Mapping[str, Fault] = {
    "08": AWAY,
    "57": AWAY,
    "58": AWAY,
    "40": LOCKED,
    "55": LOCKED,
    "53300": MANY,
    "53": FULL,
    "25006": READ_ONLY,
    "25P03": AWAY,  # the transaction was silent for too long
    "28": PASSWORD,
    "3D": MISSING,
    "42501": RIGHTS,
    "XX001": BROKEN,
    "XX002": BROKEN,
}
# Before a connection there is no SQLSTATE, and the words are the server's.
_REFUSALS: Mapping[str, Fault] = {
    "password authentication failed": PASSWORD,
    "no password supplied": PASSWORD,
    "no pg_hba.conf entry": PASSWORD,
    'role "': PASSWORD,
    'database "': MISSING,
    "too many clients": MANY,
    "connection slots": MANY,
}


class PostgresDatabase(ServerDatabase):
    """A database in PostgreSQL."""

    driver = "postgresql+psycopg"
    extra = "postgres"

    @property
    def now(self) -> ColumnElement[Any]:
        return func.timezone("UTC", func.clock_timestamp(), type_=DateTime())

    @contextmanager
    def hold_alone(self, connection: Connection) -> Iterator[None]:
        # It is given up with the transaction.
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": UPGRADE_LOCK})
        yield

    def _options(self, wait_seconds: float, idle_seconds: int) -> Mapping[str, Any]:
        milliseconds = {
            "lock_timeout": wait_seconds * 1000,
            "idle_in_transaction_session_timeout": idle_seconds * 1000,
        }
        return {
            "connect_timeout": CONNECT_SECONDS,
            "options": " ".join(f"-c {name}={value:.0f}" for name, value in milliseconds.items()),
            "application_name": "pyarctic",
            "keepalives_idle": CONNECT_SECONDS,
            "keepalives_interval": CONNECT_SECONDS,
            "keepalives_count": 3,
            "tcp_user_timeout": ANSWER_SECONDS * 1000,
        }

    def _fault_of(self, error: BaseException) -> Fault | None:
        state = getattr(error, "sqlstate", None)
        if state is not None:
            return _FAULTS.get(state) or _FAULTS.get(state[:2])
        told = str(error)
        return next((fault for words, fault in _REFUSALS.items() if words in told), None) or (
            AWAY if type(error).__name__ in ("OperationalError", "ConnectionTimeout") else None
        )
