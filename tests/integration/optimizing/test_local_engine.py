"""Where the local engine executes tasks: little work in this process, more in worker processes that are used again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic.errors import Unavailable
from pyarctic.optimizing.events import ProcessEvent, TaskProgressed
from pyarctic.optimizing.execute import local_engine, task_runs, worker_processes
from pyarctic.optimizing.execute.kernel import merge
from pyarctic.optimizing.execute.worker_processes import IdleWorkers, WorkerProcess
from tests.models.spec import SpecTable
from tests.support.integrity import on_disk

COLUMNS = (("id", "long"), ("name", "string"))


@pytest.fixture
def tables(lake: Catalog, tmp_path: Path) -> list[str]:
    for number in range(2):
        table = SpecTable(
            lake, f"db.t{number}", tmp_path / f"t{number}", COLUMNS, properties={"self-optimizing.writers-first": "false"}
        )
        table.commit(*(table.data([{"id": n, "name": f"n{n}"} for n in range(at, at + 100)]) for at in (0, 100, 200)))
    return ["lake.db.t0", "lake.db.t1"]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[WorkerProcess]]:
    """The worker processes that were started."""
    found: list[WorkerProcess] = []
    start = WorkerProcess.__init__

    def record(self: WorkerProcess) -> None:
        start(self)
        found.append(self)

    monkeypatch.setattr(WorkerProcess, "__init__", record)
    worker_processes.idle_workers.stop()
    yield found
    worker_processes.idle_workers.stop()


def test_little_work_needs_no_process(tables: list[str], started: list[WorkerProcess]) -> None:
    for name in tables:
        assert pyarctic.optimize(name, "full").after.data_files == 1
        assert pyarctic.table(name).scan().count() == 300
    assert started == []


def test_more_work_is_done_by_workers(
    tables: list[str], started: list[WorkerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_engine, "_IN_PROCESS_BYTES", 0)
    assert pyarctic.optimize(tables[0], "full").after.data_files == 1
    assert len(started) == 1


def test_workers_are_used_again_for_other_tables(tables: list[str], started: list[WorkerProcess]) -> None:
    for name in tables:
        assert pyarctic.optimize(name, "full", workers=1).after.data_files == 1
        assert pyarctic.table(name).scan().count() == 300
    assert len(started) == 1


def test_a_worker_that_died_while_idle_is_replaced(tables: list[str], started: list[WorkerProcess]) -> None:
    pyarctic.optimize(tables[0], "full", workers=1)
    started[0].kill()
    started[0]._process.wait()
    assert pyarctic.optimize(tables[1], "full", workers=1).after.data_files == 1
    assert len(started) == 2


def test_a_worker_has_the_environment_of_its_caller(
    tables: list[str], started: list[WorkerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    pyarctic.optimize(tables[0], "full", workers=1)
    monkeypatch.setenv("AWS_REGION", "elsewhere")
    pyarctic.optimize(tables[1], "full", workers=1)
    assert len(started) == 2


def test_a_worker_has_the_folder_of_its_caller(
    tables: list[str], started: list[WorkerProcess], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pyarctic.optimize(tables[0], "full", workers=1)
    monkeypatch.chdir(tmp_path)
    pyarctic.optimize(tables[1], "full", workers=1)
    assert len(started) == 2


def fail_at_progress(event: ProcessEvent) -> None:
    if isinstance(event, TaskProgressed):
        raise ValueError(event.progress)


def test_the_result_of_an_abandoned_task_is_not_taken_for_that_of_the_next(
    lake: Catalog, tmp_path: Path, started: list[WorkerProcess]
) -> None:
    """A worker that still works on something is not used again."""
    table = SpecTable(lake, "db.t", tmp_path / "t", COLUMNS, properties={"self-optimizing.writers-first": "false"})
    files = [table.data([{"id": n, "name": f"n{n}"} for n in range(at, at + 100)]) for at in (0, 100, 200)]
    table.commit(*files)
    before = on_disk(lake.load_table("db.t"))
    with pytest.raises(ValueError, match="Progress"):
        pyarctic.optimize("lake.db.t", "full", workers=1, listener=fail_at_progress)
    assert on_disk(lake.load_table("db.t")) == before
    table.commit(table.position_deletes([(files[0].path, n) for n in range(50)], files[0]), operation="delete")
    assert pyarctic.optimize("lake.db.t", "full", workers=1).after.data_files == 1
    assert pyarctic.table("lake.db.t").scan().count() == 250
    assert len(started) == 2


def test_idle_workers_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_processes, "_IDLE_SECONDS", 0.2)
    idle = IdleWorkers()
    worker = idle.take()
    idle.give_back(worker)
    deadline = time.monotonic() + 30
    while worker.exit_code is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert worker.exit_code is not None
    other = idle.take()
    assert other is not worker
    other.kill()
    other.stop()


def test_a_program_ends_with_its_workers(tables: list[str], lake: Catalog) -> None:
    program = (
        "import json, sys, pyarctic\n"
        "from pyarctic.optimizing.execute.worker_processes import idle_workers\n"
        "pyarctic.catalog('lake', **json.loads(sys.argv[1]))\n"
        "pyarctic.optimize('lake.db.t0', 'full', workers=1)\n"
        "print(idle_workers.take()._process.pid)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-W", "ignore::ResourceWarning", "-c", program, json.dumps(dict(lake.properties))],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    pid, deadline = int(ended.stdout), time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def test_a_failed_task_leaves_nothing(tables: list[str], lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    before = on_disk(lake.load_table("db.t0"))

    def fail(*_: object) -> None:
        raise Unavailable("the storage is away")

    monkeypatch.setattr(merge._Merge, "result", fail)
    report = pyarctic.optimize(tables[0], "full")
    assert [failure.code for failure in report.failures] == ["unavailable"]
    assert report.failures[0].attempt == task_runs.MAX_ATTEMPTS - 1  # it may work later: tried again
    assert on_disk(lake.load_table("db.t0")) == before


def test_an_interrupted_task_leaves_nothing(tables: list[str], lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    before = on_disk(lake.load_table("db.t0"))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(merge._Merge, "result", interrupt)
    with pytest.raises(KeyboardInterrupt):
        pyarctic.optimize(tables[0], "full")
    assert on_disk(lake.load_table("db.t0")) == before
