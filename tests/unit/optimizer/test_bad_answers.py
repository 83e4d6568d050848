"""Answers that nobody expects neither end an optimizer, nor silence it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pyarctic.client import ServiceError
from pyarctic.errors import ArcticError, Unauthorized, UnknownOptimizer, UsageError
from pyarctic.optimizer import Optimizer, TaskPoller
from pyarctic.optimizer import optimizer as module
from pyarctic.optimizing.protocol import PROTOCOL_VERSION, Job, Task

_SOUND = {"task_id": "p.7", "attempt": 0, "job": {"id": "j"}, "task": {"id": 7}}
_NEXT = {"state": "active", "stop": []}


class _Engine:
    parallelism = 1


class _Service:
    """Gives the answers that it is told to give, each once, and sound ones after them. Errors are raised."""

    def __init__(self) -> None:
        self.registrations: list[Any] = []
        self.beats: list[Any] = []
        self.polls: list[Any] = []
        self.calls: list[str] = []
        self.registered_with: dict[str, Any] = {}

    def _answer(self, call: str, answers: list[Any], otherwise: Any) -> Any:
        self.calls.append(call)
        answer = answers.pop(0) if answers else otherwise
        if isinstance(answer, Exception):
            raise answer
        return answer

    def register(self, **given: Any) -> Any:
        self.registered_with = given
        return self._answer("register", self.registrations, {"id": "o", "heartbeat_timeout_seconds": 60})

    def heartbeat(self, *_: object) -> Any:
        return self._answer("heartbeat", self.beats, _NEXT)

    def poll(self, *_: object) -> Any:
        time.sleep(0.01)
        return self._answer("poll", self.polls, [])

    def acknowledge(self, task_id: str, *_: object) -> None:
        self.calls.append(f"acknowledge {task_id}")

    def fail(self, task_id: str, _attempt: int, failure: dict[str, Any]) -> None:
        self.calls.append(f"fail {task_id} {failure['code']}")

    def stop(self) -> None:
        self.calls.append("stop")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_WAIT", 0.01)


@contextmanager
def _running(service: Any) -> Iterator[None]:
    optimizer = Optimizer(service, _Engine(), heartbeat_seconds=0.01)  # type: ignore[arg-type]
    thread = threading.Thread(target=optimizer.run)
    thread.start()
    try:
        yield
    finally:
        optimizer.stop()
        thread.join(10)
    assert not thread.is_alive()


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    "answer", [None, {}, [], {"state": "active"}, {"stop": []}, {**_NEXT, "stop": [{}]}, ValueError("no gzip")], ids=repr
)
def test_heartbeats_go_on_after_an_answer_that_is_none(answer: object) -> None:
    service = _Service()
    service.beats = [answer]
    with _running(service):
        _until(lambda: service.calls.count("heartbeat") > 2)


@pytest.mark.parametrize(
    "document",
    [None, {}, {**_SOUND, "attempt": None}, {**_SOUND, "attempt": "x"}, {**_SOUND, "job": None}, {**_SOUND, "task": 5}],
    ids=repr,
)
def test_a_task_that_is_none_is_left_to_the_service(monkeypatch: pytest.MonkeyPatch, document: object) -> None:
    """Not acknowledged, it goes to others soon."""
    monkeypatch.setattr(Job, "from_json", lambda _: "job")
    monkeypatch.setattr(Task, "from_json", lambda _: "task")
    service: Any = _Service()
    service.polls = [[document, {**_SOUND, "task_id": "p.8"}]]
    assert [polled.id for polled in TaskPoller(service).poll(2, 0.0)] == ["p.8"]
    assert service.calls == ["poll", "acknowledge p.8"]


@pytest.mark.parametrize(("error", "code"), [(KeyError("files"), "internal"), (UsageError("no"), "usage")])
def test_a_task_that_cannot_be_read_has_failed(monkeypatch: pytest.MonkeyPatch, error: Exception, code: str) -> None:
    """It is acknowledged already: nobody else would get it for long."""

    def read(document: dict[str, Any]) -> str:
        if document["id"] == 7:
            raise error
        return "task"

    monkeypatch.setattr(Job, "from_json", lambda _: "job")
    monkeypatch.setattr(Task, "from_json", read)
    service: Any = _Service()
    service.polls = [[_SOUND, {**_SOUND, "task_id": "p.8", "task": {"id": 8}}]]
    assert [polled.id for polled in TaskPoller(service).poll(2, 0.0)] == ["p.8"]
    assert service.calls == ["poll", "acknowledge p.7", f"fail p.7 {code}", "acknowledge p.8"]


def test_an_optimizer_goes_on_after_tasks_that_are_none() -> None:
    service = _Service()
    service.polls = [[None, {}]]
    with _running(service):
        _until(lambda: service.calls.count("poll") > 2)


def test_a_registration_is_repeated_after_errors_of_the_service() -> None:
    service = _Service()
    service.registrations = [ServiceError("429 Too Many Requests"), ServiceError("500 Internal Server Error")]
    with _running(service):
        _until(lambda: "poll" in service.calls)
        assert service.registered_with["protocol_version"] == PROTOCOL_VERSION
        service.registrations = [ServiceError("500 Internal Server Error")]
        service.polls = [UnknownOptimizer("it is lost")]
        _until(lambda: service.calls.count("register") == 5)
        service.calls.clear()
        _until(lambda: "poll" in service.calls)


@pytest.mark.parametrize(
    "error",
    [
        Unauthorized("the token is not accepted"),
        UsageError("version 1 of the task protocol"),
        ServiceError.of_problem({"code": "invalid-request"}, "parallelism"),
    ],
    ids=lambda error: error.code,
)
def test_a_registration_that_never_succeeds_ends_it(error: ArcticError) -> None:
    service: Any = _Service()
    service.registrations = [error]
    with pytest.raises(type(error), match=str(error)):
        Optimizer(service, _Engine()).run()  # type: ignore[arg-type]
    service.registrations = [{"id": "o", "heartbeat_timeout_seconds": 60}, error]
    service.polls = [UnknownOptimizer("it is lost")]
    with pytest.raises(type(error), match=str(error)):
        Optimizer(service, _Engine(), heartbeat_seconds=0.01).run()  # type: ignore[arg-type]
