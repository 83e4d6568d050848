"""CPU seconds and memory of a process with all its children, from /proc."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

_TICKS = os.sysconf("SC_CLK_TCK")
_SECONDS_BETWEEN_SAMPLES = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a piece of work took, all processes together; `worker_mb` is the memory of the largest one that worked."""

    cpu_seconds: float
    wall_seconds: float
    peak_mb: float
    worker_mb: float

    def __str__(self) -> str:
        times = f"{self.cpu_seconds:.2f} s CPU, {self.wall_seconds:.1f} s"
        return f"{times}, {self.peak_mb:,.0f} MB, a worker {self.worker_mb:,.0f} MB"


def tree(pid: int) -> list[int]:
    """The process and all that descend from it and live."""
    found, pending = [], [pid]
    while pending:
        parent = pending.pop()
        found.append(parent)
        # Children are listed under the thread that started them; any thread may end between two looks.
        for thread in _listed(Path("/proc", str(parent), "task")):
            pending += [int(child) for child in _text(thread / "children").split()]
    return found


def cpu_seconds(pid: int) -> float:
    """CPU seconds of the process and its children so far, with those that ended and were waited for."""
    return sum(_ticks(each) for each in tree(pid)) / _TICKS


class MemoryWatch:
    """Samples the memory of a process and its children: `with MemoryWatch(pid) as watch: …`, then the highest values."""

    def __init__(self, pid: int) -> None:
        self.total_mb = 0.0
        """All processes together; pages that they share are counted for each of them."""
        self.own_mb = 0.0
        """The process without its children."""
        self.child_mb = 0.0
        """The largest child, zero without any."""
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self._sample()
            if self._stop.wait(_SECONDS_BETWEEN_SAMPLES):
                return

    def _sample(self) -> None:
        own, *children = (_memory_mb(pid) for pid in tree(self._pid))
        self.own_mb = max(self.own_mb, own[0])
        self.total_mb = max(self.total_mb, own[0] + sum(now for now, _ in children))
        self.child_mb = max([self.child_mb, *(high for _, high in children)])


def _ticks(pid: int) -> int:
    # The name in parentheses may hold spaces; user, system, and both of children that were waited for come after it.
    fields = _text(Path("/proc", str(pid), "stat")).rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15])


def _memory_mb(pid: int) -> tuple[float, float]:
    """Resident memory now, and the highest ever."""
    values = dict(line.split(":", 1) for line in _text(Path("/proc", str(pid), "status")).splitlines())
    now, high = (int(values.get(name, "0 kB").split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
    return now, high


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    """The file's text; nothing when the process is gone."""
    try:
        return path.read_text()
    except OSError:
        return ""
