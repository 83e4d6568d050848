"""Reading manifests and manifest lists.

`FileList` is the main entry point: the live files of a snapshot as one Polars frame (see FILE_SCHEMA), refreshed by reading
only new manifests. `ManifestReader` reads single manifests, `changed_files` compares two snapshots, and `PartitionDecoder`
decodes partition keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.iceberg.manifest.expired_history import SnapshotHistory, load_history_of
    from pyarctic.iceberg.manifest.file_list import (
        CONTENT_KIND,
        FILE_IDENTITY,
        IS_DATA,
        IS_VECTOR,
        FileList,
        ManifestReader,
        ReadManifests,
        ancestors,
        changed_files,
        files_changed_by,
        snapshot_by_id,
    )
    from pyarctic.iceberg.manifest.partition_keys import INTEGER_TYPES, PARTITION_KEY, PartitionDecoder, find_lost_values
    from pyarctic.iceberg.manifest.reader import EQUALITY_DELETES, FILE_SCHEMA, POSITION_DELETES

__all__ = [
    "CONTENT_KIND",
    "EQUALITY_DELETES",
    "FILE_IDENTITY",
    "FILE_SCHEMA",
    "INTEGER_TYPES",
    "IS_DATA",
    "IS_VECTOR",
    "PARTITION_KEY",
    "POSITION_DELETES",
    "FileList",
    "ManifestReader",
    "PartitionDecoder",
    "ReadManifests",
    "SnapshotHistory",
    "ancestors",
    "changed_files",
    "files_changed_by",
    "find_lost_values",
    "load_history_of",
    "snapshot_by_id",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "expired_history": ("SnapshotHistory", "load_history_of"),
        "file_list": (
            "CONTENT_KIND",
            "FILE_IDENTITY",
            "FileList",
            "IS_DATA",
            "IS_VECTOR",
            "ManifestReader",
            "ReadManifests",
            "ancestors",
            "changed_files",
            "files_changed_by",
            "snapshot_by_id",
        ),
        "partition_keys": ("INTEGER_TYPES", "PARTITION_KEY", "PartitionDecoder", "find_lost_values"),
        "reader": ("EQUALITY_DELETES", "FILE_SCHEMA", "POSITION_DELETES"),
    },
)
