"""Databases on servers: they go away and come back, refuse, and are created and upgraded by several at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from alembic import op
from sqlalchemy import Engine, create_engine, inspect, make_url, text

from pyarctic.ams.rows import PlanRow, TaskRow
from pyarctic.ams.store import SqlStore
from pyarctic.ams.store.sql.revisions import NEWEST, VERSION_TABLE
from pyarctic.ams.store.sql.tables import METADATA
from pyarctic.errors import ArcticError, ConfigError, MissingExtra, Unavailable, Unsupported
from tests.services.mariadb import MariaDb
from tests.services.postgres import Postgres
from tests.support.ams_rows import task
from tests.support.stores import empty

Server = Postgres | MariaDb
KINDS = ("postgres", "mariadb")
ADMIN = {"postgres": "postgresql+psycopg", "mariadb": "mariadb+pymysql"}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(request: pytest.FixtureRequest, kind: str) -> Server:
    started: Server = request.getfixturevalue(kind)
    return started


@pytest.fixture
def store(server: Server) -> Iterator[SqlStore]:
    opened = SqlStore.open(server.uri, wait_seconds=2)
    empty(server.uri)
    yield opened
    opened.close()


@contextmanager
def admin(kind: str, uri: str) -> Iterator[Engine]:
    engine = create_engine(make_url(uri).set(drivername=ADMIN[kind]), isolation_level="AUTOCOMMIT")
    yield engine
    engine.dispose()


@pytest.fixture
def new_database(kind: str, server: Server) -> Iterator[str]:
    """The URL of a database without tables."""
    with admin(kind, server.uri) as engine, engine.connect() as connection:
        connection.execute(text("CREATE DATABASE empty_one"))
        yield make_url(server.uri).set(database="empty_one").render_as_string(hide_password=False)
        connection.execute(text("DROP DATABASE empty_one" + (" WITH (FORCE)" if kind == "postgres" else "")))


def count(store: SqlStore) -> int:
    with store.read() as view:
        return len(view.find(TaskRow))


def refusal(url: str, wait_seconds: float = 2) -> ArcticError:
    with pytest.raises(ArcticError) as refused:
        SqlStore.open(url, wait_seconds=wait_seconds)
    return refused.value


# The server goes away and comes back


@pytest.mark.parametrize("kill", [False, True], ids=["ended", "killed"])
def test_after_a_restart_of_the_server_the_store_goes_on(server: Server, store: SqlStore, kill: bool) -> None:
    with store.begin() as transaction:
        transaction.insert(task(1))
    assert count(store) == 1
    server.server.end(kill=kill)
    server.server.start()
    assert count(store) == 1, "the first read does not notice"
    with store.begin() as transaction:
        transaction.insert(task(2))
    assert count(store) == 2


def test_without_a_server_the_store_is_unavailable(server: Server, store: SqlStore) -> None:
    count(store)
    server.server.end()
    try:
        for ask in (lambda: count(store), lambda: store.begin().__enter__(), store.lease):
            with pytest.raises(Unavailable) as told:
                ask()
            assert "goes on by itself" in (told.value.hint or "")
        assert isinstance(refusal(server.uri), Unavailable)
    finally:
        server.server.start()
    assert count(store) == 0


def test_a_transaction_whose_connection_is_lost_is_undone(server: Server, store: SqlStore) -> None:
    def write() -> None:
        with store.begin() as transaction:
            transaction.insert(task(1))
            server.server.end(kill=True)
            server.server.start()
            transaction.insert(task(2))

    with pytest.raises(Unavailable):
        write()
    assert count(store) == 0
    with store.begin() as transaction:
        transaction.insert(task(3))
    assert count(store) == 1


def test_a_transaction_that_is_silent_is_undone_by_the_server(
    server: Server, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a process that is stopped: others wait for its end no longer than this."""
    monkeypatch.setattr("pyarctic.ams.store.sql.server._WRITER_IDLE_SECONDS", 1)
    silent = SqlStore.open(server.uri)

    def write() -> None:
        with silent.begin() as transaction:
            transaction.insert(task(1))
            started = time.monotonic()
            with store.begin() as other:
                other.insert(task(2))
            assert time.monotonic() - started < 5
            transaction.insert(task(3))

    with pytest.raises(Unavailable):
        write()
    silent.close()
    with store.read() as view:
        assert [row.number for row in view.find(TaskRow)] == [2]


def test_a_lock_of_another_program_is_told(kind: str, server: Server, store: SqlStore) -> None:
    with admin(kind, server.uri) as engine, engine.connect() as connection:
        connection = connection.execution_options(isolation_level="READ COMMITTED")
        with connection.begin():
            connection.execute(text("SELECT * FROM lease FOR UPDATE"))
            with pytest.raises(Unavailable) as told, store.begin():
                pass
    assert "Another program locks" in (told.value.hint or "")


# What it refuses


def test_wrong_names_and_passwords_are_told_without_the_password(kind: str, server: Server) -> None:
    url = make_url(server.uri)
    missing = refusal(url.set(database="nowhere").render_as_string(hide_password=False))
    assert isinstance(missing, ConfigError)
    assert "CREATE DATABASE nowhere" in (missing.hint or "")
    stranger = refusal(url.set(username="nobody_knows", password="s3cret").render_as_string(hide_password=False))
    assert isinstance(stranger, ConfigError)
    assert "user and password" in (stranger.hint or "")
    assert "s3cret" not in repr(stranger.to_dict())


def test_a_user_without_rights_is_told(kind: str, server: Server, store: SqlStore) -> None:
    create = {
        "postgres": ["CREATE ROLE reader LOGIN", "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader"],
        "mariadb": ["CREATE USER reader", "GRANT SELECT ON arctic.* TO reader"],
    }
    drop = {"postgres": ["DROP OWNED BY reader", "DROP ROLE reader"], "mariadb": ["DROP USER reader"]}
    with admin(kind, server.uri) as engine, engine.connect() as connection:
        for statement in create[kind]:
            connection.execute(text(statement))
        try:
            reader = SqlStore.open(make_url(server.uri).set(username="reader").render_as_string(hide_password=False))
            assert count(reader) == 0
            with pytest.raises(ConfigError) as told, reader.begin() as transaction:
                transaction.insert(task())
            assert "must be allowed" in (told.value.hint or "")
            reader.close()
        finally:
            for statement in drop[kind]:
                connection.execute(text(statement))


def test_a_server_that_only_reads_is_told(kind: str, server: Server, store: SqlStore) -> None:
    ways = {
        "postgres": ("ALTER SYSTEM SET default_transaction_read_only = {}", "SELECT pg_reload_conf()"),
        "mariadb": ("SET GLOBAL read_only = {}",),
    }

    def only_read(value: str) -> None:
        with admin(kind, server.uri) as engine, engine.connect() as connection:
            for statement in ways[kind]:
                connection.execute(text(statement.format(value)))

    with admin(kind, server.uri) as engine, engine.connect() as connection:
        if kind == "mariadb":  # the administrator may write even then
            connection.execute(text("CREATE USER writer"))
            connection.execute(text("GRANT ALL ON arctic.* TO writer"))
    only_read("on")
    try:
        user = make_url(server.uri).username if kind == "postgres" else "writer"
        time.sleep(0.5)
        writer = SqlStore.open(make_url(server.uri).set(username=user).render_as_string(hide_password=False))
        with pytest.raises(Unavailable) as told, writer.begin() as transaction:
            transaction.insert(task())
        assert "primary" in (told.value.hint or "")
        writer.close()
    finally:
        only_read("off")


def test_a_plan_larger_than_the_server_accepts_is_told(mariadb: MariaDb) -> None:
    store = SqlStore.open(mariadb.uri)
    empty(mariadb.uri)
    with pytest.raises(Unsupported) as told, store.begin() as transaction:
        transaction.insert(PlanRow(process_id="p", data=bytes(17 << 20)))
    assert "max_allowed_packet" in (told.value.hint or "")
    with store.read() as view:
        assert view.find(PlanRow) == []
    store.close()


def test_drivers_that_are_not_installed_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for url, driver, extra in (("postgresql://h/d", "psycopg", "postgres"), ("mysql://h/d", "pymysql", "mariadb")):
        monkeypatch.setitem(__import__("sys").modules, driver, None)
        told = refusal(url)
        assert isinstance(told, MissingExtra)
        assert f"pyarctic[{extra}]" in (told.hint or "")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("oracle://host/db", "databases of oracle are not supported"),
        ("postgresql+asyncpg://host/db", "the driver asyncpg is not supported"),
        ("postgresql://u:s3cret@host", "names no database"),
        ("nonsense", "cannot be read"),
    ],
)
def test_urls_of_no_database_are_refused(url: str, words: str) -> None:
    told = refusal(url)
    assert isinstance(told, ConfigError)
    assert words in told.message
    assert "s3cret" not in repr(told.to_dict())


# Creation and upgrades


def columns(url: str, kind: str) -> dict[str, set[str]]:
    with admin(kind, url) as engine:
        found = inspect(engine)
        return {table: {column["name"] for column in found.get_columns(table)} for table in found.get_table_names()}


def test_revisions_lead_to_the_tables_of_the_code(kind: str, new_database: str) -> None:
    SqlStore.open(new_database).close()
    found = columns(new_database, kind)
    assert set(found) == {*METADATA.tables, VERSION_TABLE}
    for name, table in METADATA.tables.items():
        only_there = (
            {"claims": {"key_hash"}, "commits": {"open_table_uuid"}}.get(name, set()) if kind == "mariadb" else set()
        )
        assert found[name] - only_there == set(table.c.keys())
    with admin(kind, new_database) as engine:
        indexes = {index["name"] for name in METADATA.tables for index in inspect(engine).get_indexes(name)}
    assert {index.name for table in METADATA.tables.values() for index in table.indexes} <= indexes


def test_services_that_start_at_once_create_the_database_once(new_database: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(SqlStore.open, [new_database] * 4))
    with stores[0].begin() as transaction:
        transaction.insert(task())
    assert [count(store) for store in stores] == [1] * 4
    for store in stores:
        store.close()


@pytest.mark.parametrize("steps", [0, 3, 11, 20])
def test_an_interrupted_creation_is_made_up_for(
    kind: str, new_database: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MariaDB keeps the tables that were made before; PostgreSQL undoes all."""
    made = 0

    def interrupted(change: str) -> None:
        original = getattr(op, change)

        def counted(*arguments: object, **options: object) -> None:
            nonlocal made
            if made == steps:
                raise InterruptedError
            made += 1
            original(*arguments, **options)

        patched.setattr(op, change, counted)

    with monkeypatch.context() as patched:
        interrupted("create_table")
        interrupted("create_index")
        with pytest.raises(InterruptedError):
            SqlStore.open(new_database)
    left = columns(new_database, kind)
    assert (len(left) > 1) == (kind == "mariadb" and steps > 0)
    store = SqlStore.open(new_database)
    with store.begin() as transaction:
        transaction.insert(task())
    assert count(store) == 1
    assert store.lease().number == 0
    store.close()


def test_tables_of_other_programs_are_left_alone(kind: str, new_database: str) -> None:
    with admin(kind, new_database) as engine, engine.connect() as connection:
        connection.execute(text("CREATE TABLE events (id INT)"))
    assert "tables of another program: events" in refusal(new_database).message
    assert set(columns(new_database, kind)) == {"events"}


def test_a_newer_database_is_refused_by_name(kind: str, new_database: str) -> None:
    SqlStore.open(new_database).close()
    with admin(kind, new_database) as engine, engine.connect() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '0999'"))
    told = refusal(new_database)
    assert "0999" in told.message
    assert NEWEST in told.message


def test_writers_of_several_processes_take_turns(store: SqlStore, server: Server) -> None:
    """Each adds one to what it reads: nothing is lost."""
    others = [SqlStore.open(server.uri) for _ in range(3)]
    with store.begin() as transaction:
        transaction.insert(task())
    barrier = threading.Barrier(len(others))

    def add(other: SqlStore) -> None:
        barrier.wait()
        for _ in range(20):
            with other.begin() as transaction:
                row = transaction.get(TaskRow, "p1", 1)
                assert row is not None
                transaction.update(task(version=row.version + 1, rows_done=row.rows_done + 1))

    with ThreadPoolExecutor(len(others)) as pool:
        list(pool.map(add, others))
    with store.read() as view:
        assert view.find(TaskRow)[0].rows_done == 60
    for other in others:
        other.close()
