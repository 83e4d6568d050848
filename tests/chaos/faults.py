"""What is done to the processes, and how often it was."""

from __future__ import annotations

import threading
from collections import Counter


class Count:
    """How often each kind of fault has happened. Threads share it."""

    def __init__(self) -> None:
        self._counter: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, kind: str) -> None:
        with self._lock:
            self._counter[kind] += 1

    @property
    def total(self) -> int:
        with self._lock:
            return self._counter.total()

    def by_kind(self) -> dict[str, int]:
        with self._lock:
            return dict(sorted(self._counter.items()))
