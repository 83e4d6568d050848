"""The application: all routes, with their tokens and errors."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.routing import APIRoute

from pyarctic.ams import Ams, Leadership
from pyarctic.server import attempts, events, optimizers, probes, processes, tables
from pyarctic.server.auth import TokenGate, Tokens, check_token
from pyarctic.server.leader_gate import LeaderGate
from pyarctic.server.openapi import describe
from pyarctic.server.problems import answer_errors, check_text, problems
from pyarctic.server.service import PREFIX, evaluation_places, opening_places
from pyarctic.server.waits import Waits

_ALWAYS = problems(401, 422)


def create_app(ams: Ams, tokens: Tokens, leadership: Leadership | None = None) -> FastAPI:
    """The HTTP interface of a service. It can also serve one whose loops are not started. `leadership`: of several services;
    one that does not lead answers reads only."""
    app = FastAPI(
        title="PyArctic",
        # The pages of FastAPI load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        generate_unique_id_function=_operation_id,
    )
    app.state.ams, app.state.tokens, app.state.leadership = ams, tokens, leadership
    app.state.waits = Waits(ams.core.bells)
    app.state.evaluations, app.state.openings = evaluation_places(), opening_places()
    api = APIRouter(prefix=PREFIX, dependencies=[Depends(check_token), Depends(check_text)], responses=_ALWAYS)
    for router in (
        tables.router,
        processes.router,
        optimizers.router,
        events.router,
        optimizers.protocol,
        attempts.router,
    ):
        api.include_router(router)
    api.add_api_route("/openapi.json", _openapi, include_in_schema=False)
    app.include_router(probes.router)
    app.include_router(api)
    app.openapi = partial(describe, app)  # type: ignore[method-assign]
    if leadership is not None:
        app.add_middleware(LeaderGate, leadership=leadership, prefix=PREFIX)
    app.add_middleware(TokenGate, tokens=tokens, prefix=PREFIX)
    answer_errors(app)
    return app


async def _openapi(request: Request) -> dict[str, Any]:
    app: FastAPI = request.app
    return app.openapi()


def _operation_id(route: APIRoute) -> str:
    """`tables_list`: the names of the functions are those of the operations."""
    return route.name
