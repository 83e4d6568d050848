"""Requests while a catalog hangs: heartbeats are answered, and so are requests about other catalogs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pyarctic.ams import Ams, Registration, TaskState
from pyarctic.ams.crews import Crew
from pyarctic.ams.store import MemoryStore
from pyarctic.client import Address, OptimizerClient
from pyarctic.server import HttpServer, Tokens, create_app
from tests.server.requests import BEARER, TOKEN
from tests.support.ams_rows import process, task
from tests.support.hanging_catalogs import ANSWERING, HANGING, PATIENCE_SECONDS, HangingCatalogs, wait_until, watch

_ROOT = Path(__file__).parents[2]
REQUESTS = 45
"""More than there are threads for."""
PLACES = 8
"""Of one catalog."""
REPORT = {"store": "base", "table_uuid": "u", "snapshot_id": "1", "sequence_number": 1}


class _Requests:
    """Many requests at a time to a service with a catalog that hangs."""

    def __init__(self) -> None:
        self.catalogs = HangingCatalogs()
        self.ams = Ams(MemoryStore(), catalogs=self.catalogs)
        self.server = HttpServer(create_app(self.ams, Tokens.of({"tester": TOKEN})), port=0)
        self.server.start()
        self.optimizer = OptimizerClient(Address(urls=(self.server.url,), token=TOKEN))
        registered = self.optimizer.register(parallelism=1)
        headers = {**BEARER, "Arctic-Optimizer-Secret": registered["secret"]}
        limits = httpx2.Limits(max_connections=2 * REQUESTS)
        self._http = httpx2.Client(headers=headers, timeout=2 * PATIENCE_SECONDS, limits=limits)
        self._pool = ThreadPoolExecutor(REQUESTS)

    def send(self, method: str, path: str, body: Any = None) -> Future[httpx2.Response]:
        return self._pool.submit(self._http.request, method, f"{self.server.url}/api/v1{path}", json=body)

    def get(self, path: str) -> httpx2.Response:
        return self._http.get(f"{self.server.url}{path}")

    def end(self) -> None:
        self.catalogs.release()
        self._pool.shutdown()
        self._http.close()
        self.optimizer.close()
        self.server.stop()


@pytest.fixture
def requests() -> Iterator[_Requests]:
    made = _Requests()
    yield made
    made.end()


def reports(requests: _Requests) -> list[Future[httpx2.Response]]:
    """Of tables that are not known."""
    path = f"/catalogs/{HANGING}/databases/db/tables"
    return [requests.send("POST", f"{path}/t{number}/commits", REPORT) for number in range(REQUESTS)]


def wishes(requests: _Requests) -> list[Future[httpx2.Response]]:
    """To optimize tables that are not known."""
    path = f"/catalogs/{HANGING}/databases/db/tables"
    return [requests.send("POST", f"{path}/t{number}/processes", {}) for number in range(REQUESTS)]


def storage(requests: _Requests) -> list[Future[httpx2.Response]]:
    """For attempts of the optimizer."""
    now = requests.ams.core.clock.now()
    watch(requests.ams.core.store, [HANGING], 1)
    given = {"state": TaskState.EXECUTING, "attempt": 0, "optimizer_id": requests.optimizer.id, "handed_out_at": now}
    tasks = [task(number, table_uuid=f"{HANGING}0", **given) for number in range(REQUESTS)]
    with requests.ams.core.store.begin() as transaction:
        transaction.insert(process(), *tasks)
    return [requests.send("GET", f"/tasks/{each.key}/attempts/0/storage") for each in tasks]


def explanations(requests: _Requests) -> list[Future[httpx2.Response]]:
    watch(requests.ams.core.store, [HANGING], 1)
    path = f"/catalogs/{HANGING}/databases/db/tables/t0/explain"
    return [requests.send("GET", path) for _ in range(REQUESTS)]


@pytest.mark.parametrize("ask", [reports, wishes, storage, explanations])
def test_heartbeats_and_other_catalogs_are_answered(
    requests: _Requests, ask: Callable[[_Requests], list[Future[httpx2.Response]]]
) -> None:
    answers = ask(requests)
    wait_until(lambda: sum(each.done() for each in answers) == REQUESTS - PLACES)
    refused = [each.result() for each in answers if each.done()]
    assert {each.status_code for each in refused} == {503}
    assert refused[0].json()["retryable"]
    assert len(requests.catalogs.opened) == PLACES

    assert requests.optimizer.heartbeat([])["state"] == "active"
    assert requests.get("/healthz").status_code == 200
    assert requests.get("/readyz").json()["problems"] == ["the loops have not been started"]
    report = requests.send("POST", f"/catalogs/{ANSWERING}/databases/db/tables/t/commits", REPORT)
    assert report.result(PATIENCE_SECONDS).status_code == 404
    assert requests.catalogs.asked(ANSWERING) == {f"{ANSWERING}.db.t"}

    requests.catalogs.release()
    assert {each.result(PATIENCE_SECONDS).status_code for each in answers} <= {404, 503}
    assert requests.ams.optimizers.register(Registration(parallelism=1))


def test_many_catalogs_that_hang_leave_threads_to_heartbeats(requests: _Requests) -> None:
    names = [f"{HANGING}{number % 9}" for number in range(REQUESTS)]
    answers = [requests.send("POST", f"/catalogs/{name}/databases/db/tables/t/commits", REPORT) for name in names]
    wait_until(lambda: sum(each.done() for each in answers) == REQUESTS - 12)
    assert requests.optimizer.heartbeat([])["state"] == "active"


def test_reports_of_tables_that_are_known_need_no_place(requests: _Requests) -> None:
    reports(requests)
    wait_until(lambda: len(requests.catalogs.opened) == PLACES)
    watch(requests.ams.core.store, [HANGING], 1)
    known = {**REPORT, "table_uuid": f"{HANGING}0"}
    report = requests.send("POST", f"/catalogs/{HANGING}/databases/db/tables/t0/commits", known)
    assert report.result(PATIENCE_SECONDS).status_code == 202


def test_a_catalog_that_hangs_is_seen(requests: _Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    watch(requests.ams.core.store, [HANGING], 1)
    requests.ams.start()
    try:
        wait_until(lambda: bool(requests.catalogs.opened))
        shown = requests.get("/readyz")
        assert (shown.status_code, shown.json()["problems"]) == (200, [])
        crews = {each["name"]: each for each in shown.json()["crews"]}
        assert list(crews) == ["discover", "looks", "commits", "cleaning"]
        assert (crews["looks"]["running"], crews["looks"]["oldest_catalog"]) == (1, HANGING)
        assert crews["commits"] == {"name": "commits", "running": 0, "oldest_seconds": 0.0, "oldest_catalog": None}
        monkeypatch.setattr(Crew, "blocked_seconds", 601.0)
        shown = requests.get("/readyz")
        assert (shown.status_code, shown.json()["problems"][0]) == (503, "the crew discover is stuck")
    finally:
        requests.catalogs.release()
        requests.ams.stop()


def test_a_request_that_hangs_does_not_keep_the_process_from_ending() -> None:
    code = f"""
import os, signal, threading
import httpx2
from pyarctic.ams import Ams
from pyarctic.ams.store import MemoryStore
from pyarctic.server import HttpServer, Tokens, create_app, running
from tests.support.hanging_catalogs import HangingCatalogs, wait_until

running._GRACE_SECONDS = 0
signal.signal(signal.SIGTERM, lambda *_: None)
catalogs = HangingCatalogs()
server = HttpServer(create_app(Ams(MemoryStore(), catalogs=catalogs), Tokens.open_to_all()), port=0)

def ask():
    httpx2.post(server.url + "/api/v1/catalogs/{HANGING}/databases/db/tables/t/commits", json={REPORT}, timeout=60)

def end():
    wait_until(lambda: server._server.started)
    threading.Thread(target=ask, daemon=True).start()
    wait_until(lambda: catalogs.opened)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=end, daemon=True).start()
server.run()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_SECONDS, stderr=subprocess.DEVNULL, cwd=_ROOT)
