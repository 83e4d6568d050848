"""The HTTP interface of the service: thin routes over `pyarctic.ams`, for people, programs and optimizers.

    server = HttpServer(create_app(ams, Tokens.of({"admin": token})), host="127.0.0.1", port=1630)
    server.run()

Knows HTTP, tokens and JSON. Decides nothing about tables or tasks. FastAPI and Uvicorn are imported in this room only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.server.app import create_app
    from pyarctic.server.auth import Tokens
    from pyarctic.server.openapi import openapi_text
    from pyarctic.server.running import HttpServer
    from pyarctic.server.starting import RunningService, database_url, serve

__all__ = ["HttpServer", "RunningService", "Tokens", "create_app", "database_url", "openapi_text", "serve"]

__getattr__ = lazy_exports(
    __name__,
    {
        "app": ("create_app",),
        "auth": ("Tokens",),
        "openapi": ("openapi_text",),
        "running": ("HttpServer",),
        "starting": ("RunningService", "database_url", "serve"),
    },
)
