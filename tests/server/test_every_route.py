"""What holds for every route: tokens, unknown objects, wrong bodies, and how errors look."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fastapi.testclient import TestClient

from pyarctic.ams import Ams
from pyarctic.ams.store import MemoryStore
from pyarctic.errors import ArcticError
from pyarctic.server import Tokens, create_app
from pyarctic.server import problems as problem_module
from pyarctic.server.problems import MAX_BODY_BYTES, STATUS
from tests.server.requests import BEARER, Api, expect

_OPEN = {"/healthz", "/readyz"}
_NOWHERE = {"process_id": "gone", "task_id": "gone.1", "optimizer_id": "gone", "attempt": "0"}
_BODIES: dict[str, Any] = {
    "tables_report_commit": {"store": "base", "table_uuid": "u", "snapshot_id": "1", "sequence_number": 1},
}


def _operations() -> list[tuple[str, str, dict[str, Any]]]:
    app = create_app(Ams(MemoryStore()), Tokens({}))
    paths = app.openapi()["paths"]
    return [(method.upper(), path, each) for path, methods in paths.items() for method, each in methods.items()]


OPERATIONS = _operations()
GUARDED = [pytest.param(*each, id=each[2]["operationId"]) for each in OPERATIONS if each[1] not in _OPEN]
WITH_ID = [pytest.param(*each, id=each[2]["operationId"]) for each in OPERATIONS if "{" in each[1]]
WITH_BODY = [
    pytest.param(*each, id=each[2]["operationId"])
    for each in OPERATIONS
    if each[2].get("requestBody", {}).get("required", False)
]


def _path(path: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: _NOWHERE.get(match[1], "nowhere"), path)


@pytest.fixture(scope="module")
def http() -> TestClient:
    return TestClient(create_app(Ams(MemoryStore()), Tokens.of({"tester": BEARER["Authorization"].split()[1]})))


@pytest.mark.parametrize(("method", "path", "operation"), GUARDED)
def test_a_token_is_needed(http: TestClient, method: str, path: str, operation: dict[str, Any]) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic Zm9vOmJhcg=="}):
        answer = http.request(method, _path(path), headers=headers, content=b"{")  # which is not looked at
        assert expect(answer, 401)["code"] == "unauthorized"
        assert answer.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize(("method", "path", "operation"), WITH_ID)
def test_unknown_objects(http: TestClient, method: str, path: str, operation: dict[str, Any]) -> None:
    headers = {**BEARER, "Arctic-Optimizer-Secret": "none"}
    body = _BODIES.get(operation["operationId"], {})
    answer = http.request(method, _path(path), headers=headers, json=body if "requestBody" in operation else None)
    problem = expect(answer, 410 if problem_of(answer) == "unknown-optimizer" else 404)
    assert problem["code"] in ("not-found", "unknown-optimizer")
    assert str(problem["status"]) in operation["responses"], "errors are declared"


@pytest.mark.parametrize(("method", "path", "operation"), WITH_BODY)
@pytest.mark.parametrize("body", [b"[]", b"{", b"", b'"\xff"', b"[" * 100_000], ids=["list", "cut", "none", "bytes", "deep"])
def test_wrong_bodies(http: TestClient, method: str, path: str, operation: dict[str, Any], body: bytes) -> None:
    headers = {**BEARER, "Arctic-Optimizer-Secret": "none", "Content-Type": "application/json"}
    answer = http.request(method, _path(path), headers=headers, content=body)
    problem = expect(answer, 400 if problem_of(answer) == "usage" else 422)
    assert problem["code"] in ("usage", "invalid-request", "protocol")


@pytest.mark.parametrize(("method", "path", "operation"), WITH_BODY)
def test_halves_of_characters_are_refused(http: TestClient, method: str, path: str, operation: dict[str, Any]) -> None:
    headers = {**BEARER, "Arctic-Optimizer-Secret": "none", "Content-Type": "application/json"}
    answer = http.request(method, _path(path), headers=headers, content=b'{"host": "\\ud800"}')
    assert "not Unicode" in expect(answer, 400)["detail"]


def test_whole_characters_are_not(api: Api) -> None:
    body = b'{"parallelism": 1, "host": "\\ud83d\\ude00 \\\\ud800"}'
    headers = {**BEARER, "Content-Type": "application/json"}
    registered = expect(api.http.post("/api/v1/optimizers", headers=headers, content=body), 201)
    assert api.get(f"/optimizers/{registered['id']}")["host"] == "\U0001f600 \\ud800"


def problem_of(answer: Any) -> str:
    return str(answer.json()["code"])


def test_paths_and_methods_that_are_not_served(http: TestClient) -> None:
    assert expect(http.get("/api/v1/nothing", headers=BEARER), 404)["code"] == "not-found"
    answer = http.delete("/api/v1/tables", headers=BEARER)
    assert expect(answer, 405)["code"] == "method-not-allowed"
    assert answer.headers["allow"] == "GET"


def test_large_bodies_are_refused(http: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem_module, "MAX_BODY_BYTES", 1000)
    assert MAX_BODY_BYTES > 10 << 20
    headers = {**BEARER, "Arctic-Optimizer-Secret": "none"}
    for path in ("/optimizers", "/tasks/gone.1/attempts/0/complete"):
        answer = http.post(f"/api/v1{path}", headers=headers, json={"parallelism": 1, "host": "x" * 1000})
        assert expect(answer, 413)["code"] == "too-large"


def test_unexpected_errors_tell_nothing_but_an_id(api: Api, ams: Ams, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("the password is 1234")

    monkeypatch.setattr(ams.core.store, "read", broken)
    answer = api.call("GET", "/tables")
    problem = expect(answer, 500)
    assert (problem["code"], "1234" in answer.text) == ("internal", False)
    assert problem["trace_id"] in problem["hint"]


def test_every_error_has_a_status() -> None:
    def codes(kind: type[ArcticError]) -> set[str]:
        return {kind.code}.union(*(codes(each) for each in kind.__subclasses__()))

    assert codes(ArcticError) - {"service"} - set(STATUS) == set()


def test_lists_have_pages(api: Api) -> None:
    ids = [api.register().id for _ in range(7)]
    first = api.get("/optimizers", limit=3)
    second = api.get("/optimizers", limit=3, cursor=first["next"])
    third = api.get("/optimizers", limit=3, cursor=second["next"])
    assert [each["id"] for page in (first, second, third) for each in page["items"]] == ids[::-1]
    assert third["next"] is None
    for wrong in ("!", "W10", "bnVsbA", "WzEsMl0"):
        assert api.get("/optimizers", 400, cursor=wrong)["code"] == "usage"
    for limit in (0, 501):
        assert api.get("/optimizers", 422, limit=limit)["errors"][0]["field"] == "query.limit"
