"""How often and how long commits are tried again.

An attempt that lost against another commit is tried again until the deadline: somebody has made progress, and the next one
may be ours. A catalog that does not answer, or refuses although nobody else has committed, is tried a few times only.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

from pyiceberg.table.metadata import TableMetadata

from pyarctic.iceberg.write.properties import non_negative_property

_RETRIES = "commit.retry.num-retries"
_DEFAULT_RETRIES = 4
_LEAST_WAIT = 0.005
"""The shortest limit of a wait, in seconds, however many races were lost."""
_DEFAULT_SECONDS = 300
"""Under fair competition a commit gets through within seconds; and a caller can wait for minutes only."""


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """The limits of one commit, from the properties of the table."""

    max_retries: int | None
    """Of all kinds together; None: lost races are not counted."""
    min_wait: float
    max_wait: float
    total_seconds: float
    deadline: float
    """On the monotonic clock: no attempt begins after it."""

    @classmethod
    def of(cls, metadata: TableMetadata) -> Self:
        """The policy of a commit that begins now."""
        properties = metadata.properties
        seconds = non_negative_property(properties, "commit.retry.total-timeout-ms", _DEFAULT_SECONDS * 1000) / 1000
        return cls(
            max_retries=non_negative_property(properties, _RETRIES, 0) if _RETRIES in properties else None,
            min_wait=non_negative_property(properties, "commit.retry.min-wait-ms", 100) / 1000,
            max_wait=non_negative_property(properties, "commit.retry.max-wait-ms", 60_000) / 1000,
            total_seconds=seconds,
            deadline=time.monotonic() + seconds,
        )

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() > self.deadline

    def ends_after(self, attempts: int, failures: int) -> bool:
        """Whether there is no further attempt. `failures`: the attempts since the last one that lost a race."""
        tries, limit = (failures, _DEFAULT_RETRIES) if self.max_retries is None else (attempts, self.max_retries)
        return tries > limit or self.is_over

    def wait_after_failure(self, failures: int) -> float:
        """Seconds to wait for a catalog that does not answer: doubled each time."""
        longest = min(self.min_wait * 2 ** (failures - 1), self.max_wait)
        return random.uniform(0.5 * longest, longest)  # noqa: S311  # not for cryptography

    def wait_after_lost_race(self, races: int) -> float:
        """Seconds to wait after a commit of others: the more races were lost, the shorter, so that nobody starves. Waits
        differ, so that concurrent commits do not collide again."""
        return random.uniform(0, max(min(self.min_wait, self.max_wait) / races, _LEAST_WAIT))  # noqa: S311

    def races(self, position: Callable[[], object] | None = None) -> Iterator[int]:
        """The numbers of attempts of a change that is planned again after every lost race; waits before each but the first.

        `position` tells where the table is, if an attempt may also fail although nobody else has committed: as far as it has
        not moved since the attempt began, that is a failure of the catalog."""
        races = failures = 0
        for number in itertools.count(1):
            before = position() if position is not None else None
            yield number
            is_race = position is None or position() != before
            races, failures = (races + 1, 0) if is_race else (races, failures + 1)
            if self.ends_after(number, failures):
                return
            time.sleep(self.wait_after_lost_race(races) if is_race else self.wait_after_failure(failures))
