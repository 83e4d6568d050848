"""`arctic` with a clock that jumps: it is ahead of the machine's by the seconds in the file `$CHAOS_CLOCK`."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyarctic.cli.app import main
from pyarctic.clock import SystemClock

_OFFSET = Path(os.environ["CHAOS_CLOCK"])


class JumpingClock(SystemClock):
    def now(self) -> datetime:
        try:
            ahead = float(_OFFSET.read_text())
        except (OSError, ValueError):  # it is just being written
            ahead = 0.0
        return datetime.now(UTC) + timedelta(seconds=ahead)


if __name__ == "__main__":
    # Every part of the service takes the time from this class.
    SystemClock.now = JumpingClock.now  # type: ignore[method-assign, assignment]
    sys.exit(main(sys.argv[1:]))
