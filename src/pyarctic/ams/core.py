"""What all loops of the service share."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from pyarctic.ams.settings import ServiceSettings
from pyarctic.ams.store import Store
from pyarctic.ams.times import WatchedClock
from pyarctic.iceberg.catalog import catalog_names
from pyarctic.tables import Table, find_tables_in, open_table

Bell = Literal["looks", "commits", "tasks", "cleaning"]


class Catalogs(Protocol):
    """The tables of all catalogs."""

    def names(self) -> Sequence[str]:
        """The names of all catalogs."""
        ...

    def find(self, catalog: str, include: Sequence[str]) -> Sequence[str]:
        """The names of the tables of a catalog that match one of these globs."""
        ...

    def open(self, name: str) -> Table:
        """A handle of a table, for one thread."""
        ...


class ConfiguredCatalogs:
    """Those of the configuration."""

    def names(self) -> Sequence[str]:
        """The names of all catalogs."""
        return catalog_names()

    def find(self, catalog: str, include: Sequence[str]) -> Sequence[str]:
        """The names of the tables of a catalog that match one of these globs."""
        return find_tables_in(catalog, include)

    def open(self, name: str) -> Table:
        """A handle of a table, for one thread."""
        return open_table(name)


class Bells:
    """Wakes those who wait for something to do: what is stored is found by whoever is woken. A missed ring does no harm,
    because everybody looks from time to time anyway."""

    def __init__(self) -> None:
        self._listeners: dict[Bell, list[Callable[[], None]]] = defaultdict(list)
        self._lock = threading.Lock()

    def listen(self, bell: Bell, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` at every ring; it must not block. Gives a function that ends it."""
        with self._lock:
            self._listeners[bell].append(listener)

        def stop() -> None:
            with self._lock:
                self._listeners[bell].remove(listener)

        return stop

    def ring(self, bell: Bell) -> None:
        """There is something to do."""
        with self._lock:
            listeners = list(self._listeners[bell])
        for listener in listeners:
            listener()


class TableLocks:
    """One piece of work at a time for each table."""

    def __init__(self) -> None:
        self._busy: set[str] = set()
        self._lock = threading.Lock()

    @contextmanager
    def try_hold(self, table_uuid: str) -> Iterator[bool]:
        """Tells whether nobody else works on the table; if so, nobody begins to within the block."""
        with self._lock:
            is_free = table_uuid not in self._busy
            if is_free:
                self._busy.add(table_uuid)
        try:
            yield is_free
        finally:
            if is_free:
                with self._lock:
                    self._busy.discard(table_uuid)


@dataclass(frozen=True, kw_only=True)
class Core:
    """The database, the catalogs, the time, and the settings."""

    store: Store
    catalogs: Catalogs
    settings: ServiceSettings
    clock: WatchedClock
    bells: Bells = field(default_factory=Bells)

    @property
    def since(self) -> datetime:
        """When the service started, or its clock was set: deadlines from before get their full time again."""
        return self.clock.since
