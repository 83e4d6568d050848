"""Who asks: bearer tokens for everybody, and a secret of its own for every optimizer."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Self

from fastapi import Depends, Header, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi.security.utils import get_authorization_scheme_param

from pyarctic.errors import Unauthorized
from pyarctic.server.problems import AsgiApp, Receive, Scope, Send, answer_to

_BEARER = HTTPBearer(auto_error=False, description="A token of the service, as in `Authorization: Bearer TOKEN`.")


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens that are accepted. Only their hashes are kept."""

    hashes: Mapping[str, str]
    """SHA-256 in hexadecimal digits, by the name of the holder. Events tell that name."""
    is_open: bool = False
    """Whether requests without a token are accepted, as of an anonymous holder."""

    @classmethod
    def of(cls, tokens: Mapping[str, str]) -> Self:
        """Tokens by the names of their holders."""
        return cls({name: _hash(token) for name, token in tokens.items()})

    @classmethod
    def open_to_all(cls) -> Self:
        """No token is needed."""
        return cls({}, is_open=True)

    def holder_of(self, token: str) -> str | None:
        """The name of the holder; None if the token is not accepted. All are compared: time tells nothing."""
        given, holder = _hash(token), None
        for name, known in self.hashes.items():
            if hmac.compare_digest(known, given):
                holder = name
        return holder

    def check(self, token: str | None) -> str:
        """The name of the holder; raises Unauthorized if the token is not accepted."""
        if self.is_open:
            return "anonymous"
        if token is None:
            raise Unauthorized("the request has no token", hint="Send it as `Authorization: Bearer TOKEN`.")
        holder = self.holder_of(token)
        if holder is None:
            hint = "The file admin.token in the folder of the service has one."
            raise Unauthorized("the token is not accepted", hint=hint)
        return holder


class TokenGate:
    """Refuses requests to the API without a token that is accepted, before anybody reads what they bring."""

    def __init__(self, app: AsgiApp, *, tokens: Tokens, prefix: str) -> None:
        self._app = app
        self._tokens = tokens
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and scope["path"].startswith(self._prefix):
            try:
                self._tokens.check(_token_of(Request(scope)))
            except Unauthorized as error:
                app = answer_to(Request(scope), error)
        await app(scope, receive, send)


def _token_of(request: Request) -> str | None:
    scheme, token = get_authorization_scheme_param(request.headers.get("Authorization"))
    return token if scheme.lower() == "bearer" else None


async def check_token(request: Request, _given: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)]) -> str:
    """The name of the holder of a request's token."""
    tokens: Tokens = request.app.state.tokens
    return tokens.check(_token_of(request))


async def _secret(
    given: Annotated[
        str | None,
        Header(
            alias="Arctic-Optimizer-Secret", description="The secret of the optimizer, from the answer to its registration."
        ),
    ] = None,
) -> str:
    if given is None:
        raise Unauthorized(
            "the request has no secret of an optimizer", hint="Send that of the registration as `Arctic-Optimizer-Secret`."
        )
    return given


Caller = Annotated[str, Depends(check_token)]
"""The name of the holder of the token."""
Secret = Annotated[str, Depends(_secret)]
"""That of an optimizer, not checked yet."""


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
