"""PyArctic optimizes a table in a separate process: `python -m benchmarks.optimize_work ours FOLDER TABLE …` prints JSON."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.processes import Cost, MemoryWatch, cpu_seconds

OPTIMIZER = "pyarctic:optimize"


class OptimizeFailed(Exception):
    """Optimizing failed, left the table unchanged, or changed its rows."""


def run_ours(
    folder: Path, table: str, kind: str, engine: str, warm: str | None, optimizer: str
) -> tuple[Cost, dict[str, Any]]:
    """Start that process, watch its memory, and return its cost and its report."""
    command = [sys.executable, "-m", "benchmarks.optimize_work", "ours", str(folder), table]
    command += ["--kind", kind, "--engine", engine, "--optimizer", optimizer, *(["--warm", warm] if warm else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, MemoryWatch(process.pid) as watch:
        output, _ = process.communicate()
    if process.returncode:
        raise OptimizeFailed(f"optimizing {table} ({kind}, {engine}) ended with {process.returncode}; see above")
    outcome = json.loads(output.splitlines()[-1])
    cost = Cost(
        cpu_seconds=outcome["cpu_seconds"],
        wall_seconds=outcome["wall_seconds"],
        peak_mb=watch.total_mb,
        # A process without children is the worker itself.
        worker_mb=max(watch.child_mb, outcome["child_mb"]) or watch.own_mb,
        main_mb=watch.own_mb,
    )
    return cost, outcome["report"]


def ours(folder: Path, table: str, kind: str, engine: str, warm: str | None, optimizer: str) -> dict[str, Any]:
    from benchmarks.unoptimized_tables import CATALOG, open_catalog

    optimize = _load_optimizer(optimizer)
    open_catalog(folder)
    engine_or_session: Any = _session(folder) if engine == "spark" else engine
    if warm:
        optimize(f"{CATALOG}.{warm}", kind=kind, engine=engine_or_session)
    start, cpu_before = time.monotonic(), _cpu_seconds()
    report = optimize(f"{CATALOG}.{table}", kind=kind, engine=engine_or_session)
    return {
        "cpu_seconds": _cpu_seconds() - cpu_before,
        "wall_seconds": time.monotonic() - start,
        "child_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
        "report": report.to_dict(),
    }


def _cpu_seconds() -> float:
    """CPU seconds of this process and its children, including those that are still running: Spark's, and idle workers."""
    return cpu_seconds(os.getpid())


def _load_optimizer(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    optimize: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return optimize


def _session(folder: Path) -> Any:
    from benchmarks.iceberg_java import settings
    from pyarctic.spark import session

    return session("pyarctic-optimize", **settings(folder))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.optimize_work", description=__doc__)
    parser.add_argument("side", choices=["ours"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("table", help="namespace.table")
    parser.add_argument("--kind", default="auto")
    parser.add_argument("--engine", choices=["local", "spark"], default="local")
    parser.add_argument("--warm", help="optimize this table first, without measuring")
    parser.add_argument("--optimizer", default=OPTIMIZER, help="module:function, called as pyarctic.optimize")
    arguments = parser.parse_args()
    outcome = ours(arguments.folder, arguments.table, arguments.kind, arguments.engine, arguments.warm, arguments.optimizer)
    # On a separate line, after anything that was printed before.
    print(f"\n{json.dumps(outcome, default=str)}")


if __name__ == "__main__":
    main()
