"""Executing tasks: engines, worker processes, and the files of attempts that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.optimizing.execute.attempt_files import remove_attempt
    from pyarctic.optimizing.execute.engines import LOOK_SECONDS, MOST_ATTEMPTS, Engine, Listener, LocalEngine, Storage

__all__ = ["LOOK_SECONDS", "MOST_ATTEMPTS", "Engine", "Listener", "LocalEngine", "Storage", "remove_attempt"]

__getattr__ = lazy_exports(
    __name__,
    {
        "attempt_files": ("remove_attempt",),
        "engines": ("Engine", "LOOK_SECONDS", "Listener", "LocalEngine", "MOST_ATTEMPTS", "Storage"),
    },
)
