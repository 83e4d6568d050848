"""Keyed tables: the cost of merging changes into the base store, against Spark, Iceberg Java and the Java system
of the same design.

Spark sessions and the Java system are warm; so ours is counted without the start of its worker processes. The
cost with it is in the detail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import pyarctic
from benchmarks.figures import Figure, console
from benchmarks.keyed_tables import many_deletes
from benchmarks.measuring import run_work
from benchmarks.optimize_work import OPTIMIZER, run_ours
from benchmarks.pipeline import ROWS_PER_FILE, Site, checksum, make_merged, merge_into, open_site, rows_after, table_name
from benchmarks.unoptimized_tables import CATALOG, TableSetup, make_table
from pyarctic.optimizing.commit import roll_back
from pyarctic.tables import WriteMode

_JAVA_PACK_SECONDS = 46.0
"""What Iceberg Java took for packing 256 files on the day when the Java system took"""
_JAVA_MINOR_SECONDS, _JAVA_FULL_SECONDS = 42.7, 21.2
"""for a minor of 2.0 million upserts in 256 files over 4.99 million rows, and for the full after it."""
_COMMITS = 32
_BUDGET_MB = 256


def merging(scale: float, cases: Sequence[str] = ()) -> list[Figure]:
    """The figures of some cases, or of all."""
    figures: list[Figure] = []
    for case, measure in CASES.items():
        if not cases or case in cases:
            figures += measure(scale)
    return figures


def _sizes(scale: float, files: int) -> int:
    return max(int(files * scale), 4)


def _write_changes(site: Site, name: str, count: int, mode: WriteMode, commits: int = _COMMITS) -> pa.Table:
    """Write changes of this many keys to a table and return their rows."""
    rows = site.changes(count, 1)
    table = pyarctic.table(name)
    for part in np.array_split(np.arange(count), commits):
        table.write(rows.slice(part[0], len(part)), mode=mode)
    return rows


class Spent(NamedTuple):
    """CPU seconds of a run: of the work alone, and with the start of worker processes."""

    work: float
    total: float

    def __str__(self) -> str:
        return f"{self.work:.2f} s ({self.total:.2f} s with the start of workers)"


def _optimize(site: Site, name: str, kind: str) -> Spent:
    with console.status(f"{kind} of {name}"):
        cost, report = run_ours(site.folder, name.removeprefix(f"{CATALOG}."), kind, "local", None, OPTIMIZER)
    assert report["tasks_committed"] == report["tasks_planned"], report
    return Spent(work=report["cpu_seconds"], total=cost.cpu_seconds)


def positions(scale: float) -> list[Figure]:
    """Convert deleted keys to positions; Spark finds them by a join of the same files, and writes them."""
    with open_site(_sizes(scale, 256)) as site:
        count = site.rows // 9
        with console.status(f"creating a keyed table of {site.rows:,} rows, {count:,} of them deleted"):
            name = site.keyed("k")
            pyarctic.table(name).set({"self-optimizing.fragment-size": "1"})  # data files stay at any scale
            keys = site.folder / "keys.parquet"
            pq.write_table(_write_changes(site, name, count, "delete", 20).select(["id"]), keys)
        base = pyarctic.table(name).files(content="data")["file_path"].to_list()
        out = site.folder / "positions"

        def join() -> int:
            rows = site.spark.read.parquet(*base).selectExpr("id", "_metadata.file_path", "_metadata.row_index pos")
            deleted = rows.join(site.spark.read.parquet(keys.as_uri()), "id", "left_semi")
            deleted.select("file_path", "pos").write.mode("overwrite").parquet(out.as_uri())
            return int(sum(pq.read_metadata(path).num_rows for path in out.glob("*.parquet")))

        with console.status("Spark joins"):
            spark, positions_found = min(site.measure_cpu(join) for _ in range(3))
        runs = []
        for _ in range(3):
            runs.append(_optimize(site, name, "minor"))
            deletes = pyarctic.table(name).files(content="position-deletes")
            assert positions_found == int(deletes["record_count"].sum()) == count, "unexpected positions"
            roll_back(pyarctic.table(name))
    return [_compare_cpu(f"{count:,} deleted of {site.rows:,} keys to positions", "a Spark join", min(runs), spark, 15)]


def full(scale: float) -> list[Figure]:
    """Merge changes and rewrite everything; in Iceberg that is MERGE INTO and a rewrite."""
    with open_site(_sizes(scale, 71)) as site:
        count = site.rows * 2 // 5
        with console.status("creating tables"):
            name = site.keyed("k")
            changed = site.folder / "changes.parquet"
            pq.write_table(_write_changes(site, name, count, "upsert"), changed)
        costs = {}
        for mode in ("merge-on-read", "copy-on-write"):
            make_merged(site, mode)
            with console.status(f"MERGE INTO, {mode}"):
                merge = partial(merge_into, site, mode, site.spark.read.parquet(changed.as_uri()))
                costs[mode] = site.measure_cpu(merge)[0] + _rewrite(site, f"b.{table_name(mode)}")
        ours = _optimize(site, name, "full")
        expected = rows_after(site, [changed])
        for table in (name, *(f"{CATALOG}.b.{table_name(mode)}" for mode in costs)):
            assert checksum(site.spark.table(table)) == expected, f"unexpected rows in {table}"
        assert not pyarctic.table(name).summary()["change_store"]["unmerged_files"]
    return [
        _compare_cpu(
            f"full merge of {count:,} changes into {site.rows:,} rows", f"MERGE INTO ({mode}) + rewrite", ours, cost, 3
        )
        for mode, cost in costs.items()
    ]


def _rewrite(site: Site, table: str) -> float:
    options = "map('rewrite-all', 'true', 'target-file-size-bytes', '134217728')"
    call = f"call {CATALOG}.system.rewrite_data_files(table => '{table}', options => {options})"
    return site.measure_cpu(lambda: site.spark.sql(call).collect())[0]


def java(scale: float) -> list[Figure]:
    """The figures of the Java system are of another day: they are scaled by what packing files with Iceberg Java took."""
    with open_site(_sizes(scale, 256)) as site:
        setup = TableSetup(data=site.data)
        with console.status("Iceberg Java packs files"):
            packs = []
            for number in range(2):
                make_table(pyarctic.catalog(CATALOG), f"b.pack{number}", setup)
                packs.append(site.java.rewrite(f"b.pack{number}", setup).cpu_seconds)
        day_factor = min(packs) / _JAVA_PACK_SECONDS
    with open_site(_sizes(scale, 71)) as site:
        count = site.rows * 2 // 5
        runs = []
        for number in range(3):
            with console.status("creating a keyed table"):
                name = site.keyed(f"k{number}")
                changed = site.folder / "changes.parquet"
                pq.write_table(_write_changes(site, name, count, "upsert"), changed)
            runs.append((_optimize(site, name, "minor"), _optimize(site, name, "full")))
            assert checksum(site.spark.table(name)) == rows_after(site, [changed])
    figures = []
    for kind, number, then, times in (("minor", 0, _JAVA_MINOR_SECONDS, 4), ("full", 1, _JAVA_FULL_SECONDS, 3)):
        ours = min(run[number] for run in runs)
        what = f"{kind} of {count:,} upserts over {site.rows:,} rows"
        note = f"{then} s of a day on which packing took {_JAVA_PACK_SECONDS} s, today {min(packs):.1f} s"
        figures.append(_compare_cpu(what, "the Java system", ours, then * day_factor, times, note))
    return figures


def growth(scale: float) -> list[Figure]:
    """Merge the same changes into a table, and into one with ten times as many rows."""
    with open_site(_sizes(scale, 256)) as site:
        small = max(site.files // 10, 1)
        count = small * ROWS_PER_FILE // 10
        figures = []
        for what, first, target in (("of new keys", site.rows, 1.5), ("of existing keys", 0, 4)):
            costs = []
            for files in (small, site.files):
                with console.status("creating keyed tables"):
                    name = site.keyed(f"k{files}x{target:g}".replace(".", "_"), files)
                    rows = site.changes(count, 1)
                    max_id = small * ROWS_PER_FILE
                    ids = first + np.random.default_rng(1).choice(max_id, count, replace=False)
                    table = pyarctic.table(name)
                    for part in np.array_split(np.arange(count), 10):
                        batch = rows.slice(part[0], len(part)).set_column(0, "id", pa.array(ids[part]))
                        table.write(batch, mode="upsert")
                costs.append(_optimize(site, name, "minor"))
            figures.append(
                Figure(
                    name=f"minor of {count:,} upserts {what}: {site.rows:,} rows against {small * ROWS_PER_FILE:,}, CPU",
                    measured=costs[1].work / costs[0].work,
                    target=target,
                    unit="×",
                    detail=f"{costs[1]} to {costs[0]} CPU",
                )
            )
    return figures


def memory(scale: float) -> list[Figure]:
    count = int(5_000_000 * scale)
    with console.status(f"creating a table with {count:,} deleted keys"):
        folder = many_deletes(count)
    outcome = run_work("minor_within_budget", folder)
    assert outcome["result"] == count, "unexpected positions"
    assert not outcome["spill_left"]
    return [
        Figure(
            name=f"memory of a minor with {count:,} deleted keys of 60 bytes within {_BUDGET_MB} MB",
            measured=outcome["peak_mb"] - outcome["before_mb"],
            target=_BUDGET_MB * 1.2,
            unit="MB",
            detail=f"{outcome['cpu_seconds']:.1f} s CPU; {outcome['before_mb']:,.0f} MB before it began",
        )
    ]


def _compare_cpu(what: str, other: str, ours: Spent, theirs: float, times: float, note: str = "") -> Figure:
    return Figure(
        name=f"{what}, CPU against {other}",
        measured=ours.work / theirs,
        target=1 / times,
        unit="×",
        detail=f"{ours} to {theirs:.2f} s CPU" + (f"; {note}" if note else ""),
    )


CASES: dict[str, Callable[[float], list[Figure]]] = {
    "positions": positions,
    "full": full,
    "java": java,
    "growth": growth,
    "memory": memory,
}
