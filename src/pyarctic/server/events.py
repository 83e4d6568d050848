"""Routes of events: pages, and a stream that can be resumed without a gap."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from pyarctic.ams import Ams, Bell, EventRow
from pyarctic.ams.store import Query as Wanted
from pyarctic.errors import UsageError
from pyarctic.server.documents import MAX_NUMBER, EventDocument, EventPage
from pyarctic.server.paging import DEFAULT_LIMIT, Limit
from pyarctic.server.service import RequestWaits, Service
from pyarctic.server.waits import Waits

router = APIRouter(prefix="/events", tags=["events"])
_BELLS: tuple[Bell, ...] = ("looks", "commits", "tasks", "cleaning")
_LOOK_SECONDS = 1.0
"""How often a stream looks for events that nobody has rung for."""
_HEARTBEAT_SECONDS = 15.0
_BATCH = 500
_NUMBER = re.compile(r"[0-9]{1,18}")

Kind = Annotated[list[str] | None, Query(description="`table`, `process`, `task`, `commit` or `optimizer`.")]
Key = Annotated[str | None, Query(description="The id of an object.")]
OfTable = Annotated[str | None, Query(alias="table", description="Only those about the table with this name.")]


@router.get("")
def events_list(
    service: Service,
    after: Annotated[int, Query(ge=0, le=MAX_NUMBER, description="The number of the last event that is known.")] = 0,
    kind: Kind = None,
    key: Key = None,
    table: OfTable = None,
    limit: Limit = DEFAULT_LIMIT,
) -> EventPage:
    """List events in the order in which they happened. `next` is the value of `after` for the next page."""
    rows = _read(service, after, _filters(kind, key, table), limit + 1)
    items = [EventDocument.model_validate(row) for row in rows[:limit]]
    return EventPage(items=items, next=str(items[-1].number) if len(rows) > limit else None)


@router.get(
    "/stream",
    response_class=StreamingResponse,
    responses={200: {"description": "Server-sent events.", "content": {"text/event-stream": {}}}},
)
async def events_stream(
    service: Service,
    waits: RequestWaits,
    after: Annotated[
        int | None, Query(ge=0, le=MAX_NUMBER, description="The number of the last event that is known.")
    ] = None,
    kind: Kind = None,
    key: Key = None,
    table: OfTable = None,
    last_event_id: Annotated[str | None, Header(description="As `after`; what browsers send to go on.")] = None,
) -> StreamingResponse:
    """Follow events as they happen, as server-sent events: `id` is the number, `event` the kind, `data` the event. Without
    `after` or `Last-Event-ID` it begins with the next one."""
    if last_event_id is not None:
        if not _NUMBER.fullmatch(last_event_id):
            raise UsageError("Last-Event-ID is not the number of an event")
        after = int(last_event_id)
    if after is None:
        after = await run_in_threadpool(_newest, service)
    stream = _stream(service, waits, after, _filters(kind, key, table))
    return StreamingResponse(stream, media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def _stream(service: Ams, waits: Waits, after: int, filters: dict[str, Any]) -> AsyncIterator[str]:
    yield ": events follow\n\n"
    with waits.waiting(object(), *_BELLS) as waiter:
        sent_at = time.monotonic()
        while True:
            waiter.expect()
            if waiter.is_over:
                return
            rows = await run_in_threadpool(_read, service, after, filters, _BATCH)
            for row in rows:
                after, sent_at = row.number, time.monotonic()
                data = EventDocument.model_validate(row).model_dump_json()
                yield f"id: {row.number}\nevent: {row.kind}\ndata: {data}\n\n"
            if len(rows) == _BATCH:
                continue
            if time.monotonic() - sent_at >= _HEARTBEAT_SECONDS:
                sent_at = time.monotonic()
                yield ": nothing new\n\n"
            await waiter.wait(_LOOK_SECONDS)


def _filters(kind: list[str] | None, key: str | None, table: str | None) -> dict[str, Any]:
    given = {"kind": kind, "key": key, "table": table}
    return {name: value for name, value in given.items() if value is not None}


def _read(service: Ams, after: int, filters: dict[str, Any], limit: int) -> list[EventRow]:
    with service.core.store.read() as view:
        return list(view.find(EventRow, Wanted(after=after, limit=limit), **filters))


def _newest(service: Ams) -> int:
    with service.core.store.read() as view:
        rows = view.find(EventRow, Wanted(descending=True, limit=1))
    return rows[0].number if rows else 0
