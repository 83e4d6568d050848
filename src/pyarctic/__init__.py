"""PyArctic keeps lakehouse tables healthy.

    import pyarctic as arctic

    arctic.catalog("demo", type="sql", uri="sqlite:///warehouse/catalog.db", warehouse="file:///data/warehouse")
    arctic.table("demo.shop.orders").scan(columns=["id"], where="amount > 10").to_arrow()

Importing this package is cheap; Arrow and PyIceberg are loaded by the first call that needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyarctic._version import __version__

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from pyarctic.tables import Table

__all__ = ["__version__", "catalog", "table"]


def catalog(name: str, **properties: Any) -> Catalog:
    """A catalog: configured under this name, or by PyIceberg properties and known by the name in this process."""
    from pyarctic import config, iceberg

    if properties:
        config.declare_catalog(name, properties)
    return iceberg.open_catalog(name)


def table(name: str) -> Table:
    """Open `catalog.database.table`."""
    from pyarctic.tables import open_table

    return open_table(name)
