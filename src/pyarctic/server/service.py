"""The service behind the routes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, cast

from fastapi import Depends, Request

from pyarctic.ams import Ams
from pyarctic.errors import Unavailable
from pyarctic.server.waits import Waits

PREFIX = "/api/v1"
_EVALUATIONS = 12
"""Of the forty threads for requests. The others are left to heartbeats: an optimizer that is not heard is lost."""


class Evaluations:
    """Places for requests that read the files of a table's metadata, which may take minutes."""

    def __init__(self) -> None:
        self._places = threading.Semaphore(_EVALUATIONS)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Take one; raises Unavailable if there is none."""
        if not self._places.acquire(blocking=False):
            raise Unavailable(f"{_EVALUATIONS} tables are being evaluated for others", hint="Try again in a moment.")
        try:
            yield
        finally:
            self._places.release()


# Coroutines, although they wait for nothing: FastAPI would call functions in a thread each.
async def _service(request: Request) -> Ams:
    return cast("Ams", request.app.state.ams)


async def _waits(request: Request) -> Waits:
    return cast("Waits", request.app.state.waits)


async def _evaluations(request: Request) -> Evaluations:
    return cast("Evaluations", request.app.state.evaluations)


Service = Annotated[Ams, Depends(_service)]
RequestWaits = Annotated[Waits, Depends(_waits)]
Places = Annotated[Evaluations, Depends(_evaluations)]
