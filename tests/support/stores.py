"""Stores of the service: in memory, and in every kind of database there is."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from sqlalchemy import create_engine, delete, insert, make_url, update

from pyarctic.ams.store import MemoryStore, SqlStore, Store
from pyarctic.ams.store.sql.tables import LAST_EVENT, LEASE, METADATA

DATABASES = ("sqlite", "postgresql", "mariadb")
STORES = ("memory", *DATABASES)
DatabaseUrls = Mapping[str, Callable[[], str]]
"""By the kind of a database, where one is: servers are started when they are asked for."""


@contextmanager
def fresh_store(kind: str, urls: DatabaseUrls) -> Iterator[Store]:
    """An empty store of a kind. In a server there is one at a time."""
    if kind == "memory":
        yield MemoryStore()
        return
    with fresh_database(kind, urls) as url:
        store = SqlStore.open(url)
        try:
            yield store
        finally:
            store.close()


@contextmanager
def fresh_database(kind: str, urls: DatabaseUrls) -> Iterator[str]:
    """The URL of a database as it is when it has just been created. In a server there is one at a time."""
    if kind == "sqlite":
        with tempfile.TemporaryDirectory(prefix="service-") as folder:
            yield f"sqlite:///{folder}/service.db"
        return
    url = urls[kind]()
    SqlStore.open(url).close()
    empty(url)
    yield url


def empty(url: str) -> None:
    """Remove what is in a database; its tables stay."""
    driver = {"postgresql": "postgresql+psycopg", "mariadb": "mariadb+pymysql"}[make_url(url).get_backend_name()]
    engine = create_engine(make_url(url).set(drivername=driver))
    with engine.begin() as connection:
        for table in METADATA.sorted_tables:
            if table not in (LAST_EVENT, LEASE):
                connection.execute(delete(table))
        connection.execute(update(LAST_EVENT).values(number=0))
        connection.execute(delete(LEASE))
        connection.execute(insert(LEASE).values(number=0, holder="", url="", expires_at="2000-01-01 00:00:00"))
    engine.dispose()
