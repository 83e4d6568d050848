"""SIGTERM as an exception: it ends a process whatever becomes of the exception."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Generator

import pytest

from pyarctic.cli import app
from pyarctic.termination import Terminated, raise_on_sigterm

_HEAD = """
import signal
from pyarctic.termination import end_by_sigterm

def terminate():
    signal.raise_signal(signal.SIGTERM)

"""
_REPLACED = """
try:
    with end_by_sigterm():
        try:
            terminate()
        finally:
            raise OSError("the cleaning failed")
except OSError:
    print("went on")
"""
_SWALLOWED = """
with end_by_sigterm():
    try:
        terminate()
    except BaseException:
        pass
    print("cleaned")
print("went on")
"""
_OF_THE_CALLER = """
signal.signal(signal.SIGTERM, lambda *_: print("handled"))
with end_by_sigterm():
    terminate()
print("went on")
"""


def terminate() -> None:
    signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize(
    ("script", "code", "printed"),
    [
        (_REPLACED, -signal.SIGTERM, ""),
        (_SWALLOWED, -signal.SIGTERM, "cleaned\n"),
        (_OF_THE_CALLER, 0, "handled\nwent on\n"),
    ],
)
def test_a_library_ends_by_the_signal_on_every_way_out(script: str, code: int, printed: str) -> None:
    command = [sys.executable, "-u", "-c", _HEAD + script]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout) == (code, printed), process.stderr


def test_a_second_signal_does_not_interrupt_the_cleaning() -> None:
    cleaned: list[str] = []

    def tasks() -> Generator[int, None, None]:
        try:
            yield 1
        finally:
            terminate()
            cleaned.append("tasks")

    def work() -> None:
        with contextlib.closing(tasks()) as running:
            next(running)
            try:
                terminate()
            finally:
                terminate()
                cleaned.append("files")
                raise OSError("the cleaning failed")

    with raise_on_sigterm() as terminated:
        with pytest.raises(OSError, match="the cleaning failed"):
            work()
        assert terminated.is_set()
    assert cleaned == ["files", "tasks"]


def test_a_second_signal_is_raised_if_the_first_was_swallowed() -> None:
    with raise_on_sigterm():
        with contextlib.suppress(Terminated):
            terminate()
        with pytest.raises(Terminated):
            terminate()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


class _Command:
    """A command during which SIGTERM arrives."""

    def __init__(self, failure: BaseException | None) -> None:
        self.failure = failure

    def main(self, **_: object) -> int:
        with contextlib.suppress(Terminated):
            terminate()
        if self.failure is not None:
            raise self.failure
        return 0


@pytest.mark.parametrize("failure", [None, OSError("the cleaning failed"), Terminated(), BrokenPipeError(), SystemError()])
def test_the_exit_code_of_a_command(
    failure: BaseException | None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("typer.main.get_command", lambda _: _Command(failure))
    monkeypatch.setattr("os.dup2", lambda *_: None)
    assert app.main(["version"]) == 143
    assert "the cleaning failed" not in capfd.readouterr().err
