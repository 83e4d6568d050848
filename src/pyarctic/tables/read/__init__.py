"""Reading keyed tables: merged rows, changes in order, and splits for many readers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.tables.read.change_stream import ChangeStream, ReadLimits, StreamPosition
    from pyarctic.tables.read.foreign_files import IS_FOREIGN, order_foreign_files, restore_foreign_order
    from pyarctic.tables.read.key_groups import (
        competing_base_files,
        has_concurrent_inserts,
        rank_transactions,
        select_unmerged,
        split_by_key_ranges,
        with_key_ranges,
    )
    from pyarctic.tables.read.latest_versions import KeyVersions
    from pyarctic.tables.read.merged_file import MergedBaseFile, MergedChangeFile, MergedFile, resolve, resolve_foreign
    from pyarctic.tables.read.merged_scan import check_files
    from pyarctic.tables.read.splits import ReadPlan, Split, SplitReader, SplitSizes, plan_splits

__all__ = [
    "IS_FOREIGN",
    "ChangeStream",
    "KeyVersions",
    "MergedBaseFile",
    "MergedChangeFile",
    "MergedFile",
    "ReadLimits",
    "ReadPlan",
    "Split",
    "SplitReader",
    "SplitSizes",
    "StreamPosition",
    "check_files",
    "competing_base_files",
    "has_concurrent_inserts",
    "order_foreign_files",
    "plan_splits",
    "rank_transactions",
    "resolve",
    "resolve_foreign",
    "restore_foreign_order",
    "select_unmerged",
    "split_by_key_ranges",
    "with_key_ranges",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "change_stream": ("ChangeStream", "ReadLimits", "StreamPosition"),
        "foreign_files": ("IS_FOREIGN", "order_foreign_files", "restore_foreign_order"),
        "key_groups": (
            "competing_base_files",
            "split_by_key_ranges",
            "has_concurrent_inserts",
            "rank_transactions",
            "select_unmerged",
            "with_key_ranges",
        ),
        "latest_versions": ("KeyVersions",),
        "merged_file": ("MergedBaseFile", "MergedChangeFile", "MergedFile", "resolve", "resolve_foreign"),
        "merged_scan": ("check_files",),
        "splits": ("ReadPlan", "Split", "SplitReader", "SplitSizes", "plan_splits"),
    },
)
