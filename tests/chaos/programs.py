"""The service and its optimizers as processes of the operating system, which are killed, stopped and started again."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.support.processes import HOST, Process

_ROOT = Path(__file__).parents[2]
_END_SECONDS = 40.0


class Program:
    """A program with a log. It leads a group of its own, with its worker processes."""

    def __init__(self, name: str, words: list[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self._words = words
        self._log = folder / f"{name}.log"
        paths = os.pathsep.join((str(_ROOT / "src"), str(_ROOT)))
        self._environment = {**os.environ, **environment, "PYTHONPATH": paths}
        self._process: Process | None = None
        self._held: threading.Timer | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        with self._log.open("ab") as output:
            output.write(f"---- started {time.time():.1f}\n".encode())
            output.flush()
            self._process = subprocess.Popen(
                [sys.executable, *self._words],
                stdout=output,
                stderr=output,
                cwd=self._log.parent,
                env=self._environment,
                start_new_session=True,
            )

    def kill(self, *, with_workers: bool) -> None:
        """SIGKILL, as by a lack of memory. Workers that are left alone finish what they do."""
        assert self._process is not None
        self.go_on()
        if with_workers:
            self._signal_group(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()

    def hold(self, seconds: float, *, with_workers: bool) -> None:
        """Stop it for a while, as a machine that is suspended, or out of memory."""
        assert self._process is not None
        if self._held is not None:
            return
        process = self._process
        (self._signal_group if with_workers else os.kill)(process.pid, signal.SIGSTOP)
        self._held = threading.Timer(seconds, self._continue, [process])
        self._held.daemon = True
        self._held.start()

    def go_on(self) -> None:
        if self._held is not None and self._process is not None:
            self._held.cancel()
            self._continue(self._process)

    def limit_files(self, size: int | None) -> None:
        """No file of it may grow beyond that: a disk that is full. None: no limit."""
        if self._process is not None and self.is_running:
            _, hard = resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (hard if size is None else size, hard))

    def ask_to_end(self) -> None:
        assert self._process is not None
        self.go_on()
        self._process.terminate()

    def end(self) -> int:
        """The exit code. It has some time to end in good order."""
        assert self._process is not None
        try:
            return self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return -signal.SIGKILL

    def clear(self) -> None:
        """Leave nothing running, whatever happened."""
        if self._process is not None and self.is_running:
            self.kill(with_workers=True)
        for number in _workers_of(self._environment["CHAOS_CLOCK"]):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)

    def _continue(self, process: Process) -> None:
        self._held = None
        self._signal_group(process.pid, signal.SIGCONT)

    @staticmethod
    def _signal_group(group: int, number: int) -> None:
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            return


def _workers_of(clock: str) -> list[int]:
    """What is left of the programs of a run, known by their environment: numbers of dead processes are given to others."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"CHAOS_CLOCK={clock}\0".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def wait_until_ready(port: int, program: Program, seconds: float = 90.0) -> bool:
    """Whether the service answers within this time. One that is killed meanwhile does not."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and program.is_running:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{port}/healthz", timeout=5):
                return True
        except OSError:
            time.sleep(0.1)
    return False
