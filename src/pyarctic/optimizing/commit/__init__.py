"""Committing finished tasks to native and keyed tables, and rolling back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.optimizing.commit.rollback import Rollback, roll_back

__all__ = ["Rollback", "roll_back"]

__getattr__ = lazy_exports(
    __name__,
    {
        "rollback": ("Rollback", "roll_back"),
    },
)
