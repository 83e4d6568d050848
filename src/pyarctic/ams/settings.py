"""The settings of the service, with their defaults."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from pyarctic.ams.tasks import AttemptPolicy

if TYPE_CHECKING:
    from pyarctic.config import ServiceSection

_GRACE = 3
"""Optimizers without an answer end their attempts after the time-out of heartbeats: after three of them nobody writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """How often the service looks at tables, how long it waits, and what it keeps."""

    include: tuple[str, ...] = ("*",)
    """Globs of the tables that are watched."""
    exclude: tuple[str, ...] = ()
    discover_interval: timedelta = timedelta(minutes=10)
    refresh_interval: timedelta = timedelta(minutes=10)
    """Of each table at first. It adapts between `min_refresh_interval` and `max_refresh_interval`."""
    min_refresh_interval: timedelta = timedelta(minutes=1)
    max_refresh_interval: timedelta = timedelta(hours=1)
    refresh_threads: int = 4
    min_plan_interval: timedelta = timedelta(minutes=1)
    """The least time between two plans of a table that periodic looks lead to."""
    task_memory_bytes: int = 512 << 20
    queue_capacity: int = 1000
    """So many tasks may wait: beyond that, new processes wait."""
    attempts: AttemptPolicy = field(default_factory=AttemptPolicy)
    heartbeat_timeout: timedelta = timedelta(minutes=1)
    """An optimizer that is silent for so long is lost, or for three of its heartbeats if that is longer."""
    keep_interval: timedelta = timedelta(seconds=5)
    commit_interval: timedelta = timedelta(minutes=5)
    """The least time between two commits of a table, unless its property says otherwise."""
    commit_threads: int = 4
    commit_retry: timedelta = timedelta(seconds=5)
    """When to try again after a catalog or storage did not answer."""
    dead_attempt_grace: timedelta = timedelta(minutes=3)
    """How long an attempt that does not count any more may still write files."""
    keep_plans: timedelta = timedelta(hours=24)
    keep_history: timedelta = timedelta(days=30)

    def excludes(self, name: str) -> bool:
        """Whether the table is excluded from those that are included."""
        return any(fnmatch.fnmatchcase(name, each) for each in self.exclude)

    @classmethod
    def of(cls, section: ServiceSection) -> Self:
        """The settings of a configuration file."""
        refresh, optimizer, retry = section.refresh_tables, section.optimizer, section.retry
        return cls(
            include=section.tables.include,
            exclude=section.tables.exclude,
            discover_interval=refresh.discover_interval,
            refresh_interval=refresh.interval,
            min_refresh_interval=refresh.min_interval,
            max_refresh_interval=refresh.max_interval,
            refresh_threads=refresh.threads,
            min_plan_interval=section.planning.min_plan_interval,
            attempts=AttemptPolicy(
                acknowledge_timeout=optimizer.task_ack_timeout,
                progress_timeout=optimizer.task_progress_timeout,
                execute_timeout=optimizer.task_execute_timeout,
                retry_interval=retry.interval,
                max_retries=retry.max,
            ),
            heartbeat_timeout=optimizer.heart_beat_timeout,
            keep_interval=retry.scan,
            commit_interval=section.commit.interval,
            commit_threads=section.commit.threads,
            dead_attempt_grace=_GRACE * optimizer.heart_beat_timeout,
            keep_history=section.history.keep,
        )
