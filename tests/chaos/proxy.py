"""A proxy between optimizers and their service, which loses, doubles and delays requests and answers."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any

from tests.chaos.faults import Count
from tests.support.processes import HOST

_OF_THE_CONNECTION = frozenset({"connection", "host", "keep-alive", "transfer-encoding", "content-length", "date", "server"})
_KINDS = ("request lost", "answer lost", "request doubled", "answer delayed", "request delayed", "request late")
_UPSTREAM_SECONDS = 60.0


class Proxy:
    """A running proxy."""

    def __init__(self, url: str, port: int, seed: str, count: Count) -> None:
        self.url = url
        self.port = port
        self.share = 0.0
        """Of the requests that meet a fault."""
        self.count = count
        self._random = Random(seed)
        self._lock = threading.Lock()

    def draw(self) -> tuple[str | None, float]:
        """What happens to the next request, and for how many seconds."""
        with self._lock:
            if self._random.random() >= self.share:
                return None, 0.0
            kind, seconds = self._random.choice(_KINDS), self._random.uniform(0.1, 4.0)
        self.count.add(kind)
        return kind, seconds


@contextmanager
def start(port: int, seed: str, count: Count) -> Iterator[Proxy]:
    """A proxy before the service on a port of this machine."""

    class Handler(_Handler):
        """The handler of this proxy: the server makes one per request and gives it nothing."""

    server = _Server((HOST, 0), Handler)
    Handler.proxy = Proxy(f"http://{HOST}:{server.server_port}", port, seed, count)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="chaos proxy", daemon=True)
    serving.start()
    try:
        yield Handler.proxy
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Optimizers are killed, and so are their connections."""


class _Broken(Exception):
    """The service does not answer."""


class _Handler(BaseHTTPRequestHandler):
    proxy: Proxy

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        kind, seconds = self.proxy.draw()
        if kind == "request lost":
            self._break()
            return
        if kind == "request late":  # the client sends other ones before it is carried out
            threading.Thread(target=self._forward_late, args=(body, seconds), daemon=True).start()
            self._break()
            return
        if kind == "request delayed":
            time.sleep(seconds)
        try:
            status, headers, answer = self._forward(body)
            if kind == "request doubled":
                status, headers, answer = self._forward(body)
        except _Broken:
            self._break()
            return
        if kind == "answer delayed":
            time.sleep(seconds)
        if kind == "answer lost":
            self._break()
            return
        with suppress(OSError):  # the client did not wait
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

    def log_message(self, *args: object) -> None:
        """Say nothing: the counter tells."""

    def _forward_late(self, body: bytes, seconds: float) -> None:
        time.sleep(seconds)
        with suppress(_Broken):
            self._forward(body)

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(HOST, self.proxy.port, timeout=_UPSTREAM_SECONDS)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_THE_CONNECTION}
            connection.request(self.command, self.path, body or None, headers)
            response = connection.getresponse()
            kept = [(name, value) for name, value in response.getheaders() if name.lower() not in _OF_THE_CONNECTION]
            return response.status, kept, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise _Broken from error
        finally:
            connection.close()

    def _break(self) -> None:
        # Closing with data in flight forgotten makes the kernel send a reset in place of an orderly end.
        with suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True
