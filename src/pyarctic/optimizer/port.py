"""What an optimizer needs of a management service: the worker protocol, wherever the service is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol


class TaskService(Protocol):
    """The worker protocol. Documents are those of docs/reference/protocol.md.

    Methods raise `Unavailable` if there is no answer, `StaleAttempt` for attempts that do not count any more, and
    `UnknownOptimizer` if the service does not know the optimizer, or has taken it for lost."""

    def register(self, *, parallelism: int, **more: Any) -> dict[str, Any]:
        """Begin; what follows is about this optimizer. `more`: `group`, `memory_bytes`, `heartbeat_seconds`, `host` and
        others. Gives its `id`, and `heartbeat_timeout_seconds`: after so long without an answer it stops its work, which the
        service has given to others."""
        ...

    def heartbeat(self, attempts: Iterable[tuple[str, int]]) -> dict[str, Any]:
        """Tell which attempts are executed. Gives the `state` of the optimizer, and the attempts that it must `stop`, each
        with `task_id` and `attempt`."""
        ...

    def poll(self, slots: int = 1, wait_seconds: float = 30.0) -> list[dict[str, Any]]:
        """Tasks, not more than `slots`. If there are none, it waits for some."""
        ...

    def acknowledge(self, task_id: str, attempt: int) -> None:
        """Tell that a task has come."""
        ...

    def progress(self, task_id: str, attempt: int, rows: int, size: int) -> None:
        """Tell how far an attempt is."""
        ...

    def complete(self, task_id: str, attempt: int, result: Mapping[str, Any]) -> None:
        """Report a result. From the first try on its files belong to the service."""
        ...

    def fail(self, task_id: str, attempt: int, failure: Mapping[str, Any]) -> None:
        """Report a failure."""
        ...

    def storage(self, task_id: str, attempt: int) -> dict[str, str]:
        """The properties of the storage of the task's table, with credentials."""
        ...

    def stop(self) -> None:
        """End: what is not finished goes to others."""
        ...
