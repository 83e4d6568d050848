"""An optimizer on Spark: one application that executes the tasks of a service in executors, on every kind of master."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic.ams import Ams, ServiceSettings
from pyarctic.ams.store import MemoryStore
from pyarctic.client import connect
from pyarctic.server import HttpServer, Tokens, create_app
from tests.oracle.connect import start as start_connect
from tests.support import changes
from tests.support.fragmented_table import fragmented_table
from tests.support.integrity import leftovers
from tests.support.keyed_tables import CITIES, cities, made, opened, read

pytestmark = pytest.mark.jvm

TOKEN = "a token of the test"
SECONDS = 150.0


@pytest.fixture
def service(lake: Catalog) -> Iterator[HttpServer]:
    """A service of the catalog `lake`, with its loops."""
    ams = Ams(MemoryStore(), ServiceSettings(commit_interval=timedelta(0), dead_attempt_grace=timedelta(0)))
    server = HttpServer(create_app(ams, Tokens.of({"tester": TOKEN})), port=0)
    server.start()
    ams.start()
    yield server
    ams.stop()
    server.stop()


@contextmanager
def optimizer(service: HttpServer, master: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "pyarctic.cli", "optimizer", "run", "--engine", "spark", "--master", master]
    command += ["--url", service.url, "--heart-beat", "1s", "--log-format", "json"]
    environment = os.environ | {"ARCTIC_TOKEN": TOKEN}
    with log.open("wb") as output, subprocess.Popen(command, env=environment, stderr=output, cwd=log.parent) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until_ended(service: HttpServer, process_id: str, running: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + SECONDS
    with connect(service.url, TOKEN) as client:
        while time.monotonic() < deadline and running.poll() is None:
            state = str(client.process(process_id)["state"])
            if state not in ("waiting", "running"):
                return state
            time.sleep(0.2)
    raise AssertionError(log.read_text()[-3000:])


@contextmanager
def master_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    if kind == "connect":
        with start_connect(folder) as url:
            yield url
    else:
        yield "local[2]" if kind == "local" else request.getfixturevalue("spark_cluster")


@pytest.mark.parametrize("kind", ["local", "cluster", "connect"])
def test_tasks_of_a_service_are_executed_by_spark(
    kind: str, lake: Catalog, service: HttpServer, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    fragmented_table(lake, "db.native")
    made(CITIES, ("city",))
    for turn in range(2):
        opened().write(cities((1, "a", f"a{turn}"), (2, "b", "b"), (3, "c", f"c{turn}")), "upsert")
    before = changes.rows(lake.load_table("db.native")).sort_by("id"), read()
    log = tmp_path / "optimizer.log"
    with master_of(kind, request, tmp_path) as master, optimizer(service, master, log) as running:
        with connect(service.url, TOKEN) as client:
            started = [client.table(name).optimize("full") for name in ("lake.db.native", "lake.db.t")]
        for process in started:
            assert process is not None
            assert wait_until_ended(service, process["id"], running, log) == "succeeded"
        with connect(service.url, TOKEN) as client:
            [known] = client.optimizers()
            assert known["parallelism"] >= 1
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0, log.read_text()[-3000:]
    assert (changes.rows(lake.load_table("db.native")).sort_by("id"), read()) == before
    assert pyarctic.table("lake.db.native").file_list.frame().height == 3
    assert leftovers(lake.load_table("db.native")) == []
