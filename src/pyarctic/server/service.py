"""The service behind the routes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, cast

from fastapi import Depends, Request

from pyarctic.ams import Ams, Leadership
from pyarctic.errors import Unavailable
from pyarctic.server.waits import Waits

PREFIX = "/api/v1"


class CatalogPlaces:
    """Places for requests that ask catalogs, which may take minutes, or hang. All of them together leave some of the forty
    threads for requests to heartbeats: an optimizer that is not heard is lost. Those of one catalog leave some places to the
    others."""

    def __init__(self, what: str, places: int, of_catalog: int) -> None:
        """`what` they do: "evaluated"."""
        self._what = what
        self._places = places
        self._of_catalog = of_catalog
        self._taken: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def place(self, catalog: str) -> Iterator[None]:
        """Take one; raises Unavailable if there is none."""
        with self._lock:
            if self._taken.total() >= self._places or self._taken[catalog] >= self._of_catalog:
                taken = f"{self._taken.total()} tables, {self._taken[catalog]} of them in {catalog}"
                raise Unavailable(f"{taken}, are being {self._what} for others", hint="Try again in a moment.")
            self._taken[catalog] += 1
        try:
            yield
        finally:
            with self._lock:
                self._taken -= Counter((catalog,))


def evaluation_places() -> CatalogPlaces:
    """For requests that read the files of a table's metadata."""
    return CatalogPlaces("evaluated", places=12, of_catalog=8)


def opening_places() -> CatalogPlaces:
    """For requests that only open a table."""
    return CatalogPlaces("opened", places=12, of_catalog=8)


# Coroutines, although they wait for nothing: FastAPI would call functions in a thread each.
async def _service(request: Request) -> Ams:
    return cast("Ams", request.app.state.ams)


async def _leadership(request: Request) -> Leadership | None:
    return cast("Leadership | None", request.app.state.leadership)


async def _waits(request: Request) -> Waits:
    return cast("Waits", request.app.state.waits)


async def _evaluations(request: Request) -> CatalogPlaces:
    return cast("CatalogPlaces", request.app.state.evaluations)


async def _openings(request: Request) -> CatalogPlaces:
    return cast("CatalogPlaces", request.app.state.openings)


Service = Annotated[Ams, Depends(_service)]
Lead = Annotated[Leadership | None, Depends(_leadership)]
RequestWaits = Annotated[Waits, Depends(_waits)]
Evaluations = Annotated[CatalogPlaces, Depends(_evaluations)]
Openings = Annotated[CatalogPlaces, Depends(_openings)]
