"""Tables by name, `catalog.database.table`: create, open, write and read them.

Keyed tables have two stores, for changes and for merged rows; the Arctic tree divides both by the hash of the key. Unkeyed
and native Iceberg tables have one store, the table itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.tables.commit_outcomes import Removal, remove_outputs
    from pyarctic.tables.create import TableAdvice, schema_of
    from pyarctic.tables.keyed_table import KeyedTable
    from pyarctic.tables.listing import FoundTables, find_tables, find_tables_in, list_tables
    from pyarctic.tables.maintenance import merge_many_manifests
    from pyarctic.tables.names import create_table, drop_table, open_table
    from pyarctic.tables.table import ContentKind, ReplaceScope, ScanStore, Table, WriteMode

__all__ = [
    "ContentKind",
    "FoundTables",
    "KeyedTable",
    "Removal",
    "ReplaceScope",
    "ScanStore",
    "Table",
    "TableAdvice",
    "WriteMode",
    "create_table",
    "drop_table",
    "find_tables",
    "find_tables_in",
    "list_tables",
    "merge_many_manifests",
    "open_table",
    "remove_outputs",
    "schema_of",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "commit_outcomes": ("Removal", "remove_outputs"),
        "create": ("TableAdvice", "schema_of"),
        "keyed_table": ("KeyedTable",),
        "listing": ("FoundTables", "find_tables", "find_tables_in", "list_tables"),
        "maintenance": ("merge_many_manifests",),
        "names": ("create_table", "drop_table", "open_table"),
        "table": ("ContentKind", "ReplaceScope", "ScanStore", "Table", "WriteMode"),
    },
)
