"""Parquet data files.

`DataFileWriter` writes batches into data files of the table's target size, with metrics. `RowGroupWriter` makes files of
row groups that are copied as is from a `RowGroupSource`; `NotCopyable` is raised if that is not possible. `check_pages`
compares pages with their checksums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.iceberg.write.parquet.data_file_writer import (
        DataFileWriter,
        describe_data_file,
        file_schema,
        stored_fields,
    )
    from pyarctic.iceberg.write.parquet.dictionaries import choose_dictionaries, repetitive_columns
    from pyarctic.iceberg.write.parquet.footer import NotCopyable, ParquetSchema
    from pyarctic.iceberg.write.parquet.page_checksums import check_pages
    from pyarctic.iceberg.write.parquet.row_group_source import RowGroupSource
    from pyarctic.iceberg.write.parquet.row_group_writer import RowGroupWriter
    from pyarctic.iceberg.write.parquet.settings import Dictionaries, ParquetSettings, ignored_properties

__all__ = [
    "DataFileWriter",
    "Dictionaries",
    "NotCopyable",
    "ParquetSchema",
    "ParquetSettings",
    "RowGroupSource",
    "RowGroupWriter",
    "check_pages",
    "choose_dictionaries",
    "describe_data_file",
    "file_schema",
    "ignored_properties",
    "repetitive_columns",
    "stored_fields",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "data_file_writer": (
            "DataFileWriter",
            "describe_data_file",
            "file_schema",
            "stored_fields",
        ),
        "dictionaries": ("choose_dictionaries", "repetitive_columns"),
        "footer": ("NotCopyable", "ParquetSchema"),
        "page_checksums": ("check_pages",),
        "row_group_source": ("RowGroupSource",),
        "row_group_writer": ("RowGroupWriter",),
        "settings": ("Dictionaries", "ParquetSettings", "ignored_properties"),
    },
)
