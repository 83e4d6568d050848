"""The way of the data over Spark Connect: a client without a JVM, a server that runs tasks and batches of streams."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import pyarctic
from pyarctic import config
from tests.oracle.connect import start

pytestmark = pytest.mark.jvm

JOB = Path(__file__).with_name("connect_job.py")


def test_the_data_path_over_connect(tmp_path: Path) -> None:
    with start(tmp_path) as url:
        command = [sys.executable, str(JOB), url, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert "connect" in told["session"]
    assert told["read"] == [[0, "Oslo"], [1, "Bonn"], [4, "Oslo"], [12, "Rome"]]
    assert told["view"] == [["Bonn", 1, 8.5], ["Oslo", 7, 39.0], ["Rome", 1, 1.0]]
    assert told["format"] == [6, 7, 8, 9]
    assert told["again"] == 5
    assert told["stream failed"] is None
    assert told["streamed"][0][0] == 20
    assert told["streamed"][0][1] in ("c13", "c23")  # which file came first is not known
    assert "demo.shop.orders: key id = 1 comes several times" in told["refusal"]

    uri = f"sqlite:///{tmp_path}/catalog.db"
    pyarctic.catalog("demo", type="sql", uri=uri, warehouse=(tmp_path / "lake").as_uri())
    try:
        table = pyarctic.table("demo.shop.orders")
        assert table.scan().count() == 10
        snapshots = table.snapshots(store="change")
        assert told["snapshot"] in snapshots["snapshot_id"].to_list()
        assert snapshots.height == 5  # the overwrite's beginning, two writes, two batches of the stream
    finally:
        config.reset()
