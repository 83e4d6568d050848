"""An optimizer: a worker of the management service."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from pyarctic.errors import ArcticError, StaleAttempt, Unavailable, UnknownOptimizer
from pyarctic.logs import get_logger
from pyarctic.optimizer.parts import PolledTask, TaskExecutor, TaskPoller, TaskReporter
from pyarctic.optimizer.port import TaskService
from pyarctic.optimizing.execute import Engine
from pyarctic.optimizing.protocol import PROTOCOL_VERSION, TaskOutcome

_log = get_logger(__name__)
_POLL_SECONDS = 20.0
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 5.0
"""Heartbeats are sent all the time anyway: longer waits would spare the service nothing, and idle when it is back."""
_REPORT_SECONDS = 30.0
"""How long an optimizer that ends, or begins again, tries to report what it has finished."""
_FINAL_CODES = frozenset({"invalid-request", "protocol", "unauthorized", "usage"})
"""Errors of a registration that trying again would not mend, another version of the protocol among them."""


class Optimizer:
    """Polls, executes and reports until it is told to end:

    optimizer = Optimizer(OptimizerClient("http://127.0.0.1:1630", token), LocalEngine(workers=2))
    optimizer.run()  # in another thread: optimizer.drain(), or optimizer.stop()
    """

    def __init__(
        self,
        service: TaskService,
        engine: Engine,
        *,
        group: str = "default",
        memory_bytes: int | None = None,
        heartbeat_seconds: float = 10.0,
    ) -> None:
        """`memory_bytes`: of all tasks together."""
        self._service = service
        self._engine = engine
        self._group = group
        self._memory_bytes = memory_bytes
        self._heartbeat_seconds = heartbeat_seconds
        per_task = None if memory_bytes is None else memory_bytes // engine.parallelism
        self._poller = TaskPoller(service, per_task)
        self._reporter = TaskReporter(service)
        self._changed = threading.Event()
        """A slot is free, or it is to end."""
        self._executor = TaskExecutor(service, engine, self._end, self._changed.set)
        self._has_given_up = threading.Event()
        """It has stopped its work because the service did not answer, which may not have noticed that."""
        self._is_draining = threading.Event()
        self._is_stopped = threading.Event()
        self._silence_seconds = math.inf
        """After so long without an answer others have its work."""
        self._heard_at = time.monotonic()

    def run(self) -> None:
        """Work until `drain` or `stop`, or until the service drains it."""
        if not self._register():
            return
        beats = threading.Thread(target=self._beat, name="arctic-heartbeat", daemon=True)
        beats.start()
        try:
            self._work()
        finally:
            self._is_stopped.set()
            self._executor.stop(self._executor.running)
            beats.join()
            self._reporter.stop(_REPORT_SECONDS)
            try:
                self._service.stop()
            except ArcticError as error:  # the service notices that it is gone
                _log.warning("end_not_told", reason=str(error))

    def drain(self) -> None:
        """Finish what is executed, take nothing more, and end."""
        self._is_draining.set()
        self._changed.set()

    def stop(self) -> None:
        """Stop what is executed, and end."""
        self._is_stopped.set()
        self.drain()

    def _register(self) -> bool:
        """Register, as soon as the service can. Gives whether it is still to work."""
        wait = _FIRST_WAIT
        while not self._is_draining.is_set():
            try:
                registered = self._service.register(
                    group=self._group,
                    parallelism=self._engine.parallelism,
                    memory_bytes=self._memory_bytes,
                    heartbeat_seconds=self._heartbeat_seconds,
                    host=socket.gethostname(),
                    protocol_version=PROTOCOL_VERSION,
                )
            except ArcticError as error:
                if error.code in _FINAL_CODES:
                    raise
                _log.warning("registration_failed", reason=str(error), next_try_seconds=wait)
                self._is_draining.wait(wait)
                wait = min(2 * wait, _LONGEST_WAIT)
            else:
                self._heard_at = time.monotonic()
                self._silence_seconds = float(registered["heartbeat_timeout_seconds"])
                _log.info("optimizer_registered", optimizer_id=registered["id"], group=self._group)
                return True
        return False

    def _work(self) -> None:
        wait = _FIRST_WAIT
        while not self._is_draining.is_set():
            if self._has_given_up.is_set():
                self._give_back()
                continue
            slots = self._engine.parallelism - len(self._executor.running)
            if slots <= 0:
                self._changed.wait(1.0)
                self._changed.clear()
                continue
            try:
                for polled in self._poller.poll(slots, _POLL_SECONDS):
                    self._start(polled)
                wait = _FIRST_WAIT
            except UnknownOptimizer as error:  # it was taken for lost: its tasks belong to others
                self._begin_again(str(error))
            except ArcticError as error:
                _log.warning("poll_failed", reason=str(error), next_try_seconds=wait)
                self._is_draining.wait(wait)
                wait = min(2 * wait, _LONGEST_WAIT)
        while self._executor.running and not self._is_stopped.is_set():
            self._changed.wait(0.5)
            self._changed.clear()

    def _start(self, polled: PolledTask) -> None:
        _log.info("task_started", table=polled.job.table, task_id=polled.id, attempt=polled.attempt)
        self._executor.start(polled)

    def _end(self, polled: PolledTask, outcome: TaskOutcome) -> None:
        code = getattr(outcome, "code", "result")
        _log.info("task_ended", table=polled.job.table, task_id=polled.id, attempt=polled.attempt, outcome=code)
        self._reporter.report(polled, outcome)

    def _begin_again(self, why: str) -> None:
        _log.warning("optimizer_unknown", reason=why)
        self._executor.stop(self._executor.running)
        self._register()

    def _give_back(self) -> None:
        """Tell the service that nobody executes what this optimizer had, and begin again. What is finished is reported
        before: afterwards the service would refuse it."""
        self._wait_for_reports()
        if self._is_draining.is_set():
            return  # the end of `run` does all that
        try:
            self._service.stop()
        except Unavailable:
            self._is_draining.wait(_FIRST_WAIT)
            return
        except ArcticError as error:  # it has noticed
            _log.info("end_not_told", reason=str(error))
        self._has_given_up.clear()
        self._begin_again("its work was stopped, for lack of an answer")

    def _wait_for_reports(self) -> None:
        """Wait until what is finished is reported, for some time from when the service answers again."""
        deadline = time.monotonic() + _REPORT_SECONDS
        while self._reporter.open and time.monotonic() < deadline and not self._is_draining.wait(_FIRST_WAIT):
            if time.monotonic() - self._heard_at > self._silence_seconds:
                deadline = time.monotonic() + _REPORT_SECONDS

    def _beat(self) -> None:
        """Tell that it is there, and stop what the service wants no more. Without an answer for long, stop everything: the
        service has given it to others, or will."""
        while not self._is_stopped.wait(self._heartbeat_seconds):
            running = self._executor.running
            try:
                self._obey(self._service.heartbeat(running))
            except StaleAttempt:
                continue
            except UnknownOptimizer:
                self._executor.stop(running)  # the next poll registers again
                self._heard_at = time.monotonic()
            except Exception as error:  # noqa: BLE001  # also of an answer that is not understood: it is none
                silent = time.monotonic() - self._heard_at
                reason = f"{type(error).__name__}: {error}"
                _log.warning("heartbeat_failed", reason=reason, silent_seconds=round(silent))
                if silent > self._silence_seconds:
                    self._executor.stop(running)
                    self._has_given_up.set()

    def _obey(self, answer: Mapping[str, Any]) -> None:
        state, unwanted = answer["state"], [(each["task_id"], each["attempt"]) for each in answer["stop"]]
        self._heard_at = time.monotonic()
        self._executor.stop(unwanted)
        if state == "draining":
            self.drain()
