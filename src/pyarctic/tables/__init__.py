"""Tables as users name them: `catalog.database.table`, made, opened, written, read and looked at.

Knows which store of a table answers a question. Keyed tables have two, for changes and for what is merged of them; the
Arctic tree divides both by the hash of the key. Unkeyed and native Iceberg tables have one, the table itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyarctic.iceberg.commit import Once
    from pyarctic.tables.columns import schema_of
    from pyarctic.tables.creating import TableAdvice
    from pyarctic.tables.handle import Table
    from pyarctic.tables.inputfiles import InputFile, input_file, schema_like
    from pyarctic.tables.keyed import KeyedTable
    from pyarctic.tables.listing import list_tables
    from pyarctic.tables.opening import create_table, drop_table, open_table

__all__ = [
    "InputFile",
    "KeyedTable",
    "Once",
    "Table",
    "TableAdvice",
    "create_table",
    "drop_table",
    "input_file",
    "list_tables",
    "open_table",
    "schema_like",
    "schema_of",
]

# Loaded when asked for: a worker process reads files and needs no catalog.
_PLACES = {
    "InputFile": "pyarctic.tables.inputfiles",
    "KeyedTable": "pyarctic.tables.keyed",
    "Once": "pyarctic.iceberg.commit",
    "Table": "pyarctic.tables.handle",
    "TableAdvice": "pyarctic.tables.creating",
    "create_table": "pyarctic.tables.opening",
    "drop_table": "pyarctic.tables.opening",
    "input_file": "pyarctic.tables.inputfiles",
    "list_tables": "pyarctic.tables.listing",
    "open_table": "pyarctic.tables.opening",
    "schema_like": "pyarctic.tables.inputfiles",
    "schema_of": "pyarctic.tables.columns",
}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
