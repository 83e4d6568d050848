"""The client: where the service is, and its errors as exceptions."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from pyarctic.ams import Ams
from pyarctic.client import Address, Client, OptimizerClient, ServiceError, connect
from pyarctic.client.transport import Transport
from pyarctic.errors import (
    ArcticError,
    ConfigError,
    NotFound,
    ProtocolError,
    StaleAttempt,
    Unauthorized,
    Unavailable,
    UnknownOptimizer,
    UsageError,
)
from pyarctic.server import HttpServer
from tests.server.requests import TOKEN


def test_where_the_service_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert Address.find() == Address(urls=("http://127.0.0.1:1630",), token=None)
    monkeypatch.setenv("ARCTIC_STATE", str(tmp_path))
    (tmp_path / "admin.token").write_text("local\n")
    assert Address.find().token == "local"
    assert Address.find("http://localhost:1,http://[::1]:2").token == "local"
    assert Address.find("http://127.0.0.1:1,https://example.org").token is None, "it is for this machine only"
    monkeypatch.setenv("ARCTIC_URL", "http://a:1/, http://b:2")
    monkeypatch.setenv("ARCTIC_TOKEN", "of-the-environment")
    assert Address.find() == Address(urls=("http://a:1", "http://b:2"), token="of-the-environment")
    assert Address.find("http://c", "given") == Address(urls=("http://c",), token="given")
    assert "given" not in repr(Address.find("http://c", "given"))
    for wrong in ("localhost:1630", "ftp://a", "http://"):
        with pytest.raises(ConfigError, match="is not the URL of a service"):
            connect(wrong)


def test_errors_are_those_of_the_library(ams: Ams, client: Client, server: HttpServer, address: Address, table: str) -> None:
    with pytest.raises(NotFound, match="there is no process x") as missing:
        client.process("x")
    assert missing.value.hint is None
    with pytest.raises(NotFound, match=r"no table lake.db.orders is watched"):
        client.table(table).explain()
    with pytest.raises(Unauthorized, match="the token is not accepted"):
        connect(server.url, "wrong").tables()
    with pytest.raises(ServiceError, match=r"query\.limit") as invalid:
        client.get("/tables", {"limit": 0})
    assert (invalid.value.code, invalid.value.title) == ("invalid-request", "The request is not valid")
    ams.looks.discover()
    client.table(table).pause("a migration", datetime(2999, 1, 1, tzinfo=UTC))
    assert client.table(table).resume()["state"] == "active"
    with pytest.raises(ServiceError) as twice:
        client.table(table).resume()
    assert twice.value.code == "invalid-transition"

    optimizer = OptimizerClient(address)
    with pytest.raises(UsageError, match="not registered"):
        optimizer.heartbeat([])
    with pytest.raises(UsageError, match="version 9"):
        optimizer.register(parallelism=1, protocol_version=9)
    optimizer.register(parallelism=1)
    assert client.table(table).optimize() is not None
    [task] = optimizer.poll()
    with pytest.raises(StaleAttempt):
        optimizer.acknowledge(task["task_id"], 5)
    with pytest.raises(ProtocolError) as refused:
        optimizer.complete(task["task_id"], 0, {"type": "result", "version": 2})
    assert refused.value.facts["reason"] == "newer-version"
    optimizer.drain()
    optimizer.stop()
    with pytest.raises(UnknownOptimizer):
        optimizer.poll()
    optimizer.close()


def test_reported_commits(ams: Ams, client: Client, table: str) -> None:
    ams.looks.discover()
    uuid = client.table(table).get()["uuid"]
    known = {"table_uuid": uuid, "snapshot_id": -5, "parent_id": None, "sequence_number": 70}
    assert client.table(table).report_commit(**known)
    assert not client.table(table).report_commit(**known)
    assert client.table(table).events()[0]["after"] == "active"


def test_urls_are_tried_in_turn(server: HttpServer) -> None:
    with Client(Address(urls=("http://127.0.0.1:1", server.url), token=TOKEN)) as client:
        assert client.tables() == []
        assert client.url == server.url
    with connect("http://127.0.0.1:1", "x") as client, pytest.raises(Unavailable) as nothing:
        client.tables()
    assert "http://127.0.0.1:1" in str(nothing.value.hint)
    assert nothing.value.retryable


def test_lists_have_all_pages(ams: Ams, client: Client, address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyarctic.client.client._PAGE", 3)
    optimizer = OptimizerClient(address)
    for _ in range(8):
        optimizer.register(parallelism=1)
    optimizer.close()
    assert len(client.optimizers()) == 8
    assert [event["number"] for event in client.events(after=2)] == list(range(3, 9))
    assert client.processes(limit=2) == []


class _Foreign(BaseHTTPRequestHandler):
    """Something that is no service of PyArctic: the path says what it answers."""

    def do_GET(self) -> None:
        status, _, text = unquote(self.path).removeprefix("/api/v1/").partition("/")
        self.send_response(int(status))
        if text == "not gzip":
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def foreign() -> Iterator[Client]:
    with HTTPServer(("127.0.0.1", 0), _Foreign) as listening:
        threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True).start()
        with connect(f"http://127.0.0.1:{listening.server_port}") as client:
            yield client
        listening.shutdown()


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("200/hello", "unavailable"),
        ("200/not gzip", "unavailable"),
        ("200/null", "unavailable"),
        ("200/[]", "unavailable"),
        ("302/", "service"),
        ("403/no", "service"),
        ("429/slowly", "unavailable"),
        ("502/bad", "unavailable"),
        ("404/[]", "service"),
    ],
)
def test_answers_of_others(foreign: Client, path: str, code: str) -> None:
    with pytest.raises(ArcticError) as wrong:
        foreign.get(f"/{path}")
    assert wrong.value.code == code
    assert wrong.value.hint


@pytest.mark.parametrize("more", ['"facts": [1]', '"facts": "a"', '"facts": {"cls": 1}', '"hint": 5'])
@pytest.mark.parametrize("code", ["conflict", "new"])
def test_errors_of_others(foreign: Client, code: str, more: str) -> None:
    with pytest.raises(ArcticError, match="it is so") as wrong:
        foreign.get(f'/400/{{"code": "{code}", "detail": "it is so", {more}}}')
    assert (wrong.value.code, wrong.value.hint, wrong.value.facts) == (code, None, {})


@pytest.mark.parametrize("answer", [None, {}, {"state": "active", "stop": None, "id": "o", "tasks": {}}])
def test_answers_without_what_they_must_have(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    monkeypatch.setattr(Transport, "request", lambda *_, **__: answer)
    address = Address(urls=("http://127.0.0.1:1",), token=None)
    optimizer = OptimizerClient(address)
    with pytest.raises(Unavailable, match="secret and heartbeat_timeout_seconds"):
        optimizer.register(parallelism=1)
    optimizer._id = "o"
    with pytest.raises(Unavailable, match="stop"):
        optimizer.heartbeat([])
    with pytest.raises(Unavailable, match="properties"):
        optimizer.storage("p.0", 0)
    if answer is not None:  # no task
        with pytest.raises(Unavailable, match="tasks"):
            optimizer.poll()
    with Client(address) as client:
        with pytest.raises(Unavailable, match="items"):
            client.tables()
        with pytest.raises(Unavailable, match="items"):
            list(client.events())
    optimizer.close()


class _Url(str):
    """Lets another thread have its turn at a comparison."""

    __slots__ = ("turns",)
    turns: list[Any]

    def __eq__(self, other: object) -> bool:
        if turn := self.turns.pop(0) if self.turns else None:
            turn()
        return str(self) == str(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


@pytest.mark.parametrize("when", range(6))
def test_threads_that_go_on_to_the_next_url_at_once(when: int) -> None:
    transport = Transport(Address(urls=("http://a", "http://b", "http://c"), token=None))
    url = _Url("http://b")
    url.turns = [None] * when + [lambda: transport._prefer("http://b")]
    transport._prefer(url)
    assert list(map(str, transport._urls)) == ["http://b", "http://a", "http://c"]
    transport.close()


def test_the_client_is_light() -> None:
    """Whoever only asks waits for no Arrow."""
    heavy = "fastapi polars pyarrow pyiceberg sqlalchemy uvicorn"
    use = "import json, sys, pyarctic.client as c; c.connect; c.OptimizerClient"
    program = f"{use}; print(json.dumps([name for name in {heavy!r}.split() if name in sys.modules]))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) == []
