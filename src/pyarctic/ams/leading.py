"""One service leads: of several with one database the others stand by, and one of them takes over when it is silent."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pyarctic.ams.store import Lease, Store
from pyarctic.errors import ArcticError, NotLeading
from pyarctic.logs import get_logger

_log = get_logger(__name__)
LEASE_SECONDS = 10.0
"""A leader that is silent for so long is followed by another one."""
_TURN_SECONDS = 2.0
"""How often a leader prolongs its lease, and the others look whether it has ended."""


class Leadership:
    """Asks for the lease again and again, in a thread:

        leadership = Leadership(store, holder, begin=ams.start, end=ams.stop)
        leadership.start("http://host:1630")
        ...
        leadership.stop()

    `begin` is called with the number of the lease when this service leads, and `end` when it does not any more. What is
    written with that number is refused by the database as soon as another one has the lease, whatever this service knows."""

    def __init__(
        self,
        store: Store,
        holder: str,
        begin: Callable[[int], None],
        end: Callable[[], None],
        *,
        lease_seconds: float = LEASE_SECONDS,
        turn_seconds: float = _TURN_SECONDS,
    ) -> None:
        """`holder` names this service among all with the database."""
        self._store = store
        self._holder = holder
        self._url = ""
        self._begin = begin
        self._end = end
        self._lease_seconds = lease_seconds
        self._turn_seconds = turn_seconds
        self._number: int | None = None
        """Of the lease that this service has; None: it has none."""
        self._leader_url = ""
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="arctic-lead", daemon=True)

    @property
    def is_leading(self) -> bool:
        """Whether this service leads, as far as it knows."""
        return self._number is not None

    @property
    def leader_url(self) -> str:
        """Where the service is that leads; empty: none does for the moment."""
        return self._leader_url

    def check(self) -> None:
        """Raise NotLeading unless this service leads."""
        if not self.is_leading:
            raise NotLeading.at(self.leader_url)

    def start(self, url: str) -> None:
        """Ask at once, and then go on in a thread. `url`: where this service is reached."""
        self._url = url
        self.take_turn()
        self._thread.start()

    def stop(self) -> None:
        """End what goes on, and let others take over at once."""
        self._is_stopped.set()
        if self._thread.is_alive():
            self._thread.join(self._lease_seconds)
        number = self._number
        if number is not None:
            self._lose("it ends")
            try:
                self._store.release_lease(number)
            except ArcticError as error:  # others have to wait for its end
                _log.warning("lease_not_released", reason=str(error))

    def take_turn(self) -> None:
        """Take, prolong or lose the lease."""
        try:
            lease = self._store.hold_lease(self._holder, self._url, self._lease_seconds)
        except ArcticError as error:  # whoever leads when the database answers again is told then
            _log.warning("lease_not_asked_for", reason=str(error))
            return
        self._leader_url = lease.url if lease.seconds > 0 else ""
        if lease.holder != self._holder:
            self._lose(f"the service at {lease.url} leads")
        elif lease.number != self._number:
            self._lose("another service has led meanwhile")
            self._win(lease)

    def _win(self, lease: Lease) -> None:
        self._number = lease.number
        _log.info("leading", number=lease.number)
        self._begin(lease.number)

    def _lose(self, why: str) -> None:
        if self._number is None:
            return
        _log.info("leading_ended", number=self._number, reason=why)
        self._number = None
        self._end()

    def _run(self) -> None:
        while not self._is_stopped.wait(self._turn_seconds):
            try:
                self.take_turn()
            except Exception as error:  # noqa: BLE001  # of the loops: the lease is asked for again
                _log.error("lease_failed", reason=f"{type(error).__name__}: {error}", error=error)
