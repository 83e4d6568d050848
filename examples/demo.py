"""`make demo`: a stream leaves an Iceberg table full of small files and deletes; PyArctic looks at it, reads it, and merges
a part of it while somebody deletes in the very same files.

Everything lives in .demo/, which is made anew by every run.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType
from rich.console import Console
from rich.progress import track

import pyarctic
from pyarctic.iceberg.committing import ROW_MAP_SCHEMA, Change, Proof
from pyarctic.iceberg.writing import (
    DataFileWriter,
    FileNames,
    NewFile,
    Target,
    write_equality_deletes,
    write_position_deletes,
)
from pyarctic.tables import Table

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".demo"
ARCTIC = Path(sys.executable).with_name("arctic")
REGIONS = ("apac", "emea", "latam", None)
COMMITS, CHANGES = 100, 60
TABLE = "demo.shop.orders"
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
    start = time.perf_counter()
    rows = table.scan().to_arrow()
    files = table.files().height
    found = {row["id"]: row["amount"] for row in rows.to_pylist()}
    if found != expected or rows.num_rows != len(expected):
        console.print(f"  [red]{rows.num_rows} rows read, {len(expected)} expected[/]")
        return 1
    seconds = time.perf_counter() - start
    figures = f"{rows.num_rows:,} rows from {files:,} files in {seconds:.1f} s"
    console.print(f"  PyArctic:  [green]{figures}, exactly what the stream meant[/]")
    arctic("table", "scan", TABLE, "--where", "region = 'emea' and amount > 950", "--columns", "id,amount", "--limit", "5")

    say("Merging one partition while a writer deletes in it", "the delete is moved over to the new file, not lost")
    change = merge(table, "emea")
    gone = delete_one(table, "emea")
    committed = table.commit(change)
    del expected[gone]
    found = {row["id"]: row["amount"] for row in table.scan().to_arrow().to_pylist()}
    if found != expected:
        console.print("  [red]the rows are not those that were written[/]")
        return 1
    moved = f"{change.remove.height} files became {len(change.add)}; {committed.rebased_rows} late delete moved over"
    console.print(f"  [green]{moved}; every row accounted for[/]")
    arctic("table", "snapshots", TABLE, "--limit", "1", "--json")
    arctic("table", "rewrite-manifests", TABLE)

    say("Looking back", "every snapshot can still be read")
    early = str(table.snapshots()["snapshot_id"][9])
    arctic("table", "scan", TABLE, "--snapshot", early, "--count")

    say("Try next")
    prefix = f"{ARCTIC.relative_to(ROOT)} --config {FOLDER.relative_to(ROOT)}/arctic.yaml"
    for command in (
        "doctor",
        f"table show {TABLE}",
        f"table files {TABLE} --wide",
        f"table scan {TABLE} --json --limit 3",
    ):
        console.print(f"  {prefix} {command}", soft_wrap=True)
    return 0


def stream(table: Table) -> dict[int, int]:
    """Upserts in small batches; gives the rows that must be there in the end."""
    rng = random.Random(7)
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


def written(table: Table, region: str | None, rows: pa.Table, sequence_number: int | None = None) -> list[NewFile]:
    """Data files of one partition, not committed yet."""
    with DataFileWriter(target(table, region)) as writer:
        for batch in rows.to_batches():
            writer.write(batch)
    return [replace(file, data_sequence_number=sequence_number) for file in writer.files]


def target(table: Table, region: str | None) -> Target:
    view = table.view
    return Target(metadata=view.metadata, io=view.io, spec_id=0, partition=(region,), names=FileNames())


def merge(table: Table, region: str) -> Change:
    """All files of a partition in one, without the deleted rows; where every row went is told in the row map."""
    snapshot = table.view.metadata.current_snapshot()
    assert snapshot is not None
    files = table.file_list.frame()
    data = files.filter((pl.col("content") == 0) & (pl.col("partition") == json.dumps([region])))
    alive = table.scan(["id", "region", "amount", "_file", "_pos"], where=f"region = '{region}'").to_arrow()
    new = written(table, region, alive.select(ARROW_SCHEMA.names), snapshot.sequence_number)
    row_map = pl.DataFrame(
        {
            "source": alive["_file"].to_pylist(),
            "position": alive["_pos"].to_pylist(),
            "length": [1] * alive.num_rows,
            "target": [new[0].path] * alive.num_rows,
            "target_position": range(alive.num_rows),
        },
        ROW_MAP_SCHEMA,
    )
    read = int(data["record_count"].sum())
    proof = Proof(rows_in=read, rows_deleted=read - alive.num_rows, rows_out=alive.num_rows)
    return Change(start=snapshot.snapshot_id, add=tuple(new), remove=data, rewrites=True, proof=proof, row_map=row_map)


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
