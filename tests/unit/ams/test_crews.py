"""Crews: who works on what, and what happens while a catalog hangs."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from pyarctic.ams.crews import Crew, Job
from tests.support.hanging_catalogs import PATIENCE_SECONDS, wait_until


class _Work:
    """Work on jobs that goes on until each, or everything, is released."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._ends: dict[str, threading.Event] = {}
        self._lock = threading.Lock()

    def __call__(self, key: str) -> None:
        self.begun.append(key)
        assert self.end_of(key).wait(PATIENCE_SECONDS)

    def end_of(self, key: str) -> threading.Event:
        with self._lock:
            return self._ends.setdefault(key, threading.Event())

    def release(self, *keys: str) -> None:
        for key in keys or tuple(self.begun):
            self.end_of(key).set()


@pytest.fixture
def work() -> Iterator[_Work]:
    made = _Work()
    yield made
    made.release()


def jobs(catalog: str, count: int) -> list[Job]:
    return [Job(f"{catalog}{number}", catalog) for number in range(count)]


@pytest.mark.parametrize(("threads", "of_catalog"), [(1, 1), (2, 1), (4, 3)])
def test_one_catalog_does_not_have_all_threads(work: _Work, threads: int, of_catalog: int) -> None:
    crew = Crew("looks", threads, work)
    crew.take(jobs("a", 9))
    wait_until(lambda: len(work.begun) == of_catalog)
    crew.take([*jobs("a", 9), *jobs("b", 9)])
    wait_until(lambda: len(work.begun) == of_catalog + 1)
    assert work.begun == [*(f"a{number}" for number in range(of_catalog)), "b0"]
    assert [each.job.catalog for each in crew.running] == ["a"] * of_catalog + ["b"]
    work.release("b0")
    wait_until(lambda: work.begun[-1] == "b1")
    crew.stop()


def test_threads_go_on_with_what_waits_until_it_is_told_anew(work: _Work) -> None:
    crew = Crew("looks", 2, work)
    crew.take([*jobs("a", 1), *jobs("b", 3)])
    wait_until(lambda: work.begun == ["a0", "b0"])
    work.release("b0")
    wait_until(lambda: work.begun == ["a0", "b0", "b1"])
    crew.take([Job("b1", "b"), Job("c0", "c")])
    work.release("b1")
    wait_until(lambda: work.begun == ["a0", "b0", "b1", "c0"])  # b1 is not begun again, b2 is forgotten
    work.release("c0", "a0")
    assert crew.join(PATIENCE_SECONDS)
    assert len(work.begun) == 4
    crew.stop()


def test_the_catalog_with_the_least_work_comes_first(work: _Work) -> None:
    crew = Crew("looks", 4, work)
    crew.take([*jobs("a", 9), *jobs("b", 9)])
    wait_until(lambda: len(work.begun) == 4)
    assert work.begun == ["a0", "b0", "a1", "b1"]
    crew.stop()


def test_a_crew_without_a_limit_works_on_everything(work: _Work) -> None:
    crew = Crew("discover", None, work)
    crew.take(jobs("a", 9))
    wait_until(lambda: len(work.begun) == 9)
    assert crew.blocked_seconds == 0
    crew.stop()


def test_what_hangs_is_seen_and_not_waited_for(work: _Work) -> None:
    crew = Crew("looks", 2, work)
    crew.take(jobs("a", 2))
    wait_until(lambda: work.begun == ["a0"])
    assert crew.blocked_seconds == 0
    crew.take(jobs("b", 2))
    wait_until(lambda: work.begun == ["a0", "b0"])
    assert 0 < crew.blocked_seconds <= crew.running[0].seconds
    crew.stop()
    assert not crew.join(0)
    crew.take(jobs("c", 1))
    work.release("a0", "b0")
    assert crew.join(PATIENCE_SECONDS)
    assert work.begun == ["a0", "b0"]


def test_an_error_ends_no_thread() -> None:
    tried: list[str] = []

    def fail(key: str) -> None:
        tried.append(key)
        raise OSError("the database is locked")

    crew = Crew("looks", 2, fail)
    crew.take(jobs("a", 3))
    wait_until(lambda: tried == ["a0", "a1", "a2"])
    assert crew.join(PATIENCE_SECONDS)
    crew.stop()


def test_work_that_hangs_does_not_keep_the_process_from_ending() -> None:
    code = """
import threading
from pyarctic.ams.crews import Crew, Job
begun = threading.Event()
def hang(key):
    begun.set()
    threading.Event().wait()
Crew("looks", 1, hang).take([Job("a0", "a")])
assert begun.wait(20)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_SECONDS)
