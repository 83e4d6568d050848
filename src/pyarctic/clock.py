"""Time as a port: decisions get the time as a value, loops wait through a clock that tests can replace."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Tells the time, and waits."""

    def now(self) -> datetime:
        """The time of day, with its zone."""
        ...

    def monotonic(self) -> float:
        """Seconds of a clock that nobody sets, for durations."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        """The time of day in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds of a clock that nobody sets, for durations."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
