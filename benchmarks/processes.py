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
    """The cost of a piece of work over all processes; `worker_mb` is the memory of the largest worker process, `main_mb`
    that of the process which started it."""

    cpu_seconds: float
    wall_seconds: float
    peak_mb: float
    worker_mb: float
    main_mb: float = 0.0

    def __str__(self) -> str:
        times = f"{self.cpu_seconds:.2f} s CPU, {self.wall_seconds:.1f} s"
        return f"{times}, {self.peak_mb:,.0f} MB, a worker {self.worker_mb:,.0f} MB"


def tree(pid: int) -> list[int]:
    """The process and all its live descendants."""
    processes, pending = [], [pid]
    while pending:
        parent = pending.pop()
        processes.append(parent)
        # Children are listed under the thread that started them; a thread may end at any time.
        for thread in _list_folder(Path("/proc", str(parent), "task")):
            pending += [int(child) for child in _read_text(thread / "children").split()]
    return processes


def cpu_seconds(pid: int) -> float:
    """CPU seconds of the process and its children so far, including children that ended and were waited for."""
    return sum(_ticks(process) for process in tree(pid)) / _TICKS


class MemoryWatch:
    """Samples the memory of a process and its children: `with MemoryWatch(pid) as watch: …`, then the highest values."""

    def __init__(self, pid: int) -> None:
        self.total_mb = 0.0
        """All processes together; pages that they share, such as those of libraries, are counted once."""
        self.own_mb = 0.0
        """The process without its children."""
        self.child_mb = 0.0
        """The largest child; zero without children."""
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
        pids = tree(self._pid)
        own, *children = (_memory_mb(pid) for pid in pids)
        self.own_mb = max(self.own_mb, own[0])
        self.total_mb = max(self.total_mb, sum(_share_mb(pid) for pid in pids))
        self.child_mb = max([self.child_mb, *(high for _, high in children)])


def _ticks(pid: int) -> int:
    # The name in parentheses may contain spaces; after it come user and system time, of itself and of waited-for children.
    fields = _read_text(Path("/proc", str(pid), "stat")).rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15])


def _memory_mb(pid: int) -> tuple[float, float]:
    """Resident memory now, and its peak."""
    values = dict(line.split(":", 1) for line in _read_text(Path("/proc", str(pid), "status")).splitlines())
    now, high = (int(values.get(name, "0 kB").split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
    return now, high


def _share_mb(pid: int) -> float:
    """Resident memory; a page of several processes is counted in part for each."""
    values = dict(line.split(":", 1) for line in _read_text(Path("/proc", str(pid), "smaps_rollup")).splitlines()[1:])
    return int(values.get("Pss", "0 kB").split()[0]) / 1024


def _list_folder(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _read_text(path: Path) -> str:
    """The text of the file; empty if the process has ended."""
    try:
        return path.read_text()
    except OSError:
        return ""
