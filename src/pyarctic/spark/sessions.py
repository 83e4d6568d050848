"""Start a Spark session: with the right Java and Python, quiet, on loopback if local, fast for small Python tasks."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pyarctic._environment import environment
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

    `conf` are Spark settings by their full names, which override the defaults chosen here:

        spark = session("nightly", **{"spark.master": "local[4]", "spark.driver.memory": "2g"})

    The default of `spark.master` is `local[*]`. Under `spark-submit`, master, Java and logs are those of the submission, and
    its settings override the defaults too.

    Executors on other machines need PyArctic in their Python, because the daemon that runs their tasks is part of it. If
    they have only its dependencies, set `spark.python.daemon.module` to `pyspark.daemon`.
    """
    from pyspark.sql import SparkSession

    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    settings = {key: _setting_text(value) for key, value in conf.items()}
    builder = SparkSession.builder.appName(app_name)
    default_settings = defaults(settings.get("spark.master"), submitted=submitted)
    if submitted:
        default_settings = _drop_submitted(default_settings)
    for key, value in (default_settings | settings).items():
        builder = builder.config(key, value)
    _silence_loggers()
    # The Java launcher is for Spark, not for other programs that this process starts.
    with environment(_variables(settings.get("spark.master"), submitted=submitted)):
        return builder.getOrCreate()


def session_at(master: str | None, **conf: Setting) -> SparkSession:
    """Start a session on a master, or with the server of Spark Connect at a URL that begins with `sc://`; without a master
    that of `spark.master` or of the submission."""
    if master is None or not master.startswith("sc://"):
        settings = conf if master is None else {"spark.master": master, **conf}
        return session("pyarctic", **settings)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote(master)
    for key, value in conf.items():
        builder = builder.config(key, _setting_text(value))
    return builder.getOrCreate()


def _silence_loggers() -> None:
    with suppress(ModuleNotFoundError):  # Spark 3.5 has no such loggers
        from pyspark.logger import PySparkLogger

        for name in _NOISY_LOGGERS:
            PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def defaults(master: str | None, *, submitted: bool) -> dict[str, str]:
    """The default settings of a session for this master; `submitted` means by `spark-submit`."""
    # Executors start the daemon before they have the archive; a driver that runs from an archive suggests that they need it.
    daemon = {} if is_archived() else {_DAEMON: OUR_DAEMON}
    settings = {
        **daemon,
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.ui.showConsoleProgress": "false",
    }
    if submitted:
        return settings
    master = master or "local[*]"
    # "default" and not "extra" options: Spark combines both, so callers can still set the extra ones.
    settings |= {
        "spark.master": master,
        # The deeper stack is for the end of a stream: Spark 4.1 searches a long text for its own name by recursion.
        "spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()} -Xss8m",
    }
    if is_local(master):
        settings |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK, "spark.ui.enabled": "false"}
    return settings


def missing_settings(spark: SparkSession) -> list[str]:
    """Settings of `session` that this session lacks and that cannot be set any more, each with its benefit."""
    context = spark.sparkContext
    missing = []
    if context.getConf().get(_DAEMON, "") != OUR_DAEMON and uses_this_python(str(context.master)):
        missing.append(f"{_DAEMON}={OUR_DAEMON} (small tasks take a fifth of the time)")
    if uses_this_python(str(context.master)) and context.pythonExec != sys.executable:
        missing.append(f"PYSPARK_PYTHON={sys.executable} (tasks run {context.pythonExec})")
    return missing


def _drop_submitted(settings: Mapping[str, str]) -> dict[str, str]:
    """Remove settings that the submission (`--conf`, spark-defaults.conf) contains."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # connects to the JVM that started this process, which knows them
    submission = SparkConf()
    return {key: value for key, value in settings.items() if not submission.contains(key)}


def uses_this_python(master: str) -> bool:
    """Whether tasks run with the Python installation of this process."""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def is_local(master: str) -> bool:
    """Whether driver and executors are all on this machine, so that nothing needs to listen on the network."""
    return _LOCAL_MASTER.fullmatch(master) is not None


def _variables(master: str | None, *, submitted: bool) -> dict[str, str]:
    """Environment variables that Spark reads once, when its JVM and its context start."""
    # By default Spark runs `python3` from the PATH, which is rarely the environment that PyArctic is installed in.
    variables = {} if "PYSPARK_PYTHON" in os.environ else {"PYSPARK_PYTHON": sys.executable}
    if submitted:
        return variables
    if is_local(master or "local[*]") and "SPARK_LOCAL_IP" not in os.environ:
        variables["SPARK_LOCAL_IP"] = _LOOPBACK
    if _needs_jvm():
        variables["JAVA_HOME"] = str(java.launcher_home(java.find_java()))
    return variables


def _needs_jvm() -> bool:
    # The JVM outlives its sessions: if this process has one, no other is started.
    from pyspark import SparkContext

    return SparkContext._gateway is None


def _setting_text(value: Setting) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
