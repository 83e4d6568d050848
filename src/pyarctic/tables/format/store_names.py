"""The names of change stores in a catalog. Listing tables needs nothing else of the format, and starts fast."""

from __future__ import annotations

from collections.abc import Mapping

_SEPARATOR = "mixed-format.table-store.separator"
SERVICE_CHANGE_STORE = "@change"
"""The ending of change store names in the catalog of the format's management service."""


def change_store_name(table: str, catalog_properties: Mapping[str, str]) -> str:
    """The name of the change store of a new table."""
    separator = catalog_properties.get(_SEPARATOR, "_")
    return f"{table}{separator}change{separator}"
