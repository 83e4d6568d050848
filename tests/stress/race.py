"""A race: all writers start together, stop together, and the table is compared with what they say they did."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyspark.sql import SparkSession

from pyarctic.iceberg.catalog.pyiceberg_patches import apply_patches
from tests.stress.arena import Arena, expected, partition_of
from tests.stress.java import JavaWriter
from tests.support import changes
from tests.support.integrity import (
    leftovers,
    leftovers_of_ours,
    missing,
    row_ids_differ,
    sequence_numbers_differ,
    untrue_totals,
)
from tests.support.processes import Process, running

ROOT = Path(__file__).parents[2]
# Rows of workers with odd numbers belong to them alone.
WORKERS = (
    ("appender", 2),
    ("appender", 4),
    ("position_deleter", 6),
    ("equality_deleter", 8),
    ("upserter", 9),
    ("compactor", 10),
    ("manifest_rewriter", 12),
)
_START_SECONDS = 120.0
_PATIENCE = 90.0
# They are more than there are cores.
_ONE_THREAD = {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, kw_only=True)
class Result:
    """What happened, and everything that is wrong."""

    title: str
    seconds: float
    rows: int
    snapshots: int
    of_workers: Mapping[str, Mapping[str, Any]]
    left_by_java: int
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [
            f"{self.title}: {self.seconds:.0f} s, {self.snapshots} snapshots, {self.rows} rows, "
            f"{self.left_by_java} files left over by Java, " + ("exact" if not self.faults else "WRONG")
        ]
        for worker, told in self.of_workers.items():
            lines.append(f"  {worker:22}" + ", ".join(f"{value} {name}" for name, value in told.items() if value))
        return "\n".join([*lines, *(f"  ! {fault}" for fault in self.faults)])


def run(
    title: str,
    folder: Path,
    spark: SparkSession,
    catalog: str,
    properties: Mapping[str, str],
    *,
    version: int,
    seconds: float,
) -> Result:
    """Race for some seconds on a new table of this catalog, which Spark knows by the same name."""
    apply_patches()
    namespace = f"race_{uuid4().hex[:8]}"
    arena = Arena(folder=folder, catalog=catalog, properties=properties, table=f"{namespace}.t")
    with arena.open() as ours:
        ours.create_namespace(namespace)
        arena.create(ours, version)
        arena.save()
        java = JavaWriter(arena, spark, catalog)
        begin = time.monotonic()
        faults = _let_them_work(arena, java, seconds)
        lasted = time.monotonic() - begin
        return _judged(title, arena, ours.load_table(arena.table), java, lasted, faults)


def _let_them_work(arena: Arena, java: JavaWriter, seconds: float) -> list[str]:
    with ExitStack() as stack:
        workers: dict[str, Process] = {}
        for role, number in WORKERS:
            name = f"{role}-{number}"
            command = [sys.executable, "-m", "tests.stress.worker", str(arena.folder), role, str(number)]
            log = arena.folder / f"{name}.log"
            workers[name] = stack.enter_context(running(command, log, cwd=ROOT, env=os.environ | _ONE_THREAD))
        java.warm_up()
        deadline = time.monotonic() + _START_SECONDS
        while not all(arena.has(f"{name}.ready") for name in workers) and time.monotonic() < deadline:
            time.sleep(0.05)
        arena.signal("go")
        # In a thread, because Java may be kept from committing for as long as the others work.
        referee = threading.Thread(target=_stop_in_time, args=(arena, seconds))
        referee.start()
        try:
            while not arena.has("stop"):
                java.act()
        finally:
            arena.signal("stop")
            referee.join()
        return [fault for name, process in workers.items() if (fault := _ended(arena, name, process))]


def _stop_in_time(arena: Arena, seconds: float) -> None:
    begin = time.monotonic()
    while not arena.has("stop"):
        lasted = time.monotonic() - begin
        if lasted > seconds and (_all_done(arena) or lasted > seconds + _PATIENCE):
            arena.signal("stop")
        time.sleep(0.2)


def _all_done(arena: Arena) -> bool:
    """Whether each worker has committed something. On a busy machine that may take longer than the race should."""
    done = [any(line["outcome"] == "committed" for line in lines) for lines in arena.diaries().values()]
    return len(done) > len(WORKERS) and all(done)


def _ended(arena: Arena, name: str, process: Process) -> str | None:
    try:
        code = process.wait(60)
    except subprocess.TimeoutExpired:
        return f"{name} does not end"
    if code:
        return f"{name} failed: {(arena.folder / f'{name}.log').read_text()[-2000:]}"
    return None


def _judged(title: str, arena: Arena, table: Table, java: JavaWriter, seconds: float, faults: list[str]) -> Result:
    diaries = arena.diaries()
    wanted = expected(diaries)
    rejected = Counter(
        line["code"] for worker, lines in diaries.items() if "compactor" in worker for line in lines if "code" in line
    )
    faults += _difference("our scan", wanted, _rows(table))
    faults += _difference("Java", wanted, java.rows())
    if rejected["deletes-arrived"]:
        faults.append(f"{rejected['deletes-arrived']} compactions were wasted because of deletes")
    if rejected["files-gone"] and not _others_removed_data(table):
        faults.append(f"{rejected['files-gone']} compactions missed files that nobody removed")
    faults += untrue_totals(table)[:5]
    faults += [f"needed and missing: {path}" for path in missing(table)]
    left, ours = leftovers(table), leftovers_of_ours(table)
    faults += [f"left over: {path}" for path in ours]
    if not sequence_numbers_differ(table):
        faults.append("a sequence number was given twice")
    if table.format_version > 2 and not row_ids_differ(table):
        faults.append("a row id was given twice")
    return Result(
        title=title,
        seconds=seconds,
        rows=len(wanted),
        snapshots=len(table.metadata.snapshots),
        of_workers={worker: _told(lines) for worker, lines in diaries.items()},
        left_by_java=len(left) - len(ours),
        faults=faults,
    )


def _rows(table: Table) -> dict[int, str]:
    found = changes.rows(table).to_pylist()
    assert all(row["p"] == partition_of(row["id"]) for row in found)
    values = {row["id"]: row["v"] for row in found}
    assert len(values) == len(found)
    return values


def _difference(reader: str, wanted: Mapping[int, str], found: Mapping[int, str]) -> list[str]:
    missing_ids, extra = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    other = sorted(key for key in wanted.keys() & found.keys() if wanted[key] != found[key])
    faults = {"misses": missing_ids, "has too many": extra, "has other values for": other}
    return [f"{reader} {what} {len(ids)} rows: {ids[:5]}" for what, ids in faults.items() if ids]


def _others_removed_data(table: Table) -> bool:
    """Java drops a data file whole when a DELETE hits all of its rows."""
    return any(
        summary.operation != Operation.REPLACE and "deleted-data-files" in summary.additional_properties
        for snapshot in table.metadata.snapshots
        if (summary := snapshot.summary)
    )


def _told(lines: list[dict[str, Any]]) -> dict[str, Any]:
    done = [line for line in lines if line["outcome"] == "committed"]
    told = {
        "commits": len(done),
        "retries": sum(line["attempts"] - 1 for line in done),
        "rebased rows": sum(line.get("rebased", 0) for line in done),
        "conflicts": sum(line.get("conflicts", 0) for line in lines),
        "unknown": sum(line.get("unknown", 0) for line in lines),
        "given up": sum(line["outcome"] == "conflict" for line in lines),
    }
    return told | {f"rejected as {code}": count for code, count in Counter(x["code"] for x in lines if "code" in x).items()}
