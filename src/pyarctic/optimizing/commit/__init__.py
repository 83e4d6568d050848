"""Committing finished tasks to native and keyed tables, removing files that nobody needs, and rolling back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.optimizing.commit.closing import close_process
    from pyarctic.optimizing.commit.committer import Committer
    from pyarctic.optimizing.commit.decision import CommitPolicy, NotBefore, Nothing
    from pyarctic.optimizing.commit.log import TABLE_GONE, CommitLog, CommitRecord, FinishedTask, LogStore
    from pyarctic.optimizing.commit.rollback import Rollback, roll_back
    from pyarctic.optimizing.commit.units import CommitUnit, units_of
    from pyarctic.optimizing.commit.unneeded_files import remove_unneeded_files

__all__ = [
    "TABLE_GONE",
    "CommitLog",
    "CommitPolicy",
    "CommitRecord",
    "CommitUnit",
    "Committer",
    "FinishedTask",
    "LogStore",
    "NotBefore",
    "Nothing",
    "Rollback",
    "close_process",
    "remove_unneeded_files",
    "roll_back",
    "units_of",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "closing": ("close_process",),
        "committer": ("Committer",),
        "decision": ("CommitPolicy", "NotBefore", "Nothing"),
        "log": ("TABLE_GONE", "CommitLog", "CommitRecord", "FinishedTask", "LogStore"),
        "rollback": ("Rollback", "roll_back"),
        "units": ("CommitUnit", "units_of"),
        "unneeded_files": ("remove_unneeded_files",),
    },
)
