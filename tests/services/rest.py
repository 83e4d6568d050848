"""Iceberg's own REST catalog server, over SQLite and a local folder."""

from __future__ import annotations

import http.client
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyarctic.spark import java
from tests.support import jars
from tests.support.processes import HOST, free_port, running, wait_for

# Compile fast rather than well: a test's requests are few.
_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
# Not all of Spark's jars: its logging must stay out.
_FROM_SPARK = ("hadoop-client-api", "hadoop-client-runtime", "jcl-over-slf4j")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestServer:
    """A running server; clients need its address alone."""

    uri: str
    port: int


@contextmanager
def start(folder: Path) -> Iterator[RestServer]:
    """Start the server on an empty catalog in this folder, wait until it answers, and end it.

    It cannot be told to listen on loopback alone.
    """
    port, log = free_port(), folder / "rest.log"
    command = [str(java.find_java().executable), *_OPTIONS, "-cp", _classpath(), "org.apache.iceberg.rest.RESTCatalogServer"]
    with running(command, log, env=os.environ | _settings(folder, port)) as process:
        wait_for(lambda: _is_up(port), log, process)
        yield RestServer(uri=f"http://{HOST}:{port}", port=port)


def _settings(folder: Path, port: int) -> dict[str, str]:
    """The server makes catalog properties of these: `__` becomes a dash, `_` a dot."""
    return {
        "CATALOG_CATALOG_NAME": "rest",
        "CATALOG_IO__IMPL": "org.apache.iceberg.hadoop.HadoopFileIO",
        "CATALOG_REST_PORT": str(port),
        "CATALOG_URI": f"jdbc:sqlite:{folder / 'rest.db'}",
        "CATALOG_WAREHOUSE": (folder / "rest-warehouse").as_uri(),
    }


def _classpath() -> str:
    borrowed = [next(jars.SPARK_JARS.glob(f"{name}-[0-9]*.jar")) for name in _FROM_SPARK]
    driver = [jar for jar in jars.ORACLE.paths() if jar.name.startswith("sqlite-jdbc")]
    return os.pathsep.join(map(str, (*jars.REST.paths(), *borrowed, *driver)))


def _is_up(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    try:
        connection.request("GET", "/v1/config")
        return connection.getresponse().status == http.client.OK
    finally:
        connection.close()
