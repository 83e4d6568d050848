"""What administrators do with a database: look at it, upgrade it, copy it into a file and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, Table, func, insert, inspect, make_url, select, update

from pyarctic.ams.store.port import Lease
from pyarctic.ams.store.sql.database import Database
from pyarctic.ams.store.sql.databases import database_of
from pyarctic.ams.store.sql.revisions import NEWEST, current
from pyarctic.ams.store.sql.sql_store import SqlStore
from pyarctic.ams.store.sql.tables import LAST_EVENT, LEASE, METADATA
from pyarctic.errors import Rejected, Unavailable, UsageError

_WAIT_SECONDS = 10.0
_BATCH = 500
_ALONE = frozenset({"plans", "results"})
"""Tables with rows of many megabytes, which are copied one at a time."""
_TABLES: tuple[Table, ...] = tuple(each for each in METADATA.sorted_tables if each not in (LAST_EVENT, LEASE))
Progress = Callable[[str, int], None]
"""Is told the name of a table, and how many of its rows were copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseStatus:
    """A database of the service as it is now."""

    name: str
    """Where it is, without a password."""
    server: str
    """The kind and the version of its server."""
    revision: str | None
    """None: it has no tables of the service."""
    newest_revision: str
    rows: Mapping[str, int]
    """By table."""
    lease: Lease | None
    """Who leads; None before revision 0002."""

    @property
    def is_newest(self) -> bool:
        """Whether there is nothing to upgrade."""
        return self.revision == self.newest_revision


def database_status(url: str) -> DatabaseStatus:
    """Look at a database. Nothing is created or changed."""
    with _database(url) as database, database.explained():
        if make_url(url).get_backend_name() == "sqlite" and not Path(database.name).exists():
            raise Unavailable(f"there is no database {database.name}", hint="`arctic serve` creates it.")
        with database.reader.connect() as connection:
            found = set(inspect(connection).get_table_names())
            revision = current(connection)
            tables = [each for each in _TABLES if each.name in found] if revision is not None else []
            rows = {each.name: connection.execute(select(func.count()).select_from(each)).scalar_one() for each in tables}
            dialect = connection.dialect
            version = ".".join(map(str, dialect.server_version_info or ()))
            kind = "mariadb" if getattr(dialect, "is_mariadb", False) else dialect.name
            has_lease = revision is not None and LEASE.name in found
        return DatabaseStatus(
            name=database.name,
            server=f"{kind} {version}",
            revision=revision,
            newest_revision=NEWEST,
            rows=rows,
            lease=SqlStore(database).lease() if has_lease else None,
        )


def upgrade_database(url: str) -> None:
    """Create the tables of a database, or bring them to the newest revision."""
    SqlStore.open(url, wait_seconds=_WAIT_SECONDS).close()


def back_up_database(url: str, file: Path, progress: Progress = lambda *_: None) -> int:
    """Copy everything into a new database of SQLite, as it is at one moment, while services go on. Gives the number of
    rows."""
    if file.exists():
        raise UsageError(f"{file} is there already", hint="Name a new file.")
    beside = file.with_name(f".{file.name}.part")
    beside.unlink(missing_ok=True)
    try:
        with _database(url) as source, _database(f"sqlite:///{beside}") as target:
            _check_revision(source)
            upgrade_database(f"sqlite:///{beside}")
            rows = _copy(source, target, progress)
        beside.replace(file)
    finally:
        for left in beside.parent.glob(f"{beside.name}*"):
            left.unlink(missing_ok=True)
    return rows


def restore_database(url: str, file: Path, progress: Progress = lambda *_: None) -> int:
    """Copy a backup into a database, of any kind, which must have no rows. Gives their number."""
    if not file.is_file():
        raise UsageError(f"there is no file {file}")
    upgrade_database(url)
    with _database(f"sqlite:///{file}") as source, _database(url) as target:
        _check_revision(source)
        with target.explained(), target.reader.connect() as connection:
            full = [each.name for each in _TABLES if connection.execute(select(each).limit(1)).first() is not None]
        if full:
            raise Rejected(f"{target.name} has rows in {', '.join(full)}", hint="Restore into an empty database.")
        return _copy(source, target, progress)


def _copy(source: Database, target: Database, progress: Progress) -> int:
    total = 0
    with source.explained(), target.explained(), source.reader.connect() as reading, target.writer.begin() as writing:
        # The first statement is where the view begins.
        event, lease = reading.execute(select(LAST_EVENT)).scalar_one(), reading.execute(select(LEASE)).one()
        writing.execute(update(LAST_EVENT).values(number=event))
        # Numbers of leases go on, so that no service takes itself for the leader of the copy.
        writing.execute(update(LEASE).values(number=lease.number))
        for table in _TABLES:
            rows = 0
            for some in _read(reading, table):
                writing.execute(insert(table), some)
                rows += len(some)
                progress(table.name, rows)
            total += rows
    return total


def _read(connection: Connection, table: Table) -> Iterator[list[dict[str, object]]]:
    size = 1 if table.name in _ALONE else _BATCH
    rows = connection.execution_options(stream_results=True, max_row_buffer=size).execute(select(table)).mappings()
    for some in rows.partitions(size):
        yield [dict(row) for row in some]


def _check_revision(database: Database) -> None:
    with database.explained(), database.reader.connect() as connection:
        revision = current(connection)
    if revision != NEWEST:
        hint = "Upgrade it with `arctic db upgrade`." if revision is not None else None
        raise Rejected(f"{database.name} has revision {revision}, and not {NEWEST}", hint=hint)


@contextmanager
def _database(url: str) -> Iterator[Database]:
    database = database_of(url, wait_seconds=_WAIT_SECONDS)
    try:
        yield database
    finally:
        database.writer.dispose()
        database.reader.dispose()
