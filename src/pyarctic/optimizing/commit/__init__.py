"""Committing finished tasks to native and keyed tables, and rolling back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.optimizing.commit.rollback import Undone, undo_runs

__all__ = ["Undone", "undo_runs"]

__getattr__ = lazy_exports(
    __name__,
    {
        "rollback": ("Undone", "undo_runs"),
    },
)
