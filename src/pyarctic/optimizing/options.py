"""The options of an optimizing process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pyarctic.errors import UsageError
from pyarctic.optimizing.protocol.task import OPTIMIZING_KINDS

KindChoice = Literal["auto", "minor", "major", "full"]
_MEMORY_BYTES = 512 << 20


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a caller may choose.

    >>> Options(kind="full", where="day >= '2026-01-01'").dry_run
    False
    """

    kind: KindChoice = "auto"
    """`auto`: the rules decide for each partition."""
    where: str | None = None
    """Optimize only partitions that may hold rows for which this condition is true."""
    dry_run: bool = False
    verify: bool = False
    """Read all rows twice, and compare the content before and after by hash."""
    ignore_writers: bool = False
    """Also rewrite data files in partitions where other engines change rows."""
    memory_bytes: int = _MEMORY_BYTES
    """The memory of one task."""

    def __post_init__(self) -> None:
        if self.kind not in ("auto", *OPTIMIZING_KINDS):
            raise UsageError(
                f"unknown kind of optimizing: {self.kind!r}", hint=f"One of: auto, {', '.join(OPTIMIZING_KINDS)}."
            )
