"""Keyed tables: the cost of key hashes, merged scans, their planning, and change writers."""

from __future__ import annotations

from benchmarks.figures import Figure, console
from benchmarks.keyed_reads import keyed_reads
from benchmarks.keyed_tables import keyed, long_key_rows, long_keys
from benchmarks.measuring import format_both, run_in_turns, run_work

_BUDGET_MB = 256


def keyed_tables(scale: float) -> list[Figure]:
    return [*_hashes(), _planning(scale), *_scans(scale), *_writes(scale), _memory(scale), *keyed_reads(scale)]


def _hashes() -> list[Figure]:
    integers, texts = run_work("hash_integers", "."), run_work("hash_texts", ".")
    return [
        Figure(name=f"hash of a key, {what}", measured=outcome["nanoseconds"], target=target, unit="ns", detail="CPU a row")
        for what, outcome, target in (("long", integers, 10), ("text of 12 letters", texts, 100))
    ]


def _planning(scale: float) -> Figure:
    groups = max(int(40_960 * scale), 4)
    outcome = run_work("plan_merged_scan", groups)
    assert outcome["result"] == groups
    return Figure(
        name=f"planning a merged scan with {groups:,} key groups, CPU before the first row",
        measured=outcome["cpu_seconds"],
        target=1,
        unit="s",
        detail=f"one base file and one change file each; {outcome['peak_mb']:,.0f} MB",
    )


def _scans(scale: float) -> list[Figure]:
    rows = int(10_000_000 * scale)
    with console.status(f"creating keyed tables of {rows:,} rows"):
        clean, changed = keyed(rows, 0), keyed(rows, 0.1)
    figures = []
    for name, folder, target in (("no pending changes", clean, 1.1), ("10 % of the keys changed", changed, 2.0)):
        merged, plain = run_in_turns("merged_scan", "plain_scan", folder)
        assert merged["result"] == plain["base_rows"] == rows
        against_base = merged["cpu_seconds"] / plain["base_seconds"]
        figures.append(
            Figure(
                name=f"merged scan of {rows:,} rows, {name}, CPU against the plain scan of the same files",
                measured=merged["cpu_seconds"] / plain["cpu_seconds"],
                target=target,
                unit="×",
                detail=f"{format_both(merged, plain)}; {against_base:.2f} × of the base files alone",
            )
        )
    return figures


def _writes(scale: float) -> list[Figure]:
    folder = keyed(int(10_000_000 * scale), 0)
    figures = []
    for mode, target in (("insert", 1.5), ("upsert", 3.0)):
        ours, plain = run_in_turns(f"write_{mode}s", "write_plain_parquet", folder)
        assert ours["result"] == plain["result"] * (2 if mode == "upsert" else 1)
        figures.append(
            Figure(
                name=f"writing a batch of {plain['result']:,} rows, mode {mode}, CPU against pyarrow.parquet.write_table",
                measured=ours["cpu_seconds"] / plain["cpu_seconds"],
                target=target,
                unit="×",
                detail=format_both(ours, plain),
            )
        )
    return figures


def _memory(scale: float) -> Figure:
    rows = int(10_000_000 * scale)
    with console.status(f"creating a keyed table of {rows:,} rows with long keys"):
        folder = long_keys(rows)
    outcome = run_work("merged_within_budget", folder)
    assert tuple(outcome["result"]) == long_key_rows(rows), "other rows than expected"
    return Figure(
        name=f"memory of a merged read within {_BUDGET_MB} MB: {rows:,} base rows, {rows // 2:,} changes, keys of 60 bytes",
        measured=outcome["peak_mb"] - outcome["before_mb"],
        target=_BUDGET_MB * 1.2,
        unit="MB",
        detail=f"{outcome['cpu_seconds']:.1f} s CPU; {outcome['before_mb']:,.0f} MB before it began",
    )
