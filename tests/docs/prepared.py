"""What a page takes for granted: tables, files and names that are there before its first block."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from tests.docs.running import Runner

CITIES = ("Oslo", "Rome", "Lima")
COMMITS = 14


def configure(runner: Runner) -> None:
    """A folder as `arctic init` leaves it: the catalog `demo`, without a table."""
    warehouse = runner.folder / "warehouse"
    warehouse.mkdir()
    catalog = {"type": "sql", "uri": f"sqlite:///{runner.folder}/catalog.db", "warehouse": warehouse.as_uri()}
    entries = "".join(f"    {key}: {value}\n" for key, value in catalog.items())
    (runner.folder / "arctic.yaml").write_text(f"catalogs:\n  demo:\n{entries}")


def orders(runner: Runner) -> None:
    """`demo.shop.orders`, an Iceberg table by city with many small files and a tag, and files with rows for it."""
    configure(runner)
    import pyarctic as arctic

    schema = order_rows([]).schema
    table = arctic.create_table("demo.shop.orders", schema, partition_by=["city"], format="iceberg")
    for commit in range(COMMITS):
        table.write(order_rows([(commit * 10 + number, city) for number, city in enumerate(CITIES)]))
    arctic.catalog("demo").load_table("shop.orders").manage_snapshots().create_tag(
        table.view.snapshot_id or 0, "audit-2026"
    ).commit()
    write_input_files(runner.folder)
    runner.variables |= {"arctic": arctic, "orders": arctic.table("demo.shop.orders")}


def keyed(runner: Runner) -> None:
    """`demo.shop.orders` with a key, which has received changes."""
    configure(runner)
    import pyarctic as arctic

    table = arctic.create_table("demo.shop.orders", order_rows([]).schema, primary_key=["id"])
    for commit in range(3):
        table.write(order_rows([(commit, "Oslo"), (5, "Rome")]), mode="upsert")
    write_input_files(runner.folder)
    runner.variables |= {"arctic": arctic, "orders": table}


def commands(runner: Runner) -> None:
    """What the examples of the command line are about: a keyed table with amounts, and files."""
    files(runner)
    import pyarrow as pa

    import pyarctic as arctic

    schema = pa.schema({"id": pa.int64(), "city": pa.string(), "amount": pa.decimal128(10, 2)})
    table = arctic.create_table("demo.shop.orders", schema, primary_key=["id"])
    for commit in range(3):
        rows = order_rows([(commit, "Oslo"), (5, "Rome")]).to_pylist()
        table.write(pa.Table.from_pylist(rows, schema), mode="upsert" if commit else "overwrite")


def files(runner: Runner) -> None:
    """No table, but files with rows."""
    configure(runner)
    write_input_files(runner.folder)


def changing(runner: Runner) -> None:
    """A table by city, and rows for one of its partitions."""
    orders(runner)
    runner.variables["batches"] = order_rows([(300, "Oslo"), (301, "Oslo")]).to_batches()


def optimized(runner: Runner) -> None:
    """`demo.shop.orders` by city, after a process."""
    orders(runner)
    runner.variables["arctic"].optimize("demo.shop.orders")


def spark(runner: Runner) -> None:
    """`demo.shop.orders` with a key, a data frame with rows for it, and a stream of changes."""
    configure(runner)
    import pyarctic as arctic
    import pyarctic.spark as arctic_spark

    session = runner.spark
    assert session is not None
    rows = [(number, "emea", number * 10, dt.datetime(2026, 11, 1, tzinfo=dt.UTC), number) for number in range(20)]
    frame = session.createDataFrame(rows, "id long, region string, total long, ts timestamp, op_ts long")
    arctic_spark.create_table("demo.shop.orders", frame.drop("op_ts").schema, primary_key=["id"])
    changes = frame.selectExpr("*", "'INSERT' AS _change_action", "op_ts AS offset").drop("op_ts")
    changes.write.parquet(f"{runner.folder}/events")
    events = session.readStream.schema(changes.schema).parquet(f"{runner.folder}/events")
    runner.variables |= {"arctic": arctic, "df": frame, "events": events}


def s3(runner: Runner) -> None:
    """A bucket, named in the environment with its keys."""
    bucket = runner.bucket()
    os.environ["LAKE_BUCKET"], os.environ["LAKE_ENDPOINT"] = bucket.name, bucket.endpoint
    os.environ["AWS_ACCESS_KEY_ID"] = bucket.properties["s3.access-key-id"]
    os.environ["AWS_SECRET_ACCESS_KEY"] = bucket.properties["s3.secret-access-key"]


def order_rows(orders: list[tuple[int, str]]) -> pa.Table:
    import pyarrow as pa

    schema = pa.schema({"id": pa.int64(), "city": pa.string(), "amount": pa.int64()})
    rows = [{"id": id_, "city": city, "amount": id_ * 10} for id_, city in orders]
    return pa.Table.from_pylist(rows, schema)


def write_input_files(folder: Path) -> None:
    import pyarrow.parquet as pq

    rows = order_rows([(201, "Oslo"), (202, "Rome")])
    for name in ("orders.parquet", "x.parquet"):
        pq.write_table(rows, folder / name)
    (folder / "orders.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows.to_pylist()))
    lines = [",".join(map(str, row.values())) for row in rows.to_pylist()]
    (folder / "orders.csv").write_text("\n".join(["id,city,amount", *lines, ""]))


SETUPS: Mapping[str, Callable[[Runner], Any]] = {
    "nothing": lambda _: None,
    "configured": configure,
    "files": files,
    "orders": orders,
    "changing": changing,
    "commands": commands,
    "keyed": keyed,
    "optimized": optimized,
    "s3": s3,
    "spark": spark,
}
