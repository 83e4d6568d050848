"""The service: its loops, and what people ask of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime

from pyarctic.ams.cancelling import cancel
from pyarctic.ams.cleaning import Cleaning
from pyarctic.ams.committing import Commits
from pyarctic.ams.core import Bell, Catalogs, ConfiguredCatalogs, Core
from pyarctic.ams.crews import Crew, Job
from pyarctic.ams.handing import Optimizers, Plans
from pyarctic.ams.keeping import Keeper
from pyarctic.ams.looks import Looks
from pyarctic.ams.processes import move_table, pause_table
from pyarctic.ams.rows import ProcessRow, TableRow
from pyarctic.ams.settings import ServiceSettings
from pyarctic.ams.states import TableState
from pyarctic.ams.store import GuardedStore, Store
from pyarctic.ams.times import WatchedClock
from pyarctic.clock import Clock, SystemClock
from pyarctic.errors import NotFound
from pyarctic.logs import get_logger

_log = get_logger(__name__)
_LOOK_SECONDS = 1.0
"""How often the loops look for something to do that nobody has rung for."""
_LEAST_PAUSE = 0.1
_CLEAN_THREADS = 2
_NOBODY = -1
"""The number of no lease."""
_CLEAN_SECONDS = 30.0
_FORGET_SECONDS = 3600.0
_STOP_SECONDS = 30.0
"""How long the end waits for what is begun. What a catalog holds up for longer is left as after a crash."""


class Loop:
    """Something that is done again and again in a thread: when its bell rings, and after some time anyway. Between two turns
    there is a pause as long as a turn, so that many rings do not take the time of others. An error is logged, and it goes
    on."""

    def __init__(self, name: str, work: Callable[[], None], seconds: float) -> None:
        self.name = name
        self.last_turn = time.monotonic()
        self.errors = 0
        self.last_error: str | None = None
        self._work = work
        self._seconds = seconds
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"arctic-{name}", daemon=True)

    @property
    def overdue_seconds(self) -> float:
        """For how long its next turn is overdue, or the one that is going on lasts beyond that."""
        return max(0.0, time.monotonic() - self.last_turn - self._seconds)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """There is something to do."""
        self._wake.set()

    def stop(self) -> None:
        """End after the turn that is going on."""
        self._stopped.set()
        self._wake.set()

    def join(self, seconds: float) -> bool:
        """Wait for the end."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wake.clear()
            began = time.monotonic()
            try:
                self._work()
            except Exception as error:  # noqa: BLE001  # a loop never ends because of one turn
                self.errors += 1
                self.last_error = f"{type(error).__name__}: {error}"
                _log.error("loop_failed", loop=self.name, reason=self.last_error, error=error)
            self.last_turn = time.monotonic()
            self._stopped.wait(min(max(self.last_turn - began, _LEAST_PAUSE), _LOOK_SECONDS))
            self._wake.wait(self._seconds)


class Ams:
    """The management service, without HTTP:

    ams = Ams(SqlStore.open("sqlite:///arctic.db"))
    ams.start()
    ...
    ams.stop()
    """

    def __init__(
        self,
        store: Store,
        settings: ServiceSettings | None = None,
        catalogs: Catalogs | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self.core = Core(
            store=store,
            catalogs=catalogs or ConfiguredCatalogs(),
            settings=settings or ServiceSettings(),
            clock=WatchedClock(clock or SystemClock()),
        )
        self.loops: list[Loop] = []
        self.crews: list[Crew] = []
        self._stop_listening: list[Callable[[], None]] = []
        self._make_parts()

    def _guard(self, lease: int | None) -> None:
        """New parts, which write under this lease. Work of earlier ones that hangs somewhere keeps theirs."""
        store = self._store if lease is None else GuardedStore(self._store, lease)
        self.core = replace(self.core, store=store)
        self._make_parts()

    def _make_parts(self) -> None:
        plans = Plans()
        self.looks = Looks(self.core, plans)
        self.optimizers = Optimizers(self.core, plans)
        self.commits = Commits(self.core, plans)
        self.keeper = Keeper(self.core)
        self.cleaning = Cleaning(self.core, plans)

    def stand_by(self) -> None:
        """Only read, until it is started: another service leads."""
        self._guard(_NOBODY)

    def start(self, lease: int | None = None) -> None:
        """Start all loops; after `stop` also again. What others have done to the database since then is found there, and all
        deadlines have their full time. `lease`: its number, if there may be several services."""
        self.core.clock.restart()
        self._guard(lease)
        settings = self.core.settings
        discovery = Crew("discover", None, self.looks.discover_in)
        looks = Crew("looks", settings.refresh_threads, self.looks.look)
        commits = Crew("commits", settings.commit_threads, self.commits.commit)
        cleaning = Crew("cleaning", _CLEAN_THREADS, self.cleaning.clean)
        self.crews = [discovery, looks, commits, cleaning]
        interval = settings.discover_interval.total_seconds()
        self._add_loop("discover", lambda: discovery.take(Job(name, name) for name in self.looks.catalogs()), interval)
        self._add_loop("looks", lambda: looks.take(_job_of(row) for row in self.looks.due()), _LOOK_SECONDS, "looks")
        self._add_loop("commits", lambda: commits.take(self._commits_due()), _LOOK_SECONDS, "commits")
        self._add_loop("keep", self.keeper.keep, settings.keep_interval.total_seconds())
        self._add_loop("cleaning", lambda: cleaning.take(_jobs_of(self.cleaning.due())), _CLEAN_SECONDS, "cleaning")
        self._add_loop("history", self.cleaning.forget, _FORGET_SECONDS)
        for loop in self.loops:
            loop.start()

    def _add_loop(self, name: str, work: Callable[[], None], seconds: float, bell: Bell | None = None) -> None:
        loop = Loop(name, work, seconds)
        self.loops.append(loop)
        if bell is not None:
            self._stop_listening.append(self.core.bells.listen(bell, loop.wake))

    def _commits_due(self) -> list[Job]:
        due = self.commits.due()
        with self.core.store.read() as view:
            rows = [view.get(TableRow, uuid) for uuid in due]
        return [_job_of(row) for row in rows if row is not None]

    def stop(self) -> None:
        """Finish what is begun, and end. What takes too long is not waited for."""
        deadline = time.monotonic() + _STOP_SECONDS
        parts: list[Crew | Loop] = [*self.crews, *self.loops]
        for part in parts:
            part.stop()
        for part in parts:
            if not part.join(max(0.0, deadline - time.monotonic())):
                _log.warning("end_not_awaited", part=part.name)
        for stop_listening in self._stop_listening:
            stop_listening()
        self.loops, self.crews, self._stop_listening = [], [], []

    # ---- what people ask for --------------------------------------------------------------------------------------------

    def pause(self, uuid: str, by: str, why: str = "somebody asked for it", until: datetime | None = None) -> TableRow:
        """Plan nothing for a table; what is executed is finished and committed."""
        now = self.core.clock.now()
        with self.core.store.begin() as transaction:
            step = pause_table(_known_table(transaction.get(TableRow, uuid), uuid), why, by, until, now)
            transaction.update(step.row)
            transaction.record(step.transitions)
        return step.row

    def resume(self, uuid: str, by: str) -> TableRow:
        """Optimize a table again, also if processes of it have failed."""
        now = self.core.clock.now()
        with self.core.store.begin() as transaction:
            row = _known_table(transaction.get(TableRow, uuid), uuid)
            step = move_table(row, TableState.ACTIVE, "somebody asked for it", by, now)
            transaction.update(replace(step.row, failed_in_a_row=0, plan_after=None, must_plan=True))
            transaction.record(step.transitions)
        self.core.bells.ring("looks")
        return step.row

    def cancel(self, process_id: str, by: str, why: str = "somebody asked for it") -> ProcessRow:
        """Give up what has not landed of a process: waiting tasks at once, executed ones are stopped, and results are
        removed."""
        now = self.core.clock.now()
        with self.core.store.begin() as transaction:
            process = transaction.get(ProcessRow, process_id)
            if process is None:
                raise NotFound(f"there is no process {process_id}")
            row = cancel(transaction, process, why, by, now)
        self.core.bells.ring("commits")
        return row


def _job_of(row: TableRow) -> Job:
    return Job(row.uuid, row.catalog)


def _jobs_of(rows: Iterable[ProcessRow]) -> Iterator[Job]:
    return (Job(row.table_uuid, row.table.partition(".")[0]) for row in rows)


def _known_table(row: TableRow | None, uuid: str) -> TableRow:
    if row is None:
        raise NotFound(f"no table with uuid {uuid} is watched")
    return row
