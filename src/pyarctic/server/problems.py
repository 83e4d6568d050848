"""Errors as RFC 9457 has them: `application/problem+json`, with a stable code, a hint, and an id to look for in the log."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

from pyarctic.config import mask_text
from pyarctic.errors import ArcticError, UsageError
from pyarctic.logs import get_logger

_log = get_logger(__name__)
MEDIA_TYPE = "application/problem+json"
MAX_BODY_BYTES = 64 << 20
"""Results of tasks that write ten thousand files have less."""

STATUS: Mapping[str, int] = MappingProxyType(
    {
        "usage": 400,
        "unauthorized": 401,
        "not-found": 404,
        "method-not-allowed": 405,
        "conflict": 409,
        "conflict-in-store": 409,
        "invalid-transition": 409,
        "rejected": 409,
        "stale-attempt": 409,
        "unknown-optimizer": 410,
        "too-large": 413,
        "not-leading": 421,
        "invalid-request": 422,
        "protocol": 422,
        "unsupported": 422,
        "config": 500,
        "damaged": 500,
        "error": 500,
        "internal": 500,
        "missing-extra": 500,
        "outcome-unknown": 503,
        "unavailable": 503,
    }
)
"""The HTTP status of each error code."""
_CODES = {400: "usage", 404: "not-found", 405: "method-not-allowed"}
"""The codes of errors that the web framework finds, by status."""

_HALVES = re.compile(rb"\\u[dD][89a-fA-F]")
"""Characters beyond 16 bits are written as two halves."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class FieldFault(BaseModel):
    """What is wrong with one field of a request."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    field: str
    """Where it is: `body.slots`, `query.limit`."""
    message: str


class Problem(BaseModel):
    """An error."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    type: str
    """`/problems/` and the code."""
    title: str
    status: int
    detail: str
    """What happened, in one line."""
    instance: str
    """The path that was asked for."""
    code: str
    """The stable code: programs decide by it."""
    hint: str | None
    """What to do."""
    retryable: bool
    """Whether the same request may succeed later."""
    facts: dict[str, Any] = {}
    """The objects concerned. Refused documents of optimizers have `field` and `reason` here."""
    errors: list[FieldFault] = []
    """The faults of single fields of the request."""
    trace_id: str
    """The id of this request in the log of the service."""


class _TooLarge(Exception):
    """The body of a request goes on beyond the limit."""


class Guard:
    """The outermost part of the application: gives each request an id, limits its size, and answers what nobody expected."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})["trace_id"] = uuid.uuid4().hex
        is_started, size = False, 0

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > MAX_BODY_BYTES:
                raise _TooLarge
            return message

        async def noted(message: Message) -> None:
            nonlocal is_started
            is_started = True
            await send(message)

        try:
            await self._app(scope, limited, noted)
        except _TooLarge:  # of a route that reads the body itself
            await _too_large(Request(scope))(scope, receive, send)
        except Exception as error:
            request = Request(scope)
            facts = {"method": request.method, "path": request.url.path, "trace_id": request.state.trace_id}
            _log.error("request_failed", error=error, **facts)
            if is_started:
                raise
            await _unexpected(request, error)(scope, receive, send)


def answer_errors(app: FastAPI) -> None:
    """Let an application answer all errors as problems."""
    app.add_exception_handler(ArcticError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    for status in _CODES:
        app.add_exception_handler(status, _not_served)
    app.add_middleware(Guard)


async def _refused(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, ArcticError):
        raise error
    return answer_to(request, error)


def answer_to(request: Request, error: ArcticError) -> JSONResponse:
    """The answer to a request that ends with this error."""
    given = error.to_dict()
    facts = {key: mask_text(value) if isinstance(value, str) else value for key, value in given.pop("facts").items()}
    return _answer(request, **{**given, "detail": mask_text(given["detail"]), "facts": facts})


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    faults = error.errors() if isinstance(error, RequestValidationError) else []
    # What was given is not repeated: it may be a secret.
    errors = [{"field": ".".join(map(str, fault["loc"])), "message": fault["msg"]} for fault in faults]
    detail = "; ".join(f"{each['field']}: {each['message']}" for each in errors)
    return _answer(request, code="invalid-request", title="The request is not valid", detail=detail, errors=errors)


async def _not_served(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error.__cause__, _TooLarge):
        return _too_large(request)
    status = HTTPStatus(getattr(error, "status_code", HTTPStatus.BAD_REQUEST))
    reason = getattr(error, "detail", status.phrase)
    detail = f"{request.method} {request.url.path}: {reason}"
    answer = _answer(request, code=_CODES[status], title=status.phrase, detail=detail)
    answer.headers.update(getattr(error, "headers", None) or {})
    return answer


def _too_large(request: Request) -> JSONResponse:
    detail = f"the body of the request has more than {MAX_BODY_BYTES} bytes"
    return _answer(request, code="too-large", title="The request is too large", detail=detail)


def _unexpected(request: Request, error: Exception) -> JSONResponse:
    title = "PyArctic encountered an unexpected error"
    hint = f"The log of the service has more under the id {request.state.trace_id}."
    return _answer(request, code="internal", title=title, detail=type(error).__name__, hint=hint)


def _answer(
    request: Request, *, code: str, title: str, detail: str, hint: str | None = None, retryable: bool = False, **more: Any
) -> JSONResponse:
    status = STATUS.get(code, 500)
    problem = Problem(
        type=f"/problems/{code}",
        title=title,
        status=status,
        detail=detail,
        instance=request.url.path,
        code=code,
        hint=hint,
        retryable=retryable,
        trace_id=request.state.trace_id,
        **more,
    )
    headers = {"WWW-Authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else None
    return JSONResponse(problem.model_dump(), status, headers, MEDIA_TYPE)


async def check_text(request: Request) -> None:
    """Refuse halves of characters, which JSON can have, and databases and answers cannot."""
    body = await request.body()
    if _HALVES.search(body):
        try:
            json.dumps(json.loads(body), ensure_ascii=False).encode()
        except UnicodeEncodeError as cause:
            raise UsageError("a text in the body of the request is not Unicode: it has half a character") from cause
        except ValueError:
            return  # it is no JSON: the route tells


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """How routes declare that they answer errors with these statuses."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}
