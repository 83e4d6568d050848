"""PyArctic heals a table, in a process of its own: `python -m benchmarks.healwork ours FOLDER TABLE …` prints JSON."""

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

HEALER = "pyarctic:optimize"


class HealingFailed(Exception):
    """It stopped, left the table as it was, or changed its rows."""


def run_ours(folder: Path, table: str, kind: str, engine: str, warm: str | None, healer: str) -> tuple[Cost, dict[str, Any]]:
    """Start that process, watch its memory from outside, and give what it spent and its report."""
    command = [sys.executable, "-m", "benchmarks.healwork", "ours", str(folder), table]
    command += ["--kind", kind, "--engine", engine, "--healer", healer, *(["--warm", warm] if warm else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, MemoryWatch(process.pid) as watch:
        told, _ = process.communicate()
    if process.returncode:
        raise HealingFailed(f"healing {table} ({kind}, {engine}) ended with {process.returncode}; see above")
    outcome = json.loads(told.splitlines()[-1])
    cost = Cost(
        cpu_seconds=outcome["cpu_seconds"],
        wall_seconds=outcome["wall_seconds"],
        peak_mb=watch.total_mb,
        # What does its work without children is the worker itself.
        worker_mb=max(watch.child_mb, outcome["child_mb"]) or watch.own_mb,
    )
    return cost, outcome["report"]


def ours(folder: Path, table: str, kind: str, engine: str, warm: str | None, healer: str) -> dict[str, Any]:
    from benchmarks.healtables import CATALOG, open_catalog

    optimize = _healer(healer)
    open_catalog(folder)
    chosen: Any = _session(folder) if engine == "spark" else engine
    if warm:
        optimize(f"{CATALOG}.{warm}", kind=kind, engine=chosen)
    start, spent = time.monotonic(), _cpu_seconds()
    report = optimize(f"{CATALOG}.{table}", kind=kind, engine=chosen)
    return {
        "cpu_seconds": _cpu_seconds() - spent,
        "wall_seconds": time.monotonic() - start,
        "child_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
        "report": report.to_dict(),
    }


def _cpu_seconds() -> float:
    """Of this process and its children. Those that live count too: Spark's, and workers that wait for more."""
    return cpu_seconds(os.getpid())


def _healer(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def _session(folder: Path) -> Any:
    from benchmarks.javaside import settings
    from pyarctic.spark import session

    return session("pyarctic-heal", **settings(folder))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.healwork", description=__doc__)
    parser.add_argument("side", choices=["ours"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("table", help="namespace.table")
    parser.add_argument("--kind", default="auto")
    parser.add_argument("--engine", choices=["local", "spark"], default="local")
    parser.add_argument("--warm", help="heal this table first, unmeasured")
    parser.add_argument("--healer", default=HEALER, help="module:function, called as pyarctic.optimize")
    told = parser.parse_args()
    outcome = ours(told.folder, told.table, told.kind, told.engine, told.warm, told.healer)
    # On a line of its own, whatever was printed before.
    print(f"\n{json.dumps(outcome, default=str)}")


if __name__ == "__main__":
    main()
