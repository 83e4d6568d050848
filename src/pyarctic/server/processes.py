"""Routes of processes and tasks, for people."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import APIRouter, Query, Response
from pydantic import Field

from pyarctic.ams import Ams, CommitRow, ProcessRow, ProcessState, TaskRow, TaskState, UnitRow, find_task
from pyarctic.errors import NotFound
from pyarctic.optimizing import KindChoice
from pyarctic.server.auth import Caller
from pyarctic.server.documents import (
    Document,
    ProcessDetail,
    ProcessDocument,
    ProcessPage,
    ProcessStarted,
    TaskDocument,
    TaskPage,
)
from pyarctic.server.paging import DEFAULT_LIMIT, Cursor, Limit, Order, Window, read_page
from pyarctic.server.problems import problems
from pyarctic.server.service import Evaluations, Service
from pyarctic.server.tables import start_process

router = APIRouter(tags=["processes"])
_NEWEST_FIRST = Order("created_at", descending=True)


class Cancellation(Document):
    """Why a process is cancelled."""

    why: str = Field(default="somebody asked for it", max_length=1000)


@router.get("/processes")
def processes_list(
    service: Service,
    table: Annotated[str | None, Query(description="Only those of the table with this name.")] = None,
    state: Annotated[list[ProcessState] | None, Query()] = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> ProcessPage:
    """List processes, the newest first."""
    where = ({} if table is None else {"table": table}) | ({} if state is None else {"state": state})
    with service.core.store.read() as view:
        rows, after = read_page(view, ProcessRow, _NEWEST_FIRST, Window(cursor, limit), **where)
    return ProcessPage(items=[ProcessDocument.model_validate(row) for row in rows], next=after)


@router.get("/processes/{process_id}", responses=problems(404))
def processes_get(service: Service, process_id: str) -> ProcessDetail:
    """Get a process with its commits."""
    process = _find(service, process_id)
    with service.core.store.read() as view:
        tasks = view.find(TaskRow, process_id=process_id)
        commits = view.find(CommitRow, process_id=process_id)
        units = view.find(UnitRow, process_id=process_id)
    return ProcessDetail.of(process, tasks, commits, units)


@router.get("/processes/{process_id}/tasks", responses=problems(404))
def processes_tasks(
    service: Service,
    process_id: str,
    state: Annotated[list[TaskState] | None, Query()] = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> TaskPage:
    """List the tasks of a process, by number."""
    _find(service, process_id)
    where = {"process_id": process_id} | ({} if state is None else {"state": state})
    with service.core.store.read() as view:
        rows, after = read_page(view, TaskRow, Order("number"), Window(cursor, limit), **where)
    return TaskPage(items=[TaskDocument.of(row) for row in rows], next=after)


@router.post("/processes/{process_id}/cancel", status_code=202, responses=problems(404, 409))
def processes_cancel(
    service: Service, caller: Caller, process_id: str, cancellation: Cancellation | None = None
) -> ProcessDocument:
    """Give up what has not landed of a process. It has ended when its state is `cancelled`."""
    process = service.cancel(process_id, caller, (cancellation or Cancellation()).why)
    return ProcessDocument.model_validate(process)


@router.post(
    "/processes/{process_id}/retry", status_code=202, responses={200: {"model": ProcessStarted}, **problems(404, 409, 503)}
)
def processes_retry(
    service: Service, evaluations: Evaluations, caller: Caller, process_id: str, response: Response
) -> ProcessStarted:
    """Plan the table of a process anew. 202: a process was started. 200: there is nothing to do."""
    process = _find(service, process_id)
    was_chosen = process.trigger == "demanded" and len(process.kinds) == 1
    kind = cast("KindChoice", process.kinds[0]) if was_chosen else "auto"
    with evaluations.place(process.table.partition(".")[0]):
        return start_process(service, process.table_uuid, kind, caller, response)


@router.get("/tasks", tags=["tasks"])
def tasks_list(
    service: Service,
    state: Annotated[list[TaskState] | None, Query()] = None,
    group: Annotated[str | None, Query()] = None,
    optimizer_id: Annotated[
        str | None, Query(description="Only those whose last attempt this optimizer has, or had.")
    ] = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> TaskPage:
    """List tasks of all processes, the newest first."""
    given = {"state": state, "group": group, "optimizer_id": optimizer_id}
    where = {name: value for name, value in given.items() if value is not None}
    with service.core.store.read() as view:
        rows, after = read_page(view, TaskRow, _NEWEST_FIRST, Window(cursor, limit), **where)
    return TaskPage(items=[TaskDocument.of(row) for row in rows], next=after)


@router.get("/tasks/{task_id}", tags=["tasks"], responses=problems(404))
def tasks_get(service: Service, task_id: str) -> TaskDocument:
    """Get a task with its failures."""
    with service.core.store.read() as view:
        row = find_task(view, task_id)
    if row is None:
        raise NotFound(f"there is no task {task_id}")
    return TaskDocument.of(row)


def _find(service: Ams, process_id: str) -> ProcessRow:
    with service.core.store.read() as view:
        row = view.get(ProcessRow, process_id)
    if row is None:
        raise NotFound(f"there is no process {process_id}")
    return row
