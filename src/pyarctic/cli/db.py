"""`arctic db`: look at the database of the management service, upgrade it, and copy it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyarctic.cli.session import Format, JsonOption, YesOption, confirm, new_command_group, note, shows_progress, spinner
from pyarctic.cli.view.facts import facts_section
from pyarctic.cli.view.output import emit_details

if TYPE_CHECKING:
    from pyarctic.ams.store import DatabaseStatus

group = new_command_group(
    "Look at the database of the service, and copy it.\n\n\b\n"
    "Examples:\n  arctic db status\n  arctic db backup arctic-2026-07-01.db"
)
StateOption = Annotated[
    str | None, typer.Option("--state", metavar="DIR", help="The folder of the service (default: $ARCTIC_STATE).")
]
DatabaseOption = Annotated[
    str | None, typer.Option("--database", metavar="URL", help="Another database than that of the configuration.")
]


@group.command("status")
def status(database: DatabaseOption = None, state: StateOption = None, as_json: JsonOption = False) -> None:
    """Show where the database is, and what is in it.

    Also its revision, and which service leads. The exit code is 1 if it has to be upgraded.

    \b
    Examples:
      arctic db status
      arctic db status --database postgresql://arctic@db/arctic
    """
    from pyarctic.ams.store import database_status

    with spinner("reading the database"):
        found = database_status(_url(database, state))
    form = Format.JSON if as_json else Format.TABLE
    sections = [
        facts_section(None, _facts(found)),
        facts_section("Rows", found.rows.items()),
    ]
    emit_details(_document(found), sections, output_format=form, absolute=False, wide=False)
    if not found.is_newest:
        note("it has to be upgraded: `arctic serve` does so when it starts, as does `arctic db upgrade`")
        raise typer.Exit(1)


@group.command("upgrade")
def upgrade(
    database: DatabaseOption = None, state: StateOption = None, yes: YesOption = False, as_json: JsonOption = False
) -> None:
    """Bring the database to the newest revision.

    Earlier releases cannot use it afterwards: stop their services first, and make a backup.

    \b
    Examples:
      arctic db upgrade
      arctic db upgrade --yes
    """
    from pyarctic.ams.store import database_status, upgrade_database

    url = _url(database, state)
    confirm("the database of the service will be upgraded, and earlier releases cannot use it any more", yes=yes)
    with spinner("upgrading the database"):
        upgrade_database(url)
        found = database_status(url)
    form = Format.JSON if as_json else Format.TABLE
    emit_details(_document(found), [facts_section(None, _facts(found))], output_format=form, absolute=False, wide=False)


@group.command("backup")
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.")],
    database: DatabaseOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the database into a file, while services go on.

    The copy is of one moment. It is a database of SQLite, whatever the kind of the original is, and has the secrets of
    optimizers as hashes only.

    \b
    Examples:
      arctic db backup arctic-2026-07-01.db
      arctic db backup copy.db --database sqlite:///state/arctic.db
    """
    from pyarctic.ams.store import back_up_database

    with _copied(f"copying to {file}") as told:
        rows = back_up_database(_url(database, state), file, told)
    _emit_copied(file, rows, as_json=as_json)


@group.command("restore")
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A backup.")],
    database: DatabaseOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy a backup into an empty database.

    It may be of another kind: so a service moves from SQLite to PostgreSQL. Stop the service first: what happens after the
    backup is not in it. Tables lose nothing by that, and what was planned since is planned again.

    \b
    Examples:
      arctic db restore arctic-2026-07-01.db
      arctic db restore arctic.db --database postgresql://arctic@db/arctic
    """
    from pyarctic.ams.store import restore_database

    with _copied(f"copying from {file}") as told:
        rows = restore_database(_url(database, state), file, told)
    _emit_copied(file, rows, as_json=as_json)


def _url(database: str | None, state: str | None) -> str:
    from pyarctic.config import load
    from pyarctic.server import database_url

    return database or database_url(load(), None if state is None else Path(state))


@contextmanager
def _copied(what: str) -> Iterator[Any]:
    def told(table: str, rows: int) -> None:
        if shows_progress() and rows % 10_000 == 0:
            note(f"{table}: {rows}")

    with spinner(what):
        yield told


def _emit_copied(file: Path, rows: int, *, as_json: bool) -> None:
    document = {"file": str(file), "rows": rows}
    section = facts_section(None, [("File", str(file)), ("Rows", rows)])
    emit_details(document, [section], output_format=Format.JSON if as_json else Format.TABLE, absolute=False, wide=False)


def _facts(found: DatabaseStatus) -> Iterator[tuple[str, Any]]:
    yield "Database", found.name
    yield "Server", found.server
    yield (
        "Revision",
        found.revision if found.is_newest else f"{found.revision or 'none'}; the newest is {found.newest_revision}",
    )
    lease = found.lease
    if lease is not None:
        leads = lease.holder and lease.seconds > 0
        yield "Leader", lease.url if leads else "none"


def _document(found: DatabaseStatus) -> dict[str, Any]:
    lease = found.lease
    leader = None
    if lease is not None and lease.holder and lease.seconds > 0:
        leader = {"url": lease.url, "holder": lease.holder, "number": lease.number, "seconds": round(lease.seconds, 3)}
    return {
        "database": found.name,
        "server": found.server,
        "revision": found.revision,
        "newest_revision": found.newest_revision,
        "rows": dict(found.rows),
        "leader": leader,
    }
