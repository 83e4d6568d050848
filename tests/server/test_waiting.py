"""Requests that wait, on a real server: polls and the stream of events."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

from pyarctic.ams import Ams, Registration
from pyarctic.client import Address, Client, OptimizerClient
from pyarctic.errors import Unavailable
from pyarctic.server import HttpServer, events
from tests.server.requests import BEARER


@contextmanager
def _optimizer(address: Address, **given: Any) -> Iterator[OptimizerClient]:
    client = OptimizerClient(address)
    client.register(parallelism=1, **given)
    yield client
    client.close()


def _queue(ams: Ams) -> None:
    ams.looks.discover()
    for row in ams.looks.due():
        ams.looks.look(row.uuid)


def _wait_until(is_so: Any) -> None:
    deadline = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _waiting(server: HttpServer) -> int:
    return len(server.app.state.waits)


def test_a_poll_ends_as_soon_as_a_task_is_queued(ams: Ams, server: HttpServer, address: Address, table: str) -> None:
    ended: list[float] = []

    def poll(client: OptimizerClient) -> list[dict[str, Any]]:
        tasks = client.poll(slots=3, wait_seconds=20)
        ended.append(time.monotonic())
        return tasks

    with _optimizer(address) as client, ThreadPoolExecutor(1) as pool:
        polled = pool.submit(poll, client)
        _wait_until(lambda: _waiting(server) == 1)
        _queue(ams)
        queued = time.monotonic()
        assert len(polled.result(10)) == 3
    assert ended[0] - queued < 0.5


def test_tasks_of_an_optimizer_that_stops_are_there_at_once(
    ams: Ams, server: HttpServer, address: Address, table: str
) -> None:
    _queue(ams)
    with _optimizer(address) as first, _optimizer(address) as second, ThreadPoolExecutor(1) as pool:
        assert len(first.poll(slots=3, wait_seconds=0)) == 3
        polled = pool.submit(second.poll, 3, 20)
        _wait_until(lambda: _waiting(server) == 1)
        first.stop()
        stopped = time.monotonic()
        assert [task["attempt"] for task in polled.result(10)] == [1, 1, 1]
        assert time.monotonic() - stopped < 0.5


def test_a_poll_without_tasks(address: Address, server: HttpServer) -> None:
    with _optimizer(address) as client:
        began = time.monotonic()
        assert client.poll(wait_seconds=0.4) == []
        assert 0.35 < time.monotonic() - began < 3


def test_polls_that_wait_hold_no_thread(server: HttpServer, address: Address, client: Client) -> None:
    clients = [OptimizerClient(address) for _ in range(50)]
    for each in clients:
        each.register(parallelism=1)
    with ThreadPoolExecutor(50, thread_name_prefix="polling") as pool:
        polled = [pool.submit(each.poll, 1, 4) for each in clients]
        _wait_until(lambda: _waiting(server) == 50)
        time.sleep(0.3)
        began = time.monotonic()
        assert len(client.optimizers()) == 50  # the server has 40 threads: the polls would leave none for this
        assert time.monotonic() - began < 2
        assert all(each.result(20) == [] for each in polled)
    for each in clients:
        each.close()


def test_a_second_poll_ends_the_first(address: Address, server: HttpServer) -> None:
    with _optimizer(address) as client, ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.poll, 1, 20)
        _wait_until(lambda: _waiting(server) == 1)
        assert client.poll(wait_seconds=0.1) == []
        assert first.result(2) == []


def test_whoever_hangs_up_gets_no_task(ams: Ams, server: HttpServer, address: Address, table: str) -> None:
    with _optimizer(address) as client:
        path = f"{server.url}/api/v1/optimizers/{client.id}/poll"
        headers = {**BEARER, "Arctic-Optimizer-Secret": client._secret}
        with pytest.raises(httpx2.ReadTimeout):
            httpx2.post(path, headers=headers, json={"wait_seconds": 20}, timeout=0.3)
        _queue(ams)
        time.sleep(0.3)
        assert len(client.poll(slots=3, wait_seconds=0)) == 3


def test_stopping_does_not_wait_for_those_who_wait(ams: Ams, server: HttpServer, address: Address, client: Client) -> None:
    followed = client.follow()
    with _optimizer(address) as optimizer, ThreadPoolExecutor(2) as pool:
        following = pool.submit(next, followed)
        _wait_until(lambda: _waiting(server) == 1)
        polled = pool.submit(optimizer.poll, 1, 20)
        _wait_until(lambda: _waiting(server) == 2)
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 3
        assert polled.result(1) == []
        with pytest.raises(Unavailable, match="ended"):
            following.result(1)
        with pytest.raises(Unavailable, match="cannot be reached"):
            client.tables()


def test_the_stream_goes_on_without_a_gap(ams: Ams, server: HttpServer, client: Client) -> None:
    seen = [0]
    for _ in range(5):  # a reader who is cut off again and again, while there is more and more
        headers = {**BEARER, "Last-Event-ID": str(seen[-1])}
        with httpx2.stream("GET", f"{server.url}/api/v1/events/stream", headers=headers, timeout=10) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            registering = threading.Thread(target=_register_some, args=(ams,))
            registering.start()
            ids = (line.removeprefix("id: ") for line in answer.iter_lines() if line.startswith("id: "))
            seen += [int(next(ids)) for _ in range(5)]
        registering.join()
    rest = [event["number"] for event in client.events(after=seen[-1])]
    _wait_until(lambda: _waiting(server) == 0)  # nobody waits for those who have left
    assert seen[1:] + rest == [event["number"] for event in client.events()]
    assert (len(seen), len(rest)) == (26, 5)


def _register_some(ams: Ams) -> None:
    for _ in range(6):
        ams.optimizers.register(Registration(parallelism=1))


def test_the_stream_begins_with_the_next_event(ams: Ams, server: HttpServer, client: Client, table: str) -> None:
    ams.looks.discover()
    followed = client.follow(kind=["optimizer"])
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(next, followed)
        _wait_until(lambda: _waiting(server) == 1)
        _queue(ams)
        _register_some(ams)
        assert first.result(5)["kind"] == "optimizer"
        assert next(followed)["after"] == "active"
    followed.close()


def test_a_stream_without_events_has_a_heartbeat(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_HEARTBEAT_SECONDS", 0.1)
    with httpx2.stream("GET", f"{server.url}/api/v1/events/stream", headers=BEARER, timeout=10) as answer:
        lines = (line for line in answer.iter_lines() if line)
        assert [next(lines) for _ in range(3)] == [": events follow", ": nothing new", ": nothing new"]


def test_numbers_of_events_are_checked(server: HttpServer) -> None:
    for wrong in ("x", "-1", "9" * 30):
        headers = {**BEARER, "Last-Event-ID": wrong}
        assert httpx2.get(f"{server.url}/api/v1/events/stream", headers=headers).status_code == 400
