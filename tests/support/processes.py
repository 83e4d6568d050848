"""Servers as processes of their own: started with a log, waited for, and ended together with their children."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

HOST = "127.0.0.1"
Process = subprocess.Popen[bytes]

_START_SECONDS = 90.0
_END_SECONDS = 20.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(
    command: Sequence[str | Path], log: Path, *, stop: signal.Signals = signal.SIGTERM, **options: Any
) -> Iterator[Process]:
    """Run a command in the folder of its log. `stop` is the signal that ends it; `options` are those of Popen."""
    with log.open("ab") as output:
        # A session of its own, so that its children (a Spark worker's executors) can be ended with it.
        settings: dict[str, Any] = {"stdout": output, "stderr": output, "cwd": log.parent, "start_new_session": True}
        with subprocess.Popen(command, **settings | options) as process:
            try:
                yield process
            finally:
                _end(process, stop)


class Restartable:
    """A server that can be ended and started again, with what it has stored.

    with Restartable(command, log, ready) as server: ...
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        log: Path,
        ready: Callable[[], bool],
        *,
        stop: signal.Signals = signal.SIGTERM,
        **options: Any,
    ) -> None:
        self._command = command
        self._log = log
        self._ready = ready
        self._stop = stop
        self._options = options
        self._running = ExitStack()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        process = self._running.enter_context(running(self._command, self._log, stop=self._stop, **self._options))
        wait_for(self._ready, self._log, process)
        self.process = process

    def end(self, *, kill: bool = False) -> None:
        """End it, and wait for that."""
        if kill:
            self.process.kill()
        self._running.close()


def wait_for(ready: Callable[[], bool], log: Path, process: Process) -> None:
    """Wait until the server says it is ready; an error shows its log."""
    deadline = time.monotonic() + _START_SECONDS
    while not _answers(ready):
        if process.poll() is not None or time.monotonic() > deadline:
            state = "did not start in time" if process.returncode is None else f"ended with {process.returncode}"
            raise RuntimeError(f"{log.stem} {state}\n{log.read_text(errors='replace')}")
        time.sleep(0.05)


def _answers(ready: Callable[[], bool]) -> bool:
    try:
        return ready()
    except OSError:
        return False  # not listening yet


def _end(process: Process, stop: signal.Signals) -> None:
    process.send_signal(stop)
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
