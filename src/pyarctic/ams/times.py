"""Times that are stored, and clocks that are set: durations must not depend on it.

What is stored has the time of day, which outlives restarts. When somebody sets the clock of the machine, that is noticed by
the clock that cannot be set. From then on it is as after a restart: what began before has its full time again, and what was
put off beyond its longest wait is due.
"""

from __future__ import annotations

import threading
from datetime import datetime, timedelta

from pyarctic.clock import Clock
from pyarctic.logs import get_logger

_log = get_logger(__name__)
_JUMP_SECONDS = 5.0
"""Smaller differences are corrections of a clock that goes a bit wrong."""
_JUST_NOW = timedelta(seconds=_JUMP_SECONDS)
"""Another thread may have asked for the time a moment later."""


class WatchedClock:
    """A clock that notices when it is set."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.since = clock.now()
        """When the service started, took over, or found that its clock had been set."""
        self._offset = self.since.timestamp() - clock.monotonic()

    def restart(self) -> None:
        """The service starts, or takes over."""
        with self._lock:
            self.since = self._clock.now()

    def now(self) -> datetime:
        """The time of day."""
        with self._lock:
            now = self._clock.now()
            offset = now.timestamp() - self._clock.monotonic()
            jump, self._offset = offset - self._offset, offset
            if abs(jump) > _JUMP_SECONDS:
                self.since = now
                _log.warning("clock_set", seconds=round(jump))
        return now

    def monotonic(self) -> float:
        """Seconds of a clock that nobody sets."""
        return self._clock.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        self._clock.sleep(seconds)


def begun(at: datetime, since: datetime, now: datetime) -> datetime:
    """When something began whose time runs from `since` on at the earliest. A time to come was told by another clock."""
    at = now if now < at <= now + _JUST_NOW else at
    return at if since <= at <= now else since


def is_due(at: datetime, now: datetime, longest: timedelta) -> bool:
    """Whether the time has come for something that never waits for longer than that."""
    return at <= now or at - now > longest
