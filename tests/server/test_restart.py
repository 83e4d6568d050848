"""A service that is stopped and started again, with optimizers at work; and many optimizers at once."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pyiceberg.catalog import Catalog

from pyarctic.ams import Ams, ServiceSettings
from pyarctic.ams.store import SqlStore
from pyarctic.client import Address, Client, OptimizerClient
from pyarctic.errors import Unavailable
from pyarctic.optimizing.execute.kernel import JobContext, execute
from pyarctic.optimizing.protocol import Task
from pyarctic.server import HttpServer, Tokens, create_app
from tests.server.requests import TOKEN
from tests.support import changes
from tests.support.fragmented_table import fragmented_table

_SETTINGS = ServiceSettings(commit_interval=timedelta(0), dead_attempt_grace=timedelta(0))


class _Service:
    """A service on SQLite, as a process would have it."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.store = SqlStore.open(f"sqlite:///{folder}/service.db")
        self.ams = Ams(self.store, _SETTINGS)
        self.server = HttpServer(create_app(self.ams, Tokens.of({"tester": TOKEN})), port=port)
        self.server.start()
        self.address = Address(urls=(self.server.url,), token=TOKEN)

    def stop(self) -> None:
        self.server.stop()
        self.store.close()


def test_optimizers_go_on_after_a_restart(lake: Catalog, table: str, tmp_path: Path) -> None:
    before = changes.rows(lake.load_table("db.orders")).sort_by("id")
    first = _Service(tmp_path)
    first.ams.looks.discover()
    [row] = first.ams.looks.due()
    first.ams.looks.look(row.uuid)
    optimizer = OptimizerClient(first.address)
    optimizer.register(parallelism=3)
    tasks = optimizer.poll(slots=3)
    results = []
    for task in tasks:
        optimizer.acknowledge(task["task_id"], 0)
        context = JobContext.open(task["job"], optimizer.storage(task["task_id"], 0))
        results.append(execute(context, Task.from_json(task["task"]), attempt=0).to_json())
    optimizer.complete(tasks[0]["task_id"], 0, results[0])
    first.stop()
    with pytest.raises(Unavailable):
        optimizer.complete(tasks[1]["task_id"], 0, results[1])

    second = _Service(tmp_path, urlsplit(first.server.url).port or 0)
    second.ams.keeper.keep()
    heartbeat = optimizer.heartbeat([(task["task_id"], 0) for task in tasks])
    assert heartbeat == {"state": "active", "stop": [{"task_id": tasks[0]["task_id"], "attempt": 0}]}
    for task, result in zip(tasks, results, strict=True):
        optimizer.complete(task["task_id"], 0, result)
    second.ams.commits.commit(row.uuid)
    with Client(second.address) as client:
        [process] = client.processes(table=table)
    assert process["state"] == "succeeded"
    assert changes.rows(lake.load_table("db.orders")).sort_by("id").equals(before)
    optimizer.close()
    second.stop()


def test_every_task_goes_to_one_of_many_optimizers(lake: Catalog, tmp_path: Path) -> None:
    for number in range(4):
        made = fragmented_table(lake, f"db.t{number}")
        with made.transaction() as transaction:
            transaction.set_properties({"self-optimizing.minor.trigger.file-count": "2"})
    service = _Service(tmp_path)

    def work() -> list[tuple[str, int]]:
        client = OptimizerClient(service.address)
        client.register(parallelism=2)
        taken = []
        while tasks := client.poll(slots=2, wait_seconds=2):
            for task in tasks:
                client.acknowledge(task["task_id"], task["attempt"])
                taken.append((task["task_id"], task["attempt"]))
        client.close()
        return taken

    with ThreadPoolExecutor(8) as pool:
        working = [pool.submit(work) for _ in range(8)]
        service.ams.looks.discover()
        for row in service.ams.looks.due():
            service.ams.looks.look(row.uuid)
        taken = Counter(attempt for each in working for attempt in each.result(60))
    assert len(taken) == 12
    assert set(taken.values()) == {1}
    assert {attempt for _, attempt in taken} == {0}
    service.stop()
