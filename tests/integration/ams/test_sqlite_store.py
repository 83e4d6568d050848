"""The store in SQLite when processes are killed, disks are full, and files are not what they should be."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event

from pyarctic.ams.rows import ClaimRow, CommitRow, EventRow, PlanRow, ProcessRow, Row, TaskRow
from pyarctic.ams.store import Query, SqlStore
from pyarctic.errors import ArcticError, ConfigError, Damaged, Unavailable
from tests.support.ams_rows import claim, move, task


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "service.db"


@contextmanager
def opened(file: Path, wait_seconds: float = 30) -> Iterator[SqlStore]:
    with closing(SqlStore.open(f"sqlite:///{file}", wait_seconds=wait_seconds)) as store:
        yield store


# Crashes

_WRITES_UNTIL_KILLED = """
import sys
from pyarctic.ams.store import SqlStore
from tests.support.ams_rows import claim, move, task

store = SqlStore.open(sys.argv[1])
with store.begin() as transaction:
    transaction.insert(task())
for version in range(1, 1_000_000):
    with store.begin() as transaction:
        transaction.update(task(version=version))
        transaction.insert(*(claim(f"{version}.{number}") for number in range(50)))
        transaction.record([move()])
    print(version, flush=True)
"""


@pytest.mark.parametrize("written", [0, 3, 40])
def test_what_a_killed_process_committed_is_there_and_nothing_else(file: Path, written: int) -> None:
    url = f"sqlite:///{file}"
    with subprocess.Popen([sys.executable, "-c", _WRITES_UNTIL_KILLED, url], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = [int(process.stdout.readline()) for _ in range(written + 1)][-1]
        time.sleep(0.001 * written)  # in the middle of another transaction
        process.send_signal(signal.SIGKILL)
        told = max([told, *map(int, process.stdout.read().split())])
    with opened(file) as store, store.read() as view:
        [row] = view.find(TaskRow)
        assert row.version in (told, told + 1), "what was told is there; at most one more had no time to be told"
        assert len(view.find(ClaimRow)) == 50 * row.version
        assert [each.number for each in view.find(EventRow)] == list(range(1, row.version + 1))
    with opened(file) as store, store.begin() as transaction:
        transaction.update(task(version=row.version + 1))
    with closing(sqlite3.connect(file)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


# Disks


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_without_room_on_the_disk_the_service_is_told_and_goes_on_when_there_is_some(file: Path) -> None:
    large = PlanRow(process_id="p1", data=os.urandom(4 << 20))
    with opened(file) as store:
        with store.begin() as transaction:
            transaction.insert(task())

        def write_much() -> None:
            with store.begin() as transaction:
                transaction.update(task(version=1))
                transaction.record([move()])
                transaction.insert(large)

        for _ in range(2):
            with files_no_larger_than(1 << 20), pytest.raises(Unavailable) as told:
                write_much()
            assert str(file) in (told.value.hint or "")
            assert told.value.retryable
        with store.read() as view:
            assert view.find(TaskRow) == [task()]
            assert view.find(PlanRow) == []
        with store.begin() as transaction:
            transaction.update(task(version=1))
            transaction.insert(large)
        with store.read() as view:
            assert view.find(PlanRow) == [large]
        assert store.events_after(0) == []


def test_the_disk_may_be_full_at_any_write_of_a_transaction(file: Path) -> None:
    """The log of SQLite grows by pages: from one size on a transaction fits, and below it none of it is kept."""
    with opened(file) as store:
        with store.begin() as transaction:
            transaction.insert(task())
        log = file.with_name(f"{file.name}-wal")
        outcomes = []
        for pages in range(0, 24, 2):
            room = log.stat().st_size + pages * 4096
            try:
                with files_no_larger_than(room), store.begin() as transaction:
                    transaction.insert(*(claim(f"{pages}.{number}" * 20) for number in range(100)))
            except Unavailable:
                outcomes.append(False)
            else:
                outcomes.append(True)
            with store.read() as view:
                assert len(view.find(ClaimRow)) == 100 * sum(outcomes)
        assert set(outcomes) == {False, True}
        with store.begin() as transaction:
            transaction.update(task(version=1))


def test_a_database_that_cannot_grow_is_full(file: Path) -> None:
    with opened(file) as store:
        with store._database.writer.connect() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count={pages + 2}")
        with pytest.raises(Unavailable, match="full") as told, store.begin() as transaction:
            transaction.insert(*(claim(f"{number}.parquet") for number in range(1000)))
        assert "Free some space" in (told.value.hint or "")
        with store.begin() as transaction:
            assert transaction.find(ClaimRow) == []


# Several processes


def test_a_database_that_is_locked_for_too_long_is_unavailable(file: Path) -> None:
    with opened(file, wait_seconds=0.2) as store, closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="locked") as told, store.begin():
            pass
        assert str(file) in (told.value.hint or "")
        with store.read() as view:
            assert view.find(TaskRow) == []
        other.execute("ROLLBACK")
        with store.begin() as transaction:
            transaction.insert(task())


def test_stores_of_several_processes_take_turns(file: Path) -> None:
    """Each has its own lock: only the database makes them wait for one another."""

    def write(thread: int) -> None:
        with opened(file) as store:
            for turn in range(20):
                with store.begin() as transaction:
                    transaction.insert(task(thread * 100 + turn))
                    transaction.record([move()])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    with opened(file) as store, store.read() as view:
        assert len(view.find(TaskRow)) == 80
        assert [each.number for each in view.find(EventRow)] == list(range(1, 81))


def test_what_is_committed_has_reached_the_disk(file: Path) -> None:
    with opened(file) as store, store._database.writer.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


@pytest.mark.parametrize(
    ("kind", "query", "where"),
    [
        (TaskRow, Query(order="queued_at", limit=10), {"group": "default", "state": "pending"}),
        (TaskRow, Query(), {"process_id": "p1"}),
        (TaskRow, Query(), {"optimizer_id": "o1"}),
        (TaskRow, Query(), {"state": ("failed", "executing")}),
        (ProcessRow, Query(), {"table_uuid": "t1", "state": ("waiting", "running")}),
        (ProcessRow, Query(), {"state": "running"}),
        (CommitRow, Query(), {"process_id": "p1"}),
        (CommitRow, Query(), {"state": "open"}),
        (ClaimRow, Query(), {"table_uuid": "t1", "key": ("a", "b")}),
        (ClaimRow, Query(), {"process_id": "p1"}),
        (EventRow, Query(after=7, limit=10), {}),
        (EventRow, Query(descending=True, limit=10), {"table": "t1"}),
        (EventRow, Query(after=7), {"kind": "task", "key": "p1.1"}),
    ],
)
def test_what_the_service_looks_for_has_an_index(file: Path, kind: type[Row], query: Query, where: dict[str, Any]) -> None:
    with opened(file) as store, closing(sqlite3.connect(file)) as database:
        asked: list[tuple[str, Any]] = []
        event.listen(store._database.reader, "before_cursor_execute", lambda *call: asked.append(call[2:4]))
        with store.read() as view:
            view.find(kind, query, **where)
        statement, values = asked[-1]
        plan = [step for *_, step in database.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
    assert plan[0].startswith("SEARCH")


# Files and URLs


def refusal(url: str) -> ArcticError:
    with pytest.raises(ArcticError) as told:
        SqlStore.open(url)
    assert told.value.hint
    return told.value


def test_urls_that_name_no_database_are_refused(tmp_path: Path) -> None:
    assert isinstance(refusal("service.db"), ConfigError)
    assert "oracle" in refusal("oracle://scott:tiger@host/db").message
    assert "tiger" not in str(refusal("oracle://scott:tiger@host/db").to_dict())
    for url in ("sqlite://", "sqlite:///:memory:"):
        assert "no file" in refusal(url).message
    assert "is a folder" in refusal(f"sqlite:///{tmp_path}").message
    assert "mkdir -p" in (refusal(f"sqlite:///{tmp_path}/no/folder/service.db").hint or "")


def test_a_file_that_is_no_database_is_damaged(file: Path) -> None:
    file.write_bytes(b"hello, world! " * 1000)
    error = refusal(f"sqlite:///{file}")
    assert isinstance(error, Damaged)
    assert str(file) in (error.hint or "")
    assert file.read_bytes().startswith(b"hello")


def test_a_damaged_database_is_told(file: Path) -> None:
    with opened(file) as store, store.begin() as transaction:
        transaction.insert(*(claim(f"{number}.parquet") for number in range(5000)))
    content = bytearray(file.read_bytes())
    content[40_000:] = os.urandom(len(content) - 40_000)
    file.write_bytes(content)
    with pytest.raises(Damaged, match="malformed"), opened(file) as store, store.read() as view:
        view.find(ClaimRow)


def test_a_database_that_may_not_be_written_is_unavailable(file: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everything")
    with opened(file):
        pass
    file.chmod(0o400)
    assert isinstance(refusal(f"sqlite:///{file}"), Unavailable)


# Revisions

GOLDEN = Path(__file__).parents[2] / "data" / "ams"


def dumped(file: Path) -> str:
    with closing(sqlite3.connect(file)) as database:
        return "\n".join(database.iterdump()) + "\n"


@pytest.mark.parametrize("golden", sorted(GOLDEN.glob("*.sql")), ids=lambda path: path.stem)
def test_revisions_are_what_they_were(file: Path, golden: Path) -> None:
    """A new revision: add a file for it, and never change the others."""
    from alembic import command

    from pyarctic.ams.store.sql.revisions import alembic_config

    engine = create_engine(f"sqlite:///{file}")
    with engine.begin() as connection:
        command.upgrade(alembic_config(connection), golden.stem)
    engine.dispose()
    assert dumped(file) == golden.read_text(encoding="utf-8")


def test_every_revision_is_kept() -> None:
    from pyarctic.ams.store.sql.revisions import NEWEST

    assert [path.stem for path in sorted(GOLDEN.glob("*.sql"))][-1] == NEWEST


@pytest.mark.parametrize("golden", sorted(GOLDEN.glob("*.sql")), ids=lambda path: path.stem)
def test_databases_of_all_revisions_are_upgraded(file: Path, tmp_path: Path, golden: Path) -> None:
    with closing(sqlite3.connect(file)) as database:
        database.executescript(golden.read_text(encoding="utf-8"))
    with opened(file) as store, store.begin() as transaction:
        transaction.insert(task())
        transaction.record([move()])
        transaction.delete(TaskRow)
        transaction.delete(EventRow)
    new = tmp_path / "new.db"
    with opened(new):
        pass
    assert schema(file) == schema(new)


def schema(file: Path) -> set[str]:
    with closing(sqlite3.connect(file)) as database:
        return {text for (text,) in database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}


def test_revisions_lead_to_the_tables_of_the_code(file: Path) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from pyarctic.ams.store.sql.revisions import VERSION_TABLE
    from pyarctic.ams.store.sql.tables import METADATA

    with opened(file) as store, store._database.writer.connect() as connection:
        options = {"version_table": VERSION_TABLE, "compare_type": True}
        assert compare_metadata(MigrationContext.configure(connection, opts=options), METADATA) == []


def test_the_newest_revision_is_known_without_alembic() -> None:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    from pyarctic.ams.store.sql.revisions import NEWEST

    config = Config()
    config.set_main_option("script_location", "pyarctic.ams.store.sql:migrations")
    assert ScriptDirectory.from_config(config).get_heads() == [NEWEST]


def test_a_newer_database_is_refused_by_name(file: Path) -> None:
    with opened(file):
        pass
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("UPDATE arctic_revision SET version_num = '0999'")
    before = dumped(file)
    error = refusal(f"sqlite:///{file}")
    assert isinstance(error, ConfigError)
    assert "0999" in error.message
    assert "newer version" in (error.hint or "")
    assert dumped(file) == before


def test_tables_of_other_programs_are_left_alone(file: Path) -> None:
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("CREATE TABLE events (id)")
        database.execute("CREATE TABLE iceberg_tables (id)")
    before = dumped(file)
    assert "tables of another program: events" in refusal(f"sqlite:///{file}").message
    assert dumped(file) == before


def test_an_interrupted_creation_is_made_up_for(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from alembic import op

    def interrupt(*_: object) -> None:
        raise InterruptedError

    with monkeypatch.context() as patched:
        patched.setattr(op, "create_index", interrupt)
        with pytest.raises(InterruptedError):
            SqlStore.open(f"sqlite:///{file}")
    with opened(file) as store, store.read() as view:
        assert view.find(TaskRow) == []


def test_a_database_moved_to_another_place_is_the_same(file: Path, tmp_path: Path) -> None:
    with opened(file) as store, store.begin() as transaction:
        transaction.insert(task())
    moved = tmp_path / "with space" / "ünï.db"
    moved.parent.mkdir()
    shutil.move(file, moved)
    with opened(moved) as store, store.read() as view:
        assert view.find(TaskRow) == [task()]


def test_opening_is_fast() -> None:
    """Alembic is imported only for a database that is not the newest."""
    code = """
import sys, tempfile, time
from pyarctic.ams.store import SqlStore
url = "sqlite:///" + tempfile.mkdtemp() + "/service.db"
SqlStore.open(url).close()
for name in [name for name in sys.modules if name.partition(".")[0] in ("alembic", "mako")]:
    del sys.modules[name]
start = time.perf_counter()
SqlStore.open(url).close()
print(time.perf_counter() - start, "alembic" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, imported = run.stdout.split()
    assert float(seconds) < 0.15
    assert imported == "False"
