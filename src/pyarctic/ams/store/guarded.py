"""A store for one holder of the lease: when another one has it, nothing is written any more."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from pyarctic.ams.rows import EventRow
from pyarctic.ams.store.port import Lease, Store, Transaction


class GuardedStore:
    """A `Store` whose transactions are those of a lease. What began under an earlier lease keeps its guard, also in the
    same process."""

    def __init__(self, store: Store, lease: int) -> None:
        self._store = store
        self._lease = lease

    def begin(self, lease: int | None = None) -> AbstractContextManager[Transaction]:
        return self._store.begin(self._lease if lease is None else lease)

    def read(self) -> AbstractContextManager[Transaction]:
        return self._store.read()

    def lease(self) -> Lease:
        return self._store.lease()

    def hold_lease(self, holder: str, url: str, seconds: float) -> Lease:
        return self._store.hold_lease(holder, url, seconds)

    def release_lease(self, number: int) -> None:
        self._store.release_lease(number)

    def events_after(self, number: int, limit: int = 1000) -> Sequence[EventRow]:
        return self._store.events_after(number, limit)

    def close(self) -> None:
        self._store.close()
