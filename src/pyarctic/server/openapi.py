"""The description of the interface, `docs/openapi.json`: complete enough to write an optimizer from it."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from pyarctic.ams import Ams
from pyarctic.ams.store import MemoryStore
from pyarctic.server.problems import Problem
from pyarctic.server.task_documents import DOCUMENTS

_REFERENCE = "#/components/schemas/{model}"
_DESCRIPTION = """\
The management service of PyArctic. All requests but the probes need a token: `Authorization: Bearer TOKEN`.

An *optimizer* executes tasks. It registers, tells every few seconds that it is there, polls for tasks, and for each one
acknowledges the attempt, gets access to the storage, works, and reports the result or a failure. All its reports may be
sent again. 409 `stale-attempt` means that the attempt does not count any more: stop it, and remove its files unless its
result was reported. 410 `unknown-optimizer` means: stop everything, and register again. 421 `not-leading` means: of several
services another one leads; send the request there (`facts.leader`).

Ignore fields that you do not know. What a task asks for, and how files are named, is described with the task protocol.
"""


def describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of an application, with the documents that routes only refer to."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version="1", description=_DESCRIPTION, routes=app.routes)
        models: tuple[type[BaseModel], ...] = (Problem, *DOCUMENTS)
        described = models_json_schema([(model, "validation") for model in models], ref_template=_REFERENCE)[1]
        document["components"]["schemas"] = dict(sorted((document["components"]["schemas"] | described["$defs"]).items()))
        app.openapi_schema = document
    return app.openapi_schema


def openapi_text() -> str:
    """The text of `docs/openapi.json`."""
    from pyarctic.server.app import create_app
    from pyarctic.server.auth import Tokens

    return json.dumps(describe(create_app(Ams(MemoryStore()), Tokens({}))), indent=1, ensure_ascii=False) + "\n"
