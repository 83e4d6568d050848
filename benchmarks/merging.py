"""Keyed tables: what it costs to merge changes into Base, beside Spark, Iceberg Java and the Java system of this design.

Sessions of Spark are warm, and so are the optimizers of the Java system; so ours is counted without the start of its worker
processes. What it took with it stands beside.
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
from benchmarks.healtables import CATALOG, Rot, make_table
from benchmarks.healwork import HEALER, run_ours
from benchmarks.keyedtables import many_deletes
from benchmarks.measuring import run_work
from benchmarks.pipeline import ROWS_A_FILE, Site, checksum, make_merged, merge_into, opened, rows_after, table_name
from pyarctic.optimizing.commit import roll_back

_JAVA_PACK_SECONDS = 46.0
"""What Iceberg Java took for packing 256 files on the day when the Java system of the same design took"""
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


def _changed(site: Site, name: str, count: int, mode: str, commits: int = _COMMITS) -> pa.Table:
    """Write changes of so many keys to a table; gives their rows."""
    rows = site.changes(count, 1)
    table = pyarctic.table(name)
    for part in np.array_split(np.arange(count), commits):
        table.write(rows.slice(part[0], len(part)), mode=mode)
    return rows


class Spent(NamedTuple):
    """CPU seconds of a run: of the work, and with the start of worker processes."""

    work: float
    whole: float

    def __str__(self) -> str:
        return f"{self.work:.2f} s ({self.whole:.2f} s with the start of workers)"


def _optimized(site: Site, name: str, kind: str) -> Spent:
    with console.status(f"{kind} of {name}"):
        cost, report = run_ours(site.folder, name.removeprefix(f"{CATALOG}."), kind, "local", None, HEALER)
    assert report["tasks_committed"] == report["tasks_planned"], report
    return Spent(work=report["cpu_seconds"], whole=cost.cpu_seconds)


def positions(scale: float) -> list[Figure]:
    """Deleted keys become positions; Spark finds them by a join of the same files, and writes them."""
    with opened(_sizes(scale, 256)) as site:
        count = site.rows // 9
        with console.status(f"making a keyed table of {site.rows:,} rows, {count:,} of them deleted"):
            name = site.keyed("k")
            pyarctic.table(name).set({"self-optimizing.fragment-size": "1"})  # at any scale data files stay
            keys = site.folder / "keys.parquet"
            pq.write_table(_changed(site, name, count, "delete", 20).select(["id"]), keys)
        base = pyarctic.table(name).files(content="data")["file_path"].to_list()
        out = site.folder / "positions"

        def joined() -> int:
            rows = site.spark.read.parquet(*base).selectExpr("id", "_metadata.file_path", "_metadata.row_index pos")
            dead = rows.join(site.spark.read.parquet(keys.as_uri()), "id", "left_semi")
            dead.select("file_path", "pos").write.mode("overwrite").parquet(out.as_uri())
            return int(sum(pq.read_metadata(path).num_rows for path in out.glob("*.parquet")))

        with console.status("Spark joins"):
            spark, found = min(site.spent(joined) for _ in range(3))
        runs = []
        for _ in range(3):
            runs.append(_optimized(site, name, "minor"))
            dead = pyarctic.table(name).files(content="position-deletes")
            assert found == int(dead["record_count"].sum()) == count, "other positions than expected"
            roll_back(pyarctic.table(name))
    return [_against(f"{count:,} deleted of {site.rows:,} keys to positions", "a Spark join", min(runs), spark, 15)]


def full(scale: float) -> list[Figure]:
    """Changes merged and everything rewritten; in Iceberg that is MERGE INTO and a rewrite."""
    with opened(_sizes(scale, 71)) as site:
        count = site.rows * 2 // 5
        with console.status("making tables"):
            name = site.keyed("k")
            changed = site.folder / "changes.parquet"
            pq.write_table(_changed(site, name, count, "upsert"), changed)
        costs = {}
        for mode in ("merge-on-read", "copy-on-write"):
            make_merged(site, mode)
            with console.status(f"MERGE INTO, {mode}"):
                merge = partial(merge_into, site, mode, site.spark.read.parquet(changed.as_uri()))
                costs[mode] = site.spent(merge)[0] + _rewritten(site, f"b.{table_name(mode)}")
        ours = _optimized(site, name, "full")
        expected = rows_after(site, [changed])
        for found in (name, *(f"{CATALOG}.b.{table_name(mode)}" for mode in costs)):
            assert checksum(site.spark.table(found)) == expected, f"other rows in {found}"
        assert not pyarctic.table(name).summary()["change_store"]["unmerged_files"]
    return [
        _against(f"full merge of {count:,} changes into {site.rows:,} rows", f"MERGE INTO ({mode}) + rewrite", ours, cost, 3)
        for mode, cost in costs.items()
    ]


def _rewritten(site: Site, table: str) -> float:
    options = "map('rewrite-all', 'true', 'target-file-size-bytes', '134217728')"
    call = f"call {CATALOG}.system.rewrite_data_files(table => '{table}', options => {options})"
    return site.spent(lambda: site.spark.sql(call).collect())[0]


def java(scale: float) -> list[Figure]:
    """The Java system's figures are of another day: packing files with Iceberg Java tells how days compare."""
    with opened(_sizes(scale, 256)) as site:
        rot = Rot(data=site.data)
        with console.status("Iceberg Java packs files"):
            packs = []
            for number in range(2):
                make_table(pyarctic.catalog(CATALOG), f"b.pack{number}", rot)
                packs.append(site.java.rewrite(f"b.pack{number}", rot).cpu_seconds)
        day = min(packs) / _JAVA_PACK_SECONDS
    with opened(_sizes(scale, 71)) as site:
        count = site.rows * 2 // 5
        runs = []
        for number in range(3):
            with console.status("making a keyed table"):
                name = site.keyed(f"k{number}")
                changed = site.folder / "changes.parquet"
                pq.write_table(_changed(site, name, count, "upsert"), changed)
            runs.append((_optimized(site, name, "minor"), _optimized(site, name, "full")))
            assert checksum(site.spark.table(name)) == rows_after(site, [changed])
    figures = []
    for kind, number, then, times in (("minor", 0, _JAVA_MINOR_SECONDS, 4), ("full", 1, _JAVA_FULL_SECONDS, 3)):
        ours = min(run[number] for run in runs)
        what = f"{kind} of {count:,} upserts over {site.rows:,} rows"
        note = f"{then} s of a day on which packing took {_JAVA_PACK_SECONDS} s, today {min(packs):.1f} s"
        figures.append(_against(what, "the Java system", ours, then * day, times, note))
    return figures


def growth(scale: float) -> list[Figure]:
    """The same changes into a table, and into one of ten times its rows."""
    with opened(_sizes(scale, 256)) as site:
        small = max(site.files // 10, 1)
        count = small * ROWS_A_FILE // 10
        figures = []
        for what, first, promised in (("beside the keys there are", site.rows, 1.5), ("among them", 0, 4)):
            costs = []
            for files in (small, site.files):
                with console.status("making keyed tables"):
                    name = site.keyed(f"k{files}x{promised:g}".replace(".", "_"), files)
                    rows = site.changes(count, 1)
                    most = small * ROWS_A_FILE
                    ids = first + np.random.default_rng(1).choice(most, count, replace=False)
                    table = pyarctic.table(name)
                    for part in np.array_split(np.arange(count), 10):
                        some = rows.slice(part[0], len(part)).set_column(0, "id", pa.array(ids[part]))
                        table.write(some, mode="upsert")
                costs.append(_optimized(site, name, "minor"))
            figures.append(
                Figure(
                    name=f"minor of {count:,} upserts {what}: {site.rows:,} rows against {small * ROWS_A_FILE:,}, CPU",
                    measured=costs[1].work / costs[0].work,
                    promised=promised,
                    unit="×",
                    detail=f"{costs[1]} to {costs[0]} CPU",
                )
            )
    return figures


def memory(scale: float) -> list[Figure]:
    count = int(5_000_000 * scale)
    with console.status(f"making a table with {count:,} deleted keys"):
        folder = many_deletes(count)
    outcome = run_work("minor_within_budget", folder)
    assert outcome["result"] == count, "other positions than expected"
    assert not outcome["spill_left"]
    return [
        Figure(
            name=f"memory of a minor with {count:,} deleted keys of 60 bytes within {_BUDGET_MB} MB",
            measured=outcome["peak_mb"] - outcome["before_mb"],
            promised=_BUDGET_MB * 1.2,
            unit="MB",
            detail=f"{outcome['cpu_seconds']:.1f} s CPU; {outcome['before_mb']:,.0f} MB before it began",
        )
    ]


def _against(what: str, other: str, ours: Spent, theirs: float, times: float, note: str = "") -> Figure:
    return Figure(
        name=f"{what}, CPU against {other}",
        measured=ours.work / theirs,
        promised=1 / times,
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
