"""Requests to the application, and an optimizer that executes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fastapi.testclient import TestClient
from httpx2 import Response

TOKEN = "a-token-of-the-tests"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
TABLE = "/catalogs/lake/databases/db/tables/orders"


@dataclass
class Api:
    """Requests below /api/v1 with the token."""

    http: TestClient
    headers: dict[str, str] = field(default_factory=lambda: dict(BEARER))

    def call(self, method: str, path: str, body: Any = None, **options: Any) -> Response:
        headers = {**self.headers, **options.pop("headers", {})}
        answer: Response = self.http.request(method, f"/api/v1{path}", json=body, headers=headers, **options)
        return answer

    def get(self, path: str, status: int = 200, **query: Any) -> Any:
        return expect(self.call("GET", path, params=query), status)

    def post(self, path: str, body: Any = None, status: int = 200) -> Any:
        return expect(self.call("POST", path, body), status)

    def register(self, **given: Any) -> Worker:
        """An optimizer."""
        answer = self.post("/optimizers", {"parallelism": 2, "host": "test", **given}, 201)
        return Worker(Api(self.http, {**self.headers, "Arctic-Optimizer-Secret": answer["secret"]}), answer["id"])


@dataclass
class Worker:
    """An optimizer in the hands of a test."""

    api: Api
    id: str

    def poll(self, slots: int = 1) -> list[dict[str, Any]]:
        answer = self.api.call("POST", f"/optimizers/{self.id}/poll", {"slots": slots, "wait_seconds": 0})
        return [] if answer.status_code == 204 else list(expect(answer, 200)["tasks"])

    def report(
        self, task: dict[str, Any], what: str, body: Any = None, status: int = 204, attempt: int | None = None
    ) -> Any:
        number = task["attempt"] if attempt is None else attempt
        return self.api.post(f"/tasks/{task['task_id']}/attempts/{number}/{what}", body, status)


def expect(answer: Response, status: int) -> Any:
    """The content of an answer with this status; of errors, after a look whether they are complete."""
    assert answer.status_code == status, answer.text
    if status < 400:
        return answer.json() if answer.content else None
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == status
    assert problem["type"] == f"/problems/{problem['code']}"
    assert problem["trace_id"]
    assert problem["detail"]
    return problem
