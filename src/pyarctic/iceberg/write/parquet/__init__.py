"""Parquet data files.

`DataFileWriter` writes batches into data files of the table's target size, with metrics. `RowGroupWriter` makes files of
row groups that are copied as is from a `RowGroupSource`; `NotCopyable` is raised if that is not possible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.iceberg.write.parquet.data_file_writer import (
        DataFileWriter,
        ParquetSettings,
        choose_dictionaries,
        describe_data_file,
        file_schema,
        leaf_paths,
    )
    from pyarctic.iceberg.write.parquet.footer import NotCopyable, ParquetSchema
    from pyarctic.iceberg.write.parquet.row_group_source import RowGroupSource
    from pyarctic.iceberg.write.parquet.row_group_writer import RowGroupWriter

__all__ = [
    "DataFileWriter",
    "NotCopyable",
    "ParquetSchema",
    "ParquetSettings",
    "RowGroupSource",
    "RowGroupWriter",
    "choose_dictionaries",
    "describe_data_file",
    "file_schema",
    "leaf_paths",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "data_file_writer": (
            "DataFileWriter",
            "ParquetSettings",
            "describe_data_file",
            "file_schema",
            "leaf_paths",
            "choose_dictionaries",
        ),
        "footer": ("NotCopyable", "ParquetSchema"),
        "row_group_source": ("RowGroupSource",),
        "row_group_writer": ("RowGroupWriter",),
    },
)
