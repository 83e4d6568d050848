"""A server of Spark Connect, started from the pip package. Its clients are processes of their own."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyarctic.spark import java
from pyarctic.spark.sessions import OUR_DAEMON
from tests.support.processes import HOST, free_port, running, wait_for

_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@contextmanager
def start(folder: Path) -> Iterator[str]:
    """Start the server, wait until it listens, give its URL, and end it."""
    import pyspark

    spark_home, port = Path(pyspark.__file__).parent, free_port()
    settings = {
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.local.dir": str(folder / "scratch"),
        "spark.python.daemon.module": OUR_DAEMON,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": (folder / "spark-warehouse").as_uri(),
        "spark.ui.enabled": "false",
    }
    environment = os.environ | {
        "JAVA_HOME": str(java.launcher_home(java.find_java())),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(spark_home),
        "SPARK_LOCAL_IP": HOST,
    }
    told = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    submit = [str(spark_home / "bin" / "spark-submit"), "--class", _SERVER, "--master", "local[2]", "--driver-memory", "1g"]
    with running([*submit, *told, "spark-internal"], folder / "connect.log", env=environment) as process:
        wait_for(lambda: _listens(port), folder / "connect.log", process)
        yield f"sc://{HOST}:{port}"


def _listens(port: int) -> bool:
    with socket.create_connection((HOST, port), timeout=5):
        return True
