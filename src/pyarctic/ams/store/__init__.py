"""The database of the service: a port, its in-memory twin, and a store for SQL databases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.ams.store.fields import parse_value
    from pyarctic.ams.store.guarded import GuardedStore
    from pyarctic.ams.store.memory import MemoryStore
    from pyarctic.ams.store.port import KEYS, Broken, Lease, Query, Store, Transaction
    from pyarctic.ams.store.sql import (
        DatabaseStatus,
        SqlStore,
        back_up_database,
        database_status,
        restore_database,
        upgrade_database,
    )

__all__ = [
    "KEYS",
    "Broken",
    "DatabaseStatus",
    "GuardedStore",
    "Lease",
    "MemoryStore",
    "Query",
    "SqlStore",
    "Store",
    "Transaction",
    "back_up_database",
    "database_status",
    "parse_value",
    "restore_database",
    "upgrade_database",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "fields": ("parse_value",),
        "guarded": ("GuardedStore",),
        "memory": ("MemoryStore",),
        "port": ("KEYS", "Broken", "Lease", "Query", "Store", "Transaction"),
        "sql": (
            "DatabaseStatus",
            "SqlStore",
            "back_up_database",
            "database_status",
            "restore_database",
            "upgrade_database",
        ),
    },
)
