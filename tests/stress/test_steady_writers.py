"""Three writers without pause on one table: none fails, none starves, and no row is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

import pyarctic
from pyarctic import config
from tests.stress.steady_writer import SCHEMA, TABLE, open_catalog

ROOT = Path(__file__).parents[2]
WRITERS = 3
SECONDS = int(os.environ.get("STEADY_SECONDS", "10"))
_LONG_SECONDS = 40
_START_SECONDS = 120
_END_SECONDS = 360  # longer than the deadline of a commit
_ONE_THREAD = {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("primary_key", [(), ("id",)], ids=["unkeyed", "keyed"])
def test_writers_without_pause_take_turns(tmp_path: Path, primary_key: tuple[str, ...]) -> None:
    config.reset()
    open_catalog(tmp_path)
    pyarctic.create_table(TABLE, SCHEMA, primary_key)
    written = run(tmp_path)
    rows = pyarctic.table(TABLE).scan().to_arrow()["id"].to_pylist()
    assert sorted(rows) == [number * 1_000_000 + row for number, count in enumerate(written) for row in range(count)]
    # In the long run they differ by less than two. In a short run beside other tests, the system decides: none starves.
    if SECONDS >= _LONG_SECONDS:
        assert max(written) <= 2 * min(written), written
    assert min(written) * 4 >= sum(written) / WRITERS, written
    config.reset()


def run(folder: Path) -> list[int]:
    """The number of rows of each writer."""
    with ExitStack() as stack:
        writers = []
        for number in range(WRITERS):
            command = [sys.executable, "-m", "tests.stress.steady_writer", str(folder), str(number), str(SECONDS)]
            process = subprocess.Popen(
                command, cwd=ROOT, env=os.environ | _ONE_THREAD, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            writers.append(stack.enter_context(process))
            stack.callback(process.kill)
        deadline = time.monotonic() + _START_SECONDS
        while not all((folder / f"ready-{number}").exists() for number in range(WRITERS)):
            assert time.monotonic() < deadline, "the writers do not start"
            time.sleep(0.05)
        (folder / "go").touch()
        outputs = [process.communicate(timeout=_END_SECONDS) for process in writers]
        assert [process.returncode for process in writers] == [0] * WRITERS, outputs
        return [int(output) for output, _ in outputs]
