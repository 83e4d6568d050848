"""Iceberg tables beyond what PyIceberg offers: file lists as frames, delete files, scans, writers and commits.

Subpackages: `catalog` opens tables, `manifest` lists their files, `predicate` and `delete` decide which files and rows a
reader needs, `read` reads rows, `write` writes files and `commit` adds them to a table. This package knows the formats of
Iceberg and nothing of keyed tables, optimizing or services; it works with any catalog and storage that PyIceberg supports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.iceberg.storage import (
        AUTH_MANAGER,
        keep_small_files,
        list_folder,
        open_input,
        read_bytes,
        remove_if_incomplete,
        remove_quietly,
        storage_properties,
        write_bytes,
    )
    from pyarctic.iceberg.transforms import apply_transform, internal_type, partition_values, source_column
    from pyarctic.iceberg.wire import file_from_json, file_to_json, frame_from_bytes, frame_to_bytes, trim_metadata

__all__ = [
    "AUTH_MANAGER",
    "apply_transform",
    "file_from_json",
    "file_to_json",
    "frame_from_bytes",
    "frame_to_bytes",
    "internal_type",
    "keep_small_files",
    "list_folder",
    "open_input",
    "partition_values",
    "read_bytes",
    "remove_if_incomplete",
    "remove_quietly",
    "source_column",
    "storage_properties",
    "trim_metadata",
    "write_bytes",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "storage": (
            "AUTH_MANAGER",
            "keep_small_files",
            "list_folder",
            "open_input",
            "read_bytes",
            "remove_quietly",
            "remove_if_incomplete",
            "storage_properties",
            "write_bytes",
        ),
        "transforms": ("apply_transform", "internal_type", "partition_values", "source_column"),
        "wire": ("file_from_json", "file_to_json", "frame_from_bytes", "frame_to_bytes", "trim_metadata"),
    },
)
