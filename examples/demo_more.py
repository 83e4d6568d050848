"""`make demo-more`: the details behind `make demo`.

File lists and snapshots, time travel, optimizing on Spark with compared content, the two stores of a keyed table, a stream
that is restarted, and the cost of merged reads through minor, major and full. Everything is in .demo/, which is recreated
by every run.
"""

from __future__ import annotations

import sys

import pyarrow as pa
from rich.progress import track

import pyarctic
from examples import merging, orders, streaming
from examples.stage import ARCTIC, FOLDER, ROOT, arctic, console, prepare, result, say
from pyarctic.iceberg.commit import ContentHash
from pyarctic.tables import Table

KEYED = "demo.shop.keyed_orders"
READINGS = "demo.shop.readings"


def main() -> int:
    prepare()
    if not (show_table() and show_keyed_table() and show_streaming() and show_merging()):
        console.print("  [red]unexpected rows[/]")
        return 1
    say("Try next")
    prefix = f"{ARCTIC.relative_to(ROOT)} --config {FOLDER.relative_to(ROOT)}/arctic.yaml"
    for command in (f"table files {orders.NAME} --wide", f"table show {KEYED}", f"table explain {READINGS} --json"):
        console.print(f"  {prefix} {command}", soft_wrap=True)
    return 0


def show_table() -> bool:
    """A table under a stream of upserts: its files, its snapshots, and optimizing on Spark."""
    say("A stream of upserts", "every batch: small files, equality deletes")
    table = orders.create()
    expected = write_stream(table, seed=7)

    say("What it left behind", "the file list of a table is a data frame, here grouped by partition")
    arctic("table", "partitions", table.name)
    arctic("table", "files", table.name, "--content", "equality-deletes", "--limit", "3")
    arctic("table", "snapshots", table.name, "--limit", "3")

    say("Reading it", "PyIceberg refuses tables with equality deletes; PyArctic applies every kind of delete")
    try:
        pyarctic.catalog("demo").load_table("shop.orders").scan().to_arrow()
    except ValueError as refusal:
        console.print(f"  PyIceberg: [yellow]{refusal}[/]")
    if orders.read_amounts(table) != expected:
        return False
    result(f"PyArctic:  {len(expected):,} rows, exactly what the stream wrote")
    arctic(
        "table", "scan", table.name, "--where", "region = 'emea' and amount > 950", "--columns", "id,amount", "--limit", "5"
    )

    say("Optimizing it, twice", "the second time there is nothing to do")
    arctic("table", "optimize", table.name)
    arctic("table", "optimize", table.name)

    say("The stream continues, and Spark optimizes", "tasks run on Spark's executors; here a local Spark")
    expected |= write_stream(table.refresh(), seed=8)
    hash_before = content(table)
    arctic("table", "optimize", table.name, "--engine", "spark")
    hash_after = content(table.refresh())
    result(f"content hash before {hash_before}, after {hash_after}")

    say("Time travel", "every snapshot can still be read")
    arctic("table", "scan", table.name, "--snapshot", str(table.snapshots()["snapshot_id"][9]), "--count")
    return hash_before == hash_after and orders.read_amounts(table) == expected


def show_keyed_table() -> bool:
    """A table with a primary key: one row per key after updates and deletes."""
    say("A keyed table of orders", "changes go to a separate store, divided by a tree over the key hash")
    columns = ["--column", "id long", "--column", "region string", "--column", "amount long"]
    arctic("table", "create", KEYED, *columns, "--key", "id", "--format", "name")
    table = pyarctic.table(KEYED)
    table.write(rows((1, "apac", 10), (2, "emea", 20), (3, "emea", 30), (4, "latam", 40)), mode="overwrite")
    table.write(rows((2, "emea", 25), (5, "apac", 50)), mode="upsert")
    table.write(pa.table({"id": [3]}), mode="delete")

    say("The files of its stores", "kind, tree node and transaction are part of the file name")
    arctic("table", "files", KEYED)
    arctic("table", "files", KEYED, "--store", "change")
    arctic("table", "changes", KEYED)

    say("The merged rows", "base rows and changes together: the latest version of each key")
    arctic("table", "scan", KEYED, "--store", "base")
    arctic("table", "scan", KEYED)
    return orders.read_amounts(pyarctic.table(KEYED)) == {1: 10, 2: 25, 4: 40, 5: 50}


def show_streaming() -> bool:
    """The same table, written by a Spark stream that ends and is restarted."""
    say("Streaming changes", "Spark streams the changes into the table: each batch is one commit, exactly once")
    known_orders = {row["id"]: (row["region"], row["amount"]) for row in pyarctic.table(KEYED).scan().to_arrow().to_pylist()}
    shop = streaming.Shop(FOLDER / "incoming", known_orders)
    for files in (3, 2):
        for _ in range(files):
            shop.change_orders(400)
        for batch, changes in streaming.ingest(KEYED, FOLDER / "incoming", FOLDER / "checkpoint"):
            console.print(f"  batch {batch}: {changes} changes")
        if files == 3:
            console.print("  the stream ends; restarted, it continues where it stopped")
    arctic("table", "snapshots", KEYED, "--store", "change", "--limit", "3")

    say("Reading it with SQL", "Spark's own reader reads files without changes, PyArctic merges the others")
    totals = streaming.by_region(KEYED)
    for region, count, total in totals:
        console.print(f"  {region}: {count} orders, {total:,} in total")
    return totals == shop.totals()


def show_merging() -> bool:
    """The life cycle of a keyed table: changes accumulate, are merged into the base store, and its files are optimized."""
    say("A keyed table under a stream of updates", "changes accumulate, and every merged read has to check all of them")
    readings = merging.Readings(READINGS)
    readings.load()
    reads = [readings.read()]
    console.print(f"  loaded: {reads[0]}")
    for _ in track(readings.changes(), "  writing", merging.COMMITS, console=console, transient=True):
        pass
    reads.append(readings.read())
    console.print(f"  [yellow]after {merging.COMMITS} commits: {reads[-1]}[/]")

    say("What `optimize` would do", "both stores in one tree; nodes without common keys are merged in parallel")
    arctic("table", "explain", READINGS, "--kind", "minor", "--limit", "8")

    say("Minor, major, full", "merge changes and convert deletes; then larger files; then a full rewrite")
    for kind in ("minor", "major", "full"):
        report = pyarctic.optimize(READINGS, kind=kind)
        reads.append(readings.read())
        console.print(f"  {kind} ({report.cpu_seconds:.1f} s CPU): {reads[-1]}", soft_wrap=True)
    return all(readings.is_correct(read) for read in reads[1:])


def write_stream(table: Table, seed: int) -> dict[int, int]:
    """Write a stream of upserts; gives the rows that it leaves."""
    expected: dict[int, int] = {}
    batches = orders.stream(table, seed)
    for batch in track(batches, description="  writing", total=orders.COMMITS, console=console, transient=True):
        expected |= batch
    return expected


def rows(*values: tuple[int, str, int]) -> pa.Table:
    return pa.table([pa.array(column) for column in zip(*values, strict=True)], schema=orders.ARROW_SCHEMA)


def content(table: Table) -> str:
    """A content hash that is independent of the order of rows."""
    return ContentHash().add(table.scan().to_arrow()).text()


if __name__ == "__main__":
    sys.exit(main())
