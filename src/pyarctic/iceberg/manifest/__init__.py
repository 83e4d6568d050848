"""Reading manifests: the live files of a snapshot as one frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.iceberg.manifest.file_list import (
        CONTENT_KIND,
        FILE_IDENTITY,
        IS_DATA,
        IS_VECTOR,
        FileList,
        changed_files,
        snapshot_by_id,
    )
    from pyarctic.iceberg.manifest.partition_keys import INTEGER_TYPES, PartitionDecoder
    from pyarctic.iceberg.manifest.reader import EQUALITY_DELETES, FILE_SCHEMA, POSITION_DELETES, ManifestReader

__all__ = [
    "CONTENT_KIND",
    "EQUALITY_DELETES",
    "FILE_IDENTITY",
    "FILE_SCHEMA",
    "INTEGER_TYPES",
    "IS_DATA",
    "IS_VECTOR",
    "POSITION_DELETES",
    "FileList",
    "ManifestReader",
    "PartitionDecoder",
    "changed_files",
    "snapshot_by_id",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "file_list": (
            "CONTENT_KIND",
            "FILE_IDENTITY",
            "FileList",
            "IS_DATA",
            "IS_VECTOR",
            "changed_files",
            "snapshot_by_id",
        ),
        "partition_keys": ("INTEGER_TYPES", "PartitionDecoder"),
        "reader": ("EQUALITY_DELETES", "FILE_SCHEMA", "ManifestReader", "POSITION_DELETES"),
    },
)
