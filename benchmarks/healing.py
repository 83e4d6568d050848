"""Healing against Iceberg Java's `rewrite_data_files` on Spark: same tables, same codec and level, one run.

CPU seconds and memory are of all processes. Java runs in one session that is warm; each healing of ours is a new process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.figures import Figure, console
from benchmarks.healtables import Rot, data_files, lineitems
from benchmarks.healward import Healed, Ward, opened
from benchmarks.healwork import HEALER, HealingFailed
from benchmarks.sparkscan import ALL, POINTS, QUERIES, compare

KEEPS_DATA = 1 << 20
"""No data file is a fragment then: minor healing only converts equality deletes, and leaves the data as it is."""


def heal(scale: float, cases: Sequence[str] = (), healer: str = HEALER) -> list[Figure]:
    """The figures of some cases, or of all."""
    with opened(scale, healer) as ward:
        return [figure for case in cases or CASES for figure in _figures(case, ward)]


def _figures(case: str, ward: Ward) -> list[Figure]:
    """A case that fails is a promise not kept; the others are measured all the same."""
    try:
        return CASES[case](ward)
    except HealingFailed as failure:
        console.print(f"{case}: {failure}", style="red", markup=False, highlight=False, soft_wrap=True)
        return [Figure(name=f"heal: {case}", measured=math.inf, promised=0, unit="", detail=str(failure))]


def merge(ward: Ward) -> list[Figure]:
    return [_against("merging small files", *ward.both(ward.plain, "major"), 2.7)]


def copy(ward: Ward) -> list[Figure]:
    return [_against("merging by copying row groups", *ward.both(ward.plain, "minor"), 20)]


def positions(ward: Ward) -> list[Figure]:
    figures = []
    for version, name in ((2, "position deletes, v2"), (3, "deletion vectors, v3")):
        rot = replace(ward.plain, version=version, dead_rows=0.05)
        figures.append(_against(f"5 % {name}", *ward.both(rot, "major"), 2.7))
    return figures


def keys(ward: Ward) -> list[Figure]:
    """Java asks every file anew about all keys, so that a part of the files tells what all of them would take."""
    total = len(data_files(ward.keys))
    part = max(total // 8, 2)
    java = ward.by_java(replace(ward.keys, files=part))
    times = total / part
    note = f"Java: {part} of {total} files with all keys, × {times:g}"
    scaled = replace(java, cost=replace(java.cost, cpu_seconds=java.cost.cpu_seconds * times))
    name = f"{ward.keys.dead_keys:,} deleted keys"
    v2 = replace(ward.keys, fragment_bytes=KEEPS_DATA)
    v3 = replace(v2, version=3)
    return [
        _against(f"{name}: rewriting", ward.ours(ward.keys, "full"), scaled, 40, note),
        _against(f"{name}: to position deletes, v2", ward.ours(v2, "minor"), scaled, 150, note),
        _against(f"{name}: to deletion vectors, v3", ward.ours(v3, "minor"), scaled, 150, note),
    ]


def sort(ward: Ward) -> list[Figure]:
    rot = replace(ward.plain, sorted_by_id=True)
    return [_against("merging into sorted files", *ward.both(rot, "full"), 2.5)]


def memory(ward: Ward) -> list[Figure]:
    """Over all healings by local processes so far, and at least one."""
    ward.ours(ward.plain, "major")
    runs = ward.done("local")
    how, largest = max(runs, key=lambda run: run[1].cost.worker_mb)
    return [
        Figure(
            name="peak memory of a worker",
            measured=largest.cost.worker_mb,
            promised=600,
            unit="MB",
            detail=f"of {len(runs)} healings: {how}",
        )
    ]


def on_spark(ward: Ward) -> list[Figure]:
    here, there = ward.ours(ward.plain, "major"), ward.ours(ward.plain, "major", "spark")
    return [
        Figure(
            name="merging small files on Spark, CPU against local processes",
            measured=there.cost.cpu_seconds / here.cost.cpu_seconds,
            promised=1.25,
            unit="×",
            detail=_detail(there, here),
        )
    ]


def scan(ward: Ward) -> list[Figure]:
    """What Spark spends on reading, before and after."""
    return [*_scan_of_plain(ward), *_scan_of_small(ward), *_scan_of_keys(ward)]


def _scan_of_plain(ward: Ward) -> list[Figure]:
    encoded, copied = ward.ours(ward.plain, "major").table, ward.ours(ward.plain, "minor").table
    before, after, after_copy = _compared(ward, ward.plain, [encoded, copied])
    return [
        _fewer("scan after merging", before, after, 1.3, (ALL, POINTS)),
        _fewer("scan after copying row groups", before, after_copy, 1 / 1.1),
    ]


def _scan_of_small(ward: Ward) -> list[Figure]:
    files = max(int(5_000 * ward.scale), 100)
    with console.status("making small files"):
        rot = replace(ward.plain, data=lineitems(files, 1_000))
    before, after = _compared(ward, rot, [ward.ours(rot, "major").table])
    return [_fewer(f"scan of {files:,} files of 1,000 rows, after merging", before, after, 3)]


def _scan_of_keys(ward: Ward) -> list[Figure]:
    count = int(200_000 * ward.scale)
    rot = replace(ward.plain, files=max(int(32 * ward.scale), 4), dead_keys=count)
    healed = [ward.ours(replace(rot, fragment_bytes=KEEPS_DATA), "minor").table, ward.ours(rot, "full").table]
    # Every point read makes Java read and hash all keys for each file; two of them take long enough.
    before, converted, rewritten = _compared(ward, rot, healed, points=2)
    name = f"scan of {len(data_files(rot))} files with {count:,} deleted keys"
    return [
        _fewer(f"{name}, after {what}", before, after, 3)
        for what, after in (("converting", converted), ("rewriting", rewritten))
    ]


def _compared(ward: Ward, rot: Rot, healed: Sequence[str], points: int = 10) -> list[dict[str, float]]:
    points, rounds = (points, 3) if ward.scale >= 1 else (2, 1)
    rows = sum(file.record_count for file in data_files(rot))
    ids = [rows * number // points for number in range(points)]
    with console.status(f"Spark reads {rot}"):
        return compare(ward.java, [ward.table(rot), *healed], ids, rounds)


def _fewer(
    name: str, before: dict[str, float], after: dict[str, float], times: float, queries: Sequence[str] = QUERIES
) -> Figure:
    """Of some queries the one that gained least."""
    return Figure(
        name=f"{name}, CPU against before",
        measured=max(after[query] / before[query] for query in queries),
        promised=1 / times,
        unit="×",
        detail="; ".join(f"{query} {after[query]:.2f} s to {before[query]:.2f} s" for query in QUERIES),
    )


def _against(name: str, ours: Healed, java: Healed, times: float, note: str = "") -> Figure:
    return Figure(
        name=f"{name}, CPU against Iceberg Java",
        measured=ours.cost.cpu_seconds / java.cost.cpu_seconds,
        promised=1 / times,
        unit="×",
        detail=_detail(ours, java) + (f"; {note}" if note else ""),
    )


def _detail(ours: Healed, other: Healed) -> str:
    return (
        f"{ours.cost.cpu_seconds:.2f} s to {other.cost.cpu_seconds:.2f} s CPU; "
        f"{ours.cost.peak_mb:,.0f} MB to {other.cost.peak_mb:,.0f} MB; "
        f"{ours.before} → {ours.after}, the other → {other.after}"
    )


CASES: dict[str, Callable[[Ward], list[Figure]]] = {
    "merge": merge,
    "copy": copy,
    "positions": positions,
    "keys": keys,
    "sort": sort,
    "spark": on_spark,
    "scan": scan,
    "memory": memory,
}
