"""SIGTERM as an exception, so that work is cleaned up as after Ctrl-C."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """The process was asked to end by SIGTERM."""


@contextmanager
def raise_on_sigterm() -> Iterator[threading.Event]:
    """Raise `Terminated` in the main thread when SIGTERM arrives. Later signals are ignored while that exception is handled,
    so that they do not interrupt the cleaning; if somebody has swallowed it, it is raised again. Whoever has a handler of
    their own keeps it, and threads cannot have any. The event is set when it was raised."""
    terminated = threading.Event()
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield terminated
        return

    def terminate(_number: int, _frame: FrameType | None) -> None:
        if not _is_handled():
            terminated.set()
            raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield terminated
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def end_by_sigterm() -> Iterator[None]:
    """The same for a library: after the cleaning this process ends by the signal, as whoever sent it expects. So it does if
    the cleaning failed, or if somebody has swallowed the exception."""
    terminated = threading.Event()
    try:
        with raise_on_sigterm() as terminated:
            yield
    finally:
        if terminated.is_set():  # here, and not in a handler of the caller
            signal.raise_signal(signal.SIGTERM)


def _is_handled() -> bool:
    """Whether `Terminated` is being handled at this moment, or an exception that was raised meanwhile."""
    error = sys.exception()
    while error is not None and not isinstance(error, Terminated):
        error = error.__context__
    return error is not None
