"""Crews: threads that work on several tables at a time, and not on those of one catalog alone."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pyarctic.logs import get_logger

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """What to work on, and the catalog that is asked for it."""

    key: str
    catalog: str


@dataclass(frozen=True, slots=True)
class Work:
    """A job that somebody works on."""

    job: Job
    begun_at: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """For how long."""
        return time.monotonic() - self.begun_at


class Crew:
    """Works on several jobs at a time, on each once at a time. A catalog that hangs never has all threads: one is left to
    the others. The threads are daemons, because a call that hangs must not keep the process from ending."""

    def __init__(self, name: str, threads: int | None, work: Callable[[str], object]) -> None:
        """`work` is called with the keys of jobs. One thread is two, of which a catalog has one at most. None: as many as
        there are jobs."""
        self.name = name
        self._most_threads = None if threads is None else max(threads, 2)
        self._most_of_catalog = None if threads is None else max(threads - 1, 1)
        self._work = work
        self._waiting: dict[str, Job] = {}
        self._running: dict[str, Work] = {}
        self._threads: list[threading.Thread] = []
        self._is_stopped = False
        self._changed = threading.Condition()

    @property
    def running(self) -> list[Work]:
        """What is worked on now, the oldest first."""
        with self._changed:
            return list(self._running.values())

    @property
    def blocked_seconds(self) -> float:
        """For how long nothing could begin because all threads are busy."""
        running = self.running
        return running[-1].seconds if len(running) == self._most_threads else 0.0

    def take(self, jobs: Iterable[Job]) -> None:
        """Work on these, in this order, unless somebody does already. Jobs from before that have not begun are forgotten:
        whoever calls tells all that is to be done now."""
        taken = {job.key: job for job in jobs}
        with self._changed:
            if self._is_stopped:
                return
            self._waiting = {key: job for key, job in taken.items() if key not in self._running}
            self._add_threads(len(self._running) + len(self._waiting))
            self._changed.notify_all()

    def _add_threads(self, wanted: int) -> None:
        most = wanted if self._most_threads is None else min(wanted, self._most_threads)
        while len(self._threads) < most:
            thread = threading.Thread(target=self._run, name=f"arctic-{self.name}-{len(self._threads)}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _run(self) -> None:
        while (job := self._begin()) is not None:
            try:
                self._work(job.key)
            except Exception as error:  # noqa: BLE001  # the database does not answer: it is tried again
                reason = f"{type(error).__name__}: {error}"
                _log.error("work_failed", crew=self.name, key=job.key, catalog=job.catalog, reason=reason, error=error)
            finally:
                with self._changed:
                    del self._running[job.key]
                    self._changed.notify_all()

    def _begin(self) -> Job | None:
        """The next job, as soon as there is one; None: it is over."""
        with self._changed:
            while not self._is_stopped:
                if (job := self._next()) is not None:
                    del self._waiting[job.key]
                    self._running[job.key] = Work(job)
                    return job
                self._changed.wait()
        return None

    def _next(self) -> Job | None:
        """The first job of the catalog that is worked on least."""
        running = Counter(work.job.catalog for work in self._running.values())
        most = self._most_of_catalog
        free = (job for job in self._waiting.values() if most is None or running[job.catalog] < most)
        return min(free, key=lambda job: running[job.catalog], default=None)

    def stop(self) -> None:
        """Begin nothing more."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def join(self, seconds: float) -> bool:
        """Wait for the end of what is begun."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, seconds)
