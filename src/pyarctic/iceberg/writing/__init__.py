"""Files for a table: data, deletes, deletion vectors, statistics and manifests, written and described, not committed.

What is written here is invisible until a commit adds it; names are unique, so attempts never touch each other's files.
"""

from pyarctic.iceberg.writing.deletes import write_equality_deletes, write_position_deletes, write_vectors
from pyarctic.iceberg.writing.newfile import FileNames, Metrics, NewFile, Target
from pyarctic.iceberg.writing.parquet import DataFileWriter, file_schema
from pyarctic.iceberg.writing.puffin import Blob, write_statistics
from pyarctic.iceberg.writing.rolling import Rolling

__all__ = [
    "Blob",
    "DataFileWriter",
    "FileNames",
    "Metrics",
    "NewFile",
    "Rolling",
    "Target",
    "file_schema",
    "write_equality_deletes",
    "write_position_deletes",
    "write_statistics",
    "write_vectors",
]
