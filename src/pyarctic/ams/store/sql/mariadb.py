"""MariaDB."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, ColumnElement, Connection, DateTime, event, func, text

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
from pyarctic.errors import Unavailable, Unsupported

_FAULTS: Mapping[int, Fault] = {
    **dict.fromkeys((1053, 1077, 1152, 1158, 1159, 1160, 1161, 1184, 1317, 1927, 1969, 2002, 2003, 2006, 2013, 2055), AWAY),
    **dict.fromkeys((1020, 1205, 1213), LOCKED),
    **dict.fromkeys((1040, 1203, 1226), MANY),
    **dict.fromkeys((1021, 1026, 1114), FULL),
    **dict.fromkeys((1290, 1792, 1836), READ_ONLY),
    **dict.fromkeys((1045, 1251, 1698), PASSWORD),
    1049: MISSING,
    **dict.fromkeys((1044, 1142, 1143, 1227), RIGHTS),
    **dict.fromkeys((126, 127, 1034, 1035, 1194, 1712), BROKEN),
}
_PACKET = "max_allowed_packet"
_ROOM = 1.1
"""Some bytes are escaped."""


class MariaDatabase(ServerDatabase):
    """A database in MariaDB."""

    driver = "mariadb+pymysql"
    extra = "mariadb"

    def __init__(self, url: URL, wait_seconds: float) -> None:
        super().__init__(url, wait_seconds)
        event.listen(self.writer, "connect", _note_packet_size)
        event.listen(self.writer, "before_cursor_execute", _check_packet_size)

    @property
    def now(self) -> ColumnElement[Any]:
        return func.utc_timestamp(6, type_=DateTime())

    @contextmanager
    def hold_alone(self, connection: Connection) -> Iterator[None]:
        # Changes of tables end a transaction here, so the lock is of the connection.
        wait = {"name": UPGRADE_LOCK, "seconds": self._wait_seconds}
        if connection.execute(text("SELECT GET_LOCK(:name, :seconds)"), wait).scalar() != 1:
            raise Unavailable(f"another service upgrades {self.name}", hint="Try again when it has ended.")
        try:
            yield
        finally:
            if not connection.invalidated:
                connection.execute(text("SELECT RELEASE_LOCK(:name)"), {"name": UPGRADE_LOCK})

    def _options(self, wait_seconds: float, idle_seconds: int) -> Mapping[str, Any]:
        session = {
            "sql_mode": "'TRADITIONAL'",
            "innodb_lock_wait_timeout": f"{max(1, wait_seconds):.0f}",
            "idle_transaction_timeout": str(idle_seconds),
        }
        return {
            "charset": "utf8mb4",
            "connect_timeout": CONNECT_SECONDS,
            "read_timeout": max(wait_seconds, 1) + ANSWER_SECONDS,
            "write_timeout": ANSWER_SECONDS,
            "init_command": "SET SESSION " + ", ".join(f"{name} = {value}" for name, value in session.items()),
        }

    def _fault_of(self, error: BaseException) -> Fault | None:
        code = error.args[0] if error.args else None
        # PyMySQL tells with 0 that it has closed the connection before.
        return AWAY if code == 0 else _FAULTS.get(code) if isinstance(code, int) else None


def _note_packet_size(connection: Any, record: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT @@{_PACKET}")
        [record.info[_PACKET]] = cursor.fetchone()


def _check_packet_size(connection: Connection, _cursor: Any, _statement: str, parameters: Any, *_: Any) -> None:
    """Refuse what the server would answer by closing the connection."""
    most = connection.info.get(_PACKET)
    rows = parameters if isinstance(parameters, list) else [parameters]
    size = max((len(value) for row in rows for value in (row or {}).values() if isinstance(value, bytes | str)), default=0)
    if most is not None and size * _ROOM > most:
        hint = f"Set {_PACKET} of the server to 256M or more."
        raise Unsupported(
            f"the database of the service takes at most {most} bytes at once, and a plan has {size}", hint=hint
        )
