"""Tables that streams write to: thousands of small commits, each with a manifest or two."""

from __future__ import annotations

from benchmarks.figures import Figure, console
from benchmarks.keyed_tables import committed
from benchmarks.measuring import run_work
from benchmarks.optimize_work import OPTIMIZER, OptimizeFailed, run_ours
from benchmarks.streamed_tables import ROWS_PER_COMMIT, unchanged, upserts


def streams(scale: float) -> list[Figure]:
    return [*_upserts(max(int(5_000 * scale), 20)), *_changes(max(int(1_000 * scale), 20))]


def _upserts(commits: int) -> list[Figure]:
    """A native table as Flink leaves it."""
    with console.status(f"creating a table of {commits:,} commits"):
        folder = upserts(commits)
    with unchanged(folder), console.status(f"optimizing {commits:,} commits"):
        before = run_work("scan_checksum", folder)["result"]
        cost, report = run_ours(folder, "b.t", "auto", "local", None, OPTIMIZER)
        after = run_work("scan_checksum", folder)["result"]
    left = sum(report["after"][kind] for kind in ("data_files", "equality_delete_files", "position_delete_files"))
    if after != before or left > 1:
        raise OptimizeFailed(f"{commits:,} commits: {left} files are left, with rows {after} instead of {before}")
    name = f"optimizing {commits:,} commits, each with {ROWS_PER_COMMIT} upserts in a data file and an equality delete file"
    return [
        Figure(name=f"{name}: CPU of all processes", measured=cost.cpu_seconds, target=25, unit="s", detail=str(cost)),
        Figure(
            name="the same: memory of the largest process",
            measured=max(cost.worker_mb, cost.main_mb),
            target=512,
            unit="MB",
            detail=f"{cost.main_mb:,.0f} MB to plan and commit, {cost.worker_mb:,.0f} MB for the task",
        ),
    ]


def _changes(commits: int) -> list[Figure]:
    """The change store of a keyed table."""
    with console.status(f"creating a keyed table of {commits:,} commits"):
        few, many = committed(10), committed(commits)
    position = {folder: run_work("follow_stream", folder)["cpu_seconds"] for folder in (few, many)}
    with unchanged(many), console.status(f"merging {commits:,} commits"):
        _, report = run_ours(many, "b.t", "minor", "local", None, OPTIMIZER)
        merged = run_work("follow_stream", many)
    times = f"{position[many] * 1000:.0f} ms to {position[few] * 1000:.0f} ms CPU"
    return [
        Figure(
            name=f"the next position of a stream, one commit behind, after {commits:,} commits against 10",
            measured=position[many] / position[few],
            target=5,
            unit="×",
            detail=f"{times}, {merged['cpu_seconds'] * 1000:.0f} ms after optimizing",
        ),
        Figure(
            name=f"manifests of the change store after {commits:,} commits and a minor",
            measured=merged["manifests"],
            target=1,
            unit="",
            detail=f"{report['change_manifests_merged']:,} were merged",
        ),
    ]
