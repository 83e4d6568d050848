"""Optimizing against Iceberg Java's `rewrite_data_files` on Spark: same tables, same codec and level, one run.

CPU seconds and memory are of all processes. Java runs in one warm session; each of our runs is a new process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.figures import Figure, console
from benchmarks.optimize_work import OPTIMIZER, OptimizeFailed
from benchmarks.spark_scan import ALL, POINTS, QUERIES, compare
from benchmarks.unoptimized_tables import TableSetup, data_files, lineitem_files
from benchmarks.workbench import OptimizedTable, Workbench, open_workbench

KEEPS_DATA = 1 << 20
"""With this fragment size no data file is a fragment: minor optimizing only converts equality deletes."""


def compare_optimizing(scale: float, cases: Sequence[str] = (), optimizer: str = OPTIMIZER) -> list[Figure]:
    """The figures of the given cases, or of all."""
    with open_workbench(scale, optimizer) as bench:
        return [figure for case in cases or CASES for figure in _figures(case, bench)]


def _figures(case: str, bench: Workbench) -> list[Figure]:
    """A case that fails misses its target; the others are still measured."""
    try:
        return CASES[case](bench)
    except OptimizeFailed as failure:
        console.print(f"{case}: {failure}", style="red", markup=False, highlight=False, soft_wrap=True)
        return [Figure(name=f"optimize: {case}", measured=math.inf, target=0, unit="", detail=str(failure))]


def merge(bench: Workbench) -> list[Figure]:
    return [_compare_cpu("merging small files", *bench.both(bench.plain, "major"), 2.7)]


def copy(bench: Workbench) -> list[Figure]:
    return [_compare_cpu("merging by copying row groups", *bench.both(bench.plain, "minor"), 20)]


def positions(bench: Workbench) -> list[Figure]:
    figures = []
    for version, name in ((2, "position deletes, v2"), (3, "deletion vectors, v3")):
        setup = replace(bench.plain, version=version, deleted_fraction=0.05)
        figures.append(_compare_cpu(f"5 % {name}", *bench.both(setup, "major"), 2.7))
    return figures


def keys(bench: Workbench) -> list[Figure]:
    """Java checks every file against all keys, so that a part of the files is enough to extrapolate its cost."""
    total = len(data_files(bench.keys))
    part = max(total // 8, 2)
    java = bench.by_java(replace(bench.keys, files=part))
    times = total / part
    note = f"Java: {part} of {total} files with all keys, × {times:g}"
    scaled = replace(java, cost=replace(java.cost, cpu_seconds=java.cost.cpu_seconds * times))
    name = f"{bench.keys.deleted_keys:,} deleted keys"
    v2 = replace(bench.keys, fragment_bytes=KEEPS_DATA)
    v3 = replace(v2, version=3)
    return [
        _compare_cpu(f"{name}: rewriting", bench.ours(bench.keys, "full"), scaled, 40, note),
        _compare_cpu(f"{name}: to position deletes, v2", bench.ours(v2, "minor"), scaled, 150, note),
        _compare_cpu(f"{name}: to deletion vectors, v3", bench.ours(v3, "minor"), scaled, 150, note),
    ]


def sort(bench: Workbench) -> list[Figure]:
    setup = replace(bench.plain, sorted_by_id=True)
    return [_compare_cpu("merging into sorted files", *bench.both(setup, "full"), 2.5)]


def memory(bench: Workbench) -> list[Figure]:
    """Over all runs with local processes so far, and at least one."""
    merged = bench.ours(bench.plain, "major")
    runs = bench.done("local")
    how, largest = max(runs, key=lambda run: run[1].cost.worker_mb)
    return [
        Figure(
            name="peak memory of a worker",
            measured=largest.cost.worker_mb,
            target=600,
            unit="MB",
            detail=f"of {len(runs)} runs: {how}",
        ),
        Figure(
            name="memory of merging small files with two workers, all processes",
            measured=merged.cost.peak_mb,
            target=400,
            unit="MB",
            detail=f"{merged.cost.wall_seconds:.1f} s",
        ),
    ]


def on_spark(bench: Workbench) -> list[Figure]:
    here, there = bench.ours(bench.plain, "major"), bench.ours(bench.plain, "major", "spark")
    return [
        Figure(
            name="merging small files on Spark, CPU against local processes",
            measured=there.cost.cpu_seconds / here.cost.cpu_seconds,
            target=1.25,
            unit="×",
            detail=_detail(there, here),
        )
    ]


def scan(bench: Workbench) -> list[Figure]:
    """What Spark spends on reading, before and after optimizing."""
    return [*_scan_of_plain(bench), *_scan_of_small(bench), *_scan_of_keys(bench)]


def _scan_of_plain(bench: Workbench) -> list[Figure]:
    encoded, copied = bench.ours(bench.plain, "major").table, bench.ours(bench.plain, "minor").table
    before, after, after_copy = _compared(bench, bench.plain, [encoded, copied])
    return [
        _compare_reads("scan after merging", before, after, 1.3, (ALL, POINTS)),
        _compare_reads("scan after copying row groups", before, after_copy, 1 / 1.1),
    ]


def _scan_of_small(bench: Workbench) -> list[Figure]:
    files = max(int(5_000 * bench.scale), 100)
    with console.status("creating small files"):
        setup = replace(bench.plain, data=lineitem_files(files, 1_000))
    before, after = _compared(bench, setup, [bench.ours(setup, "major").table])
    return [_compare_reads(f"scan of {files:,} files of 1,000 rows, after merging", before, after, 3)]


def _scan_of_keys(bench: Workbench) -> list[Figure]:
    count = int(200_000 * bench.scale)
    setup = replace(bench.plain, files=max(int(32 * bench.scale), 4), deleted_keys=count)
    optimized = [bench.ours(replace(setup, fragment_bytes=KEEPS_DATA), "minor").table, bench.ours(setup, "full").table]
    # For every point read Java reads and hashes all keys for each file; two of them take long enough.
    before, converted, rewritten = _compared(bench, setup, optimized, points=2)
    name = f"scan of {len(data_files(setup))} files with {count:,} deleted keys"
    return [
        _compare_reads(f"{name}, after {what}", before, after, 3)
        for what, after in (("converting", converted), ("rewriting", rewritten))
    ]


def _compared(bench: Workbench, setup: TableSetup, optimized: Sequence[str], points: int = 10) -> list[dict[str, float]]:
    points, rounds = (points, 3) if bench.scale >= 1 else (2, 1)
    rows = sum(file.record_count for file in data_files(setup))
    ids = [rows * number // points for number in range(points)]
    with console.status(f"Spark reads {setup}"):
        return compare(bench.java, [bench.table(setup), *optimized], ids, rounds)


def _compare_reads(
    name: str, before: dict[str, float], after: dict[str, float], times: float, queries: Sequence[str] = QUERIES
) -> Figure:
    """The query that gained least."""
    return Figure(
        name=f"{name}, CPU against before",
        measured=max(after[query] / before[query] for query in queries),
        target=1 / times,
        unit="×",
        detail="; ".join(f"{query} {after[query]:.2f} s to {before[query]:.2f} s" for query in QUERIES),
    )


def _compare_cpu(name: str, ours: OptimizedTable, java: OptimizedTable, times: float, note: str = "") -> Figure:
    return Figure(
        name=f"{name}, CPU against Iceberg Java",
        measured=ours.cost.cpu_seconds / java.cost.cpu_seconds,
        target=1 / times,
        unit="×",
        detail=_detail(ours, java) + (f"; {note}" if note else ""),
    )


def _detail(ours: OptimizedTable, other: OptimizedTable) -> str:
    return (
        f"{ours.cost.cpu_seconds:.2f} s to {other.cost.cpu_seconds:.2f} s CPU; "
        f"{ours.cost.peak_mb:,.0f} MB to {other.cost.peak_mb:,.0f} MB; "
        f"{ours.before} → {ours.after}, the other → {other.after}"
    )


CASES: dict[str, Callable[[Workbench], list[Figure]]] = {
    "merge": merge,
    "copy": copy,
    "positions": positions,
    "keys": keys,
    "sort": sort,
    "spark": on_spark,
    "scan": scan,
    "memory": memory,
}
