"""Reading rows: data files with deletes applied, projected to the schema of the table.

`plan_scan` prepares a `Scan` of a snapshot, with a selection of columns and a condition. Below it, `TableReader` gives the
data files of a snapshot as `DataFileReader`s, which tell live from deleted rows; `read_file_batches` reads a single file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.iceberg.read.data_files import BatchSizer, FileBatch, read_file_batches, translate_damage
    from pyarctic.iceberg.read.live_rows import (
        LAST_UPDATED,
        METADATA_COLUMNS,
        ROW_ID,
        DataFileReader,
        TableReader,
        TableView,
        filter_rows,
        newest_first,
    )
    from pyarctic.iceberg.read.projection import (
        Projection,
        arrow_schema,
        arrow_type,
        fields_by_id,
        is_decodable,
        names_for,
        repeat_value,
    )
    from pyarctic.iceberg.read.row_scan import LimitedScan, RowScan
    from pyarctic.iceberg.read.small_files import group_small_files, joined_live_batches
    from pyarctic.iceberg.read.table_scan import Scan, ScanColumns, plan_scan, select_fields

__all__ = [
    "LAST_UPDATED",
    "METADATA_COLUMNS",
    "ROW_ID",
    "BatchSizer",
    "DataFileReader",
    "FileBatch",
    "LimitedScan",
    "Projection",
    "RowScan",
    "Scan",
    "ScanColumns",
    "TableReader",
    "TableView",
    "arrow_schema",
    "arrow_type",
    "fields_by_id",
    "filter_rows",
    "group_small_files",
    "is_decodable",
    "joined_live_batches",
    "names_for",
    "newest_first",
    "plan_scan",
    "read_file_batches",
    "repeat_value",
    "select_fields",
    "translate_damage",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "data_files": ("BatchSizer", "FileBatch", "translate_damage", "read_file_batches"),
        "live_rows": (
            "LAST_UPDATED",
            "METADATA_COLUMNS",
            "ROW_ID",
            "DataFileReader",
            "TableReader",
            "TableView",
            "filter_rows",
            "newest_first",
        ),
        "projection": (
            "Projection",
            "arrow_schema",
            "arrow_type",
            "fields_by_id",
            "is_decodable",
            "names_for",
            "repeat_value",
        ),
        "row_scan": ("LimitedScan", "RowScan"),
        "small_files": ("group_small_files", "joined_live_batches"),
        "table_scan": ("ScanColumns", "Scan", "plan_scan", "select_fields"),
    },
)
