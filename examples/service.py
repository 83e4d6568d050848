"""The management service at work: Spark streams write to several tables, which an optimizer optimizes meanwhile."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

import pyarctic
import pyarctic.spark as arctic_spark
from examples import orders, streaming
from examples.stage import ARCTIC, FOLDER, console, result
from pyarctic.client import Client, connect
from pyarctic.errors import ArcticError

TABLES = ("demo.web.orders", "demo.web.returns", "demo.web.visits")
_BATCHES, _CHANGES = 10, 200
_PROPERTIES = {"self-optimizing.minor.trigger.file-count": "4", "self-optimizing.commit-interval": "0"}
_START_SECONDS = 60.0
_REST_SECONDS = 90.0


@contextmanager
def running() -> Iterator[Client]:
    """`arctic serve` and `arctic optimizer run` as processes, and a client. Writers of this process report their commits."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    state, log = FOLDER / "state", FOLDER / "service.log"
    os.environ |= {"ARCTIC_URL": f"http://127.0.0.1:{port}", "ARCTIC_STATE": str(state)}
    with ExitStack() as stack:
        stack.callback(lambda: [os.environ.pop(name) for name in ("ARCTIC_URL", "ARCTIC_STATE")])
        output = stack.enter_context(log.open("w"))
        for words in (["serve", "--port", str(port)], ["optimizer", "run", "--parallelism", "2"]):
            console.print(f"[bold]$ arctic {' '.join(words)} &[/]")
            command: list[str | Path] = [ARCTIC, "--config", FOLDER / "arctic.yaml", *words]
            program = subprocess.Popen(command, stdout=output, stderr=output)
            stack.callback(program.wait)
            stack.callback(program.terminate)
            if words[0] == "serve":
                client = stack.enter_context(_connected())
        yield client


def _connected() -> Client:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            client = connect()
            client.tables()
            return client
        except ArcticError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def optimize_while_streaming(client: Client) -> bool:
    """Stream changes into all tables, and tell what the service does with them. Gives whether their rows are right."""
    shops = {name: streaming.Shop(FOLDER / name, {}, seed) for seed, name in enumerate(TABLES)}
    for name, shop in shops.items():
        pyarctic.create_table(name, orders.ARROW_SCHEMA, ["id"], properties=_PROPERTIES)
        for _ in range(_BATCHES):
            shop.change_orders(_CHANGES)
    threading.Thread(target=_tell, args=(client,), daemon=True).start()
    streams = [
        threading.Thread(target=streaming.ingest, args=(name, FOLDER / name, FOLDER / f"{name}-checkpoint"))
        for name in TABLES
    ]
    for stream in streams:
        stream.start()
    for stream in streams:
        stream.join()
    _wait_for_rest(client)
    is_right = all(streaming.by_region(name) == shop.totals() for name, shop in shops.items())
    arctic_spark.session().stop()
    processes = [process for name in TABLES for process in client.processes(table=name)]
    changes = len(TABLES) * _BATCHES * _CHANGES
    tasks = sum(process["tasks"] for process in processes)
    result(
        f"{changes:,} changes in {len(TABLES) * _BATCHES} batches; {len(processes)} processes with {tasks} tasks meanwhile"
    )
    return is_right and {process["state"] for process in processes} == {"succeeded"}


def _tell(client: Client) -> None:
    """A line for each commit and each process that has ended."""
    try:
        for event in client.follow(kind=["process", "commit"]):
            if event["after"] in ("landed", "succeeded", "partial", "failed"):
                at = datetime.fromisoformat(event["at"]).astimezone().strftime("%H:%M:%S")
                console.print(f"  [dim]{at}[/] {event['table']}: {event['kind']} {event['after']}, {event['why']}")
    except ArcticError:
        return  # the service has ended


def _wait_for_rest(client: Client) -> None:
    """Until no table has a process that has not ended, for some looks in a row."""
    quiet, deadline = 0, time.monotonic() + _REST_SECONDS
    while quiet < 3 and time.monotonic() < deadline:
        busy = any(process["ended_at"] is None for process in client.processes())
        quiet = 0 if busy else quiet + 1
        time.sleep(0.5)
