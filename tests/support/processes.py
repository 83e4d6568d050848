"""Servers as processes of their own: started with a log, waited for, and ended together with their children."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
