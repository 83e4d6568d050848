"""`make bench`: run the benchmarks and compare the figures with their targets.

`python -m benchmarks --scale 0.01` runs everything at a hundredth of the size; targets are for the full size.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Collection
from dataclasses import asdict
from functools import partial

from rich.console import Console
from rich.table import Table

from benchmarks import merging, optimize_work, optimizing, pipeline, tables
from benchmarks.figures import Figure, console
from benchmarks.keyed import keyed_tables
from benchmarks.measuring import format_both, run_in_turns, run_work
from benchmarks.object_storage import object_storage
from benchmarks.service import service
from benchmarks.small_jobs import small_jobs
from benchmarks.sorting import sorting
from benchmarks.streams import streams
from benchmarks.written_files import written_files


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the full size (default 1)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument(
        "--only",
        choices=[
            "files",
            "deletes",
            "plan",
            "scan",
            "write",
            "commit",
            "keyed",
            "merging",
            "sorting",
            "written-files",
            "small-jobs",
            "streams",
            "pipeline",
            "optimize",
            "storage",
            "service",
        ],
        help="run one part only",
    )
    known_cases = "; ".join(f"of `{part}`: {', '.join(cases)}" for part, cases in _CASES.items())
    parser.add_argument("--case", type=_parse_cases, default=(), help=f"cases, separated by commas; {known_cases}")
    parser.add_argument(
        "--optimizer", default=optimize_work.OPTIMIZER, help="the function that `optimize` measures, as module:function"
    )
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # modules are compiled once, as where the package is installed
    parts = {
        "files": file_list,
        "deletes": delete_matching,
        "plan": planning,
        "scan": scan,
        "write": write,
        "commit": commit,
        "keyed": keyed_tables,
        "sorting": sorting,
        "storage": object_storage,
        "written-files": written_files,
        "small-jobs": small_jobs,
        "streams": streams,
        "service": service,
    }
    parts["merging"] = partial(merging.merging, cases=options.case)
    parts["pipeline"] = partial(pipeline.pipeline, cases=options.case)
    parts["optimize"] = partial(optimizing.compare_optimizing, cases=options.case, optimizer=options.optimizer)
    figures = [f for name, part in parts.items() if options.only in (None, name) for f in part(options.scale)]
    if options.json:
        json.dump([asdict(figure) | {"met": figure.met} for figure in figures], sys.stdout, indent=2)
    else:
        Console().print(_view(figures))
    return 0 if options.scale < 1 or all(figure.met for figure in figures) else 1


_CASES: dict[str, Collection[str]] = {"optimize": optimizing.CASES, "merging": merging.CASES, "pipeline": pipeline.CASES}


def _parse_cases(text: str) -> tuple[str, ...]:
    cases = tuple(text.split(","))
    if unknown := set(cases).difference(*_CASES.values()):
        raise argparse.ArgumentTypeError(f"no such cases: {', '.join(unknown)}")
    return cases


def file_list(scale: float) -> list[Figure]:
    files = max(int(1_000_000 * scale) // tables.ENTRIES_PER_MANIFEST, 1) * tables.ENTRIES_PER_MANIFEST
    with console.status(f"creating a table of {files:,} files"):
        folder = tables.many_files(files)
    ours, theirs = run_work("file_list_ours", folder), run_work("file_list_pyiceberg", folder)
    refresh = run_work("refresh_ours", folder)
    assert ours["result"] == theirs["result"] == files
    assert refresh["result"] == files + 1
    return [
        Figure(
            name=f"file list of {files:,} files, CPU against PyIceberg plan_files",
            measured=ours["cpu_seconds"] / theirs["cpu_seconds"],
            target=1 / 6,
            unit="×",
            detail=f"{ours['cpu_seconds']:.2f} s to {theirs['cpu_seconds']:.2f} s CPU",
        ),
        Figure(
            name="its peak memory",
            measured=ours["peak_mb"],
            target=600,
            unit="MB",
            detail=f"PyIceberg: {theirs['peak_mb']:,.0f} MB",
        ),
        Figure(
            name="refresh after one commit",
            measured=refresh["cpu_seconds"] * 1000,
            target=20,
            unit="ms",
            detail="CPU, best of 20",
        ),
    ]


def delete_matching(scale: float) -> list[Figure]:
    return [_many_files_figure(scale, "match_ours", "delete matching", "data files have deletes")]


def planning(scale: float) -> list[Figure]:
    return [_many_files_figure(scale, "plan_ours", "evaluating and planning, one plan within its limits", "tasks")]


def _many_files_figure(scale: float, work: str, name: str, result: str) -> Figure:
    data, deletes = int(1_000_000 * scale), int(100_000 * scale)
    outcome = run_work(work, f"{data}x{deletes}")
    return Figure(
        name=f"{name}, {data:,} data × {deletes:,} delete files",
        measured=outcome["cpu_seconds"],
        target=10,
        unit="s",
        detail=f"CPU; {outcome['result']:,} {result}; {outcome['peak_mb']:,.0f} MB",
    )


def scan(scale: float) -> list[Figure]:
    rows = int(10_000_000 * scale)
    with console.status(f"creating a table of {rows:,} rows"):
        folder = tables.deleted_rows(rows)
    ours, theirs = run_in_turns("scan_ours", "scan_dataset", folder)
    assert theirs["result"] == rows
    assert ours["result"] == rows - rows // 20
    return [
        Figure(
            name=f"scan of {rows:,} rows, 5 % deleted, CPU against pyarrow.dataset without deletes",
            measured=ours["cpu_seconds"] / theirs["cpu_seconds"],
            target=1.3,
            unit="×",
            detail=format_both(ours, theirs),
        )
    ]


def write(scale: float) -> list[Figure]:
    with console.status("creating rows"):
        folder = tables.deleted_rows(int(10_000_000 * scale))
    ours, theirs = run_in_turns("write_ours", "write_pyarrow", folder)
    assert ours["result"] == theirs["result"]
    return [
        Figure(
            name=f"writing {ours['result']:,} rows with metrics, CPU against pyarrow.parquet.write_table",
            measured=ours["cpu_seconds"] / theirs["cpu_seconds"],
            target=1.1,
            unit="×",
            detail=format_both(ours, theirs),
        )
    ]


def commit(scale: float) -> list[Figure]:
    files = max(int(100_000 * scale) // tables.ENTRIES_PER_MANIFEST, 1) * tables.ENTRIES_PER_MANIFEST
    with console.status(f"creating a table of {files:,} files"):
        folder = tables.many_files(files, clustered=True)
    figures = []
    for manifests, target in ((1, 1 / 5), (10, 1 / 2)):
        ours, theirs = run_in_turns("replace_ours", "replace_pyiceberg", folder / str(manifests))
        assert ours["result"] == theirs["result"] == files + 1
        figures.append(
            Figure(
                name=f"replacing 50 of {files:,} files in {manifests} manifest(s), CPU against PyIceberg's overwrite",
                measured=ours["cpu_seconds"] / theirs["cpu_seconds"],
                target=target,
                unit="×",
                detail=format_both(ours, theirs),
            )
        )
    appended = run_work("append_ours", folder)
    assert appended["result"] == files + 1 + 100
    figures.append(
        Figure(
            name=f"100 appends to {files:,} files: the last ten against the first ten",
            measured=appended["last_seconds"] / appended["first_seconds"],
            target=1.3,
            unit="×",
            detail=f"{appended['last_seconds'] * 1000:.0f} ms to {appended['first_seconds'] * 1000:.0f} ms CPU a commit",
        )
    )
    return figures


def _view(figures: list[Figure]) -> Table:
    view = Table(title="PyArctic benchmarks", box=None, header_style="bold", title_justify="left")
    for heading, justify in (
        ("what", "left"),
        ("measured", "right"),
        ("target", "right"),
        ("", "left"),
        ("detail", "left"),
    ):
        view.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for figure in figures:
        verdict = "[green]met[/]" if figure.met else "[red]missed[/]"
        measured, target = (f"{value:,.3f} {figure.unit}" for value in (figure.measured, figure.target))
        view.add_row(figure.name, measured, f"≤ {target}", verdict, figure.detail)
    return view


if __name__ == "__main__":
    sys.exit(main())
