"""Waiting without a thread: requests that wait are coroutines, woken by the bells of the service."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from pyarctic.ams import Bell, Bells


@dataclass(eq=False)
class Waiter:
    """One request that waits."""

    _rung: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: bool = False
    """Whether it should be answered now: the server stops, or the same optimizer has asked again."""

    def expect(self) -> None:
        """Count rings from now on. Look afterwards: what was rung for earlier is found then."""
        self._rung.clear()

    async def wait(self, seconds: float) -> None:
        """Until the next ring, or so long."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._rung.wait(), seconds)

    def ring(self) -> None:
        """Wake it."""
        self._rung.set()

    def end(self) -> None:
        """Let it be answered now."""
        self.is_over = True
        self.ring()


class Waits:
    """All requests that wait. Used in the event loop only."""

    def __init__(self, bells: Bells) -> None:
        self._bells = bells
        self._waiters: dict[object, Waiter] = {}
        self._is_stopped = False

    def __len__(self) -> int:
        return len(self._waiters)

    @contextmanager
    def waiting(self, key: object, *bells: Bell) -> Iterator[Waiter]:
        """A waiter for these bells. One that waits under the same key already ends: whoever asks again has given up on the
        earlier answer."""
        waiter, loop = Waiter(is_over=self._is_stopped), asyncio.get_running_loop()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(waiter.ring)

        if (earlier := self._waiters.get(key)) is not None:
            earlier.end()
        self._waiters[key] = waiter
        stops = [self._bells.listen(bell, wake) for bell in bells]
        try:
            yield waiter
        finally:
            for stop in stops:
                stop()
            if self._waiters.get(key) is waiter:
                del self._waiters[key]

    def stop(self) -> None:
        """Answer all that wait: the server stops."""
        self._is_stopped = True
        for waiter in self._waiters.values():
            waiter.end()
