"""Refusing what only the leader does, in a service that stands by."""

from __future__ import annotations

from fastapi import Request

from pyarctic.ams import Leadership
from pyarctic.errors import NotLeading
from pyarctic.server.problems import AsgiApp, Receive, Scope, Send, answer_to

_READS = frozenset({"GET", "HEAD", "OPTIONS"})


class LeaderGate:
    """Answers requests that change something with the address of the leader, unless this service leads."""

    def __init__(self, app: AsgiApp, *, leadership: Leadership, prefix: str) -> None:
        self._app = app
        self._leadership = leadership
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and scope["path"].startswith(self._prefix) and scope["method"] not in _READS:
            try:
                self._leadership.check()
            except NotLeading as error:
                app = answer_to(Request(scope), error)
        await app(scope, receive, send)
