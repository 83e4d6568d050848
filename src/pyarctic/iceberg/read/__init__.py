"""Reading rows: data files with deletes applied, projected to the schema of the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.iceberg.read.data_files import Piece, damage_told, read_pieces
    from pyarctic.iceberg.read.live_rows import (
        LAST_UPDATED,
        METADATA_COLUMNS,
        ROW_ID,
        ReadFile,
        Reading,
        TableView,
        kept,
        newest_first,
    )
    from pyarctic.iceberg.read.projection import Projection, arrow_schema, arrow_type, fields_by_id, names_for
    from pyarctic.iceberg.read.table_scan import Asked, Scan, scan, wanted_fields

__all__ = [
    "LAST_UPDATED",
    "METADATA_COLUMNS",
    "ROW_ID",
    "Asked",
    "Piece",
    "Projection",
    "ReadFile",
    "Reading",
    "Scan",
    "TableView",
    "arrow_schema",
    "arrow_type",
    "damage_told",
    "fields_by_id",
    "kept",
    "names_for",
    "newest_first",
    "read_pieces",
    "scan",
    "wanted_fields",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "data_files": ("Piece", "damage_told", "read_pieces"),
        "live_rows": (
            "LAST_UPDATED",
            "METADATA_COLUMNS",
            "ROW_ID",
            "ReadFile",
            "Reading",
            "TableView",
            "kept",
            "newest_first",
        ),
        "projection": ("Projection", "arrow_schema", "arrow_type", "fields_by_id", "names_for"),
        "table_scan": ("Asked", "Scan", "scan", "wanted_fields"),
    },
)
