"""The management service: how soon it is ready, what it costs when nothing happens, how fast it hands out and takes back."""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

import pyarctic
from benchmarks.figures import Figure, console
from benchmarks.processes import cpu_seconds
from pyarctic import config
from pyarctic.ams.rows import PlanRow, ProcessRow, TaskRow
from pyarctic.ams.states import ProcessState, TaskState
from pyarctic.ams.store import SqlStore
from pyarctic.client import Address, Client, OptimizerClient, connect
from pyarctic.errors import Unavailable
from pyarctic.optimizing import Options
from pyarctic.optimizing.api import plan_table
from pyarctic.optimizing.execute.kernel import JobContext, execute
from pyarctic.optimizing.protocol import TaskResult
from tests.support.processes import free_port, running

_SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.int32())])
_YAML = """
catalogs:
  lake: {{type: sql, uri: "sqlite:///{folder}/catalog.db", warehouse: "file://{folder}/warehouse"}}
service:
  database: {{url: "{database}"}}
"""
_TASKS_OF_PLAN = 50
_OPTIMIZERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Service:
    """A service in a process of its own."""

    pid: int
    url: str
    token: str
    seconds_to_ready: float

    @property
    def address(self) -> Address:
        return Address(urls=(self.url,), token=self.token)

    def client(self) -> Client:
        return connect(self.url, self.token)

    def resident_mb(self) -> float:
        text = Path(f"/proc/{self.pid}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0]) / 1024


def service(scale: float) -> list[Figure]:
    """All figures. Targets are for the full size."""
    from tests.services.postgres import start as start_postgres

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-service-")))
        with console.status("a hundred tables"):
            _make_tables(folder, max(int(100 * scale), 10))
            figures = [*_small(folder)]
        with console.status("hand-out with PostgreSQL"):
            postgres = stack.enter_context(start_postgres(folder))
        tasks = max(int(6000 * scale), 200)
        figures += [*_throughput(folder, "SQLite", f"sqlite:///{folder}/throughput.db", tasks)]
        figures += [*_throughput(folder, "PostgreSQL", postgres.uri, tasks)]
        with console.status("ten thousand tables"):
            figures += [*_many(folder / "many", max(int(10_000 * scale), 20))]
    return figures


@contextmanager
def _started(folder: Path, database: str | None = None) -> Iterator[_Service]:
    port, state = free_port(), folder / "state"
    file = folder / "arctic.yaml"
    file.write_text(_YAML.format(folder=folder, database=database or f"sqlite:///{folder}/arctic.db"))
    environment = os.environ | {"ARCTIC_CONFIG": str(file), "ARCTIC_STATE": str(state)}
    command = [sys.executable, "-m", "pyarctic.cli", "serve", "--port", str(port), "--log-level", "warning"]
    began = time.monotonic()
    with running(command, folder / "service.log", env=environment) as process:
        url = f"http://127.0.0.1:{port}"
        while True:
            try:
                token = (state / "admin.token").read_text().strip()
                connect(url, token).tables()
                break
            except (OSError, Unavailable):
                if process.poll() is not None:
                    raise RuntimeError((folder / "service.log").read_text()) from None
                time.sleep(0.01)
        yield _Service(pid=process.pid, url=url, token=token, seconds_to_ready=time.monotonic() - began)


def _use(folder: Path) -> None:
    config.reset()
    catalog = pyarctic.catalog(
        "lake", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse"
    )
    catalog.create_namespace_if_not_exists("db")


def _make_tables(folder: Path, tables: int) -> None:
    folder.mkdir(exist_ok=True)
    _use(folder)
    for number in range(tables):
        table = pyarctic.create_table(f"lake.db.t{number:05d}", _SCHEMA)
        table.write(pa.table({"id": [number], "part": [0]}, schema=_SCHEMA))


def _await_watched(watching: _Service, tables: int) -> None:
    """Until all tables have been looked at."""
    with watching.client() as client:
        while sum(1 for row in client.tables() if row["looked_at"]) < tables:
            time.sleep(1)


# ---- a hundred tables ----------------------------------------------------------------------------------------------------


def _small(folder: Path) -> Iterator[Figure]:
    tables = len(pyarctic.catalog("lake").list_tables("db"))
    with _started(folder):
        pass  # the first start makes the database
    with _started(folder) as watching:
        yield Figure(
            name="`arctic serve` until it answers", measured=watching.seconds_to_ready, target=3, unit="s", detail="wall"
        )
        _await_watched(watching, tables)
        yield _idle(watching, tables)
        yield _latency(watching)


def _idle(watching: _Service, tables: int, seconds: float = 30.0) -> Figure:
    before = cpu_seconds(watching.pid)
    time.sleep(seconds)
    share = (cpu_seconds(watching.pid) - before) / seconds * 100
    detail = f"of a core, over {seconds:.0f} s; {watching.resident_mb():.0f} MB"
    return Figure(name=f"idle with {tables:,} tables", measured=share, target=2, unit="%", detail=detail)


def _latency(watching: _Service, turns: int = 8) -> Figure:
    """From a commit, which its writer reports, to the task in the hands of an optimizer that waits."""
    os.environ |= {"ARCTIC_URL": watching.url, "ARCTIC_TOKEN": watching.token}
    optimizer = OptimizerClient(watching.address)
    optimizer.register(parallelism=1)
    taken = []
    for turn in range(turns):
        name = f"lake.db.t{turn:05d}"
        table = pyarctic.table(name)
        table.set({"self-optimizing.minor.trigger.file-count": "2"})
        with ThreadPoolExecutor(1) as pool:
            polled = pool.submit(lambda: (optimizer.poll(wait_seconds=30), time.monotonic()))
            time.sleep(0.5)
            table.write(pa.table({"id": [turn], "part": [0]}, schema=_SCHEMA))
            committed = time.monotonic()
            tasks, received = polled.result()
        assert [task["table"] for task in tasks] == [name]
        taken.append(received - committed)
        optimizer.stop()
        optimizer.register(parallelism=1)
        with watching.client() as client:
            for process in client.processes(table=name):
                client.cancel(process["id"])
    for variable in ("ARCTIC_URL", "ARCTIC_TOKEN"):
        del os.environ[variable]
    detail = f"the longest of {turns}; the median {statistics.median(taken):.2f} s"
    return Figure(
        name="from a reported commit to the task at an optimizer", measured=max(taken), target=1, unit="s", detail=detail
    )


# ---- hand-out ------------------------------------------------------------------------------------------------------------


def _throughput(folder: Path, kind: str, url: str, tasks: int) -> Iterator[Figure]:
    """Optimizers that poll, acknowledge and report results which are known already."""
    plan, results = _executed_plan(folder / kind)
    place = folder / f"service-{kind}"
    place.mkdir()
    with closing(SqlStore.open(url)) as store:
        _queue(store, plan, tasks)
    with _started(place, url) as watching:
        _warm_up(watching)
        before, began = cpu_seconds(watching.pid), time.monotonic()
        seconds = _hand_out_all(watching, results)
        wall, cpu = time.monotonic() - began, cpu_seconds(watching.pid) - before
        done = len(seconds["complete"])
    requests = sorted(each for kinds in seconds.values() for each in kinds)
    slowest = requests[int(len(requests) * 0.99)] * 1000
    detail = f"{done / wall:,.0f} tasks a second, {_OPTIMIZERS} optimizers; {cpu / done * 1000:.2f} ms CPU of the service"
    yield Figure(
        name=f"a task through poll and complete, {kind}",
        measured=wall / done * 1000,
        target=1000 / 300,
        unit="ms",
        detail=detail,
    )
    detail = "; ".join(f"{name} {statistics.median(each) * 1000:.1f} ms" for name, each in seconds.items())
    yield Figure(
        name=f"its requests, 99 of 100, {kind}", measured=slowest, target=100, unit="ms", detail=f"medians: {detail}"
    )


def _executed_plan(folder: Path) -> tuple[Any, dict[int, dict[str, Any]]]:
    """A plan of some tasks, and their results."""
    folder.mkdir()
    _use(folder)
    table = pyarctic.create_table("lake.db.parts", _SCHEMA, partition_by=["part"], format="iceberg")
    for _ in range(2):
        table.write(pa.table({"id": range(_TASKS_OF_PLAN), "part": range(_TASKS_OF_PLAN)}, schema=_SCHEMA))
    made = plan_table(table, Options(kind="full"))
    assert made is not None
    plan = made.to_commit_plan(memory_bytes=64 << 20)
    context = JobContext(job=plan.job, io=table.view.io)
    results: dict[int, dict[str, Any]] = {}
    for task in plan.tasks:
        result = execute(context, task, attempt=0, listen=lambda _: None)
        assert isinstance(result, TaskResult)
        results[task.id] = json.loads(json.dumps(result.to_json()))
    return plan, results


def _queue(store: SqlStore, plan: Any, tasks: int) -> None:
    now, data = datetime.now(UTC), plan.to_bytes()
    for number in range(max(tasks // len(plan.tasks), 1)):
        process = ProcessRow(
            id=f"process-{number}",
            table_uuid="elsewhere",
            table="lake.db.parts",
            group="default",
            kinds=("full",),
            state=ProcessState.RUNNING,
            trigger="demanded",
            job_id=plan.job.id,
            tasks=len(plan.tasks),
            created_at=now,
        )
        rows = [
            TaskRow(
                process_id=process.id,
                number=task.id,
                table_uuid="elsewhere",
                group="default",
                unit=task.id,
                kind=task.kind,
                partition=task.partition,
                state=TaskState.PENDING,
                input_files=2,
                input_bytes=1000,
                created_at=now,
                queued_at=now,
            )
            for task in plan.tasks
        ]
        with store.begin() as transaction:
            transaction.insert(process, PlanRow(process_id=process.id, data=data), *rows)


def _warm_up(watching: _Service) -> None:
    optimizer = OptimizerClient(watching.address)
    optimizer.register(parallelism=1)
    for _ in range(20):
        optimizer.heartbeat([])
    optimizer.stop()


def _hand_out_all(watching: _Service, results: Mapping[int, dict[str, Any]]) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {"poll": [], "acknowledge": [], "complete": []}

    def work() -> None:
        optimizer = OptimizerClient(watching.address)
        optimizer.register(parallelism=8)
        while True:
            began = time.monotonic()
            tasks = optimizer.poll(slots=8, wait_seconds=0)
            seconds["poll"].append(time.monotonic() - began)
            if not tasks:
                return
            for task in tasks:
                began = time.monotonic()
                optimizer.acknowledge(task["task_id"], task["attempt"])
                middle = time.monotonic()
                optimizer.complete(task["task_id"], task["attempt"], results[task["task"]["id"]])
                seconds["acknowledge"].append(middle - began)
                seconds["complete"].append(time.monotonic() - middle)

    threads = [threading.Thread(target=work) for _ in range(_OPTIMIZERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seconds


# ---- ten thousand tables -------------------------------------------------------------------------------------------------


def _many(folder: Path, tables: int, seconds: float = 60.0) -> Iterator[Figure]:
    """Registered tables of which one of a hundred changes per minute."""
    _make_tables(folder, tables)
    with _started(folder) as watching:
        _await_watched(watching, tables)
    with _started(folder) as watching:
        yield Figure(
            name=f"a restart with {tables:,} tables", measured=watching.seconds_to_ready, target=20, unit="s", detail="wall"
        )
        time.sleep(15)  # what a start brings with it
        before, began = cpu_seconds(watching.pid), time.monotonic()
        changed = max(tables // 100, 1)
        for number in range(changed):
            pyarctic.table(f"lake.db.t{number:05d}").write(pa.table({"id": [1], "part": [0]}, schema=_SCHEMA))
            time.sleep(max(0.0, began + seconds * (number + 1) / changed - time.monotonic()))
        wall = time.monotonic() - began
        cores = (cpu_seconds(watching.pid) - before) / wall
        memory = watching.resident_mb()
    detail = f"over {wall:.0f} s, 1 % of the tables changed"
    yield Figure(name=f"watching {tables:,} tables", measured=cores, target=1, unit="cores", detail=detail)
    yield Figure(name="its memory", measured=memory, target=500, unit="MB", detail="resident")
