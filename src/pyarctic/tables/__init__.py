"""Tables as users name them: `catalog.database.table`, opened, looked at and read.

Knows which store of a table answers a question. Native Iceberg tables have one store, the table itself.
"""

from pyarctic.tables.handle import Table, list_tables, open_table

__all__ = ["Table", "list_tables", "open_table"]
