"""Catalogs of which one accepts connections and never answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

from pyarctic.ams.rows import TableRow
from pyarctic.ams.states import TableState
from pyarctic.ams.store import Store
from pyarctic.errors import Unavailable
from pyarctic.tables import Table

PATIENCE_SECONDS = 20.0
_HANG_SECONDS = 3 * PATIENCE_SECONDS
HANGING, ANSWERING = "bad", "good"


class HangingCatalogs:
    """Two catalogs with the same tables. Whoever asks the hanging one waits until `release`."""

    def __init__(self, listed: int | None = None, *, hangs_listing: bool = False) -> None:
        """`listed`: how many tables each has; None: neither can be listed."""
        self.opened: list[str] = []
        self._listed = listed
        self._hangs_listing = hangs_listing
        self._is_released = threading.Event()

    def names(self) -> Sequence[str]:
        return [HANGING, ANSWERING]

    def find(self, catalog: str, include: Sequence[str]) -> Sequence[str]:  # noqa: ARG002
        if catalog == HANGING and self._hangs_listing:
            self._hang()
        if self._listed is None:
            raise Unavailable("there is nothing behind this catalog")
        return [f"{catalog}.db.t{number}" for number in range(self._listed)]

    def open(self, name: str) -> Table:
        self.opened.append(name)
        if name.startswith(HANGING):
            self._hang()
        raise Unavailable("there is nothing behind this catalog")

    def release(self) -> None:
        """Let it answer."""
        self._is_released.set()

    def _hang(self) -> None:
        self._is_released.wait(_HANG_SECONDS)

    def asked(self, catalog: str) -> set[str]:
        """The tables of a catalog that were asked for."""
        return {name for name in self.opened if name.startswith(f"{catalog}.")}


def watch(store: Store, catalogs: Iterable[str], tables: int) -> None:
    """Let a service watch tables of these catalogs."""
    with store.begin() as transaction:
        for catalog in catalogs:
            transaction.insert(*(_row(catalog, number) for number in range(tables)))


def _row(catalog: str, number: int) -> TableRow:
    return TableRow(
        uuid=f"{catalog}{number}",
        name=f"{catalog}.db.t{number}",
        catalog=catalog,
        kind="native",
        state=TableState.ACTIVE,
        group="default",
        next_look_at=datetime(2026, 1, 1, tzinfo=UTC),
        look_seconds=600.0,
    )


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for other threads."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)
