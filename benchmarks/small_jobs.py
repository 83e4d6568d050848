"""Small tables: what it costs to optimize one by the command line, and each further one in the same process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

import pyarctic
from benchmarks.figures import Figure, console
from pyarctic import config

_FILES, _ROWS, _TABLES = 24, 1_000, 9
_CATALOG = "small"
_FURTHER = """
import json, sys, time
import pyarctic
pyarctic.catalog("small", **json.loads(sys.argv[1]))
seconds = []
for name in sys.argv[2:]:
    start = time.process_time()
    assert pyarctic.optimize(name).after.data_files == 1
    seconds.append(time.process_time() - start)
print(json.dumps(seconds))
"""


def small_jobs(_scale: float) -> list[Figure]:
    """Tables of 24 files of a thousand rows."""
    with tempfile.TemporaryDirectory(prefix="arctic-bench-") as temporary:
        folder = Path(temporary)
        properties = {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": folder.as_uri()}
        pyarctic.catalog(_CATALOG, **properties)
        try:
            with console.status("creating small tables"):
                names = [_make_table(number) for number in range(_TABLES)]
        finally:
            config.reset()
        (folder / "arctic.yaml").write_text(json.dumps({"catalogs": {_CATALOG: properties}}))
        cold = min(_run_command(folder, "optimize", name) for name in names[:3])
        listed = min(_run_command(folder, "ls") for _ in range(3))
        ended = subprocess.run(
            [sys.executable, "-c", _FURTHER, json.dumps(properties), *names[3:]], check=True, capture_output=True, text=True
        )
        further = min(json.loads(ended.stdout)[1:])
        copied = min(_copy_with_duckdb(folder) for _ in range(3))
    what = f"optimizing {_FILES} files of {_ROWS:,} rows, CPU"
    return [
        Figure(
            name=f"{what}: by the command line", measured=cold, target=1.5, unit="s", detail="best of three, all processes"
        ),
        Figure(
            name=f"{what}: each further table of the process",
            measured=further,
            target=0.15,
            unit="s",
            detail=f"best of {_TABLES - 4}; a process that has DuckDB COPY as many rows: {copied:.2f} s",
        ),
        Figure(
            name="listing tables by the command line, CPU", measured=listed, target=0.6, unit="s", detail="best of three"
        ),
    ]


def _make_table(number: int) -> str:
    name = f"{_CATALOG}.db.t{number}"
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("value", pa.float64())])
    table = pyarctic.create_table(name, schema, format="iceberg", properties={"self-optimizing.writers-first": "false"})
    for start in range(0, _FILES * _ROWS, _ROWS):
        ids = np.arange(start, start + _ROWS)
        table.write(pa.table({"id": ids, "name": [f"name {id_ % 50}" for id_ in ids], "value": np.sqrt(ids)}))
    return name


def _run_command(folder: Path, *arguments: str) -> float:
    before = os.times()
    subprocess.run(
        [sys.executable, "-m", "pyarctic.cli", "--config", folder / "arctic.yaml", "--quiet", "table", *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def _copy_with_duckdb(folder: Path) -> float:
    start = time.process_time()
    with duckdb.connect() as connection:
        connection.execute(
            f"COPY (SELECT range id, 'name ' || range % 50 AS name, sqrt(range) AS value FROM range({_FILES * _ROWS})) "
            f"TO '{folder}/copy.parquet' (FORMAT parquet, COMPRESSION zstd)"
        )
    return time.process_time() - start
