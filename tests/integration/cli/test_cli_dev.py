"""`arctic dev` as a process: it optimizes its sample tables, ends at a signal, and goes on in its folder."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.live import Live

import pyarctic
from pyarctic import config
from pyarctic.cli.sample_tables import SAMPLES
from pyarctic.cli.view.live_page import PageView, event_line, table_row
from tests.support.cli_library import Arctic
from tests.support.processes import free_port

NAMES = {sample.name for sample in SAMPLES}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "lake"
    config.reset()


def run_until(wanted: set[str], folder: Path) -> set[str]:
    """Run it until a process of each table has succeeded, and end it by SIGINT. Gives the tables that were optimized."""
    words = [sys.executable, "-m", "pyarctic.cli", "dev", "--keep", str(folder), "--port", "0", "--for", "4min", "--json"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ARCTIC_")}
    optimized: set[str] = set()
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as program:
        assert program.stdout is not None
        for line in program.stdout:
            event = json.loads(line)
            if (event["kind"], event["after"]) == ("process", "succeeded"):
                optimized.add(event["table"])
            if optimized >= wanted:
                program.send_signal(signal.SIGINT)
                break
        _, error = program.communicate(timeout=120)
    assert program.returncode == 0, error
    assert "commits of the sample writers; ending" in error
    return optimized


@pytest.mark.timeout(600)
def test_sample_tables_are_optimized_while_they_are_written(folder: Path) -> None:
    assert run_until(NAMES, folder) == NAMES
    config.use(folder / "arctic.yaml")
    counts = {name: pyarctic.table(name).scan().count() for name in NAMES}
    assert all(counts.values())
    for name in NAMES:
        assert not pyarctic.check(name).damage
    assert run_until({"dev.web.clicks"}, folder) >= {"dev.web.clicks"}  # with the tables and the history of the first run
    assert pyarctic.table("dev.web.clicks").scan().count() > counts["dev.web.clicks"]


def test_wrong_words(arctic: Arctic, tmp_path: Path) -> None:
    ran = arctic("dev", "--for", "long")
    assert (ran.code, "'long' is not a duration" in ran.err) == (2, True)
    (tmp_path / "file").write_text("")
    ran = arctic("dev", "--keep", str(tmp_path / "file"))
    assert (ran.code, "is a file" in ran.err or "a part of it is a file" in ran.err) == (2, True)


def test_a_port_in_use(arctic: Arctic, tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
        taken.listen()
        ran = arctic("dev", "--keep", str(tmp_path / "lake"), "--port", str(taken.getsockname()[1]))
    assert (ran.code, "cannot listen on" in ran.err, "--port" in ran.err) == (2, True, True)


EVENT = {
    "at": "2026-01-31T09:30:00+00:00",
    "kind": "process",
    "key": "p",
    "table": "dev.shop.orders",
    "after": "running",
    "why": "the queue has room",
}
PROCESS = {"table": "dev.shop.orders", "kinds": ["minor"], "tasks": 1, "state": "running", "ended_at": None}


class Service:
    def tables(self) -> list[dict[str, Any]]:
        files = {"data_files": 5, "equality_delete_files": 1, "change_files": 2}
        row = {"name": "dev.shop.orders", "kind": "keyed", "state": "active", "health": 71.4, "files": files}
        return [row, {**row, "name": "dev.web.clicks", "health": None, "files": None}]

    def processes(self, limit: int) -> list[dict[str, Any]]:
        return [PROCESS, {**PROCESS, "state": "failed", "ended_at": EVENT["at"]}][:limit]


def test_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    with Live(console=console, auto_refresh=False) as live:
        PageView(live, "the title").show(Service(), [EVENT])  # type: ignore[arg-type]
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "the title" in text
    assert "71" in text
    assert "minor, 1 task" in text
    assert "minor failed" in text
    assert "process running: the queue has room" in text
    assert event_line(EVENT).endswith("  dev.shop.orders  process running: the queue has room")


def test_a_table_that_was_not_looked_at_yet() -> None:
    row = table_row(Service().tables()[1], [])
    assert (row["health"], row["data_files"], row["pending_files"], row["work"], row["last"]) == (None, None, None, "", None)
