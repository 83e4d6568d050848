"""A Hive Metastore out of PySpark's jars, over a Derby database in its memory.

Py4J starts it piece by piece rather than its own main class: that one listens on all interfaces, wants its settings in a
file, and never makes the tables behind the locks that PyIceberg takes for every commit.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway

from pyarctic.spark import java
from tests.support import jars
from tests.support.processes import HOST, running, wait_for

_OPTIONS = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    # Hive 2.3 is older than Java's modules.
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.lang", "java.net", "java.util")),
    "--add-opens=java.base/java.util.concurrent=ALL-UNNAMED",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metastore:
    """A running metastore."""

    uri: str
    warehouse: str


@contextmanager
def start(folder: Path) -> Iterator[Metastore]:
    """Start an empty metastore, and end it. Its log and its warehouse are in this folder."""
    warehouse = (folder / "hive-warehouse").as_uri()
    with _java(folder) as virtual_machine:
        server, port = _server(virtual_machine, warehouse)
        serving = threading.Thread(target=server.serve, name="metastore")
        serving.start()
        try:
            yield Metastore(uri=f"thrift://{HOST}:{port}", warehouse=warehouse)
        finally:
            server.stop()
            serving.join()


@contextmanager
def _java(folder: Path) -> Iterator[Any]:
    """A Java with Spark's jars; it ends with this process, however that ends, because its input then ends."""
    log, told = folder / "metastore.log", folder / "metastore-gateway"
    command = [str(java.find_java().executable), *_OPTIONS, f"-Dderby.system.home={folder}", "-cp", f"{jars.SPARK_JARS}/*"]
    gateway_server = ["py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0"]
    with (
        told.open("wb") as output,
        running([*command, *gateway_server], log, stdin=subprocess.PIPE, stdout=output) as process,
    ):
        wait_for(lambda: told.read_text().count("\n") == 2, log, process)
        port, token = told.read_text().splitlines()
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=int(port), auth_token=token))
        try:
            yield gateway.jvm
        finally:
            gateway.shutdown()


def _server(java: Any, warehouse: str) -> tuple[Any, int]:
    """What Hive's main class would make of these settings, but on loopback and with the tables for locks."""
    hive = java.org.apache.hadoop.hive
    settings = hive.conf.HiveConf()
    for name, value in _settings(warehouse).items():
        settings.set(name, value)
    hive.metastore.txn.TxnDbUtil.prepDb(settings)
    handler = getattr(hive.metastore, "HiveMetaStore$HMSHandler")("tests", settings, False)
    retrying = hive.metastore.HiveMetaStore.newRetryingHMSHandler(handler, settings)
    socket = hive.common.auth.HiveAuthUtils.getServerSocket(HOST, 0)
    arguments = getattr(java.org.apache.thrift.server, "TThreadPoolServer$Args")(socket)
    arguments.processor(hive.metastore.TUGIBasedProcessor(retrying))
    arguments.transportFactory(getattr(hive.thrift, "TUGIContainingTransport$Factory")())
    arguments.stopTimeoutVal(0)  # do not wait a minute for clients that stay connected
    return java.org.apache.thrift.server.TThreadPoolServer(arguments), socket.getServerSocket().getLocalPort()


def _settings(warehouse: str) -> dict[str, str]:
    return {
        "javax.jdo.option.ConnectionURL": "jdbc:derby:memory:metastore;create=true",
        "hive.metastore.warehouse.dir": warehouse,
        "hive.metastore.schema.verification": "false",
        "datanucleus.schema.autoCreateAll": "true",
        # The default pool is not among Spark's jars.
        "datanucleus.connectionPoolingType": "HikariCP",
    }
