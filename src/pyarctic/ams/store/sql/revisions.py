"""The revision of a database: it is created, or brought to the newest one, when it is opened.

Alembic is imported only if there is something to do: it takes longer than all the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Column, Connection, MetaData, Table, Text, inspect, select

from pyarctic.ams.store.sql.tables import METADATA
from pyarctic.errors import ConfigError

if TYPE_CHECKING:
    from alembic.config import Config

NEWEST = "0002"
VERSION_TABLE = "arctic_revision"
"""Not Alembic's default: other programs may use the same database."""
_REVISION = Table(VERSION_TABLE, MetaData(), Column("version_num", Text)).c.version_num


def is_newest(connection: Connection) -> bool:
    """Whether there is nothing to do."""
    return current(connection) == NEWEST


def current(connection: Connection) -> str | None:
    """The revision of a database; None if it has none."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(select(_REVISION)).scalar()


def upgrade(connection: Connection, where: str) -> None:
    """Bring a database to the newest revision. `where`: for errors."""
    from alembic import command
    from alembic.script import ScriptDirectory

    config = alembic_config(connection)
    found = current(connection)
    if found not in (None, *(script.revision for script in ScriptDirectory.from_config(config).walk_revisions())):
        raise ConfigError(
            f"{where} has revision {found}, and this version of PyArctic knows {NEWEST} and older ones",
            hint="A newer version has used this database. Start that version, or name another database.",
            revision=found,
        )
    tables = set(inspect(connection).get_table_names())
    # With a table of revisions that is empty, it was begun before: not all databases undo a creation that is interrupted.
    if VERSION_TABLE not in tables and (others := sorted(tables & set(METADATA.tables))):
        raise ConfigError(
            f"{where} has tables of another program: {', '.join(others)}", hint="Name a database of its own for the service."
        )
    command.upgrade(config, "head")


def alembic_config(connection: Connection) -> Config:
    """For commands of Alembic on this database."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "pyarctic.ams.store.sql:migrations")
    config.attributes["connection"] = connection
    return config
