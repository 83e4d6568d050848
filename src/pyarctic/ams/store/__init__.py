"""The database of the service: a port, its in-memory twin, and a store for SQL databases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.ams.store.fields import parse_value
    from pyarctic.ams.store.memory import MemoryStore
    from pyarctic.ams.store.port import KEYS, Broken, Query, Store, Transaction
    from pyarctic.ams.store.sql import SqlStore

__all__ = ["KEYS", "Broken", "MemoryStore", "Query", "SqlStore", "Store", "Transaction", "parse_value"]

__getattr__ = lazy_exports(
    __name__,
    {
        "fields": ("parse_value",),
        "memory": ("MemoryStore",),
        "port": ("KEYS", "Broken", "Query", "Store", "Transaction"),
        "sql": ("SqlStore",),
    },
)
