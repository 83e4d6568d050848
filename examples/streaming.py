"""Changes of orders, written to a keyed table by a Spark stream and read back with SQL."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path

import pyarctic.spark as arctic_spark

REGIONS = ("apac", "emea", "latam")
COLUMNS = "id long, region string, amount long, _change_action string, seq long"


class Shop:
    """Changes its orders, writes the changes to files, and knows the current orders."""

    def __init__(self, incoming: Path, orders: dict[int, tuple[str, int]], seed: int = 7) -> None:
        self.orders = orders
        self._incoming = incoming
        self._random = random.Random(seed)
        self._count = 0
        self._files = 0
        self._began = time.time() - 3600

    def change_orders(self, changes: int) -> None:
        """Insert, update and delete orders, and write the changes to one file."""
        lines = []
        for _ in range(changes):
            self._count += 1
            key, amount = self._random.randrange(1, 200), self._random.randrange(1, 1000)
            region, action = REGIONS[key % 3], "INSERT"
            if key in self.orders:
                region, amount_before = self.orders[key]
                action = "DELETE" if self._random.random() < 0.3 else "UPDATE_AFTER"
                amount = amount_before if action == "DELETE" else amount
            if action == "DELETE":
                del self.orders[key]
            else:
                self.orders[key] = (region, amount)
            row = {"id": key, "region": region, "amount": amount, "_change_action": action, "seq": self._count}
            lines.append(json.dumps(row))
        self._files += 1
        self._incoming.mkdir(exist_ok=True)
        path = self._incoming / f"{self._files:03d}.json"
        path.write_text("\n".join(lines) + "\n")
        # Spark reads files in the order of their times, which would be equal.
        os.utime(path, (self._began + self._files, self._began + self._files))

    def totals(self) -> list[tuple[str, int, int]]:
        """Number and sum of the orders of each region, as `by_region` gives them."""
        amounts = {region: [amount for name, amount in self.orders.values() if name == region] for region in REGIONS}
        return sorted((region, len(each), sum(each)) for region, each in amounts.items() if each)


def ingest(table: str, incoming: Path, checkpoint: Path) -> list[tuple[int, int]]:
    """Run the stream until all files are written; returns the number and the rows of each batch."""
    spark = arctic_spark.session("demo", **{"spark.master": "local[2]"})
    events = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).json(incoming.as_uri())
    query = arctic_spark.write_stream(
        events, table, mode="cdc", order_by=["seq"], checkpoint=checkpoint.as_uri(), trigger="available-now"
    )
    query.awaitTermination()
    return [(batch["batchId"], batch["numInputRows"]) for batch in query.recentProgress if batch["numInputRows"]]


def by_region(table: str) -> list[tuple[str, int, int]]:
    """Aggregate the merged rows with SQL."""
    spark = arctic_spark.session()
    arctic_spark.view(spark, table, "orders")
    rows = spark.sql("SELECT region, count(*), sum(amount) FROM orders GROUP BY region ORDER BY region").collect()
    return [(row[0], row[1], row[2]) for row in rows]
