"""Starting a service in a folder: its lock, its token and its database."""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from pyarctic.ams import Ams, Leadership, ServiceSettings
from pyarctic.ams.store import SqlStore
from pyarctic.config import Config, HttpSection, ServiceSection, state_dir
from pyarctic.errors import ConfigError, Unavailable
from pyarctic.logs import get_logger
from pyarctic.server.app import create_app
from pyarctic.server.auth import Tokens
from pyarctic.server.running import HttpServer

_log = get_logger(__name__)
_LEAST_TOKEN = 16
_DATABASE_SECONDS = 60.0
_DATABASE_RETRY_SECONDS = 2.0
TOKEN_FILE = "admin.token"  # noqa: S105  # the name of a file
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class RunningService:
    """A service with its HTTP interface; `serve` gives one."""

    def __init__(self, ams: Ams, server: HttpServer, folder: Path, leadership: Leadership) -> None:
        self.ams = ams
        self.server = server
        self.folder = folder
        self.leadership = leadership

    @property
    def url(self) -> str:
        """Where it is reached."""
        return self.server.url

    @property
    def token_file(self) -> Path:
        """The file with the token of its administrator."""
        return self.folder / TOKEN_FILE


@contextmanager
def serve(
    config: Config, *, host: str | None = None, port: int | None = None, folder: Path | None = None
) -> Iterator[RunningService]:
    """A service as configured; requests are answered once its server runs. Its loops turn while it leads. It ends with the
    block."""
    section, http = config.service or ServiceSection(), config.http or HttpSection()
    host = host or http.host
    if http.auth == "none" and host not in _LOOPBACK:
        raise ConfigError(
            f"http.auth is none, and the service is to listen on {host}: everybody could steer it",
            hint="Remove the line, or listen on 127.0.0.1.",
        )
    folder = state_dir(folder)
    with _locked(folder), closing(_open_store(database_url(config, folder))) as store:
        tokens = Tokens.open_to_all() if http.auth == "none" else Tokens.of({"admin": _admin_token(http, folder)})
        ams = Ams(store, ServiceSettings.of(section))
        ams.stand_by()
        leadership = Leadership(store, _instance_id(folder), begin=ams.start, end=ams.stop)
        app = create_app(ams, tokens, leadership)
        server = HttpServer(app, host=host, port=http.port if port is None else port)
        leadership.start(http.advertised_url or server.url)
        try:
            yield RunningService(ams, server, folder, leadership)
        finally:
            leadership.stop()


def database_url(config: Config, folder: Path | None = None) -> str:
    """The database of the service: that of the configuration, or a file in its folder."""
    section = config.service or ServiceSection()
    return section.database.url or f"sqlite:///{state_dir(folder).absolute()}/arctic.db"


def _admin_token(http: HttpSection, folder: Path) -> str:
    if http.token is not None and len(http.token) < _LEAST_TOKEN:
        raise ConfigError(
            f"http.token has {len(http.token)} characters, and needs {_LEAST_TOKEN} or more",
            hint="Make one with `openssl rand -hex 24`.",
        )
    return http.token or admin_token(folder)


def _open_store(url: str) -> SqlStore:
    """The store, when its database answers: services and databases are often started together."""
    deadline = time.monotonic() + _DATABASE_SECONDS
    while True:
        try:
            return SqlStore.open(url)
        except Unavailable as error:
            if time.monotonic() > deadline:
                raise
            _log.warning("database_awaited", reason=str(error), hint=error.hint)
        time.sleep(_DATABASE_RETRY_SECONDS)


def _instance_id(folder: Path) -> str:
    """Names the service in this folder, also after a restart: nobody else uses the folder, so it may lead again at once. A
    copy of the folder is another service."""
    path = folder / "instance.id"
    if not path.exists():
        _write_once(path, str(uuid.uuid4()))
    return f"{path.read_text(encoding='utf-8').strip()} at {socket.gethostname()} in {folder.resolve()}"


def admin_token(folder: Path) -> str:
    """The token of the administrator, made when it is asked for the first time. Only the user may read it."""
    path = folder / TOKEN_FILE
    if not path.exists():
        _write_once(path, secrets.token_urlsafe(32))
    token = path.read_text(encoding="utf-8").strip()
    if not token:
        raise ConfigError(f"{path} is empty", hint="Remove it: the service makes a new one when it starts.")
    return token


def _write_once(path: Path, text: str) -> None:
    """A file that only the user may read, as a whole or not at all."""
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text + "\n")
    beside.replace(path)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Refuse a second service in the same folder. The lock ends with the process, however that ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = (folder / "lock").open("a+")
    except OSError as cause:
        hint = "Choose another folder with [[state]], or $ARCTIC_STATE."
        raise Unavailable(f"cannot use the folder {folder}: {cause.strerror or cause}", hint=hint) from cause
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as cause:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise ConfigError(
                f"a service runs in {folder} already ({holder})",
                hint="Use that one, stop it, or choose another folder with [[state]].",
            ) from cause
        file.truncate(0)
        file.write(f"process {os.getpid()}")
        file.flush()
        yield
