"""Several services with one database: one leads, the others answer reads and take over."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import cast

import httpx2
import pytest
from fastapi.testclient import TestClient
from pyiceberg.catalog import Catalog

from pyarctic.ams import Ams, Leadership, ServiceSettings
from pyarctic.ams.store import SqlStore
from pyarctic.client import Address, Client, OptimizerClient, connect
from pyarctic.errors import NotLeading
from pyarctic.optimizing.execute.kernel import JobContext, execute
from pyarctic.optimizing.protocol import Task
from pyarctic.server import HttpServer, Tokens, create_app
from pyarctic.server.starting import _instance_id
from tests.server.requests import TOKEN, Api, expect
from tests.support import changes
from tests.support.stores import DATABASES, DatabaseUrls, fresh_database

_SETTINGS = ServiceSettings(commit_interval=timedelta(0), dead_attempt_grace=timedelta(0))
_LEASE_SECONDS = 1.0


class _Service:
    """A service as a process would have it. Tests take the turns of its leadership and of its loops."""

    def __init__(self, holder: str, url: str) -> None:
        self.store = SqlStore.open(url)
        self.ams = Ams(self.store, _SETTINGS)
        self.ams.stand_by()
        self.terms: list[int] = []
        self.leadership = Leadership(self.store, holder, self._begin, self._end, lease_seconds=_LEASE_SECONDS)
        self.server = HttpServer(create_app(self.ams, Tokens.of({"tester": TOKEN}), self.leadership), port=0)
        self.server.start()
        self.leadership._url = self.url

    def _begin(self, lease: int) -> None:
        self.terms.append(lease)
        self.ams._guard(lease)  # without loops

    def _end(self) -> None:
        self.terms.append(0)

    @property
    def url(self) -> str:
        return self.server.url

    def stop(self) -> None:
        self.leadership.stop()
        self.server.stop()
        self.store.close()

    def api(self) -> Api:
        return Api(cast("TestClient", httpx2.Client(base_url=self.url)))  # both send requests


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, database_urls: DatabaseUrls) -> Iterator[str]:
    with fresh_database(request.param, database_urls) as url:
        yield url


@pytest.fixture
def start(database_url: str, lake: Catalog) -> Iterator[Callable[[str], _Service]]:
    """Starts services of one database."""
    with ExitStack() as stack:

        def started(holder: str) -> _Service:
            service = _Service(holder, database_url)
            stack.callback(service.stop)
            service.leadership.take_turn()
            return service

        yield started


@contextmanager
def client_of(*services: _Service) -> Iterator[Client]:
    with connect(",".join(service.url for service in services), TOKEN) as client:
        yield client


def test_the_first_leads_and_the_second_answers_reads_only(start: Callable[[str], _Service], table: str) -> None:
    first, second = start("a"), start("b")
    assert (first.leadership.is_leading, second.leadership.is_leading) == (True, False)
    first.ams.looks.discover()
    assert [row["name"] for row in second.api().get("/tables")["items"]] == [table]
    path = "/catalogs/lake/databases/db/tables/orders/pause"
    refused = expect(second.api().call("POST", path, {}), 421)
    assert (refused["code"], refused["retryable"], refused["facts"]) == ("not-leading", True, {"leader": first.url})
    assert first.url in refused["hint"]
    assert first.api().post(path, {})["state"] == "paused"
    for service, role in ((first, "leader"), (second, "standby")):
        shown = service.api().http.get("/readyz").json()
        assert (shown["role"], shown["leader"]) == (role, first.url)


def test_clients_find_the_leader(start: Callable[[str], _Service], table: str) -> None:
    first, second = start("a"), start("b")
    first.ams.looks.discover()
    with client_of(second, first) as client:
        assert client.table(table).pause()["state"] == "paused"
    with client_of(second) as client:  # which says where to go
        assert client.table(table).resume()["state"] == "active"
    second.leadership._leader_url = ""
    with client_of(second) as client, pytest.raises(NotLeading, match="does not lead"):
        client.table(table).pause()


def test_a_service_that_ends_is_followed_at_once(start: Callable[[str], _Service]) -> None:
    first, second = start("a"), start("b")
    first.leadership.stop()
    assert first.terms == [1, 0]
    second.leadership.take_turn()
    assert second.terms == [2]
    with pytest.raises(NotLeading):
        first.leadership.check()


def test_a_service_that_is_silent_is_followed_when_its_lease_ends(start: Callable[[str], _Service], table: str) -> None:
    """When it wakes up it changes nothing, whatever it was about to do."""
    first, second = start("a"), start("b")
    first.ams.looks.discover()
    row = first.ams.looks.due()[0]
    first.leadership.take_turn()
    started = time.monotonic()
    while not second.leadership.is_leading:
        second.leadership.take_turn()
        time.sleep(0.02)
    assert 0.5 * _LEASE_SECONDS < time.monotonic() - started < 3 * _LEASE_SECONDS
    assert first.leadership.is_leading, "it does not know yet"
    with pytest.raises(NotLeading):
        first.ams.looks.look(row.uuid)
    with pytest.raises(NotLeading):
        first.ams.pause(row.uuid, "somebody")
    expect(first.api().call("POST", f"/catalogs/lake/databases/db/tables/{table.rpartition('.')[2]}/pause", {}), 421)
    assert second.api().get("/processes")["items"] == []
    second.leadership.take_turn()
    first.leadership.take_turn()
    assert first.terms == [1, 0]
    assert first.leadership.leader_url == second.url


def test_the_same_service_leads_again_at_once_after_a_restart(start: Callable[[str], _Service]) -> None:
    """It has the name that it had before: nobody else can use its folder."""
    first = start("a")
    again = start("a")
    assert again.leadership.is_leading
    assert first.store.lease().number == 1


def test_optimizers_go_on_with_the_new_leader(start: Callable[[str], _Service], table: str, lake: Catalog) -> None:
    before = changes.rows(lake.load_table("db.orders")).sort_by("id")
    first, second = start("a"), start("b")
    first.ams.looks.discover()
    [row] = first.ams.looks.due()
    first.ams.looks.look(row.uuid)
    optimizer = OptimizerClient(Address(urls=(first.url, second.url), token=TOKEN))
    optimizer.register(parallelism=3)
    tasks = optimizer.poll(slots=3)
    for task in tasks:
        optimizer.acknowledge(task["task_id"], 0)
    first.leadership.stop()
    second.leadership.take_turn()
    for task in tasks:
        context = JobContext.open(task["job"], optimizer.storage(task["task_id"], 0))
        result = execute(context, Task.from_json(task["task"]), attempt=0)
        optimizer.complete(task["task_id"], 0, result.to_json())
    assert optimizer.heartbeat([])["state"] == "active"
    second.ams.commits.commit(row.uuid)
    [process] = second.api().get("/processes")["items"]
    assert process["state"] == "succeeded"
    assert changes.rows(lake.load_table("db.orders")).sort_by("id") == before


def test_a_copy_of_a_folder_is_another_service(tmp_path: Path) -> None:
    """Two of them would take each other for themselves before a restart, and both lead."""
    first, copy = tmp_path / "first", tmp_path / "copy"
    first.mkdir()
    name = _instance_id(first)
    assert _instance_id(first) == name
    shutil.copytree(first, copy)
    assert _instance_id(copy) != name
