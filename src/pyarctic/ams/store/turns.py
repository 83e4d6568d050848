"""Writers take turns: all transactions of a store that write follow one another."""

from __future__ import annotations

import threading
from types import TracebackType


class Turn:
    """A lock that tells a thread which would wait for itself."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: int | None = None

    def __enter__(self) -> None:
        if self._holder == threading.get_ident():
            raise RuntimeError("this thread has a transaction that has not ended")
        self._lock.acquire()
        self._holder = threading.get_ident()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._holder = None
        self._lock.release()
