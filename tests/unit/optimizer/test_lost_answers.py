"""Answers of the service that are lost on the way to an optimizer."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from pyarctic.errors import StaleAttempt, Unavailable, UnknownOptimizer
from pyarctic.optimizer import Optimizer, TaskPoller, parts
from pyarctic.optimizing.execute import AttemptFuture
from pyarctic.optimizing.protocol import Job, Task


class Service:
    """Hands out one task; its answers to acknowledgments are lost some times."""

    def __init__(self, *answers: Exception | None) -> None:
        self._answers = list(answers)
        self.acknowledged = 0

    def poll(self, *_: object) -> list[dict[str, Any]]:
        return [{"task_id": "p.0", "attempt": 3, "job": {"id": "j"}, "task": {}}]

    def acknowledge(self, *_: object) -> None:
        self.acknowledged += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer is not None:
            raise answer


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_FIRST_WAIT", 0.001)
    monkeypatch.setattr(parts, "_INSIST_SECONDS", 0.05)
    monkeypatch.setattr(Job, "from_json", lambda _: "job")
    monkeypatch.setattr(Task, "from_json", lambda _: "task")


def polled(service: Service) -> list[int]:
    return [each.attempt for each in TaskPoller(service).poll(1, 0.0)]  # type: ignore[arg-type]


def test_an_acknowledgment_without_an_answer_is_repeated() -> None:
    service = Service(Unavailable("no answer"), None)
    assert polled(service) == [3]
    assert service.acknowledged == 2


def test_a_task_is_executed_if_its_acknowledgment_is_never_answered() -> None:
    """It may have arrived: then nobody else gets the task before its time without progress is over."""
    assert polled(Service(Unavailable("no answer"))) == [3]


def test_a_task_that_others_have_is_not_executed() -> None:
    assert polled(Service(Unavailable("no answer"), StaleAttempt("it is of others"))) == []


class SilentService:
    """Hands out one task, is away for a while, and knows the optimizer when it is back."""

    def __init__(self) -> None:
        self.silent = threading.Event()
        self.stopped: list[str] = []
        self.registered = 0
        self.over = threading.Event()

    def register(self, **_: object) -> dict[str, Any]:
        self.registered += 1
        return {"id": f"o{self.registered}", "heartbeat_timeout_seconds": 0.05}

    def heartbeat(self, *_: object) -> dict[str, Any]:
        if self.silent.is_set():
            raise Unavailable("no answer")
        return {"state": "active", "stop": []}

    def stop(self) -> None:
        self.stopped.append(f"o{self.registered}")
        self.over.set()

    def poll(self, *_: object) -> list[dict[str, Any]]:
        time.sleep(0.01)
        if self.stopped and self.registered == 1:
            raise UnknownOptimizer("it has ended")
        return []


class Engine:
    parallelism = 1


def test_tasks_that_were_given_up_in_an_outage_go_to_others_when_it_is_over() -> None:
    """The service was away itself, and has not taken the optimizer for lost."""
    service = SilentService()
    optimizer = Optimizer(service, Engine(), heartbeat_seconds=0.01)  # type: ignore[arg-type]
    executor: Any = optimizer._executor
    future = AttemptFuture(lambda future: future.set_result(None))  # type: ignore[arg-type]
    executor._running["p.0", 0] = future
    future.add_done_callback(lambda _: executor._running.clear())
    service.silent.set()
    thread = threading.Thread(target=optimizer.run)
    thread.start()
    try:
        assert future.result(5) is None
        assert service.stopped == []
        service.silent.clear()
        assert service.over.wait(5)
        deadline = time.monotonic() + 5
        while service.registered < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        optimizer.stop()
        thread.join(5)
    assert service.registered == 2
    assert service.stopped == ["o1", "o2"]
