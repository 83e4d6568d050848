"""Reading and writing on a real cluster: two workers whose Python has the libraries and not PyArctic. They die meanwhile."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from pyarctic import config
from tests.faults.test_optimize_faults import is_running
from tests.oracle.cluster import _daemon, _state
from tests.spark import scripted_storage
from tests.spark.streamlab import NAME, SCHEMA, StreamLab, attempt_of, operation_of
from tests.spark.test_optimize_cluster import _python_without_pyarctic, ancestors, command_of
from tests.support.processes import HOST, free_port, wait_for

pytestmark = pytest.mark.jvm

_HOSTS = (HOST, "127.0.0.2")
"""Spark speculates on another host only."""
LOADED, UPSERTED = 60_000, 100_000


@dataclass(kw_only=True)
class Cluster:
    url: str
    web_port: int
    folder: Path
    python: Path
    """Without PyArctic."""
    stack: ExitStack
    numbers: Iterator[int] = field(default_factory=count)

    def start_workers(self, *hosts: str) -> None:
        """Start workers of one core, and wait until there is one for each host."""
        for host in hosts:
            own = self.folder / f"worker-{next(self.numbers)}"
            own.mkdir()
            options = ["--host", host, "--port", str(free_port()), "--webui-port", str(free_port()), "--cores", "1"]
            options += ["--memory", "1g", "--work-dir", str(own / "work"), self.url]
            worker = self.stack.enter_context(_daemon("worker", own, options))
        wait_for(lambda: _state(self.web_port)["aliveworkers"] == len(_HOSTS), own / "worker.log", worker)

    def kill_worker_of(self, python: int) -> str:
        """Kill the machine on which a Python process of Spark runs; gives its host."""
        executor = executor_of(python)
        worker = next(pid for pid in ancestors(executor) if "org.apache.spark.deploy.worker.Worker" in command_of(pid))
        arguments = command_of(worker).split("\0")
        host = [value for option, value in pairwise(arguments) if option == "--host"][-1]
        for process in (worker, executor):
            os.kill(process, signal.SIGKILL)
        return host

    def settings(self, **more: str) -> dict[str, str]:
        return {
            "spark.master": self.url,
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.python.daemon.module": "pyspark.daemon",
            "spark.sql.shuffle.partitions": "4",
            **more,
        }


def executor_of(python: int) -> int:
    return next(pid for pid in ancestors(python) if "CoarseGrainedExecutorBackend" in command_of(pid))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("pipeline-cluster")
    port, web_port = free_port(), free_port()
    with ExitStack() as stack:
        master = stack.enter_context(_daemon("master", folder, ["--port", str(port), "--webui-port", str(web_port)]))
        wait_for(lambda: _state(web_port)["status"] == "ALIVE", folder / "master.log", master)
        made = Cluster(
            url=f"spark://{HOST}:{port}",
            web_port=web_port,
            folder=folder,
            python=_python_without_pyarctic(folder),
            stack=stack,
        )
        made.start_workers(*_HOSTS)
        yield made


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[StreamLab]:
    config.reset()
    yield StreamLab.made(tmp_path)
    config.reset()


def test_workers_die_while_rows_are_written_and_read(cluster: Cluster, lab: StreamLab) -> None:
    ids = np.arange(LOADED) * 2 + 1  # all of "b", and half of them beyond those that are upserted
    lab.table.write(pa.table([ids, np.full(LOADED, "b"), ids], schema=SCHEMA), "overwrite")
    for order in (scripted_storage.HANG_WRITE, scripted_storage.HANG_READ):
        lab.order(order)
    found = lab.folder / "read.parquet"
    arguments = [NAME, str(UPSERTED), str(found), json.dumps(cluster.settings())]
    with lab.job("pipeline_job.py", arguments, PYSPARK_PYTHON=str(cluster.python)) as job:
        lost = lab.taken(scripted_storage.HANG_WRITE)
        cluster.start_workers(cluster.kill_worker_of(lost["process"]))
        cluster.start_workers(cluster.kill_worker_of(lab.taken(scripted_storage.HANG_READ)["process"]))
        job.finish()
    upserted = pl.select(id=pl.int_range(UPSERTED, dtype=pl.Int64)).with_columns(
        part=pl.when(pl.col("id") % 2 == 0).then(pl.lit("a")).otherwise(pl.lit("b")), value=pl.col("id") * 3
    )
    rest = pl.DataFrame({"id": ids[ids >= UPSERTED]}).with_columns(part=pl.lit("b"), value=pl.col("id"))
    expected = pl.concat([upserted, rest])
    assert rest.height == 10_000
    for rows in (pl.read_parquet(found), pl.DataFrame(lab.table.refresh().scan().to_arrow())):
        assert rows.select(SCHEMA.names).sort("id").equals(expected)
    # One commit; of the lost attempt a file is left, and nothing of it counts.
    assert operation_of(lost["file"]) in lab.committed_operations()
    assert len(lab.committed_operations()) == 1
    assert {attempt_of(path) for path in lab.left_files()} == {attempt_of(lost["file"])}
    assert attempt_of(lost["file"]) not in {attempt_of(path) for path in lab.committed_files()}


def test_a_stream_with_a_slow_a_failing_and_a_lost_task(cluster: Cluster, lab: StreamLab) -> None:
    for number in range(4):
        own = [{"id": 1000 * number + i, "part": "ab"[i % 2], "value": i, "n": 0} for i in range(50)]
        shared = [{"id": -i, "part": "a", "value": 100 * number + n, "n": n} for n in (2, 5, 1) for i in range(1, 20)]
        lab.add_file(own + shared)
    lab.order(scripted_storage.HANG_WRITE, batch=0)
    lab.order(scripted_storage.FAIL_WRITE, batch=1)
    lab.order(scripted_storage.HANG_WRITE, batch=2)
    speculation = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.task.duration.threshold": "500ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "500ms",
    }
    with lab.stream(cluster.settings(**speculation), PYSPARK_PYTHON=str(cluster.python)) as job:
        slow = lab.taken(scripted_storage.HANG_WRITE)
        lost = lab.taken(scripted_storage.HANG_WRITE, after=slow)
        os.kill(executor_of(lost["process"]), signal.SIGKILL)
        job.finish()
    failed = lab.taken(scripted_storage.FAIL_WRITE)
    assert lab.commits() == Counter({(lab.query_id(), str(batch)): 1 for batch in range(4)})
    assert lab.rows() == lab.expected()
    assert not is_running(slow["process"])
    committed, left = ({attempt_of(path) for path in paths} for paths in (lab.committed_files(), lab.left_files()))
    assert not committed & left
    # All three were tried again, by the names of their batches, and what is left is found by those.
    assert {operation for _, _, operation in left} <= {operation for _, _, operation in committed}
    for told in (slow, failed, lost):
        task, attempt, operation = attempt_of(told["file"])
        assert (task, attempt, operation) not in committed
        assert [other for other in committed if (other[0], other[2]) == (task, operation)]
    assert len({operation for _, _, operation in committed}) == 4
