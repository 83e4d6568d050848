"""A real Spark cluster out of the pip package: one master and one worker, on loopback, each a process of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from pyarctic.spark import java

_HOST = "127.0.0.1"
_START_SECONDS = 90.0
_CLASSES = {"master": "org.apache.spark.deploy.master.Master", "worker": "org.apache.spark.deploy.worker.Worker"}


@contextmanager
def start(folder: Path) -> Iterator[str]:
    """Start the cluster, wait until the worker has registered, give the master's URL, and end both processes."""
    port, web_port = free_port(), free_port()
    url = f"spark://{_HOST}:{port}"
    with ExitStack() as stack:
        stack.enter_context(_daemon("master", folder, ["--port", str(port), "--webui-port", str(web_port)]))
        _until(lambda: _state(web_port)["status"] == "ALIVE", folder)
        options = ["--port", str(free_port()), "--webui-port", str(free_port()), "--cores", "1", "--memory", "1g"]
        stack.enter_context(_daemon("worker", folder, [*options, "--work-dir", str(folder / "work"), url]))
        _until(lambda: _state(web_port)["aliveworkers"] == 1, folder)
        yield url


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def _daemon(role: str, folder: Path, options: list[str]) -> Iterator[None]:
    import pyspark

    spark_home = Path(pyspark.__file__).parent
    environment = os.environ | {
        "JAVA_HOME": str(java.launcher_home(java.find())),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_HOME": str(spark_home),
        "SPARK_LOCAL_IP": _HOST,
    }
    command = [str(spark_home / "bin" / "spark-class"), _CLASSES[role], "--host", _HOST, *options]
    with (folder / f"{role}.log").open("wb") as log:
        # A session of its own, so that executors (children of the worker) can be ended with it.
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder, start_new_session=True)
        try:
            yield
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _state(web_port: int) -> dict[str, Any]:
    with urlopen(f"http://{_HOST}:{web_port}/json/", timeout=10) as answer:
        state: dict[str, Any] = json.load(answer)
        return state


def _until(condition: Callable[[], bool], folder: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            if condition():
                return
        except OSError:
            pass  # not listening yet
        if time.monotonic() > deadline:
            logs = "\n".join(f"{log.name}:\n{log.read_text()}" for log in sorted(folder.glob("*.log")))
            raise TimeoutError(f"the Spark cluster did not start in {_START_SECONDS:.0f} s\n{logs}")
        time.sleep(0.2)
