"""The on-disk format of keyed tables: store properties, file names, tree nodes, key hashes, merged sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.tables.format.change_columns import FILE_OFFSET, change_reading
    from pyarctic.tables.format.file_names import StoreFileNames, StorePaths, StoreTarget, with_changes, with_store_facts
    from pyarctic.tables.format.merged_sequence import SUMMARY, merge_times, merged_sequences, write_merged
    from pyarctic.tables.format.store_properties import BASE_BUCKETS, CHANGE_BUCKETS, check_spec, key_ids, write_mask
    from pyarctic.tables.format.transactions import may_hide_transactions, mergeable, open_transactions
    from pyarctic.tables.format.tree import ROOT, Node

__all__ = [
    "BASE_BUCKETS",
    "CHANGE_BUCKETS",
    "FILE_OFFSET",
    "ROOT",
    "SUMMARY",
    "Node",
    "StoreFileNames",
    "StorePaths",
    "StoreTarget",
    "change_reading",
    "check_spec",
    "key_ids",
    "may_hide_transactions",
    "merge_times",
    "mergeable",
    "merged_sequences",
    "open_transactions",
    "with_changes",
    "with_store_facts",
    "write_mask",
    "write_merged",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "change_columns": ("FILE_OFFSET", "change_reading"),
        "file_names": ("StoreFileNames", "StorePaths", "StoreTarget", "with_changes", "with_store_facts"),
        "merged_sequence": ("SUMMARY", "merge_times", "merged_sequences", "write_merged"),
        "store_properties": ("BASE_BUCKETS", "CHANGE_BUCKETS", "check_spec", "key_ids", "write_mask"),
        "transactions": ("may_hide_transactions", "mergeable", "open_transactions"),
        "tree": ("Node", "ROOT"),
    },
)
