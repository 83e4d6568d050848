"""Starting a service in a folder: its lock, its token and its database."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyarctic.ams import Ams, ServiceSettings
from pyarctic.ams.store import SqlStore
from pyarctic.config import Config, HttpSection, ServiceSection, state_dir
from pyarctic.errors import ConfigError, Unavailable
from pyarctic.server.app import create_app
from pyarctic.server.auth import Tokens
from pyarctic.server.running import HttpServer

TOKEN_FILE = "admin.token"  # noqa: S105  # the name of a file
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class RunningService:
    """A service with its HTTP interface; `serve` gives one."""

    def __init__(self, ams: Ams, server: HttpServer, folder: Path) -> None:
        self.ams = ams
        self.server = server
        self.folder = folder

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
    """A service as configured, with its loops started; requests are answered once its server runs. It ends with the
    block."""
    section, http = config.service or ServiceSection(), config.http or HttpSection()
    host = host or http.host
    if http.auth == "none" and host not in _LOOPBACK:
        raise ConfigError(
            f"http.auth is none, and the service is to listen on {host}: everybody could steer it",
            hint="Remove the line, or listen on 127.0.0.1.",
        )
    folder = state_dir(folder)
    with _locked(folder):
        store = SqlStore.open(section.database.url or f"sqlite:///{folder.absolute()}/arctic.db")
        try:
            tokens = Tokens.of({"admin": admin_token(folder)}) if http.auth == "token" else Tokens.open_to_all()
            ams = Ams(store, ServiceSettings.of(section))
            server = HttpServer(create_app(ams, tokens), host=host, port=http.port if port is None else port)
            ams.start()
            try:
                yield RunningService(ams, server, folder)
            finally:
                ams.stop()
        finally:
            store.close()


def admin_token(folder: Path) -> str:
    """The token of the administrator, made when it is asked for the first time. Only the user may read it."""
    path = folder / TOKEN_FILE
    if not path.exists():
        beside = path.with_name(f"{TOKEN_FILE}.{os.getpid()}")
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
        beside.replace(path)
    token = path.read_text(encoding="utf-8").strip()
    if not token:
        raise ConfigError(f"{path} is empty", hint="Remove it: the service makes a new one when it starts.")
    return token


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
