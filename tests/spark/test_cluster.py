"""A session on a real cluster: executors use this Python, our daemon, and find PyArctic."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import pyarctic.spark

pytestmark = pytest.mark.jvm


def test_a_python_task_on_a_cluster(spark_cluster: str) -> None:
    # A process has one Spark context, and in this one it may be the oracle's.
    command = [sys.executable, str(Path(__file__).with_name("cluster_job.py")), spark_cluster]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout) == {
        "rows": 1000,
        "pyarctic": pyarctic.spark.__file__,
        "python": sys.executable,
        "preloaded": True,
        "polars": False,
    }
    assert answer.stderr == "", "a session must start quietly"
