"""Requests to a service at one of several URLs, and its errors as exceptions again."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from types import UnionType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx2

from pyarctic import errors
from pyarctic.config import mask_text, state_dir
from pyarctic.errors import ArcticError, ConfigError, NotLeading, Unavailable

PREFIX = "/api/v1"
DEFAULT_URL = "http://127.0.0.1:1630"
TOKEN_FILE = "admin.token"  # noqa: S105  # its name
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_SECONDS = 60.0
"""How long a request may take, unless it says otherwise."""
_CONNECT_SECONDS = 10.0


class ServiceError(ArcticError):
    """An error of the service for which this version of PyArctic has no exception."""

    code = "service"
    title = "The service has refused the request"

    @classmethod
    def of_problem(cls, problem: Mapping[str, Any], detail: str, **facts: Any) -> Self:
        """An error with the code and the title that the service has given it."""
        error = cls(detail, **facts)
        error.code = str(problem["code"])
        error.title = str(problem.get("title") or cls.title)
        error.retryable = bool(problem.get("retryable"))
        return error


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a service is, and the token for it."""

    urls: tuple[str, ...]
    token: str | None = field(repr=False)

    @classmethod
    def find(cls, url: str | None = None, token: str | None = None) -> Self:
        """The address that is given, else that of $ARCTIC_URL and $ARCTIC_TOKEN, else the service on this machine, with the
        token that it has left in its folder."""
        given = url or os.environ.get("ARCTIC_URL", "") or DEFAULT_URL
        urls = tuple(each.strip().rstrip("/") for each in given.split(",") if each.strip())
        for each in urls:
            if urlsplit(each).scheme not in ("http", "https") or not urlsplit(each).hostname:
                hint = f"Write it like {DEFAULT_URL}; separate several with commas."
                raise ConfigError(f"{mask_text(each)!r} is not the URL of a service", hint=hint)
        token = token or os.environ.get("ARCTIC_TOKEN", "").strip() or None
        if token is None and all(urlsplit(each).hostname in _LOOPBACK for each in urls):
            token = _local_token()
        return cls(urls=urls, token=token)


def _local_token() -> str | None:
    try:
        return (state_dir() / TOKEN_FILE).read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None  # of a service of somebody else, or there is none: it will say that a token is missing


class Transport:
    """Sends requests. A URL that cannot be reached, or of a service that does not lead, is followed by the next one; the one
    that answered comes first then."""

    def __init__(self, address: Address) -> None:
        self._urls = address.urls
        self._leader: str | None = None
        """Where a service that does not lead has sent us."""
        headers = {} if address.token is None else {"Authorization": f"Bearer {address.token}"}
        # No proxy stands between this machine and itself.
        direct = {f"all://{'[::1]' if host == '::1' else host}": None for host in _LOOPBACK}
        timeout = httpx2.Timeout(_SECONDS, connect=_CONNECT_SECONDS)
        # Loading the certificates of authorities takes longer than most requests.
        is_encrypted = any(url.startswith("https:") for url in self._urls)
        self._http = httpx2.Client(headers=headers, mounts=direct, timeout=timeout, verify=is_encrypted)

    @property
    def url(self) -> str:
        """The one that answered last."""
        return self._urls[0]

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        seconds: float = _SECONDS,
    ) -> Any:
        """The answer to a request; None if it has no content. Errors of the service are raised as exceptions."""
        timeout = httpx2.Timeout(seconds, connect=_CONNECT_SECONDS)
        parameters = {name: value for name, value in (query or {}).items() if value is not None}
        standby: NotLeading | None = None
        for url in self._candidates():
            try:
                with self._reaching(url):
                    answer = self._http.request(
                        method, f"{url}{PREFIX}{path}", params=parameters, json=body, headers=headers, timeout=timeout
                    )
                content = _content_of(answer)
            except _NotConnected:
                continue
            except NotLeading as error:  # nothing was done
                standby = error
                self._leader = str(error.facts.get("leader") or "") or None
                continue
            self._prefer(url)
            return content
        raise standby or self._unreachable()

    def _candidates(self) -> Iterator[str]:
        """The URLs to try in turn; last the one that a service of them has named as that of the leader."""
        tried = set()
        for url in self._urls:
            tried.add(url)
            yield url
        if self._leader is not None and self._leader not in tried:
            yield self._leader

    @contextmanager
    def stream(self, path: str, query: Mapping[str, Any], silence_seconds: float) -> Iterator[Iterator[str]]:
        """The lines of an answer that goes on. `silence_seconds`: after so long without one the connection is lost."""
        timeout = httpx2.Timeout(silence_seconds, connect=_CONNECT_SECONDS)
        parameters = {name: value for name, value in query.items() if value is not None}
        for url in self._urls:
            try:
                with (
                    self._reaching(url),
                    self._http.stream("GET", f"{url}{PREFIX}{path}", params=parameters, timeout=timeout) as answer,
                ):
                    self._prefer(url)
                    if not answer.is_success:
                        answer.read()
                        _content_of(answer)
                    yield answer.iter_lines()
                    return
            except _NotConnected:
                continue
        raise self._unreachable()

    @contextmanager
    def _reaching(self, url: str) -> Iterator[None]:
        try:
            yield
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as cause:
            raise _NotConnected from cause
        except httpx2.DecodingError as cause:
            raise Unavailable(f"the answer of {urlsplit(url).hostname} cannot be decoded", hint=_WRONG_URL) from cause
        except httpx2.RequestError as cause:  # it may have been carried out: the caller knows whether to repeat it
            reason = str(cause) or type(cause).__name__
            hint = f"The connection to {mask_text(url)} was lost. Try again."
            raise Unavailable(f"no answer from the service: {reason}", hint=hint) from cause

    def _prefer(self, url: str) -> None:
        urls = self._urls
        if urls[0] != url:  # other threads see all of them at any time
            self._urls = (url, *(each for each in urls if each != url))

    def _unreachable(self) -> Unavailable:
        shown = ", ".join(map(mask_text, self._urls))
        hint = f"Nothing answers at {shown}. Start it with `arctic serve`, or set ARCTIC_URL."
        return Unavailable("the service cannot be reached", hint=hint)

    def close(self) -> None:
        """Close all connections."""
        self._http.close()


class _NotConnected(Exception):
    """Nothing listens at a URL: the request was not sent."""


def with_fields(answer: Any, **kinds: type | UnionType) -> dict[str, Any]:
    """An answer that must have these fields, of these types. Without them it is from something else, such as a proxy."""
    given = answer if isinstance(answer, dict) else {}
    wrong = [name for name, kind in kinds.items() if not isinstance(given.get(name), kind)]
    if wrong:
        raise Unavailable(f"the answer of the service has no valid {' and '.join(wrong)}", hint=_WRONG_URL)
    return given


def _content_of(answer: httpx2.Response) -> Any:
    if not answer.is_success:
        raise _error_of(answer)
    if not answer.content:
        return None
    try:
        content = answer.json()
    except (ValueError, RecursionError) as cause:
        raise Unavailable(f"the answer of {answer.request.url.host} is not JSON", hint=_WRONG_URL) from cause
    if not isinstance(content, dict):
        raise Unavailable(f"the answer of {answer.request.url.host} is not a JSON object", hint=_WRONG_URL)
    return content


def _error_of(answer: httpx2.Response) -> ArcticError:
    """The exception that an answer stands for."""
    try:
        problem = answer.json()
    except (ValueError, RecursionError):
        problem = None
    if not isinstance(problem, dict) or "code" not in problem:
        detail = f"{answer.request.url.host} has answered with {answer.status_code} {answer.reason_phrase}"
        if answer.status_code >= _GATEWAY_FAULT or answer.status_code == HTTPStatus.TOO_MANY_REQUESTS:
            return Unavailable(detail, hint="Something between here and the service has failed. Try again.")
        return ServiceError(detail, hint=_WRONG_URL, status=answer.status_code)
    given, hint = problem.get("facts"), problem.get("hint")
    facts = {name: value for name, value in given.items() if name not in _RESERVED_FACTS} if isinstance(given, dict) else {}
    facts["hint"] = hint if isinstance(hint, str) else None
    detail = str(problem.get("detail") or problem.get("title"))
    kind = _KINDS.get(str(problem["code"]))
    return ServiceError.of_problem(problem, detail, **facts) if kind is None else kind(detail, **facts)


_GATEWAY_FAULT = 502
_WRONG_URL = "Is this the URL of a service of PyArctic?"
_RESERVED_FACTS = ("self", "cls", "message", "hint", "problem", "detail")
"""Names of facts that are names of arguments, too."""
_KINDS: Mapping[str, type[ArcticError]] = {
    kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ArcticError)
}
