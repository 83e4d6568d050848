"""`make demo`: a stream of upserts slows a table down; PyArctic shows it, says why, and optimizes it while another writer
deletes rows. Then a keyed table takes a stream of updates from Spark, a service optimizes tables while streams write to
them, and an optimizing process is undone.

Everything is in .demo/, which is recreated by every run. `make demo-more` shows more.
"""

from __future__ import annotations

import sys

import pyarctic
import pyarctic.spark as arctic_spark
from examples import orders, service, streaming
from examples.stage import ARCTIC, FOLDER, ROOT, arctic, console, prepare, result, say

CUSTOMERS = "demo.shop.customers"


def main() -> int:
    prepare()
    say("1. A stream of upserts writes to an Iceberg table", "as Flink or Kafka Connect do")
    table = orders.create()
    expected: dict[int, int] = {}
    with console.status("writing"):
        for batch in orders.stream(table):
            expected |= batch
        before = orders.read_cpu_seconds(table.name)
    files, deletes = table.files(content="data").height, table.files(content="equality-deletes").height
    result(f"{orders.COMMITS} commits, {len(expected):,} rows: {files} data files and {deletes} equality delete files")
    result(f"reading the table takes {before:.2f} s of CPU")

    say("2. Which tables need optimizing?")
    arctic("table", "health", "demo.*")

    say("3. Why, and what would be done?")
    arctic("table", "explain", table.name, "--limit", "2")

    say("4. Optimize it, while another writer deletes a row", "the delete is moved over to the new files")
    writer = orders.ConcurrentWriter(table)
    report = pyarctic.optimize(table.name, verify=True, listener=writer)
    del expected[writer.deleted_id]
    after = orders.read_cpu_seconds(table.name)
    is_right = orders.read_amounts(table.refresh()) == expected
    result(f"{report.before.data_files} data files became {report.after.data_files}, in {report.cpu_seconds:.1f} s of CPU")
    result(f"{report.rebased_rows} row deleted meanwhile stays deleted; {len(expected):,} rows, {_verdict(is_right)}")
    result(f"reading the table took {before:.2f} s of CPU, and takes {after:.2f} s now")

    is_right = show_keyed_table() and is_right
    is_right = show_service() and is_right

    say("7. All tables are healthy")
    arctic("table", "health", "demo.*")

    say("8. Undo the optimizing of the first table", "its rows stay the same")
    arctic("table", "rollback", table.name, "--yes")
    table = pyarctic.table(table.name)
    is_undone = orders.read_amounts(table) == expected
    result(f"{table.files(content='data').height} data files again; {len(expected):,} rows, {_verdict(is_undone)}")

    say("Try next, and `make demo-more`")
    prefix = f"{ARCTIC.relative_to(ROOT)} --config {FOLDER.relative_to(ROOT)}/arctic.yaml"
    for command in ("doctor", "dev", f"table scan {CUSTOMERS} --limit 3", f"table check {table.name}"):
        console.print(f"  {prefix} {command}", soft_wrap=True)
    return 0 if is_right and is_undone else 1


def show_keyed_table() -> bool:
    """A table with a primary key takes a stream of updates, and is merged on Spark."""
    say("5. A table with a primary key takes a stream of updates from Spark", "inserts, updates, deletes")
    table = pyarctic.create_table(CUSTOMERS, orders.ARROW_SCHEMA, primary_key=["id"])
    shop = streaming.Shop(FOLDER / "incoming", {})
    for _ in range(5):
        shop.change_orders(400)
    with console.status("starting Spark"):
        batches = streaming.ingest(CUSTOMERS, FOLDER / "incoming", FOLDER / "checkpoint")
        totals = streaming.by_region(CUSTOMERS)
        change_files = table.refresh().summary()["change_store"]["unmerged_files"]
    result(f"{len(batches)} batches, {sum(rows for _, rows in batches):,} changes, {change_files} change files")
    for region, count, total in totals:
        console.print(f"  {region}: {count} rows, {total:,} in total")
    before = orders.read_cpu_seconds(CUSTOMERS)
    with console.status("optimizing on Spark"):
        report = pyarctic.optimize(CUSTOMERS, kind="full", engine=arctic_spark.session())
        is_right = totals == shop.totals() == streaming.by_region(CUSTOMERS)
        arctic_spark.session().stop()
    result(f"merged on Spark's executors into {report.after.data_files} file; its rows are {_verdict(is_right)}")
    result(f"reading the table took {before:.2f} s of CPU, and takes {orders.read_cpu_seconds(CUSTOMERS):.2f} s now")
    return is_right


def show_service() -> bool:
    """A service does all of it by itself, while Spark streams write to several tables."""
    say("6. A service optimizes tables by itself", "while three Spark streams write to them")
    with service.running() as client:
        is_right = service.optimize_while_streaming(client)
        result(f"their rows are {_verdict(is_right)}")
        arctic("process", "ls", "--limit", "5")
    return is_right


def _verdict(is_right: bool) -> str:
    return "exactly those that were written" if is_right else "[red]NOT those that were written[/]"


if __name__ == "__main__":
    sys.exit(main())
