"""The server as a process runs it, or a test in a thread."""

from __future__ import annotations

import socket
import threading
import time

import uvicorn
from fastapi import FastAPI

from pyarctic.errors import Unavailable, UsageError
from pyarctic.server.waits import Waits

_GRACE_SECONDS = 10
"""How long requests may go on after the server was told to stop."""
_START_SECONDS = 30.0
_STEP_SECONDS = 0.01


class _Uvicorn(uvicorn.Server):
    """Answers requests that wait when it is told to stop, so that stopping does not wait for them."""

    def __init__(self, config: uvicorn.Config, waits: Waits) -> None:
        super().__init__(config)
        self._waits = waits

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._waits.stop()
        await super().shutdown(sockets)


class HttpServer:
    """Serves an application on one address. The port is taken at once: 0 gives a free one."""

    def __init__(self, app: FastAPI, *, host: str = "127.0.0.1", port: int = 1630) -> None:
        try:
            self._socket = _bound_socket(host, port)
        except OSError as cause:
            hint = "Another program may use it: choose another address with [[host]] or [[port]]."
            raise UsageError(f"cannot listen on {host}:{port}: {cause.strerror or cause}", hint=hint) from cause
        self.app = app
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=_GRACE_SECONDS)
        self._server = _Uvicorn(config, app.state.waits)
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Serve until the process is told to stop by SIGINT or SIGTERM, or `stop` is called."""
        with self._server.capture_signals():
            self.start().join()

    def start(self) -> threading.Thread:
        """Serve in a thread; gives back control when requests are answered."""
        # Threads for requests are daemons as the one that starts them: a catalog that hangs must not keep the process from
        # ending.
        self._thread = threading.Thread(target=self._serve, name="arctic-http", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + _START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise Unavailable(f"the server on {self.url} has not started")
            time.sleep(_STEP_SECONDS)
        return self._thread

    def _serve(self) -> None:
        try:
            self._server.run([self._socket])
        finally:
            self._socket.close()

    def stop(self) -> None:
        """Finish what is begun, and end."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()


def _bound_socket(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except BaseException:
        bound.close()
        raise
    return bound
