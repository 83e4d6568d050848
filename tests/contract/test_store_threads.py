"""Many threads on one store: no write is lost, no number skipped, and views are of one moment."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event

from pyarctic.ams.rows import EventRow, TaskRow
from pyarctic.ams.store import Broken, Store
from tests.support.ams_rows import move, task

THREADS = 8
TURNS = 25


def at_once(work: Callable[[int], object], threads: int = THREADS) -> list[object]:
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, range(threads)))


def test_no_update_is_lost(store: Store) -> None:
    with store.begin() as transaction:
        transaction.insert(task())

    def count(_: int) -> None:
        for _ in range(TURNS):
            with store.begin() as transaction:
                last = transaction.get(TaskRow, "p1", 1)
                assert last is not None
                transaction.update(replace(last, version=last.version + 1, rows_done=last.rows_done + 1))

    at_once(count)
    with store.read() as view:
        assert view.find(TaskRow) == [task(version=THREADS * TURNS, rows_done=THREADS * TURNS)]


def test_of_those_who_saw_the_same_version_one_is_first(store: Store) -> None:
    with store.begin() as transaction:
        transaction.insert(*(task(number) for number in range(TURNS)))

    def take(thread: int) -> list[int]:
        taken = []
        for number in range(TURNS):
            try:
                with store.begin() as transaction:
                    transaction.update(task(number, version=1, optimizer_id=f"o{thread}"))
            except Broken:
                continue
            taken.append(number)
        return taken

    taken = at_once(take)
    assert sorted(itertools.chain.from_iterable(taken)) == list(range(TURNS))  # type: ignore[arg-type]


def test_whoever_resumes_at_a_number_skips_no_event(store: Store) -> None:
    ended = Event()

    def follow() -> list[EventRow]:
        followed: list[EventRow] = []
        while True:
            last_look = ended.is_set()
            new = store.events_after(followed[-1].number if followed else 0, limit=7)
            followed += new
            if last_look and not new:
                return followed

    def write(thread: int) -> None:
        for turn in range(TURNS):
            with store.begin() as transaction:
                transaction.record(move(f"{thread}.{turn}.{part}") for part in range(3))

    with ThreadPoolExecutor(2) as pool:
        followers = [pool.submit(follow) for _ in range(2)]
        at_once(write)
        ended.set()
        followed = [each.result() for each in followers]
    assert followed[0] == followed[1]
    assert [event.number for event in followed[0]] == list(range(1, THREADS * TURNS * 3 + 1))
    keys = [event.key for event in followed[0]]
    assert all(keys[at].rpartition(".")[0] == keys[at + 2].rpartition(".")[0] for at in range(0, len(keys), 3)), (
        "events of a transaction follow one another"
    )


def test_a_view_is_of_one_moment(store: Store) -> None:
    """A writer changes two tasks together, over and over; no view has one without the other."""
    with store.begin() as transaction:
        transaction.insert(task(1), task(2))
    ended = Event()

    def look(_: int) -> int:
        looks = 0
        while not ended.is_set() or looks == 0:
            with store.read() as view:
                first, second = view.get(TaskRow, "p1", 1), view.find(TaskRow, number=2)[0]
                assert first is not None
                assert first.version == second.version == len(view.find(EventRow))
            looks += 1
        return looks

    with ThreadPoolExecutor(3) as pool:
        looking = [pool.submit(look, number) for number in range(3)]
        for version in range(1, TURNS * 4):
            with store.begin() as transaction:
                transaction.update(task(1, version=version))
                transaction.record([move()])
                transaction.update(task(2, version=version))
        ended.set()
        assert min(each.result() for each in looking) > 0
