"""The store on a SQL database: SQLite now. Knows SQLAlchemy and Alembic, which nobody else in the service does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.ams.store.sql.sql_store import SqlStore

__all__ = ["SqlStore"]

__getattr__ = lazy_exports(__name__, {"sql_store": ("SqlStore",)})
