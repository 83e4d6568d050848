"""The settings of a session, without starting one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyarctic._environment import environment
from pyarctic.spark.sessions import defaults, is_local


@pytest.mark.parametrize(
    ("master", "local"),
    [
        ("local", True),
        ("local[*]", True),
        ("local[2,3]", True),
        ("local-cluster[2,1,1024]", True),
        ("spark://127.0.0.1:7077", True),
        ("spark://localhost:7077", True),
        ("spark://node1:7077", False),
        ("spark://localhost.example.com:7077", False),
        ("spark://127.0.0.1:7077,node2:7077", False),
        ("yarn", False),
        ("k8s://https://127.0.0.1:6443", False),
    ],
)
def test_is_local(master: str, local: bool) -> None:
    assert is_local(master) is local


def test_a_local_session_listens_on_loopback_and_has_no_ui() -> None:
    settings = defaults(None, submitted=False)
    assert settings["spark.master"] == "local[*]"
    assert settings["spark.driver.bindAddress"] == settings["spark.driver.host"] == "127.0.0.1"
    assert settings["spark.ui.enabled"] == "false"


def test_a_cluster_session_keeps_its_address_and_ui() -> None:
    settings = defaults("spark://node1:7077", submitted=False)
    assert not {"spark.driver.bindAddress", "spark.driver.host", "spark.ui.enabled"} & set(settings)


def test_a_submitted_session_keeps_its_master() -> None:
    assert not {"spark.master", "spark.driver.defaultJavaOptions"} & set(defaults(None, submitted=True))


def test_the_log_settings_are_shipped() -> None:
    log, stack = defaults(None, submitted=False)["spark.driver.defaultJavaOptions"].split()
    assert Path(log.partition("=")[2].removeprefix("file://")).is_file()
    assert stack == "-Xss8m"


def test_the_environment_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/mine")
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    with environment({"JAVA_HOME": "/launcher", "SPARK_LOCAL_IP": "127.0.0.1"}):
        assert (os.environ["JAVA_HOME"], os.environ["SPARK_LOCAL_IP"]) == ("/launcher", "127.0.0.1")
    assert os.environ["JAVA_HOME"] == "/mine"
    assert "SPARK_LOCAL_IP" not in os.environ


def test_importing_the_room_does_not_import_pyspark_or_polars() -> None:
    code = "import sys, pyarctic.spark, pyarctic.spark.daemon; print({'pyspark', 'polars'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "set()\n"
