"""Reads of keyed tables by key, of changes in order, and of many tiny commits."""

from __future__ import annotations

from benchmarks.figures import Figure, console
from benchmarks.keyed_tables import changes_in_one_commit, clean_files, keyed, one_row_commits
from benchmarks.measuring import run_work


def keyed_reads(scale: float) -> list[Figure]:
    return [_point_read(scale), _change_log(scale), _small_commits(scale), _clean_files()]


def _point_read(scale: float) -> Figure:
    rows = int(10_000_000 * scale)
    with console.status(f"creating a keyed table of {rows:,} rows"):
        folder = keyed(rows, 0.1)
    outcome = run_work("point_read", folder)
    opened, files = outcome["result"]
    return Figure(
        name=f"files opened to read one key of {rows:,}, 10 % changed, against all files",
        measured=opened / files,
        target=0.3,
        unit="×",
        detail=f"{opened} of {files}; {outcome['cpu_seconds'] * 1000:.0f} ms CPU",
    )


def _change_log(scale: float) -> Figure:
    rows = int(10_000_000 * scale)
    with console.status(f"creating a table of {rows:,} changes"):
        folder = changes_in_one_commit(rows // 2)
    outcome = run_work("change_log", folder)
    assert outcome["result"] == rows // 2 * 2
    return Figure(
        name=f"memory of reading {rows:,} changes of one commit in order",
        measured=outcome["peak_mb"] - outcome["before_mb"],
        target=150,
        unit="MB",
        detail=f"{outcome['cpu_seconds']:.1f} s CPU; {outcome['before_mb']:,.0f} MB before it began",
    )


def _small_commits(scale: float) -> Figure:
    commits = max(int(300 * scale), 10)
    with console.status(f"creating {commits} commits of one row"):
        folder = one_row_commits(commits)
    outcome = run_work("plan_small_commits", folder)
    return Figure(
        name=f"tasks for a read of {commits} one-row commits in as many partitions",
        measured=outcome["result"],
        target=10,
        unit="tasks",
        detail=f"{outcome['cpu_seconds']:.2f} s CPU for planning",
    )


def _clean_files() -> Figure:
    """At any scale: the number of files is small."""
    files = 600
    with console.status(f"creating {files} base files"):
        folder = clean_files(files)
    outcome = run_work("plan_clean_files", folder)
    assert outcome["result"] == files
    return Figure(
        name=f"planning a merged read of {files} files without changes, CPU",
        measured=outcome["cpu_seconds"],
        target=0.5,
        unit="s",
        detail="with reading the manifests",
    )
