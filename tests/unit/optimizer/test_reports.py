"""What an optimizer has finished reaches the service, or the service hears why not."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest

from pyarctic.client import ServiceError
from pyarctic.errors import StaleAttempt, Unauthorized, Unavailable
from pyarctic.optimizer import Optimizer, PolledTask, TaskExecutor, TaskReporter, parts
from pyarctic.optimizer import optimizer as module
from pyarctic.optimizing.execute import CANCELLED
from pyarctic.optimizing.protocol import TaskFailure, TaskOutcome, TaskResult

_TOO_LARGE = ServiceError.of_problem({"code": "too-large"}, "more than 64 MiB")


class _Part:
    """A job, or a task."""

    id: Any = 0
    table = "lake.db.orders"


def _polled() -> PolledTask:
    job: Any = _Part()
    job.id = "j"
    task: Any = _Part()
    return PolledTask(id="p.0", attempt=0, job=job, task=task)


def _result() -> TaskResult:
    return TaskResult(task=0, attempt=0, add=(), rows_in=0, rows_deleted=0, rows_out=0)


class _Refusing:
    """Refuses results."""

    def __init__(self, refusal: Exception) -> None:
        self._refusal = refusal
        self.calls: list[str] = []

    def complete(self, *_: object) -> None:
        self.calls.append("complete")
        raise self._refusal

    def fail(self, _task_id: str, _attempt: int, failure: dict[str, Any]) -> None:
        self.calls.append(f"fail {failure['code']}")


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (_TOO_LARGE, ["fail too-large"]),
        (Unauthorized("the secret is another one"), ["fail unauthorized"]),
        (ServiceError("500 Internal Server Error"), ["fail service"]),
        (TypeError("not JSON"), ["fail internal"]),
        (StaleAttempt("others have it"), []),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_a_result_that_is_refused_is_a_failure(refusal: Exception, told: list[str]) -> None:
    """Else the service would wait for it until its time without progress is over."""
    service: Any = _Refusing(refusal)
    reporter = TaskReporter(service)
    reporter.report(_polled(), _result())
    reporter.stop(5)
    assert service.calls == ["complete", *told]
    assert reporter.open == 0


def test_an_attempt_that_is_cancelled_as_a_plain_future_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    class Engine:
        def submit(self, *_: object) -> Future[TaskOutcome]:
            return Future()

    ended: list[TaskOutcome] = []
    freed: list[bool] = []
    monkeypatch.setattr(TaskExecutor, "_open_storage", lambda *_: None)
    service: Any = None
    engine: Any = Engine()
    executor = TaskExecutor(service, engine, lambda _, outcome: ended.append(outcome), lambda: freed.append(True))
    executor.start(_polled())
    executor.stop(executor.running)
    assert executor.running == []
    assert freed == [True]
    assert [outcome.code for outcome in ended if isinstance(outcome, TaskFailure)] == [CANCELLED]


class _Engine:
    parallelism = 1


class _Away:
    """A service that is away, and that takes the report that was made meanwhile only after some tries, or never."""

    def __init__(self, refusals: float) -> None:
        self.away = threading.Event()
        self.calls: list[str] = []
        self._refusals = refusals

    def _call(self, name: str) -> None:
        if self.away.is_set():
            raise Unavailable("no answer")
        self.calls.append(name)

    def register(self, **_: object) -> dict[str, Any]:
        self._call("register")
        return {"id": "o", "heartbeat_timeout_seconds": 0.05}

    def heartbeat(self, *_: object) -> dict[str, Any]:
        self._call("heartbeat")
        return {"state": "active", "stop": []}

    def poll(self, *_: object) -> list[dict[str, Any]]:
        time.sleep(0.01)
        self._call("poll")
        return []

    def fail(self, *_: object) -> None:
        if not self.away.is_set() and self._refusals > 0:
            self._refusals -= 1
            raise Unavailable("not yet")
        self._call("fail")

    def stop(self) -> None:
        self._call("stop")


def _calls_after_an_outage(service: Any) -> list[str]:
    """Until it has registered again."""
    optimizer = Optimizer(service, _Engine(), heartbeat_seconds=0.01)  # type: ignore[arg-type]
    thread = threading.Thread(target=optimizer.run)
    thread.start()
    try:
        _until(lambda: "poll" in service.calls)
        service.away.set()
        optimizer._end(_polled(), TaskFailure(task=0, attempt=0, code="x", detail="y"))
        _until(optimizer._has_given_up.is_set)
        service.calls.clear()
        service.away.clear()
        _until(lambda: "register" in service.calls)
        return [call for call in service.calls if call in ("fail", "stop", "register")]
    finally:
        optimizer.stop()
        optimizer._reporter.stop(0.0)
        thread.join(10)


def _until(is_so: Any) -> None:
    deadline = time.monotonic() + 5
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_FIRST_WAIT", 0.02)
    monkeypatch.setattr(parts, "_LONGEST_WAIT", 0.02)
    monkeypatch.setattr(module, "_FIRST_WAIT", 0.01)


@pytest.mark.usefixtures("_quick")
def test_what_was_finished_in_an_outage_is_reported_before_all_is_given_back() -> None:
    """Afterwards the service would refuse it: the optimizer that had the task has ended, and the secret is another one."""
    assert _calls_after_an_outage(_Away(refusals=5)) == ["fail", "stop", "register"]


@pytest.mark.usefixtures("_quick")
def test_all_is_given_back_some_time_after_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the service answers, and does not take a report."""
    monkeypatch.setattr(module, "_REPORT_SECONDS", 0.1)
    assert _calls_after_an_outage(_Away(refusals=float("inf"))) == ["stop", "register"]
