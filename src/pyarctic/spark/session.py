"""Start a Spark session: the right Java and Python, quiet, on loopback when local, quick at small Python tasks."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pyarctic.spark import java
from pyarctic.spark.shipping import is_archived

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOPBACK = "127.0.0.1"
_DAEMON = "spark.python.daemon.module"
OUR_DAEMON = "pyarctic.spark.daemon"
_LOCAL_MASTER = re.compile(r"local(-cluster)?(\[.*\])?|spark://(127\.0\.0\.1|localhost|\[::1\])(:\d+)?")
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")

# On Spark's own loggers every failed query is printed as one long line of JSON, before the exception arrives.
_NOISY_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")

Setting: TypeAlias = str | int | float | bool


def session(app_name: str = "pyarctic", **conf: Setting) -> SparkSession:
    """Start a Spark session, or return the running one with these settings applied.

    Settings are Spark's own, by their full names, and win over the defaults chosen here:

        session("nightly", **{"spark.master": "local[4]", "spark.driver.memory": "2g"})

    Without `spark.master` it is `local[*]`. Under `spark-submit` master, Java and logs are those of the submission,
    and its settings win over the defaults too.
    Executors on other machines need PyArctic in their Python, since the daemon that runs their tasks is part of it. If they
    have only its libraries, set `spark.python.daemon.module` to `pyspark.daemon`.
    """
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    chosen = {key: _text(value) for key, value in conf.items()}
    builder = SparkSession.builder.appName(app_name)
    ours = defaults(chosen.get("spark.master"), submitted=submitted)
    if submitted:
        ours = _without_submitted(ours)
    for key, value in (ours | chosen).items():
        builder = builder.config(key, value)
    for name in _NOISY_LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    with _environment(_variables(chosen.get("spark.master"), submitted=submitted)):
        return builder.getOrCreate()


def defaults(master: str | None, *, submitted: bool) -> dict[str, str]:
    """The settings of a session for this master before the caller's own; `submitted` means by `spark-submit`."""
    # Executors start the daemon before they have any archive, and a driver that runs out of one suggests that they need it.
    daemon = {} if is_archived() else {_DAEMON: OUR_DAEMON}
    settings = {
        **daemon,
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.ui.showConsoleProgress": "false",
    }
    if submitted:
        return settings
    master = master or "local[*]"
    # "default" and not "extra" options: Spark joins the two, so callers keep the extra ones for themselves.
    settings |= {
        "spark.master": master,
        # The deeper stack is for the end of a stream: Spark 4.1 looks for its own name in a long text, by recursion.
        "spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()} -Xss8m",
    }
    if is_local(master):
        settings |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK, "spark.ui.enabled": "false"}
    return settings


def missing_settings(spark: SparkSession) -> list[str]:
    """What `session` would have set for this master and cannot be set any more, and what it is good for."""
    context = spark.sparkContext
    found = []
    if context.getConf().get(_DAEMON, "") != OUR_DAEMON and runs_here(str(context.master)):
        found.append(f"{_DAEMON}={OUR_DAEMON} (small tasks take a fifth of the time)")
    if runs_here(str(context.master)) and context.pythonExec != sys.executable:
        found.append(f"PYSPARK_PYTHON={sys.executable} (tasks run {context.pythonExec})")
    return found


def _without_submitted(settings: Mapping[str, str]) -> dict[str, str]:
    """Those that the submission (`--conf`, spark-defaults.conf) does not say itself."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # connects to the JVM that started this process, which knows them
    submission = SparkConf()
    return {key: value for key, value in settings.items() if not submission.contains(key)}


def runs_here(master: str) -> bool:
    """Whether tasks run with this very Python installation."""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def is_local(master: str) -> bool:
    """Whether driver and executors all live on this machine, so that nothing needs to listen on a network."""
    return _LOCAL_MASTER.fullmatch(master) is not None


def _variables(master: str | None, *, submitted: bool) -> dict[str, str]:
    """Environment variables that Spark reads once, when its JVM and its context start."""
    # Left to itself Spark runs `python3` from the PATH, which is rarely the environment PyArctic is installed in.
    variables = {} if "PYSPARK_PYTHON" in os.environ else {"PYSPARK_PYTHON": sys.executable}
    if submitted:
        return variables
    if is_local(master or "local[*]") and "SPARK_LOCAL_IP" not in os.environ:
        variables["SPARK_LOCAL_IP"] = _LOOPBACK
    if _jvm_is_needed():
        variables["JAVA_HOME"] = str(java.launcher_home(java.find_java()))
    return variables


def _jvm_is_needed() -> bool:
    # The JVM outlives its sessions: when this process has one, no other is started and its Java is what it is.
    from pyspark import SparkContext

    return SparkContext._gateway is None


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the start only: Java's launcher is for Spark, not for whatever else this process starts."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _text(value: Setting) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
