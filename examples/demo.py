"""`make demo`: a stream leaves an Iceberg table full of small files and deletes; PyArctic looks at it and reads it.

Everything lives in .demo/, which is made anew by every run.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from rich.console import Console
from rich.progress import track

import pyarctic
from tests.spec import SpecTable

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".demo"
ARCTIC = Path(sys.executable).with_name("arctic")
REGIONS = ("apac", "emea", "latam", None)
COMMITS, CHANGES = 100, 60
TABLE = "demo.shop.orders"

console = Console(highlight=False)


def main() -> int:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    properties = {"type": "sql", "uri": f"sqlite:///{FOLDER}/catalog.db", "warehouse": FOLDER.as_uri()}
    lines = [f"  demo: {{type: sql, uri: '{properties['uri']}', warehouse: '{properties['warehouse']}'}}"]
    (FOLDER / "arctic.yaml").write_text("\n".join(["catalogs:", *lines, ""]))

    say("A stream of upserts, as a change-data pipeline would write it", "every batch: small files, equality deletes")
    catalog = SqlCatalog("demo", **properties)
    catalog.create_namespace("shop")
    expected = stream(catalog)

    say("What it left behind", "the file list of a table is a frame, here grouped by partition")
    arctic("table", "partitions", TABLE)
    arctic("table", "files", TABLE, "--content", "equality-deletes", "--limit", "3")
    arctic("table", "snapshots", TABLE, "--limit", "3")

    say("Reading it", "PyIceberg refuses tables with equality deletes; PyArctic applies every kind of delete")
    try:
        catalog.load_table("shop.orders").scan().to_arrow()
    except ValueError as refusal:
        console.print(f"  PyIceberg: [yellow]{refusal}[/]")
    pyarctic.catalog("demo", **properties)
    table = pyarctic.table(TABLE)
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


def stream(catalog: SqlCatalog) -> dict[int, int]:
    """Upserts in small batches; gives the rows that must be there in the end."""
    rng = random.Random(7)
    columns = [("id", "long"), ("region", "string"), ("amount", "long")]
    table = SpecTable(catalog, "shop.orders", FOLDER / "orders", columns, partition=[("region", "identity")])
    table.metadata["last-updated-ms"] = int(time.time() * 1000) - COMMITS * 1000  # a commit a second, until now
    expected: dict[int, int] = {}
    for _ in track(range(COMMITS), description="  writing", console=console, transient=True):
        batch = {rng.randrange(2_000): rng.randrange(1_000) for _ in range(CHANGES)}
        added = []
        for number, region in enumerate(REGIONS):
            rows = [{"id": key, "region": region, "amount": amount} for key, amount in batch.items() if key % 4 == number]
            if rows:
                added += [
                    table.equality_deletes([{"id": row["id"]} for row in rows], (region,)),
                    table.data(rows, (region,)),
                ]
        table.commit(*added, operation="overwrite")
        expected |= batch
    return expected


def say(title: str, more: str = "") -> None:
    console.print(f"\n[bold cyan]{title}[/]" + (f"  [dim]{more}[/]" if more else ""))


def arctic(*arguments: str) -> None:
    """Run the command line as a user would."""
    shown = " ".join(f'"{word}"' if " " in word else word for word in arguments)
    console.print(f"[bold]$ arctic {shown}[/]", soft_wrap=True)
    subprocess.run([ARCTIC, "--config", FOLDER / "arctic.yaml", *arguments], check=True)


if __name__ == "__main__":
    sys.exit(main())
