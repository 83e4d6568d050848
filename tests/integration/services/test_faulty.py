"""The faulty proxy before a catalog that only counts what it gets."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests

from tests.services.faulty import PASS, Commit, Fault, FaultyProxy, delayed, lost, refused, repeated, reset, start
from tests.support.processes import HOST

COMMIT = "/v1/namespaces/ns/tables/t"


class Counting(ThreadingHTTPServer):
    """Answers every request with 200 and its number, but a commit that it has seen before with 409."""

    def __init__(self) -> None:
        super().__init__((HOST, 0), CountingHandler)
        self.seen: list[tuple[str, str, bytes]] = []


class CountingHandler(BaseHTTPRequestHandler):
    server: Counting

    def do_GET(self) -> None:
        request = (self.command, self.path, self.rfile.read(int(self.headers.get("Content-Length", 0))))
        status = 409 if request[0] == "POST" and request in self.server.seen else 200
        self.server.seen.append(request)
        body = json.dumps({"number": len(self.server.seen), "asked": self.headers.get("X-Asked")}).encode()
        self.send_response(status)
        self.send_header("X-Said", "yes")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if self.command != "HEAD" else b"")

    do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def catalog() -> Iterator[Counting]:
    with Counting() as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        serving.start()
        yield server
        server.shutdown()
        serving.join()


@pytest.fixture
def proxy(catalog: Counting) -> Iterator[FaultyProxy]:
    with start(f"http://{HOST}:{catalog.server_port}") as started:
        yield started


def commit(proxy: FaultyProxy, body: str = "one", path: str = COMMIT) -> int:
    return requests.post(proxy.uri + path, data=body, timeout=10).status_code


def test_everything_passes_without_a_plan(proxy: FaultyProxy, catalog: Counting) -> None:
    answer = requests.get(f"{proxy.uri}/v1/config?warehouse=w", headers={"X-Asked": "this"}, timeout=10)
    assert answer.json() == {"number": 1, "asked": "this"}
    assert answer.headers["X-Said"] == "yes"
    assert requests.head(f"{proxy.uri}{COMMIT}", timeout=10).status_code == 200
    assert requests.delete(f"{proxy.uri}{COMMIT}", timeout=10).status_code == 200
    assert commit(proxy) == 200
    methods = [(method, path) for method, path, _ in catalog.seen]
    assert methods == [("GET", "/v1/config?warehouse=w"), ("HEAD", COMMIT), ("DELETE", COMMIT), ("POST", COMMIT)]
    assert proxy.commits == [Commit(path=COMMIT, fault=PASS, catalog_said=(200,), client_heard=200)]


@pytest.mark.parametrize("status", [409, 500, 502, 503, 504])
def test_refused_commits_never_arrive(proxy: FaultyProxy, catalog: Counting, status: int) -> None:
    proxy.plan([refused(status)])
    answer = requests.post(proxy.uri + COMMIT, data="one", timeout=10)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == status
    assert catalog.seen == []
    assert commit(proxy) == 200, "the plan is used up"


def test_lost_commits_have_arrived(proxy: FaultyProxy, catalog: Counting) -> None:
    proxy.plan([lost(504)])
    assert commit(proxy) == 504
    assert catalog.seen == [("POST", COMMIT, b"one")]
    assert proxy.commits == [Commit(path=COMMIT, fault=lost(504), catalog_said=(200,), client_heard=504)]


@pytest.mark.parametrize("arrived", [True, False])
def test_the_connection_is_reset(proxy: FaultyProxy, catalog: Counting, arrived: bool) -> None:
    proxy.plan([reset(arrived=arrived)])
    with pytest.raises(requests.ConnectionError, match="reset by peer"):
        commit(proxy)
    assert len(catalog.seen) == int(arrived)
    assert proxy.commits[0].client_heard is None


def test_repeated_commits_arrive_twice(proxy: FaultyProxy, catalog: Counting) -> None:
    proxy.plan([repeated()])
    assert commit(proxy) == 409, "the answer to the second"
    assert [body for _, _, body in catalog.seen] == [b"one", b"one"]
    assert proxy.commits[0].catalog_said == (200, 409)


def test_delays(proxy: FaultyProxy, catalog: Counting) -> None:
    proxy.plan([delayed(0.2), Fault(answer_delay=1.0)])
    began = time.monotonic()
    assert commit(proxy, "slow") == 200
    assert time.monotonic() - began >= 0.2
    with pytest.raises(requests.Timeout):
        requests.post(proxy.uri + COMMIT, data="late answer", timeout=0.1)
    assert proxy.left == 0


def test_a_delayed_commit_lands_before_the_proxy_ends(catalog: Counting) -> None:
    with start(f"http://{HOST}:{catalog.server_port}") as proxy:
        proxy.plan([delayed(0.3)])
        with pytest.raises(requests.Timeout):
            requests.post(proxy.uri + COMMIT, data="one", timeout=0.05)
    assert len(catalog.seen) == 1


@pytest.mark.parametrize(
    ("path", "is_commit"),
    [
        (COMMIT, True),
        ("/v1/a-prefix/namespaces/a%1Fb/tables/t", True),
        ("/v1/transactions/commit", True),
        ("/v1/namespaces/ns/tables", False),
        ("/v1/namespaces/ns/tables/t/metrics", False),
        ("/v1/namespaces/ns/register", False),
        ("/v1/namespaces", False),
    ],
)
def test_only_commits_use_up_the_plan(proxy: FaultyProxy, path: str, is_commit: bool) -> None:
    proxy.plan([refused(503)])
    assert commit(proxy, path=path) == (503 if is_commit else 200)
    assert proxy.left == int(not is_commit)
