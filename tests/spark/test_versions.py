"""All data paths on the installed version of Spark. `make test-matrix` runs this on every version that PyArctic supports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.jvm

_JOB = Path(__file__).with_name("versions_job.py")


def test_reads_writes_streams_and_optimizes(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(_JOB), str(tmp_path)], capture_output=True, text=True, timeout=280, cwd=tmp_path, env=os.environ
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    seen = json.loads(ran.stdout.splitlines()[-1])
    assert seen["spark"].startswith(os.environ.get("SPARK_SERIES", ""))
    assert seen["written"] == {
        "rows": 990,
        "names": {"upserted": 100, "changed": 10},
        "same_rows": True,
        "types": ["1.75", "2026-01-01", ["a", "upserted"], 7, "upserted"],
    }
    assert seen["streamed"] == 40
    assert seen["optimized"] == {"changed": [True, True], "failures": [], "same_rows": True, "native_rows": 300}
    assert seen["function"]
    if seen["spark"].startswith("3."):
        assert any("format" in text for text in seen["advice"])
        assert "format" not in seen
    else:
        assert seen["advice"] == []
        # Each upsert is a delete and an insert, an update's after-image is one insert.
        assert seen["format"] == {"rows": 990, "changes": 1000 + 2 * 100 + 10 + 10 + 2 * 40}
