"""Routes of optimizers: what people see of them, and how optimizers register, tell that they are there, and get tasks."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from pydantic import Field

from pyarctic.ams import Ams, OptimizerRow, OptimizerState, Registration, TaskRow, TaskState
from pyarctic.errors import NotFound
from pyarctic.optimizing.protocol import PROTOCOL_VERSION
from pyarctic.server.auth import Caller, Secret
from pyarctic.server.documents import (
    MAX_NUMBER,
    Document,
    ExecutedAttempt,
    OptimizerDetail,
    OptimizerDocument,
    OptimizerPage,
)
from pyarctic.server.paging import DEFAULT_LIMIT, Cursor, Limit, Order, Window, read_page
from pyarctic.server.problems import problems
from pyarctic.server.service import RequestWaits, Service
from pyarctic.server.task_documents import Job, Task

router = APIRouter(tags=["optimizers"])
protocol = APIRouter(tags=["worker protocol"])
MAX_WAIT_SECONDS = 30.0
_LOOK_SECONDS = 5.0
"""How often a poll looks for tasks that nobody has rung for."""


class RegistrationRequest(Document):
    """What an optimizer tells of itself."""

    parallelism: int = Field(ge=1, le=10_000)
    """How many tasks it executes at a time."""
    group: str = "default"
    """The group whose tasks it executes."""
    protocol_version: int = PROTOCOL_VERSION
    """The version of the task protocol that it speaks."""
    heartbeat_seconds: float = 10.0
    """The interval of its heartbeats. It is lost after three missing ones, not before the time-out of the service."""
    memory_bytes: int | None = Field(default=None, ge=1, le=MAX_NUMBER)
    """Its memory, for all tasks together."""
    version: str = ""
    """The version of its program, for people."""
    host: str = ""
    """Where it is, for people."""
    container: str | None = None
    """The container that has started it."""


class Registered(Document):
    """What an optimizer needs to go on."""

    id: str
    """Its id, for the paths of its requests."""
    secret: str
    """Its own secret: the header `Arctic-Optimizer-Secret` of all further requests, beside the token. Told once."""
    heartbeat_timeout_seconds: float
    """After so long without a heartbeat it is lost, and its tasks go to others. An optimizer that gets no answer for so long
    stops its tasks and removes their files."""
    protocol_version: int


class Heartbeat(Document):
    """The attempts that an optimizer executes."""

    attempts: list[ExecutedAttempt] = Field(default=[], max_length=100_000)


class HeartbeatAnswer(Document):
    """What an optimizer has to know."""

    state: OptimizerState
    """`draining`: finish what is executed, take nothing more, and end."""
    stop: list[ExecutedAttempt]
    """Attempts that do not count any more: stop them, and remove their files unless the result was reported."""


class PollRequest(Document):
    """How many tasks an optimizer can take."""

    slots: int = Field(default=1, ge=1, le=1000)
    """Free places."""
    wait_seconds: float = Field(default=MAX_WAIT_SECONDS, ge=0, le=MAX_WAIT_SECONDS)
    """How long to wait for a task if there is none."""


class HandedTaskDocument(Document):
    """An attempt at a task. Acknowledge it within 30 seconds, or others get the task."""

    task_id: str
    """For the paths of reports."""
    attempt: int
    """Part of all reports, and of the names of all files that it writes."""
    table: str
    table_uuid: str
    created_at: str
    """When the task was planned."""
    job: Job
    task: Task


class PollAnswer(Document):
    """New attempts, `slots` at most."""

    tasks: list[HandedTaskDocument]


# ---- people ---------------------------------------------------------------------------------------------------------------


@router.get("/optimizers")
def optimizers_list(
    service: Service,
    group: Annotated[str | None, Query()] = None,
    state: Annotated[list[OptimizerState] | None, Query()] = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> OptimizerPage:
    """List optimizers, the newest first."""
    where = ({} if group is None else {"group": group}) | ({} if state is None else {"state": state})
    order = Order("registered_at", descending=True)
    with service.core.store.read() as view:
        rows, after = read_page(view, OptimizerRow, order, Window(cursor, limit), **where)
    return OptimizerPage(items=[OptimizerDocument.model_validate(row) for row in rows], next=after)


@router.get("/optimizers/{optimizer_id}", responses=problems(404))
def optimizers_get(service: Service, optimizer_id: str) -> OptimizerDetail:
    """Get an optimizer with the attempts that it executes."""
    return _detail(service, optimizer_id)


@router.post("/optimizers/{optimizer_id}/drain", responses=problems(404, 409, 410))
def optimizers_drain(service: Service, caller: Caller, optimizer_id: str) -> OptimizerDetail:
    """Let an optimizer finish what it executes, take nothing more, and end. It hears of it with its next heartbeat."""
    service.optimizers.drain(optimizer_id, caller)
    return _detail(service, optimizer_id)


def _detail(service: Ams, optimizer_id: str) -> OptimizerDetail:
    with service.core.store.read() as view:
        row = view.get(OptimizerRow, optimizer_id)
        tasks = view.find(TaskRow, optimizer_id=optimizer_id, state=TaskState.EXECUTING)
    if row is None:
        raise NotFound(f"there is no optimizer {optimizer_id}")
    attempts = [ExecutedAttempt(task_id=task.key, attempt=task.attempt or 0) for task in tasks]
    return OptimizerDetail(**OptimizerDocument.model_validate(row).model_dump(), attempts=attempts)


# ---- optimizers -----------------------------------------------------------------------------------------------------------


@protocol.post("/optimizers", status_code=201)
def optimizers_register(service: Service, request: RegistrationRequest) -> Registered:
    """Register an optimizer. One that gets 410 later stops its tasks and registers again, as a new one."""
    row, secret = service.optimizers.register(Registration(**request.model_dump()))
    timeout = row.heartbeat_timeout(service.core.settings.heartbeat_timeout)
    return Registered(
        id=row.id,
        secret=secret,
        heartbeat_timeout_seconds=timeout.total_seconds(),
        protocol_version=PROTOCOL_VERSION,
    )


@protocol.post("/optimizers/{optimizer_id}/heartbeat", responses=problems(410))
def optimizers_heartbeat(service: Service, secret: Secret, optimizer_id: str, heartbeat: Heartbeat) -> HeartbeatAnswer:
    """Tell that the optimizer is there, and hear which of its attempts it has to stop."""
    service.optimizers.check_secret(optimizer_id, secret)
    attempts = [(each.task_id, each.attempt) for each in heartbeat.attempts]
    state, stop = service.optimizers.heartbeat(optimizer_id, attempts)
    return HeartbeatAnswer(state=state, stop=[ExecutedAttempt(task_id=key, attempt=attempt) for key, attempt in stop])


@protocol.post(
    "/optimizers/{optimizer_id}/poll",
    response_class=JSONResponse,
    responses={200: {"model": PollAnswer}, 204: {"description": "No task came in time."}, **problems(410)},
)
async def optimizers_poll(
    request: Request, service: Service, waits: RequestWaits, secret: Secret, optimizer_id: str, wish: PollRequest
) -> Response:
    """Get tasks. The answer comes as soon as there is one, or after `wait_seconds`. A second poll of an optimizer ends the
    first one."""
    await run_in_threadpool(service.optimizers.check_secret, optimizer_id, secret)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wish.wait_seconds
    with waits.waiting(("poll", optimizer_id), "tasks") as waiter:
        while True:
            waiter.expect()
            # Tasks for one who has hung up would be lost until the time to acknowledge them is over.
            if waiter.is_over or await request.is_disconnected():
                return Response(status_code=204)
            answer = await run_in_threadpool(_poll, service, optimizer_id, wish.slots)
            if answer is not None:
                return answer
            left = deadline - loop.time()
            if left <= 0:
                return Response(status_code=204)
            await waiter.wait(min(left, _LOOK_SECONDS))


def _poll(service: Ams, optimizer_id: str, slots: int) -> Response | None:
    handed = service.optimizers.poll(optimizer_id, slots)
    return JSONResponse({"tasks": [task.to_json() for task in handed]}) if handed else None


@protocol.post("/optimizers/{optimizer_id}/stop", status_code=204, responses=problems(410))
def optimizers_stop(service: Service, secret: Secret, optimizer_id: str) -> None:
    """Tell that the optimizer ends. What it has not finished goes to others at once."""
    service.optimizers.check_secret(optimizer_id, secret, may_have_stopped=True)
    service.optimizers.stop(optimizer_id)
