"""Writing files of a table: data, deletes, deletion vectors and statistics. Nothing is committed here.

Files are written for a `FileTarget` (table, partition and names) and returned as `NewFile`, to be added by a commit.
`write_position_deletes`, `write_equality_deletes` and `write_vectors` write delete files; data files are written by
`pyarctic.iceberg.write.parquet`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.iceberg.write.commit_names import new_file_id, told_snapshot
    from pyarctic.iceberg.write.delete_files import write_equality_deletes, write_position_deletes, write_vectors
    from pyarctic.iceberg.write.new_file import FileNames, FileTarget, NewFile, random_id
    from pyarctic.iceberg.write.properties import positive_property
    from pyarctic.iceberg.write.puffin import Blob, read_blob, write_statistics
    from pyarctic.iceberg.write.rolling import ROLL_TOLERANCE, RollingPolicy

__all__ = [
    "ROLL_TOLERANCE",
    "Blob",
    "FileNames",
    "FileTarget",
    "NewFile",
    "RollingPolicy",
    "new_file_id",
    "positive_property",
    "random_id",
    "read_blob",
    "told_snapshot",
    "write_equality_deletes",
    "write_position_deletes",
    "write_statistics",
    "write_vectors",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "commit_names": ("new_file_id", "told_snapshot"),
        "delete_files": ("write_equality_deletes", "write_position_deletes", "write_vectors"),
        "new_file": ("FileNames", "NewFile", "FileTarget", "random_id"),
        "properties": ("positive_property",),
        "puffin": ("Blob", "read_blob", "write_statistics"),
        "rolling": ("ROLL_TOLERANCE", "RollingPolicy"),
    },
)
