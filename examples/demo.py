"""`make demo`: a stream leaves an Iceberg table full of small files and deletes; PyArctic shows it, explains what it needs
and optimizes it, while another writer deletes rows in the same files; then again on Spark. Finally, a keyed table receives
updates and deletes, from Python and from a Spark stream.

Everything is in .demo/, which is recreated by every run.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType
from rich.console import Console
from rich.progress import track

import pyarctic
from examples import merging, streaming
from pyarctic.iceberg.commit import Change, ContentHash
from pyarctic.iceberg.write import FileNames, FileTarget, NewFile, write_equality_deletes, write_position_deletes
from pyarctic.iceberg.write.parquet import DataFileWriter
from pyarctic.optimizing.plan import Plan
from pyarctic.optimizing.protocol import Progress, TaskFailure
from pyarctic.tables import Table

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".demo"
ARCTIC = Path(sys.executable).with_name("arctic")
REGIONS = ("apac", "emea", "latam", None)
COMMITS, CHANGES = 100, 60
TABLE = "demo.shop.orders"
KEYED = "demo.shop.keyed_orders"
READINGS = "demo.shop.readings"
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "region", StringType(), required=False),
    NestedField(3, "amount", LongType(), required=False),
)
ARROW_SCHEMA = pa.schema({"id": pa.int64(), "region": pa.string(), "amount": pa.int64()})
BY_REGION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))

console = Console(highlight=False)


def main() -> int:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    properties = {"type": "sql", "uri": f"sqlite:///{FOLDER}/catalog.db", "warehouse": FOLDER.as_uri()}
    lines = [f"  demo: {{type: sql, uri: '{properties['uri']}', warehouse: '{properties['warehouse']}'}}"]
    (FOLDER / "arctic.yaml").write_text("\n".join(["catalogs:", *lines, ""]))

    say("A stream of upserts, as a change-data pipeline would write it", "every batch: small files, equality deletes")
    catalog = pyarctic.catalog("demo", **properties)
    catalog.create_namespace("shop")
    catalog.create_table("shop.orders", SCHEMA, partition_spec=BY_REGION)
    table = pyarctic.table(TABLE)
    expected = stream(table)

    say("What it left behind", "the file list of a table is a data frame, here grouped by partition")
    arctic("table", "partitions", TABLE)
    arctic("table", "files", TABLE, "--content", "equality-deletes", "--limit", "3")
    arctic("table", "snapshots", TABLE, "--limit", "3")

    say("Reading it", "PyIceberg refuses tables with equality deletes; PyArctic applies every kind of delete")
    try:
        catalog.load_table("shop.orders").scan().to_arrow()
    except ValueError as refusal:
        console.print(f"  PyIceberg: [yellow]{refusal}[/]")
    read = figures(table)
    if not same_rows(table, expected):
        return 1
    summary = f"{len(expected):,} rows from {read.files:,} files in {read.seconds:.1f} s"
    console.print(f"  PyArctic:  [green]{summary}, exactly what the stream wrote[/]")
    arctic("table", "scan", TABLE, "--where", "region = 'emea' and amount > 950", "--columns", "id,amount", "--limit", "5")

    say("What it needs", "the rules and tasks that `optimize` would execute")
    arctic("table", "explain", TABLE)

    say("Optimizing it while another writer deletes rows", "the delete is moved to the new files, not lost")
    before = figures(table)
    writer = ConcurrentWriter(table)
    report = pyarctic.optimize(TABLE, verify=True, listener=writer)
    del expected[writer.deleted_id]
    console.print(str(report), soft_wrap=True)
    after = figures(table.refresh())
    if not same_rows(table, expected):
        return 1
    console.print(
        f"  [green]{before.files:,} files became {after.files:,}; {report.rebased_rows} concurrent delete moved; "
        f"{len(expected):,} rows, none lost[/]"
    )
    console.print(f"  [green]reading all rows: {before.seconds:.2f} s before, {after.seconds:.2f} s after[/]")
    arctic("table", "snapshots", TABLE, "--limit", "3")
    arctic("table", "optimize", TABLE)

    say("The stream continues, and Spark optimizes", "tasks run on Spark's executors; here a local Spark")
    expected |= stream(table, seed=8)
    hash_before = content(table.scan().to_arrow())
    arctic("table", "optimize", TABLE, "--engine", "spark")
    if not same_rows(table.refresh(), expected):
        return 1
    hash_after = content(table.scan().to_arrow())
    verdict = "equal" if hash_before == hash_after else "NOT EQUAL"
    console.print(f"  [green]content hash before {hash_before}, after {hash_after}: {verdict}[/]")
    if hash_before != hash_after:
        return 1

    say("Undoing it", "the rows are the same, so nothing is lost")
    arctic("table", "rollback", TABLE, "--dry-run")
    arctic("table", "rewrite-manifests", TABLE)

    say("Time travel", "every snapshot can still be read")
    early_snapshot = str(table.snapshots()["snapshot_id"][9])
    arctic("table", "scan", TABLE, "--snapshot", early_snapshot, "--count")

    if not show_keyed_table() or not show_streaming() or not show_merging():
        return 1

    say("Try next")
    prefix = f"{ARCTIC.relative_to(ROOT)} --config {FOLDER.relative_to(ROOT)}/arctic.yaml"
    for command in (
        "doctor",
        f"table show {TABLE}",
        f"table explain {TABLE} --json",
        f"table files {TABLE} --wide",
        f"table scan {TABLE} --json --limit 3",
        f"table show {KEYED}",
        f"table explain {READINGS}",
    ):
        console.print(f"  {prefix} {command}", soft_wrap=True)
    return 0


def show_keyed_table() -> bool:
    """A table with a primary key: one row per key after updates and deletes."""
    say("A keyed table of orders", "changes go to a separate store, divided by a tree over the key hash")
    columns = ["--column", "id long", "--column", "region string", "--column", "amount long"]
    arctic("table", "create", KEYED, *columns, "--key", "id", "--format", "name")
    table = pyarctic.table(KEYED)
    table.write(orders((1, "apac", 10), (2, "emea", 20), (3, "emea", 30), (4, "latam", 40)), mode="overwrite")
    table.write(orders((2, "emea", 25), (5, "apac", 50)), mode="upsert")
    table.write(pa.table({"id": [3]}), mode="delete")

    say("The files of its stores", "kind, tree node and transaction are part of the file name")
    arctic("table", "files", KEYED)
    arctic("table", "files", KEYED, "--store", "change")
    arctic("table", "changes", KEYED)

    say("The merged rows", "base rows and changes together: the latest version of each key")
    arctic("table", "scan", KEYED, "--store", "base")
    arctic("table", "scan", KEYED)
    return same_rows(pyarctic.table(KEYED), {1: 10, 2: 25, 4: 40, 5: 50})


def show_streaming() -> bool:
    """The same table, written by a Spark stream that ends and is restarted."""
    say("Streaming changes", "Spark streams the changes into the table: each batch is one commit, exactly once")
    known_orders = {row["id"]: (row["region"], row["amount"]) for row in pyarctic.table(KEYED).scan().to_arrow().to_pylist()}
    shop, incoming, checkpoint = (
        streaming.Shop(FOLDER / "incoming", known_orders),
        FOLDER / "incoming",
        FOLDER / "checkpoint",
    )
    for files in (3, 2):
        for _ in range(files):
            shop.change_orders(400)
        for batch, rows in streaming.ingest(KEYED, incoming, checkpoint):
            console.print(f"  batch {batch}: {rows} changes")
        console.print("  the stream ends; restarted, it continues where it stopped" if files == 3 else "", soft_wrap=True)
    arctic("table", "snapshots", KEYED, "--store", "change", "--limit", "3")

    say("Reading it with SQL", "Spark's own reader reads files without changes, PyArctic merges the others")
    expected = sorted(
        (region, len(amounts), sum(amounts))
        for region in streaming.REGIONS
        if (amounts := [amount for name, amount in shop.orders.values() if name == region])
    )
    totals = streaming.by_region(KEYED)
    for region, count, total in totals:
        console.print(f"  {region}: {count} orders, {total:,} in total")
    if totals != expected:
        console.print(f"  [red]{expected} expected[/]")
        return False
    console.print(f"  [green]{len(shop.orders)} orders, exactly those of the shop[/]")
    return same_rows(pyarctic.table(KEYED), {key: amount for key, (_, amount) in shop.orders.items()})


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
    if not all(readings.is_correct(read) for read in reads[1:]):
        console.print("  [red]unexpected rows[/]")
        return False
    console.print(
        f"  [green]the same {reads[-1].rows:,} rows every time; reading them took {reads[1].seconds:.2f} s before, "
        f"{reads[-1].seconds:.2f} s after[/]",
        soft_wrap=True,
    )
    return True


def orders(*rows: tuple[int, str, int]) -> pa.Table:
    return pa.table([pa.array(column) for column in zip(*rows, strict=True)], schema=ARROW_SCHEMA)


@dataclass(frozen=True)
class Figures:
    files: int
    seconds: float


def figures(table: Table) -> Figures:
    """The number of files of the table, and the time to read them."""
    start = time.perf_counter()
    table.scan().count()
    table.scan().to_arrow()
    return Figures(files=table.files().height, seconds=time.perf_counter() - start)


def content(rows: pa.Table) -> str:
    """A content hash that is independent of the order of rows."""
    return ContentHash().add(rows).text()


def same_rows(table: Table, expected: dict[int, int]) -> bool:
    rows = table.scan().to_arrow()
    amounts = {row["id"]: row["amount"] for row in rows.to_pylist()}
    if amounts != expected or rows.num_rows != len(expected):
        console.print(f"  [red]{rows.num_rows} rows read, {len(expected)} expected[/]")
        return False
    return True


class ConcurrentWriter:
    """Watches while the table is optimized, and deletes a row when the first task has ended."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.deleted_id = -1

    def planned(self, plan: Plan) -> None: ...
    def progress(self, progress: Progress) -> None: ...
    def said(self, text: str) -> None: ...

    def ended(self, task: int, failure: TaskFailure | None) -> None:  # noqa: ARG002  # of the listener protocol
        if self.deleted_id < 0:
            self.deleted_id = delete_one(self._table, "emea")


def stream(table: Table, seed: int = 7) -> dict[int, int]:
    """Write upserts in small batches and return the expected rows."""
    rng = random.Random(seed)
    expected: dict[int, int] = {}
    for _ in track(range(COMMITS), description="  writing", console=console, transient=True):
        batch = {rng.randrange(2_000): rng.randrange(1_000) for _ in range(CHANGES)}
        added: list[NewFile] = []
        for number, region in enumerate(REGIONS):
            rows = [{"id": key, "region": region, "amount": amount} for key, amount in batch.items() if key % 4 == number]
            if rows:
                data = pa.Table.from_pylist(rows, schema=ARROW_SCHEMA)
                key = table.schema.find_field("id")
                added.append(write_equality_deletes(target(table, region), data.select(["id"]), [key]))
                added += write_data_files(table, region, data)
        table.commit(Change(start=table.view.snapshot_id, add=tuple(added)))
        expected |= batch
    return expected


def write_data_files(table: Table, region: str | None, rows: pa.Table) -> list[NewFile]:
    """Write data files of one partition, without committing them."""
    with DataFileWriter(target(table, region)) as writer:
        for batch in rows.to_batches():
            writer.write(batch)
    return writer.files


def target(table: Table, region: str | None) -> FileTarget:
    view = table.view
    return FileTarget(metadata=view.metadata, io=view.io, spec_id=0, partition=(region,), names=FileNames())


def delete_one(table: Table, region: str) -> int:
    """Delete a row by its position, like a concurrent writer would, and return its id."""
    row = table.scan(["id", "_file", "_pos"], where=f"region = '{region}'").to_arrow().slice(0, 1).to_pylist()[0]
    deletes = write_position_deletes(target(table, region), {row["_file"]: np.array([row["_pos"]])})
    table.commit(Change(start=table.view.snapshot_id, add=(deletes,)))
    return int(row["id"])


def say(title: str, more: str = "") -> None:
    console.print(f"\n[bold cyan]{title}[/]" + (f"  [dim]{more}[/]" if more else ""))


def arctic(*arguments: str) -> None:
    """Run the command line as a user would."""
    command_line = " ".join(f'"{word}"' if " " in word else word for word in arguments)
    console.print(f"[bold]$ arctic {command_line}[/]", soft_wrap=True)
    subprocess.run([ARCTIC, "--config", FOLDER / "arctic.yaml", *arguments], check=True)


if __name__ == "__main__":
    sys.exit(main())
