"""The store on a SQL database: SQLite, PostgreSQL or MariaDB. Knows SQLAlchemy and Alembic, which nobody else in the service
does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.ams.store.sql.administration import (
        DatabaseStatus,
        back_up_database,
        database_status,
        restore_database,
        upgrade_database,
    )
    from pyarctic.ams.store.sql.sql_store import SqlStore

__all__ = [
    "DatabaseStatus",
    "SqlStore",
    "back_up_database",
    "database_status",
    "restore_database",
    "upgrade_database",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "administration": (
            "DatabaseStatus",
            "back_up_database",
            "database_status",
            "restore_database",
            "upgrade_database",
        ),
        "sql_store": ("SqlStore",),
    },
)
