"""The client of optimizers: the worker protocol, with dictionaries in and out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from pyarctic.client.transport import Address, Transport, with_fields
from pyarctic.errors import UsageError

_POLL_MARGIN_SECONDS = 15.0
"""How much longer than the poll itself its answer may take."""
_REPORT_SECONDS = 300.0
"""Large results take a while."""


class OptimizerClient:
    """What an optimizer asks of a service, and tells it. Every request may be sent again. All raise

    * UnknownOptimizer: the optimizer is lost. Stop everything, and register again.
    * StaleAttempt (reports): the attempt does not count any more. Stop it, and remove its files unless its result was
      reported.
    * ProtocolError (results and failures): the service refuses the document; its facts `reason` and `field` tell why.
    * Unavailable: no answer, or one that is not from a service of PyArctic. Send it again.

    Threads may share it."""

    def __init__(self, address: Address) -> None:
        self._transport = Transport(address)
        self._id: str | None = None
        self._secret = ""

    @property
    def id(self) -> str:
        """The id that the service has given."""
        if self._id is None:
            raise UsageError("the optimizer is not registered", hint="Call `register` first.")
        return self._id

    @property
    def url(self) -> str:
        """The URL of the service, of several the one that answered last."""
        return self._transport.url

    def register(self, *, parallelism: int, **more: Any) -> dict[str, Any]:
        """Register, as a new optimizer. `more`: `group`, `protocol_version`, `heartbeat_seconds`, `memory_bytes`, `version`,
        `host`, `container`. Gives `id`, `secret`, `heartbeat_timeout_seconds` and `protocol_version`."""
        answer = self._transport.request("POST", "/optimizers", body={"parallelism": parallelism, **more})
        answer = with_fields(answer, id=str, secret=str, heartbeat_timeout_seconds=int | float)
        self._id, self._secret = answer["id"], answer["secret"]
        return answer

    def heartbeat(self, attempts: Iterable[tuple[str, int]]) -> dict[str, Any]:
        """Tell which attempts are executed. Gives `state`, and `stop`: the attempts to stop, each with `task_id` and
        `attempt`."""
        body = {"attempts": [{"task_id": task_id, "attempt": attempt} for task_id, attempt in attempts]}
        return with_fields(self._ask("POST", f"/optimizers/{self.id}/heartbeat", body), state=str, stop=list)

    def poll(self, slots: int = 1, wait_seconds: float = 30.0) -> list[dict[str, Any]]:
        """The next tasks, at most `slots`. Waits so long for one. Each has `task_id`, `attempt`, `job`, `task` and more."""
        body = {"slots": slots, "wait_seconds": wait_seconds}
        seconds = wait_seconds + _POLL_MARGIN_SECONDS
        answer = self._ask("POST", f"/optimizers/{self.id}/poll", body, seconds)
        return [] if answer is None else list(with_fields(answer, tasks=list)["tasks"])

    def acknowledge(self, task_id: str, attempt: int) -> None:
        """Tell that a task has arrived."""
        self._ask("POST", _path(task_id, attempt, "ack"))

    def progress(self, task_id: str, attempt: int, rows: int, size: int) -> None:
        """Tell how many rows and bytes have been read."""
        self._ask("POST", _path(task_id, attempt, "progress"), {"rows": rows, "bytes": size})

    def complete(self, task_id: str, attempt: int, result: Mapping[str, Any]) -> None:
        """Report a result. From now on its files belong to the service."""
        self._ask("POST", _path(task_id, attempt, "complete"), result, _REPORT_SECONDS)

    def fail(self, task_id: str, attempt: int, failure: Mapping[str, Any]) -> None:
        """Report a failure."""
        self._ask("POST", _path(task_id, attempt, "fail"), failure)

    def storage(self, task_id: str, attempt: int) -> dict[str, str]:
        """The properties of the storage of the table, with credentials."""
        answer = with_fields(self._ask("GET", _path(task_id, attempt, "storage")), properties=dict)
        return dict(answer["properties"])

    def drain(self) -> None:
        """Tell that nothing more is taken."""
        self._ask("POST", f"/optimizers/{self.id}/drain")

    def stop(self) -> None:
        """Tell that the optimizer ends."""
        self._ask("POST", f"/optimizers/{self.id}/stop")

    def close(self) -> None:
        """Close all connections."""
        self._transport.close()

    def _ask(self, method: str, path: str, body: Any = None, seconds: float = 60.0) -> Any:
        headers = {"Arctic-Optimizer-Secret": self._secret}
        return self._transport.request(method, path, body=body, headers=headers, seconds=seconds)


def _path(task_id: str, attempt: int, report: str) -> str:
    return f"/tasks/{quote(task_id, safe='')}/attempts/{attempt}/{report}"
