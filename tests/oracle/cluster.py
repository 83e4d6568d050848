"""A real Spark cluster out of the pip package: one master and one worker, on loopback, each a process of its own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from pyarctic.spark import java
from tests.support.processes import HOST, Process, free_port, running, wait_for

_CLASSES = {"master": "org.apache.spark.deploy.master.Master", "worker": "org.apache.spark.deploy.worker.Worker"}


@contextmanager
def start(folder: Path) -> Iterator[str]:
    """Start the cluster, wait until the worker has registered, give the master's URL, and end both processes."""
    port, web_port = free_port(), free_port()
    url = f"spark://{HOST}:{port}"
    with ExitStack() as stack:
        master = stack.enter_context(_daemon("master", folder, ["--port", str(port), "--webui-port", str(web_port)]))
        wait_for(lambda: _state(web_port)["status"] == "ALIVE", folder / "master.log", master)
        options = ["--port", str(free_port()), "--webui-port", str(free_port()), "--cores", "1", "--memory", "1g"]
        worker = stack.enter_context(_daemon("worker", folder, [*options, "--work-dir", str(folder / "work"), url]))
        wait_for(lambda: _state(web_port)["aliveworkers"] == 1, folder / "worker.log", worker)
        yield url


@contextmanager
def _daemon(role: str, folder: Path, options: list[str]) -> Iterator[Process]:
    import pyspark

    spark_home = Path(pyspark.__file__).parent
    environment = os.environ | {
        "JAVA_HOME": str(java.launcher_home(java.find_java())),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_HOME": str(spark_home),
        "SPARK_LOCAL_IP": HOST,
    }
    command = [str(spark_home / "bin" / "spark-class"), _CLASSES[role], "--host", HOST, *options]
    with running(command, folder / f"{role}.log", env=environment) as process:
        yield process


def _state(web_port: int) -> dict[str, Any]:
    with urlopen(f"http://{HOST}:{web_port}/json/", timeout=10) as answer:
        state: dict[str, Any] = json.load(answer)
        return state
