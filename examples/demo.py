"""`make demo`: a stream leaves an Iceberg table full of small files and deletes; PyArctic looks at it, explains what it
needs and heals it, while somebody deletes in the very same files; then once more, on Spark. In the end, a keyed table takes
updates and deletes, from Python and from a stream of Spark.

Everything lives in .demo/, which is made anew by every run.
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

    say("What it left behind", "the file list of a table is a frame, here grouped by partition")
    arctic("table", "partitions", TABLE)
    arctic("table", "files", TABLE, "--content", "equality-deletes", "--limit", "3")
    arctic("table", "snapshots", TABLE, "--limit", "3")

    say("Reading it", "PyIceberg refuses tables with equality deletes; PyArctic applies every kind of delete")
    try:
        catalog.load_table("shop.orders").scan().to_arrow()
    except ValueError as refusal:
        console.print(f"  PyIceberg: [yellow]{refusal}[/]")
    seen = figures(table)
    if not same_rows(table, expected):
        return 1
    told = f"{len(expected):,} rows from {seen.files:,} files in {seen.seconds:.1f} s"
    console.print(f"  PyArctic:  [green]{told}, exactly what the stream meant[/]")
    arctic("table", "scan", TABLE, "--where", "region = 'emea' and amount > 950", "--columns", "id,amount", "--limit", "5")

    say("What is wrong with it", "the very rules and tasks that a run would execute")
    arctic("table", "explain", TABLE)

    say("Healing it while a writer deletes in it", "the delete is moved over to the new files, not lost")
    before = figures(table)
    late = LateWriter(table)
    report = pyarctic.optimize(TABLE, verify=True, watcher=late)
    del expected[late.gone]
    console.print(str(report), soft_wrap=True)
    after = figures(table.refresh())
    if not same_rows(table, expected):
        return 1
    console.print(
        f"  [green]{before.files:,} files became {after.files:,}; {report.rebased_rows} late delete moved over; "
        f"{len(expected):,} rows, every one accounted for[/]"
    )
    console.print(f"  [green]reading all rows: {before.seconds:.2f} s before, {after.seconds:.2f} s after[/]")
    arctic("table", "snapshots", TABLE, "--limit", "3")
    arctic("table", "optimize", TABLE)

    say("The stream goes on, and Spark heals", "tasks run inside Spark's executors; here a local Spark")
    expected |= stream(table, seed=8)
    held = content(table.scan().to_arrow())
    arctic("table", "optimize", TABLE, "--engine", "spark")
    if not same_rows(table.refresh(), expected):
        return 1
    healed = content(table.scan().to_arrow())
    verdict = "equal" if held == healed else "NOT EQUAL"
    console.print(f"  [green]content hash before {held}, after {healed}: {verdict}[/]")
    if held != healed:
        return 1

    say("Undoing it", "rows are the same, so nothing is lost either way")
    arctic("table", "rollback", TABLE, "--dry-run")
    arctic("table", "rewrite-manifests", TABLE)

    say("Looking back", "every snapshot can still be read")
    early = str(table.snapshots()["snapshot_id"][9])
    arctic("table", "scan", TABLE, "--snapshot", early, "--count")

    if not keyed() or not streamed() or not merged():
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


def keyed() -> bool:
    """A table with a primary key: one row per key, whatever was updated and deleted."""
    say("A keyed table of orders", "changes go to a store of their own, divided by a tree over the key")
    columns = ["--column", "id long", "--column", "region string", "--column", "amount long"]
    arctic("table", "create", KEYED, *columns, "--key", "id", "--format", "name")
    table = pyarctic.table(KEYED)
    table.write(orders((1, "apac", 10), (2, "emea", 20), (3, "emea", 30), (4, "latam", 40)), mode="overwrite")
    table.write(orders((2, "emea", 25), (5, "apac", 50)), mode="upsert")
    table.write(pa.table({"id": [3]}), mode="delete")

    say("What lies in its stores", "kind, tree node and transaction are told by the name of a file")
    arctic("table", "files", KEYED)
    arctic("table", "files", KEYED, "--store", "change")
    arctic("table", "changes", KEYED)

    say("And what is read", "base rows and changes together: the last word about a key counts")
    arctic("table", "scan", KEYED, "--store", "base")
    arctic("table", "scan", KEYED)
    return same_rows(pyarctic.table(KEYED), {1: 10, 2: 25, 4: 40, 5: 50})


def streamed() -> bool:
    """The same table, fed by a stream of Spark that ends and is started again."""
    say("Orders change all the time", "Spark streams the changes into the table: every batch one commit, exactly once")
    known = {row["id"]: (row["region"], row["amount"]) for row in pyarctic.table(KEYED).scan().to_arrow().to_pylist()}
    shop, incoming, checkpoint = streaming.Shop(FOLDER / "incoming", known), FOLDER / "incoming", FOLDER / "checkpoint"
    for files in (3, 2):
        for _ in range(files):
            shop.works(changes=400)
        for batch, rows in streaming.ingest(KEYED, incoming, checkpoint):
            console.print(f"  batch {batch}: {rows} changes")
        console.print("  the stream ends; started again, it goes on where it was" if files == 3 else "", soft_wrap=True)
    arctic("table", "snapshots", KEYED, "--store", "change", "--limit", "3")

    say("What SQL sees", "files that nothing was done to come through Spark's own reader, the others are merged")
    expected = sorted(
        (region, len(amounts), sum(amounts))
        for region in streaming.REGIONS
        if (amounts := [amount for name, amount in shop.orders.values() if name == region])
    )
    found = streaming.by_region(KEYED)
    for region, count, total in found:
        console.print(f"  {region}: {count} orders, {total:,} in all")
    if found != expected:
        console.print(f"  [red]{expected} expected[/]")
        return False
    console.print(f"  [green]{len(shop.orders)} orders, exactly those that the shop knows[/]")
    return same_rows(pyarctic.table(KEYED), {key: amount for key, (_, amount) in shop.orders.items()})


def merged() -> bool:
    """The loop that a keyed table lives in: changes pile up, are merged into Base, and Base is kept in shape."""
    say("A keyed table under a stream of updates", "changes pile up, and every merged read has to look at all of them")
    readings = merging.Readings(READINGS)
    readings.load()
    seen = [readings.read()]
    console.print(f"  loaded: {seen[0]}")
    for _ in track(readings.changes(), "  writing", merging.COMMITS, console=console, transient=True):
        pass
    seen.append(readings.read())
    console.print(f"  [yellow]after {merging.COMMITS} commits: {seen[-1]}[/]")

    say("What would be done about it", "both stores in one tree; what shares no key is merged side by side")
    arctic("table", "explain", READINGS, "--kind", "minor", "--limit", "8")

    say("Minor, major, full", "changes into Base and deletes into positions; then larger files; then everything anew")
    for kind in ("minor", "major", "full"):
        report = pyarctic.optimize(READINGS, kind=kind)
        seen.append(readings.read())
        console.print(f"  {kind} ({report.cpu_seconds:.1f} s CPU): {seen[-1]}", soft_wrap=True)
    if not all(readings.is_right(each) for each in seen[1:]):
        console.print("  [red]other rows than were written[/]")
        return False
    console.print(
        f"  [green]the same {seen[-1].rows:,} rows every time; reading them took {seen[1].seconds:.2f} s before, "
        f"{seen[-1].seconds:.2f} s after[/]",
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
    """How many files the table has, and how long it takes to read them."""
    start = time.perf_counter()
    table.scan().count()
    table.scan().to_arrow()
    return Figures(files=table.files().height, seconds=time.perf_counter() - start)


def content(rows: pa.Table) -> str:
    """A hash that does not depend on the order of rows."""
    return ContentHash().add(rows).text()


def same_rows(table: Table, expected: dict[int, int]) -> bool:
    rows = table.scan().to_arrow()
    found = {row["id"]: row["amount"] for row in rows.to_pylist()}
    if found != expected or rows.num_rows != len(expected):
        console.print(f"  [red]{rows.num_rows} rows read, {len(expected)} expected[/]")
        return False
    return True


class LateWriter:
    """Looks on while the table is healed, and deletes a row when the first task has ended."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.gone = -1

    def planned(self, plan: Plan) -> None: ...
    def progress(self, progress: Progress) -> None: ...
    def said(self, text: str) -> None: ...

    def ended(self, task: int, failure: TaskFailure | None) -> None:  # noqa: ARG002  # a Watcher's
        if self.gone < 0:
            self.gone = delete_one(self._table, "emea")


def stream(table: Table, seed: int = 7) -> dict[int, int]:
    """Upserts in small batches; gives the rows that must be there in the end."""
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
                added += written(table, region, data)
        table.commit(Change(start=table.view.snapshot_id, add=tuple(added)))
        expected |= batch
    return expected


def written(table: Table, region: str | None, rows: pa.Table) -> list[NewFile]:
    """Data files of one partition, not committed yet."""
    with DataFileWriter(target(table, region)) as writer:
        for batch in rows.to_batches():
            writer.write(batch)
    return writer.files


def target(table: Table, region: str | None) -> FileTarget:
    view = table.view
    return FileTarget(metadata=view.metadata, io=view.io, spec_id=0, partition=(region,), names=FileNames())


def delete_one(table: Table, region: str) -> int:
    """What a careless writer does in the middle of it: delete a row by its position. Gives its id."""
    row = table.scan(["id", "_file", "_pos"], where=f"region = '{region}'").to_arrow().slice(0, 1).to_pylist()[0]
    deletes = write_position_deletes(target(table, region), {row["_file"]: np.array([row["_pos"]])})
    table.commit(Change(start=table.view.snapshot_id, add=(deletes,)))
    return int(row["id"])


def say(title: str, more: str = "") -> None:
    console.print(f"\n[bold cyan]{title}[/]" + (f"  [dim]{more}[/]" if more else ""))


def arctic(*arguments: str) -> None:
    """Run the command line as a user would."""
    shown = " ".join(f'"{word}"' if " " in word else word for word in arguments)
    console.print(f"[bold]$ arctic {shown}[/]", soft_wrap=True)
    subprocess.run([ARCTIC, "--config", FOLDER / "arctic.yaml", *arguments], check=True)


if __name__ == "__main__":
    sys.exit(main())
