"""Reading keyed tables: merged rows, changes in order, and splits for many readers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.tables.read.change_stream import ChangeStream, Limits, Position
    from pyarctic.tables.read.key_groups import base_words, by_key_ranges, has_rivals, ranked, unmerged, with_key_ranges
    from pyarctic.tables.read.latest_versions import Words
    from pyarctic.tables.read.merged_file import BaseFile, InsertFile, Judged, PrimaryKey, judge
    from pyarctic.tables.read.merged_scan import checked_files
    from pyarctic.tables.read.splits import Division, Portion, Portions, Sizes, divided

__all__ = [
    "BaseFile",
    "ChangeStream",
    "Division",
    "InsertFile",
    "Judged",
    "Limits",
    "Portion",
    "Portions",
    "Position",
    "PrimaryKey",
    "Sizes",
    "Words",
    "base_words",
    "by_key_ranges",
    "checked_files",
    "divided",
    "has_rivals",
    "judge",
    "ranked",
    "unmerged",
    "with_key_ranges",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "change_stream": ("ChangeStream", "Limits", "Position"),
        "key_groups": ("base_words", "by_key_ranges", "has_rivals", "ranked", "unmerged", "with_key_ranges"),
        "latest_versions": ("Words",),
        "merged_file": ("BaseFile", "InsertFile", "Judged", "PrimaryKey", "judge"),
        "merged_scan": ("checked_files",),
        "splits": ("Division", "Portion", "Portions", "Sizes", "divided"),
    },
)
