"""The on-disk format of keyed tables: store properties, file names, tree nodes, key hashes, merged sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.tables.format.change_columns import FILE_OFFSET, read_change_files
    from pyarctic.tables.format.file_names import (
        StoreFileNames,
        StorePaths,
        StoreTarget,
        parse_change_file_names,
        parse_file_names,
    )
    from pyarctic.tables.format.merged_sequence import (
        merge_times,
        merged_sequences,
        record_merged_sequences,
        statistics_folder,
    )
    from pyarctic.tables.format.primary_key import PrimaryKey
    from pyarctic.tables.format.store_properties import BASE_BUCKETS, CHANGE_BUCKETS, check_spec, key_ids, tree_mask
    from pyarctic.tables.format.transactions import find_open_transactions, may_hide_transactions, select_mergeable
    from pyarctic.tables.format.tree import ROOT, Node, assign_roots, node_masks

__all__ = [
    "BASE_BUCKETS",
    "CHANGE_BUCKETS",
    "FILE_OFFSET",
    "ROOT",
    "Node",
    "PrimaryKey",
    "StoreFileNames",
    "StorePaths",
    "StoreTarget",
    "assign_roots",
    "check_spec",
    "find_open_transactions",
    "key_ids",
    "may_hide_transactions",
    "merge_times",
    "merged_sequences",
    "node_masks",
    "parse_change_file_names",
    "parse_file_names",
    "read_change_files",
    "record_merged_sequences",
    "select_mergeable",
    "statistics_folder",
    "tree_mask",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "change_columns": ("FILE_OFFSET", "read_change_files"),
        "file_names": ("StoreFileNames", "StorePaths", "StoreTarget", "parse_change_file_names", "parse_file_names"),
        "merged_sequence": ("merge_times", "merged_sequences", "record_merged_sequences", "statistics_folder"),
        "primary_key": ("PrimaryKey",),
        "store_properties": ("BASE_BUCKETS", "CHANGE_BUCKETS", "check_spec", "key_ids", "tree_mask"),
        "transactions": ("may_hide_transactions", "select_mergeable", "find_open_transactions"),
        "tree": ("Node", "ROOT", "assign_roots", "node_masks"),
    },
)
