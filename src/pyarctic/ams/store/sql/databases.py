"""The kinds of databases there are, by the URL."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from pyarctic.ams.store.sql.database import Database
from pyarctic.errors import ConfigError

_KINDS: Mapping[str, str] = {
    "sqlite": "sqlite",
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mariadb": "mariadb",
    "mysql": "mariadb",
}
_DRIVERS: Mapping[str, frozenset[str]] = {
    "sqlite": frozenset({"pysqlite"}),
    "postgresql": frozenset({"psycopg"}),
    "mariadb": frozenset({"pymysql"}),
}
_HINT = (
    "Write sqlite:///folder/service.db, postgresql://user:password@host/database or mariadb://user:password@host/database."
)


def database_of(url: str, *, wait_seconds: float) -> Database:
    """The database at a URL; raises ConfigError if there can be none. `wait_seconds`: how long to wait for other processes
    that write to it."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise ConfigError("the URL of the database cannot be read", hint=_HINT) from error
    kind = _kind_of(parsed)
    if kind == "sqlite":
        from pyarctic.ams.store.sql.sqlite import SqliteDatabase

        return SqliteDatabase(parsed, wait_seconds)
    if not parsed.database:
        raise ConfigError(f"{parsed.render_as_string()} names no database", hint=_HINT)
    if kind == "postgresql":
        from pyarctic.ams.store.sql.postgres import PostgresDatabase

        return PostgresDatabase(parsed, wait_seconds)
    from pyarctic.ams.store.sql.mariadb import MariaDatabase

    return MariaDatabase(parsed, wait_seconds)


def _kind_of(url: URL) -> str:
    name, _, driver = url.drivername.partition("+")
    kind = _KINDS.get(name)
    if kind is None:
        raise ConfigError(f"databases of {name} are not supported", hint=_HINT)
    if driver and driver not in _DRIVERS[kind]:
        [known] = _DRIVERS[kind]
        raise ConfigError(f"the driver {driver} is not supported", hint=f"Write {name}+{known}, or {name} alone.")
    return kind
