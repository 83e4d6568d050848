"""The client of people and programs."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Self
from urllib.parse import quote

from pyarctic.client.transport import Address, Transport, with_fields
from pyarctic.config import parse_table_name
from pyarctic.errors import Unavailable

Kind = Literal["auto", "minor", "major", "full"]
_PAGE = 500
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_PLAN_SECONDS = 600.0
"""Planning a large table takes a while."""
_SILENCE_SECONDS = 45.0
"""Three heartbeats of the stream of events."""


def connect(url: str | None = None, token: str | None = None) -> Client:
    """A client of a service.

        ams = connect("http://127.0.0.1:1630", token="…")

    Args:
        url: its URL, or several with commas between them. Default: $ARCTIC_URL, else the service on this machine.
        token: Default: $ARCTIC_TOKEN, else the token that a service on this machine has left in its folder.
    """
    return Client(Address.find(url, token))


class Client:
    """A service: its tables, processes, tasks, optimizers and events, as dictionaries with the fields of the HTTP API."""

    def __init__(self, address: Address) -> None:
        self._transport = Transport(address)

    @property
    def url(self) -> str:
        """The URL of the service, of several the one that answered last."""
        return self._transport.url

    def tables(self, pattern: str | None = None, *, state: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """The tables that the service watches. `pattern`: a glob over `catalog.database.table`."""
        return list(self._pages("/tables", {"name": pattern, "state": state}))

    def table(self, name: str) -> RemoteTable:
        """A table, by its full name. It is looked for when something is asked of it."""
        return RemoteTable(self, name)

    def catalogs(self) -> list[dict[str, Any]]:
        """The catalogs of these tables."""
        return list(self._pages("/catalogs", {}))

    def processes(
        self, table: str | None = None, *, state: Sequence[str] | None = None, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """Processes, the newest first."""
        return list(self._pages("/processes", {"table": table, "state": state}, limit))

    def process(self, process_id: str) -> dict[str, Any]:
        """A process with its commits."""
        return self.get(f"/processes/{quote(process_id, safe='')}")

    def tasks(
        self, process_id: str | None = None, *, state: Sequence[str] | None = None, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """The tasks of a process, or of all."""
        path = "/tasks" if process_id is None else f"/processes/{quote(process_id, safe='')}/tasks"
        return list(self._pages(path, {"state": state}, limit))

    def task(self, task_id: str) -> dict[str, Any]:
        """A task with its failures."""
        return self.get(f"/tasks/{quote(task_id, safe='')}")

    def cancel(self, process_id: str, why: str | None = None) -> dict[str, Any]:
        """Give up what has not landed of a process."""
        body = {} if why is None else {"why": why}
        return self.post(f"/processes/{quote(process_id, safe='')}/cancel", body)

    def retry(self, process_id: str) -> dict[str, Any] | None:
        """Plan the table of a process anew; None if there is nothing to do."""
        return _process_of(self.post(f"/processes/{quote(process_id, safe='')}/retry", None, _PLAN_SECONDS))

    def wait_for(self, process_id: str, timeout: float | None = None) -> dict[str, Any]:
        """A process when it has ended. `timeout`: seconds; raises TimeoutError when they are over."""
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = _FIRST_PAUSE
        while (process := self.process(process_id))["ended_at"] is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"process {process_id} is still {process['state']}")
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
        return process

    def optimizers(self, *, group: str | None = None, state: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Optimizers, the newest first."""
        return list(self._pages("/optimizers", {"group": group, "state": state}))

    def optimizer(self, optimizer_id: str) -> dict[str, Any]:
        """An optimizer with what it executes."""
        return self.get(f"/optimizers/{quote(optimizer_id, safe='')}")

    def drain(self, optimizer_id: str) -> dict[str, Any]:
        """Let an optimizer finish what it executes, and end."""
        return self.post(f"/optimizers/{quote(optimizer_id, safe='')}/drain")

    def events(
        self, after: int = 0, *, kind: Sequence[str] | None = None, key: str | None = None, table: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """All events after a number, in the order in which they happened."""
        place: str | None = str(after)
        while place is not None:
            query = {"after": place, "kind": kind, "key": key, "table": table, "limit": _PAGE}
            page = with_fields(self.get("/events", query), items=list)
            yield from page["items"]
            place = page.get("next")

    def follow(
        self,
        after: int | None = None,
        *,
        kind: Sequence[str] | None = None,
        key: str | None = None,
        table: str | None = None,
    ) -> Generator[dict[str, Any], None, None]:
        """Events as they happen, from the next one on, or after a number. Raises Unavailable when the connection is lost: go
        on after the last number then."""
        query = {"after": after, "kind": kind, "key": key, "table": table}
        with self._transport.stream("/events/stream", query, _SILENCE_SECONDS) as lines:
            for line in lines:
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))
        raise Unavailable("the service has ended the stream of events", hint="Go on after the last event.")

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The answer to any GET; `path` begins after `/api/v1`."""
        answer: dict[str, Any] = self._transport.request("GET", path, query=query)
        return answer

    def post(self, path: str, body: Any = None, seconds: float = _PLAN_SECONDS) -> dict[str, Any]:
        """The answer to any POST."""
        answer: dict[str, Any] = self._transport.request("POST", path, body=body, seconds=seconds)
        return answer

    def _pages(self, path: str, query: Mapping[str, Any], limit: int | None = None) -> Iterator[dict[str, Any]]:
        cursor, left = None, limit
        while left is None or left > 0:
            size = _PAGE if left is None else min(left, _PAGE)
            page = with_fields(self.get(path, {**query, "limit": size, "cursor": cursor}), items=list)
            yield from page["items"]
            cursor, left = page.get("next"), None if left is None else left - len(page["items"])
            if cursor is None:
                return

    def close(self) -> None:
        """Close all connections."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RemoteTable:
    """A table of a service."""

    def __init__(self, client: Client, name: str) -> None:
        parsed = parse_table_name(name)
        self.name = str(parsed)
        self._client = client
        parts = (parsed.catalog, ".".join(parsed.namespace), parsed.table)
        catalog, database, table = (quote(part, safe="") for part in parts)
        self._path = f"/catalogs/{catalog}/databases/{database}/tables/{table}"

    def get(self) -> dict[str, Any]:
        """What the service knows of it."""
        return self._client.get(self._path)

    def explain(self, kind: Kind = "auto") -> dict[str, Any]:
        """What optimizing it would do now and why, and what is in the way."""
        return self._client.get(f"{self._path}/explain", {"kind": kind})

    def health(self) -> dict[str, Any]:
        """Its health as it is now."""
        return self._client.get(f"{self._path}/health")

    def optimize(self, kind: Kind = "auto", *, wait: bool = False, timeout: float | None = None) -> dict[str, Any] | None:
        """Plan it now; gives the process, or None if there is nothing to do. `wait`: until the process has ended."""
        process = _process_of(self._client.post(f"{self._path}/processes", {"kind": kind}, _PLAN_SECONDS))
        return self._client.wait_for(process["id"], timeout) if wait and process is not None else process

    def pause(self, why: str | None = None, until: datetime | None = None) -> dict[str, Any]:
        """Plan nothing for it until it is resumed, or until a time."""
        given = {"why": why, "until": None if until is None else until.isoformat()}
        return self._client.post(f"{self._path}/pause", {name: value for name, value in given.items() if value is not None})

    def resume(self) -> dict[str, Any]:
        """Optimize it again."""
        return self._client.post(f"{self._path}/resume")

    def report_commit(
        self,
        *,
        table_uuid: str,
        snapshot_id: int,
        parent_id: int | None,
        sequence_number: int,
        store: Literal["base", "change"] = "base",
    ) -> bool:
        """Tell of a commit, so that the table is looked at now; gives whether that was news."""
        body = {
            "store": store,
            "table_uuid": table_uuid,
            "snapshot_id": str(snapshot_id),
            "parent_id": None if parent_id is None else str(parent_id),
            "sequence_number": sequence_number,
        }
        return bool(self._client.post(f"{self._path}/commits", body)["news"])

    def events(self, limit: int | None = None) -> list[dict[str, Any]]:
        """What happened to it, the newest first."""
        return list(self._client._pages(f"{self._path}/events", {}, limit))


def _process_of(answer: Mapping[str, Any]) -> dict[str, Any] | None:
    process: dict[str, Any] | None = answer["process"]
    return process
