"""Checking Iceberg tables: references, sizes, footers, bounds, deletes, totals, sequence numbers, row ids and pages.

`StoreCheck` checks one table and gives its problems as a frame (PROBLEM_SCHEMA), each with the code of one of the KINDS. A
damaged file does not end a check; storage that does not answer does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.iceberg.check.manifests import SnapshotFiles
    from pyarctic.iceberg.check.problems import (
        KINDS,
        PROBLEM_SCHEMA,
        Kind,
        Problem,
        Severity,
        join_problems,
        problem_frame,
        problems_of,
    )
    from pyarctic.iceberg.check.snapshots import check_summary, find_dangling_deletes
    from pyarctic.iceberg.check.store_check import CheckedStore, CheckListener, StoreCheck

__all__ = [
    "KINDS",
    "PROBLEM_SCHEMA",
    "CheckListener",
    "CheckedStore",
    "Kind",
    "Problem",
    "Severity",
    "SnapshotFiles",
    "StoreCheck",
    "check_summary",
    "find_dangling_deletes",
    "join_problems",
    "problem_frame",
    "problems_of",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "manifests": ("SnapshotFiles",),
        "problems": (
            "KINDS",
            "Kind",
            "PROBLEM_SCHEMA",
            "Problem",
            "Severity",
            "join_problems",
            "problem_frame",
            "problems_of",
        ),
        "snapshots": ("check_summary", "find_dangling_deletes"),
        "store_check": ("CheckListener", "CheckedStore", "StoreCheck"),
    },
)
