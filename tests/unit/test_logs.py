"""Log events: silent by default, facts apart from names."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pyarctic.logs import get_logger, write_logs


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("pyarctic")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:], root.level, ours.level = before


def test_events_have_the_facts_of_their_logger(capsys: pytest.CaptureFixture[str]) -> None:
    write_logs("json")
    log = get_logger("pyarctic.somewhere").bind(table="a.b.c", attempt=1)
    log.info("task_ended", attempt=2, size=None)
    log.debug("nobody_sees_it")
    log.error("loop_failed", error=ValueError("no"))
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert first.pop("time").endswith("+00:00")
    expected = {"level": "info", "logger": "pyarctic.somewhere", "event": "task_ended", "table": "a.b.c"}
    assert first == expected | {"attempt": 2, "size": None}
    assert (second["event"], second["level"]) == ("loop_failed", "error")
    assert second["exception"].endswith("ValueError: no")


def test_people_read_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    write_logs("text", "warning")
    log = get_logger("pyarctic.somewhere").bind(table="a.b.c")
    log.info("task_ended")
    log.warning("attempt_failed", attempt=2, hint=None)
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("WARNING attempt_failed table=a.b.c attempt=2")


def test_a_library_says_nothing_by_itself() -> None:
    program = "from pyarctic.logs import get_logger; get_logger('pyarctic.x').error('loop_failed', reason='x')"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
