"""Routes of attempts at tasks: what optimizers report, and the storage that they work on."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import Field, TypeAdapter, ValidationError

from pyarctic.errors import ProtocolError
from pyarctic.optimizing.protocol import PROTOCOL_VERSION
from pyarctic.server.auth import Secret
from pyarctic.server.documents import MAX_NUMBER, Document
from pyarctic.server.problems import problems
from pyarctic.server.service import Openings, Service
from pyarctic.server.task_documents import NewFile

_NEW_FILES = TypeAdapter(list[NewFile])
router = APIRouter(prefix="/tasks/{task_id}/attempts/{attempt}", tags=["worker protocol"])


class AttemptProgress(Document):
    """How far an attempt is."""

    rows: int = Field(default=0, ge=0, le=MAX_NUMBER)
    """Rows read so far."""
    bytes: int = Field(default=0, ge=0, le=MAX_NUMBER)
    """Bytes read so far."""


class StorageAccess(Document):
    """How to open the storage of a task's table."""

    properties: dict[str, str]
    """PyIceberg's properties of a file system, such as `s3.endpoint`, with credentials: keep them in memory only, and ask
    again when they have expired."""


async def _document(request: Request) -> dict[str, Any]:
    """The body as it is: the task protocol has a reader of its own, which tells what is wrong in its own words."""
    try:
        document = await run_in_threadpool(json.loads, await request.body())  # large results take a while
    except (ValueError, RecursionError) as cause:
        raise ProtocolError(f"the body of the request is not JSON: {cause}") from cause
    if not isinstance(document, dict):
        raise ProtocolError("the body of the request must be a JSON object")
    return document


ProtocolDocument = Annotated[dict[str, Any], Depends(_document)]


def _check_files(document: dict[str, Any]) -> None:
    """Refuse new files with fields of wrong types: what strangers send is not looked at further then."""
    if document.get("version") != PROTOCOL_VERSION or not isinstance(document.get("add"), list):
        return  # the reader of the protocol says what is wrong
    try:
        _NEW_FILES.validate_python(document["add"], strict=True)
    except ValidationError as cause:
        first = cause.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, ("add", *first["loc"])))
        raise ProtocolError(f"the field {field} of the result: {first['msg']}", type="result", field=field) from None


def _body(name: str) -> dict[str, Any]:
    """How a route declares that its body is a document of the task protocol."""
    schema = {"$ref": f"#/components/schemas/{name}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


@router.post("/ack", status_code=204, responses=problems(404, 409))
def attempts_acknowledge(service: Service, secret: Secret, task_id: str, attempt: int) -> None:
    """Tell that the task has arrived. Do it at once: after 30 seconds others get the task."""
    service.optimizers.check_reporter(task_id, attempt, secret)
    service.optimizers.acknowledge(task_id, attempt)


@router.post("/progress", status_code=204, responses=problems(404, 409))
def attempts_progress(service: Service, secret: Secret, task_id: str, attempt: int, progress: AttemptProgress) -> None:
    """Tell how far the attempt is, every minute or so. One without progress for an hour has failed."""
    service.optimizers.check_reporter(task_id, attempt, secret)
    service.optimizers.progress(task_id, attempt, progress.rows, progress.bytes)


@router.post("/complete", responses=problems(404, 409), openapi_extra=_body("Result"))
def attempts_complete(
    service: Service, secret: Secret, task_id: str, attempt: int, document: ProtocolDocument
) -> dict[str, bool]:
    """Report the result. From the moment this is sent its files belong to the service, also if no answer comes: send it
    again then, and remove nothing. 422: the result was refused, and `facts.reason` says why; the attempt still counts."""
    service.optimizers.check_reporter(task_id, attempt, secret)
    _check_files(document)
    service.optimizers.complete(task_id, attempt, document)
    return {"accepted": True}


@router.post("/fail", responses=problems(404, 409), openapi_extra=_body("Failure"))
def attempts_fail(
    service: Service, secret: Secret, task_id: str, attempt: int, document: ProtocolDocument
) -> dict[str, bool]:
    """Report that the attempt has failed, and has removed its files."""
    service.optimizers.check_reporter(task_id, attempt, secret)
    service.optimizers.fail(task_id, attempt, document)
    return {"accepted": True}


@router.get("/storage", responses=problems(404, 409, 503))
def attempts_storage(service: Service, openings: Openings, secret: Secret, task_id: str, attempt: int) -> StorageAccess:
    """Get access to the storage of the table, for whoever executes the attempt."""
    service.optimizers.check_reporter(task_id, attempt, secret)
    with openings.place(service.optimizers.table_of(task_id, attempt).catalog):
        return StorageAccess(properties=service.optimizers.storage_of(task_id, attempt))
