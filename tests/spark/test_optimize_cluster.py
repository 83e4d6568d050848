"""Optimizing on a real cluster: two workers whose Python has the dependencies but not PyArctic; one of them dies."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from pyarctic.iceberg.catalog.pyiceberg_patches import apply_patches
from pyarctic.spark import java
from tests.faults import spoiled
from tests.faults.test_optimize_faults import is_running, wait_until
from tests.oracle.cluster import _daemon, _state
from tests.oracle.compare import multiset
from tests.support import changes
from tests.support.fragmented_table import FIRST, TASKS, fragmented_table, name_begins
from tests.support.integrity import leftovers, missing
from tests.support.processes import HOST, free_port, wait_for

pytestmark = pytest.mark.jvm

_HOSTS = (HOST, "127.0.0.2")
"""Spark speculates on another host only."""
_JOB = Path(__file__).with_name("optimize_job.py")
_SECRET = "tell-nobody-5f1c"

# Whatever way PyArctic is installed, this Python knows it from an archive only.
_HIDING = """
import sys, zipfile, zipimport

class OutOfArchives:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "pyarctic":
            return None
        for place in sys.path:
            if zipfile.is_zipfile(place):
                spec = zipimport.zipimporter(place).find_spec(name)
                if spec is not None:
                    return spec
        raise ModuleNotFoundError("No module named 'pyarctic'", name=name)

sys.meta_path.insert(0, OutOfArchives)
"""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    url: str
    folder: Path
    python: Path
    """Without PyArctic."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("optimize-cluster")
    python = _python_without_pyarctic(folder)
    port, web_port = free_port(), free_port()
    url = f"spark://{HOST}:{port}"
    with ExitStack() as stack:
        master = stack.enter_context(_daemon("master", folder, ["--port", str(port), "--webui-port", str(web_port)]))
        wait_for(lambda: _state(web_port)["status"] == "ALIVE", folder / "master.log", master)
        for host in _HOSTS:
            own = folder / host
            own.mkdir()
            options = ["--host", host, "--port", str(free_port()), "--webui-port", str(free_port()), "--cores", "1"]
            options += ["--memory", "1g", "--work-dir", str(own / "work"), url]
            worker = stack.enter_context(_daemon("worker", own, options))
        wait_for(lambda: _state(web_port)["aliveworkers"] == len(_HOSTS), own / "worker.log", worker)
        yield Cluster(url=url, folder=folder, python=python)


def _python_without_pyarctic(folder: Path) -> Path:
    hiding = folder / "hiding"
    hiding.mkdir()
    (hiding / "sitecustomize.py").write_text(_HIDING)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{hiding}:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    tried = subprocess.run([python, "-c", "import polars, pyiceberg, pyarctic"], capture_output=True, text=True)
    assert tried.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'pyarctic'"
    return python


@dataclass(frozen=True, kw_only=True)
class Shop:
    """One table that needs optimizing, in a catalog that jobs know."""

    folder: Path
    table: Table
    before: Any

    @property
    def signs(self) -> Path:
        return self.folder / "signs"

    def hanging(self) -> int:
        """Wait until a task hangs; gives the id of its process."""
        wait_until(lambda: any(self.signs.glob("*.parquet")), seconds=120)
        return int(next(self.signs.glob("*.parquet")).read_text())

    def check(self) -> None:
        found = self.table.catalog.load_table(self.table.name())
        assert multiset(changes.rows(found)) == self.before
        assert missing(found) == []
        assert leftovers(found) == []


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    apply_patches()
    properties = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": (tmp_path / "warehouse").as_uri()}
    catalog = SqlCatalog("demo", **properties)
    catalog.create_namespace("shop")
    table = fragmented_table(catalog, "shop.orders", 3)
    made = Shop(folder=tmp_path, table=table, before=multiset(changes.rows(table)))
    made.signs.mkdir()
    spoilt = {
        "py-io-impl": "spoiled.SpoiledFileIO",
        spoiled.SIGNS: str(made.signs),
        spoiled.HANG: rf"^{name_begins(FIRST, 0)}.*-00001\.parquet$",  # of the first execution
        "s3.secret-access-key": _SECRET,
    }
    told = {"catalogs": {"demo": {"type": "sql", **properties, **spoilt}}}
    (tmp_path / "arctic.yaml").write_text(json.dumps(told))
    yield made
    catalog.close()


@contextmanager
def submitted(
    cluster: Cluster, shop: Shop, driver: str | Path, py_files: list[str], **settings: str
) -> Iterator[subprocess.Popen[str]]:
    """A job that optimizes the table, started by spark-submit."""
    import pyspark

    spark_home = Path(pyspark.__file__).parent
    environment = os.environ | {
        "JAVA_HOME": str(java.launcher_home(java.find_java())),
        "SPARK_HOME": str(spark_home),
        "SPARK_LOCAL_IP": HOST,
        "PYSPARK_PYTHON": str(cluster.python),
        "PYSPARK_DRIVER_PYTHON": str(driver),
        "ARCTIC_CONFIG": str(shop.folder / "arctic.yaml"),
    }
    chosen = {
        "spark.driver.host": HOST,
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        **settings,
    }
    options = [text for name, value in chosen.items() for text in ("--conf", f"{name}={value}")]
    command = [str(spark_home / "bin" / "spark-submit"), "--master", cluster.url, "--py-files", ",".join(py_files), *options]
    with (
        (shop.folder / "log").open("w") as log,
        subprocess.Popen(
            [*command, str(_JOB), "demo.shop.orders", "full"],
            env=environment,
            cwd=shop.folder,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        ) as job,
    ):
        try:
            yield job
        finally:
            job.kill()


def report_of(job: subprocess.Popen[str], shop: Shop) -> dict[str, Any]:
    told, _ = job.communicate(timeout=200)
    assert job.returncode == 0, told + (shop.folder / "log").read_text()
    report: dict[str, Any] = json.loads(told.splitlines()[-1])
    return report


def test_a_submitted_job_brings_its_code_and_slow_tasks_run_twice(cluster: Cluster, shop: Shop) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "pyarctic.spark.shipping", shop.folder], capture_output=True, text=True, check=True
    )
    archive = made.stdout.strip()
    assert archive == str(shop.folder / "pyarctic.zip")
    events = shop.folder / "events"
    events.mkdir()
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.task.duration.threshold": "500ms",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
    }
    with submitted(cluster, shop, cluster.python, [archive, spoiled.__file__], **settings) as job:
        report = report_of(job, shop)
    assert report["engine"] == "spark"
    assert report["tasks_committed"] == TASKS
    assert len(list(shop.signs.glob("*.parquet"))) == 1, "the first attempt hung"
    shop.check()
    assert not is_running(shop.hanging())
    # Nobody who reads logs learns the credentials.
    places = [shop.folder / "log", *events.rglob("*"), *cluster.folder.rglob("std*")]
    logs = [path.read_text(errors="replace") for path in places if path.is_file()]
    assert any("SparkListenerJobStart" in text for text in logs)
    assert not any(_SECRET in text for text in logs)


def test_a_worker_dies_in_the_middle_of_a_task(cluster: Cluster, shop: Shop) -> None:
    # The driver has PyArctic, executors have not: they get it from there.
    settings = {"spark.python.daemon.module": "pyspark.daemon"}
    with submitted(cluster, shop, sys.executable, [spoiled.__file__], **settings) as job:
        python = shop.hanging()
        executor = next(pid for pid in ancestors(python) if "CoarseGrainedExecutorBackend" in command_of(pid))
        worker = next(pid for pid in ancestors(executor) if "org.apache.spark.deploy.worker.Worker" in command_of(pid))
        for process_id in (worker, executor):
            os.kill(process_id, signal.SIGKILL)
        report = report_of(job, shop)
    assert report["tasks_committed"] == TASKS
    assert not report["failures"]
    shop.check()
    names = [Path(path).name for path in changes.files(shop.table.catalog.load_table(shop.table.name()))["file_path"]]
    written = [name for name in names if name.startswith(name_begins(FIRST, 0))]
    assert [name.endswith("-100001.parquet") for name in written] == [True], "the second execution counts"


def ancestors(process_id: int) -> Iterator[int]:
    while process_id > 1:
        yield process_id
        process_id = int(re.findall(r"^PPid:\s+(\d+)", Path(f"/proc/{process_id}/status").read_text(), re.MULTILINE)[0])


def command_of(process_id: int) -> str:
    return Path(f"/proc/{process_id}/cmdline").read_text()
