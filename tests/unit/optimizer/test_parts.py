"""Optimizers: what they have finished is reported, and what they have stopped is not kept from others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from pyarctic.errors import Unavailable
from pyarctic.optimizer import Optimizer, PolledTask, TaskExecutor, TaskService
from pyarctic.optimizing.execute import AttemptFuture, Engine
from pyarctic.optimizing.protocol import TaskOutcome


class _Engine:
    name = "test"
    parallelism = 1

    def __init__(self) -> None:
        self.future = AttemptFuture(lambda _: None)

    def submit(self, *_: Any) -> AttemptFuture:
        return self.future


def _executor(monkeypatch: pytest.MonkeyPatch, engine: _Engine, ended: Callable[..., None]) -> TaskExecutor:
    monkeypatch.setattr(TaskExecutor, "_open_storage", lambda *_: None)
    return TaskExecutor(cast("TaskService", None), cast("Engine", engine), ended)


def _polled() -> PolledTask:
    return PolledTask(id="p.0", attempt=0, job=cast("Any", _Thing()), task=cast("Any", _Thing()))


class _Thing:
    id = 0


def test_an_attempt_is_running_until_its_outcome_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draining optimizer ends when nothing runs, and would lose it."""
    engine, running = _Engine(), []

    def ended(_polled: PolledTask, _outcome: TaskOutcome) -> None:
        running.append(executor.running)

    executor = _executor(monkeypatch, engine, ended)
    executor.start(_polled())
    engine.future.set_result(cast("TaskOutcome", object()))
    assert running == [[("p.0", 0)]]
    assert executor.running == []


class _Service:
    """Answers heartbeats only at times."""

    def __init__(self) -> None:
        self.answers = True
        self.registrations = 0
        self.stops = 0

    def register(self, **_: Any) -> dict[str, Any]:
        self.registrations += 1
        return {"id": str(self.registrations), "heartbeat_timeout_seconds": 0.1}

    def heartbeat(self, _attempts: Any) -> dict[str, Any]:
        if not self.answers:
            raise Unavailable("no answer")
        return {"state": "active", "stop": []}

    def poll(self, _slots: int, _wait: float) -> list[dict[str, Any]]:
        time.sleep(0.01)
        return []

    def stop(self) -> None:
        if not self.answers:
            raise Unavailable("no answer")
        self.stops += 1


def test_an_optimizer_that_has_stopped_its_work_begins_again() -> None:
    """The service may not have noticed: else it would wait for results of attempts that nobody executes."""
    service = _Service()
    optimizer = Optimizer(cast("TaskService", service), cast("Engine", _Engine()), heartbeat_seconds=0.02)
    thread = threading.Thread(target=optimizer.run)
    thread.start()
    try:
        time.sleep(0.1)
        assert service.registrations == 1
        service.answers = False
        time.sleep(0.4)
        service.answers = True
        deadline = time.monotonic() + 5
        while service.registrations < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert service.stops == 1, "what it had is given back at once"
        time.sleep(0.2)
        assert service.registrations == 2
    finally:
        optimizer.stop()
        thread.join(10)
    assert not thread.is_alive()
