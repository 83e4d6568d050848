"""Commands that run until a signal ends them, in good order."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def at_signals(handler: Callable[[], None]) -> Iterator[None]:
    """Call `handler` at SIGINT and SIGTERM: within the block they raise nothing."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda *_: handler())
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
