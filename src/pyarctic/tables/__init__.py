"""Tables as users name them: `catalog.database.table`, made, opened, written, read and looked at.

Knows which store of a table answers a question. Keyed tables have two, for changes and for what is merged of them; the
Arctic tree divides both by the hash of the key. Unkeyed and native Iceberg tables have one, the table itself.
"""

from pyarctic.iceberg.committing import Once
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
