"""A proxy between a REST client and its catalog, which does to commits what networks and servers do to them.

    with faulty.start(rest_server.uri) as proxy:
        proxy.plan([lost(504), PASS])      # the next commit lands and its answer is lost; the one after it is fine

Each commit takes the next fault of the plan, and passes when none is left. All other requests pass always.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from tests.support.processes import HOST

_COMMIT = re.compile(r"/v1/(?:[^/]+/)*?(?:namespaces/[^/]+/tables/[^/]+|transactions/commit)")
# The proxy speaks for itself about these: each connection carries one request.
_OF_THE_CONNECTION = frozenset({"connection", "host", "keep-alive", "transfer-encoding", "content-length", "date", "server"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens to one commit."""

    #: how often the catalog gets the request: 0 is a commit that never arrived
    arrivals: int = 1
    #: answer with this status, whatever the catalog said (or the last of its answers, when None)
    status: int | None = None
    #: reset the connection instead of answering
    reset: bool = False
    #: seconds until the request goes on to the catalog
    delay: float = 0.0
    #: seconds until the answer goes back to the client
    answer_delay: float = 0.0


PASS = Fault()


def refused(status: int) -> Fault:
    """The commit never reaches the catalog; the client is told this status."""
    return Fault(arrivals=0, status=status)


def lost(status: int) -> Fault:
    """The catalog gets the commit; the client is told this status."""
    return Fault(status=status)


def reset(*, arrived: bool = True) -> Fault:
    """The connection breaks, after the catalog got the commit or before."""
    return Fault(arrivals=int(arrived), reset=True)


def delayed(seconds: float) -> Fault:
    """The commit takes that long to reach the catalog."""
    return Fault(delay=seconds)


def repeated(times: int = 2) -> Fault:
    """The catalog gets the same commit several times; the client gets the last answer."""
    return Fault(arrivals=times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One commit that a client sent, and what became of it."""

    path: str
    fault: Fault
    #: the catalog's answers, one per arrival
    catalog_said: tuple[int, ...]
    #: None when the connection was reset
    client_heard: int | None


@dataclass(slots=True, kw_only=True)
class FaultyProxy:
    """A running proxy. `commits` tells in their order what became of the commits it has seen."""

    uri: str
    upstream: str
    commits: list[Commit] = field(default_factory=list)
    _faults: deque[Fault] = field(default_factory=deque)

    def plan(self, faults: Iterable[Fault]) -> None:
        """Set what happens to the next commits, in place of what is left of an earlier plan."""
        self._faults = deque(faults)

    @property
    def left(self) -> int:
        """How many faults of the plan no commit has met yet."""
        return len(self._faults)

    def next_fault(self) -> Fault:
        try:
            return self._faults.popleft()
        except IndexError:
            return PASS


@contextmanager
def start(upstream: str) -> Iterator[FaultyProxy]:
    """Start a proxy before the catalog at this address, and end it."""

    class Handler(_Handler):
        """The handler of this proxy: the server makes one per request and gives it nothing."""

    server = ThreadingHTTPServer((HOST, 0), Handler)
    server.daemon_threads = False  # so that closing waits for them: a delayed commit must not land in the next test
    Handler.proxy = FaultyProxy(uri=f"http://{HOST}:{server.server_port}", upstream=upstream)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="faulty proxy")
    serving.start()
    try:
        yield Handler.proxy
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class _Handler(BaseHTTPRequestHandler):
    proxy: FaultyProxy

    def do_GET(self) -> None:
        self._give(self._forward(self._body()))

    do_DELETE = do_HEAD = do_PUT = do_GET  # noqa: N815

    def do_POST(self) -> None:
        body, path = self._body(), urlsplit(self.path).path
        if _COMMIT.fullmatch(path):
            self._commit(path, body, self.proxy.next_fault())
        else:
            self._give(self._forward(body))

    def log_message(self, *args: object) -> None:
        """Say nothing; `commits` tells."""

    def _commit(self, path: str, body: bytes, fault: Fault) -> None:
        time.sleep(fault.delay)
        answers = [self._forward(body) for _ in range(fault.arrivals)]
        said = tuple(answer.status for answer in answers)
        answer = answers[-1] if fault.status is None and answers else _error(fault.status or 503)
        heard = None if fault.reset else answer.status
        # Before the client hears of it, so that whoever got an answer finds it here.
        self.proxy.commits.append(Commit(path=path, fault=fault, catalog_said=said, client_heard=heard))
        time.sleep(fault.answer_delay)
        if fault.reset:
            self._break()
        else:
            self._give(answer)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _forward(self, body: bytes) -> _Answer:
        connection = http.client.HTTPConnection(urlsplit(self.proxy.upstream).netloc, timeout=60)
        try:
            connection.request(self.command, self.path, body or None, dict(_without_connection(self.headers.items())))
            response = connection.getresponse()
            return _Answer(
                status=response.status, headers=tuple(_without_connection(response.getheaders())), body=response.read()
            )
        finally:
            connection.close()

    def _give(self, answer: _Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        try:
            self.end_headers()
            self.wfile.write(answer.body)
        except OSError:
            return  # the client did not wait

    def _break(self) -> None:
        # Closing with data in flight forgotten makes the kernel send a reset in place of an orderly end.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()


def _without_connection(headers: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    return ((name, value) for name, value in headers if name.lower() not in _OF_THE_CONNECTION)


def _error(status: int) -> _Answer:
    """An answer in the shape of the REST catalog's specification."""
    error = {"message": "a fault of the test", "type": "FaultOfTheTest", "code": status}
    headers = (("Content-Type", "application/json"),)
    return _Answer(status=status, headers=headers, body=json.dumps({"error": error}).encode())
