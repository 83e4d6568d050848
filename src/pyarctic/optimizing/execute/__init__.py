"""Executing tasks: engines, worker processes, and the files of failed attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.optimizing.execute.attempt_files import remove_attempt_files
    from pyarctic.optimizing.execute.engines import (
        MAX_ATTEMPTS,
        POLL_SECONDS,
        Engine,
        LocalEngine,
        Storage,
    )

__all__ = ["MAX_ATTEMPTS", "POLL_SECONDS", "Engine", "LocalEngine", "Storage", "remove_attempt_files"]

__getattr__ = lazy_exports(
    __name__,
    {
        "attempt_files": ("remove_attempt_files",),
        "engines": ("Engine", "POLL_SECONDS", "LocalEngine", "MAX_ATTEMPTS", "Storage"),
    },
)
