"""Executing tasks: engines, worker processes, and the files of attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.optimizing.execute.attempt_files import remove_attempt_files
    from pyarctic.optimizing.execute.engine import CANCELLED, AttemptFuture, Engine, Storage, cancelled, open_engine
    from pyarctic.optimizing.execute.local_engine import LocalEngine

__all__ = [
    "CANCELLED",
    "AttemptFuture",
    "Engine",
    "LocalEngine",
    "Storage",
    "cancelled",
    "open_engine",
    "remove_attempt_files",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "attempt_files": ("remove_attempt_files",),
        "engine": ("CANCELLED", "AttemptFuture", "Engine", "Storage", "cancelled", "open_engine"),
        "local_engine": ("LocalEngine",),
    },
)
