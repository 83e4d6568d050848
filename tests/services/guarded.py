"""A REST catalog in this process, over another catalog, that guards its tables: tokens and storage credentials expire.

    with guarded.start(catalog, token_seconds=1) as server:
        load_catalog("guarded", **server.properties)

Clients get a token for their credential, and with every table they load new credentials for its storage.
`GuardedFileIO` is that storage: it takes no credentials that have expired, and each file takes its time.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.table import CommitTableRequest, Table

from tests.support.processes import HOST

CREDENTIAL = "client:client-secret"
API_KEY = "api-key-secret"
_SESSION_TOKEN, _WRITE_SECONDS = "s3.session-token", "guarded.write-seconds"


class GuardedFileIO(PyArrowFileIO):
    """Files of this machine, for those with credentials that have not expired."""

    def new_output(self, location: str) -> PyArrowFile:
        time.sleep(float(self.properties[_WRITE_SECONDS]) if location.endswith(".parquet") else 0)
        self._check()
        return super().new_output(location)

    def new_input(self, location: str) -> PyArrowFile:
        self._check()
        return super().new_input(location)

    def _check(self) -> None:
        expires_at = float(str(self.properties[_SESSION_TOKEN]).removeprefix("session-secret-"))
        if time.time() > expires_at:
            raise PermissionError(f"the session token expired {time.time() - expires_at:.1f} s ago")


@dataclass(slots=True, kw_only=True)
class GuardedServer:
    """A running server, what it gave out, and how often it refused a token."""

    uri: str
    catalog: Catalog
    token_seconds: float
    storage_seconds: float
    write_seconds: float
    secrets: set[str] = field(default_factory=lambda: {CREDENTIAL, CREDENTIAL.split(":")[1], API_KEY})
    refused: int = 0
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))
    _valid_until: dict[str, float] = field(default_factory=dict)

    @property
    def properties(self) -> dict[str, str]:
        """Of a client."""
        return {
            "type": "rest",
            "uri": self.uri,
            "credential": CREDENTIAL,
            "oauth2-server-uri": f"{self.uri}/v1/oauth/tokens",
            "header.X-Api-Key": API_KEY,
        }

    def new_token(self) -> str:
        token = f"token-secret-{next(self._numbers)}"
        self._valid_until[token] = time.monotonic() + self.token_seconds
        self.secrets.add(token)
        return token

    def admits(self, header: str) -> bool:
        is_valid = self._valid_until.get(header.removeprefix("Bearer "), 0.0) > time.monotonic()
        self.refused += not is_valid
        return is_valid

    def storage_config(self) -> dict[str, str]:
        session, key = f"session-secret-{time.time() + self.storage_seconds}", f"key-secret-{next(self._numbers)}"
        self.secrets |= {session, key}
        return {
            "py-io-impl": f"{GuardedFileIO.__module__}.{GuardedFileIO.__name__}",
            _WRITE_SECONDS: str(self.write_seconds),
            "s3.secret-access-key": key,
            _SESSION_TOKEN: session,
        }


@contextmanager
def start(
    catalog: Catalog, *, token_seconds: float = 60, storage_seconds: float = 60, write_seconds: float = 0
) -> Iterator[GuardedServer]:
    """Start a server over this catalog, and end it."""

    class Handler(_Handler):
        """The handler of this server: the server makes one per request and gives it nothing."""

    listener = ThreadingHTTPServer((HOST, 0), Handler)
    Handler.server_state = GuardedServer(
        uri=f"http://{HOST}:{listener.server_port}",
        catalog=catalog,
        token_seconds=token_seconds,
        storage_seconds=storage_seconds,
        write_seconds=write_seconds,
    )
    serving = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02}, name="guarded")
    serving.start()
    try:
        yield Handler.server_state
    finally:
        listener.shutdown()
        serving.join()
        listener.server_close()


class _Handler(BaseHTTPRequestHandler):
    server_state: GuardedServer

    def do_GET(self) -> None:
        if self.path.startswith("/v1/config"):
            self._answer(200, {"defaults": {}, "overrides": {}})
        else:
            self._on_table(lambda table, _: table)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/v1/oauth/tokens":
            self._answer(200, {"access_token": self.server_state.new_token(), "token_type": "bearer"})
        else:
            self._on_table(_commit, body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def _on_table(self, action: object, body: bytes = b"") -> None:
        state = self.server_state
        if not state.admits(self.headers.get("Authorization", "")):
            self._answer(401, {"error": {"message": "the token expired", "type": "NotAuthorized", "code": 401}})
            return
        _, _, _, namespace, _, name = unquote(urlsplit(self.path).path).split("/")
        try:
            table = action(state.catalog.load_table((namespace, name)), body)  # type: ignore[operator]
        except CommitFailedException as error:
            self._answer(409, {"error": {"message": str(error), "type": "CommitFailed", "code": 409}})
            return
        except NoSuchTableError as error:
            self._answer(404, {"error": {"message": str(error), "type": "NoSuchTable", "code": 404}})
            return
        metadata = json.loads(table.metadata.model_dump_json())
        answer = {"metadata-location": table.metadata_location, "metadata": metadata, "config": state.storage_config()}
        self._answer(200, answer)

    def _answer(self, status: int, document: object) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _commit(table: Table, body: bytes) -> Table:
    request = CommitTableRequest.model_validate_json(body)
    table.catalog.commit_table(table, request.requirements, request.updates)
    return table.catalog.load_table(table.name())
