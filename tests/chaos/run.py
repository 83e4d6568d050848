"""One run: everybody at work, faults all the time, then peace, then the checks."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Protocol

from pyarctic.ams.rows import CommitRow, ProcessRow, TaskRow
from pyarctic.ams.states import ENDED_PROCESSES, CommitState, TaskState
from tests.chaos import lake, proxy
from tests.chaos.checks import check
from tests.chaos.faults import Count
from tests.chaos.programs import Program, wait_until_ready
from tests.chaos.result import OpenedStore, Result, counted
from tests.chaos.writers import Writer, compare
from tests.support.processes import Restartable, free_port

_PEACE_SECONDS = 150.0
"""In peace, for so long at most nothing may come to its end. A slow machine has much left over."""
_LEAST_FILE_SIZE = 64 << 10
_TICK_SECONDS = 0.25
_STRIKES = 0.12
"""The share of ticks at which something is done to a process: they must have time to start, and to get something done."""


class Server(Protocol):
    """That of a database."""

    @property
    def uri(self) -> str: ...
    @property
    def server(self) -> Restartable: ...


class Run:
    """One run in a folder."""

    def __init__(
        self, folder: Path, seed: str, *, seconds: float, faults: int, optimizers: int = 2, server: Server | None = None
    ) -> None:
        """`server`: of the database, which is restarted then; and two services, of which one leads."""
        self._folder = folder
        self._seed = seed
        self._seconds = seconds
        self._wanted_faults = faults
        self._random = Random(seed)
        self._count = Count()
        self._clock = folder / "clock"
        self._server = None if server is None else server.server
        self._url = f"sqlite:///{folder}/arctic.db" if server is None else server.uri
        self._ports = [free_port() for _ in range(1 if server is None else 2)]
        self._stack = ExitStack()
        self._number_of_optimizers = optimizers
        self._starts: list[tuple[float, Program]] = []
        """Programs that were killed, and when to start them again."""
        self._limit_ends = self._outage_ends = 0.0
        self._comparisons = 0
        self.failures: list[str] = []

    def run(self) -> Result:
        began = time.monotonic()
        with self._stack:
            self._begin()
            try:
                self._disturb()
                self._make_peace()
                if not self.failures:
                    self._come_to_rest()
                self._end_programs()
            except Exception as error:  # noqa: BLE001  # the folder tells more
                self.failures.append(f"{type(error).__name__}: {error}")
        return self._result(time.monotonic() - began)

    # ---- beginning ------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        lake.create(self._folder, self._random.choice(("0", "1s")), self._url)
        self._clock.write_text("0")
        environment = {
            "ARCTIC_CONFIG": str(self._folder / "arctic.yaml"),
            "ARCTIC_TOKEN": lake.TOKEN,
            "ARCTIC_CACHE": str(self._folder / "cache"),
            "CHAOS_CLOCK": str(self._clock),
        }
        words = ["-m", "tests.chaos.service", "serve", "--log-format", "json"]
        self.services = [
            Program(
                f"service-{number}",
                [*words, "--port", str(port), "--state", str(self._folder / f"state-{number}")],
                self._folder,
                environment,
            )
            for number, port in enumerate(self._ports)
        ]
        self._proxies = [self._stack.enter_context(proxy.start(port, self._seed, self._count)) for port in self._ports]
        urls = ",".join(each.url for each in self._proxies)
        url = ["--url", urls, "--heart-beat", "1s", "--log-format", "json"]
        command = ["-m", "pyarctic.cli", "optimizer", "run", *url]
        self.optimizers = [
            Program(f"optimizer-{number}", [*command, "--parallelism", str(1 + number % 2)], self._folder, environment)
            for number in range(self._number_of_optimizers)
        ]
        self.programs = [*self.services, *self.optimizers]
        for program in self.programs:
            self._stack.callback(program.clear)
        for port, service in zip(self._ports, self.services, strict=True):
            service.start()
            if not wait_until_ready(port, service):
                raise RuntimeError(f"the service does not start: see {self._folder}/{service.name}.log")
        for optimizer in self.optimizers:
            optimizer.start()
        self.writers = [Writer(name, number, self._seed, pause=1.0) for name in lake.NAMES for number in (1, 2)]
        for writer in self.writers:
            writer.start()
            self._stack.callback(writer.stop)

    # ---- faults ---------------------------------------------------------------------------------------------------------

    def _disturb(self) -> None:
        """Until the time is over, and there were faults enough; not more than twice as long."""
        begin = told = compared = time.monotonic()
        self._share_faults(0.35)
        while (now := time.monotonic()) < begin + 2 * self._seconds and not self.failures:
            if now >= begin + self._seconds and self._count.total >= self._wanted_faults:
                break
            self._restart_dead(now)
            if self._random.random() < _STRIKES:
                self._strike(now)
            if now - told >= 10:
                told = now
                self._tell(now - begin)
            if now - compared >= 7:
                compared = now
                self._compare(self._random.choice(lake.NAMES))
            self.failures += [fault for writer in self.writers for fault in writer.faults]
            time.sleep(_TICK_SECONDS)

    def _strike(self, now: float) -> None:
        kinds: dict[str, tuple[int, Callable[[float], None]]] = {
            "service killed": (2, self._kill_service),
            "optimizer killed": (3, self._kill_optimizer),
            "service stopped": (3, self._hold_service),
            "optimizer stopped": (4, self._hold_optimizer),
            "clock jumped": (3, lambda _: self._jump()),
            "disk full": (0 if self._server else 2, self._fill_disk),
            "database restarted": (1 if self._server else 0, self._end_server),
        }
        kind = self._random.choices([*kinds], [weight for weight, _ in kinds.values()])[0]
        is_of_service = kind in ("service killed", "service stopped", "disk full")
        if is_of_service and not any(service.is_running for service in self.services):
            return
        self._count.add(kind)
        kinds[kind][1](now)

    def _running_service(self) -> Program:
        return self._random.choice([service for service in self.services if service.is_running])

    def _kill_service(self, now: float) -> None:
        service = self._running_service()
        service.kill(with_workers=True)
        self._starts.append((now + self._random.choice((0.0, 0.0, self._random.uniform(0, 6))), service))

    def _hold_service(self, _now: float) -> None:
        """If there are others, so long that one of them takes over."""
        self._running_service().hold(self._random.uniform(0.5, 8 if self._server is None else 16), with_workers=False)

    def _end_server(self, now: float) -> None:
        if self._server is not None and not self._outage_ends:
            self._server.end(kill=self._random.random() < 0.5)
            self._outage_ends = now + self._random.uniform(0, 3)

    def _kill_optimizer(self, now: float) -> None:
        optimizer = self._random.choice(self.optimizers)
        if optimizer.is_running:
            optimizer.kill(with_workers=self._random.random() < 0.5)
            self._starts.append((now + self._random.uniform(0, 4), optimizer))

    def _hold_optimizer(self, _now: float) -> None:
        optimizer = self._random.choice(self.optimizers)
        if optimizer.is_running:
            optimizer.hold(self._random.uniform(0.5, 8), with_workers=self._random.random() < 0.5)

    def _jump(self) -> None:
        beside = self._clock.with_suffix(".new")
        beside.write_text(f"{self._random.uniform(-15, 15):.3f}")
        beside.replace(self._clock)

    def _fill_disk(self, now: float) -> None:
        self._running_service().limit_files(self._random.choice((_LEAST_FILE_SIZE, 4 << 10, 1 << 20)))
        self._limit_ends = now + self._random.uniform(0.5, 3)

    def _restart_dead(self, now: float) -> None:
        if self._limit_ends and now >= self._limit_ends:
            self._end_limits()
        if self._outage_ends and now >= self._outage_ends:
            self._end_outage()
        due = [entry for entry in self._starts if entry[0] <= now]
        self._starts = [entry for entry in self._starts if entry[0] > now]
        for _, program in due:
            program.start()
        waiting = {id(program) for _, program in self._starts}
        for program in self.programs:
            if not program.is_running and id(program) not in waiting:
                # The disk may have been full when it started; anything else is a fault of ours.
                self._count.add(f"{program.name.partition('-')[0]} ended with {program.exit_code}")
                program.start()

    def _end_limits(self) -> None:
        for service in self.services:
            service.limit_files(None)
        self._limit_ends = 0.0

    def _end_outage(self) -> None:
        if self._server is not None and self._outage_ends:
            self._server.start()
        self._outage_ends = 0.0

    def _share_faults(self, share: float) -> None:
        for each in self._proxies:
            each.share = share

    def _compare(self, name: str) -> None:
        self._comparisons += 1
        self.failures += compare(name, [writer for writer in self.writers if writer.table == name])

    def _tell(self, seconds: float) -> None:
        writes = sum(writer.commits for writer in self.writers)
        sys.stdout.write(f"{seconds:5.0f} s: {self._count.total} faults, {writes} writes, {self._comparisons} comparisons\n")
        sys.stdout.flush()

    # ---- peace ----------------------------------------------------------------------------------------------------------

    def _make_peace(self) -> None:
        self._share_faults(0.0)
        self._end_outage()
        for program in self.programs:
            program.go_on()
            if not program.is_running:
                program.start()
        self._end_limits()
        for writer in self.writers:
            writer.stop()
        self.failures += [f"a writer of {writer.table} hangs" for writer in self.writers if not writer.join()]

    def _come_to_rest(self) -> None:
        """Wait until nothing is unfinished. Then all files that nobody needs are removed after the grace of dead attempts;
        a service that starts looks for them at once."""
        self._wait("processes have not ended", self._is_idle)
        time.sleep(3 * lake.HEARTBEAT_TIMEOUT_SECONDS)
        self._wait("processes have not ended", self._is_idle)
        for port, service in zip(self._ports, self.services, strict=True):
            service.ask_to_end()
            if (code := service.end()) != 0:
                self.failures.append(f"the service ended with {code}")
            service.start()
            wait_until_ready(port, service)
        self._wait("files are not removed", lambda: self._is_idle() and self._is_clean())

    def _wait(self, what: str, holds: Callable[[], bool]) -> None:
        """Until it holds three times in a row."""
        times = ended = 0
        since = time.monotonic()
        while times < 3:
            before, ended = ended, self._count_ended()
            since = time.monotonic() if ended > before else since
            if time.monotonic() > since + _PEACE_SECONDS:
                self.failures.append(f"{what}, and nothing has come to its end for {_PEACE_SECONDS:.0f} s of peace")
                return
            times = times + 1 if holds() else 0
            time.sleep(1.0)

    def _count_ended(self) -> int:
        with self._opened() as store, store.read() as view:
            return sum(row.state in ENDED_PROCESSES for row in view.find(ProcessRow))

    def _is_idle(self) -> bool:
        with self._opened() as store, store.read() as view:
            return all(row.state in ENDED_PROCESSES for row in view.find(ProcessRow))

    def _is_clean(self) -> bool:
        with self._opened() as store, store.read() as view:
            return all(row.clean_at is None for row in view.find(ProcessRow))

    def _opened(self) -> OpenedStore:
        return OpenedStore(self._url)

    def _end_programs(self) -> None:
        for program in self.programs:
            program.ask_to_end()
        for program in self.programs:
            if (code := program.end()) != 0:
                self.failures.append(f"{program.name} ended with {code}")

    # ---- the result -----------------------------------------------------------------------------------------------------

    def _result(self, seconds: float) -> Result:
        result = Result(seed=self._seed, seconds=seconds, faults=self._count.by_kind(), failures=self.failures)
        result.writes, result.comparisons = sum(writer.commits for writer in self.writers), self._comparisons
        with self._opened() as store:
            for name in lake.NAMES:
                self._compare(name)
            result.failures += check(store)
            with store.read() as view:
                processes = view.find(ProcessRow)
                result.processes = counted([str(row.state) for row in processes])
                result.tasks = counted([str(row.state) for row in view.find(TaskRow)])
                repeated = [row for row in view.find(TaskRow, state=TaskState.COMMITTED) if row.attempt]
                result.tasks["with several attempts"] = len(repeated)
                result.commits = counted([str(row.state) for row in view.find(CommitRow)])
                if not view.find(CommitRow, state=CommitState.LANDED):
                    result.failures.append("nothing was committed")
        return result


def variables_of_no_one() -> None:
    """What a developer has set must not reach the programs."""
    for name in [name for name in os.environ if name.startswith(("ARCTIC_", "PYICEBERG_", "AWS_"))]:
        del os.environ[name]
    os.environ["PYICEBERG_HOME"] = "/nonexistent"
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1")))
