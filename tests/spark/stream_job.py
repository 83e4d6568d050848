"""A job that writes a folder of JSON files to a table, as a stream with a file in every batch, and ends.

    python stream_job.py TABLE INPUT CHECKPOINT ORDERS SETTINGS

SETTINGS are those of Spark, as JSON. A file ORDERS/batch-N becomes an order (see scripted_storage.py) when batch N begins;
an order `after-N` lets the driver hang once that batch is in the table, before Spark knows.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import scripted_storage  # type: ignore[import-not-found]  # it lies beside this script

from pyarctic.spark import session
from pyarctic.spark.streaming import StreamTarget, write_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = "id long, part string, value long, n long"
"""Those of the table, and `n`, which tells the order."""


def main(table: str, source: str, checkpoint: str, orders: str, settings: str) -> None:
    _give_orders(Path(orders))
    spark = session("stream", **json.loads(settings))
    spark.sparkContext.addPyFile(scripted_storage.__file__)
    rows = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).json(source)
    query = write_stream(rows, table, "upsert", ["n"], checkpoint, trigger="available-now")
    query.awaitTermination()
    spark.stop()


def _give_orders(orders: Path) -> None:
    write = StreamTarget.write

    def write_and_follow_script(self: StreamTarget, batch: "DataFrame", batch_id: int, state: dict[str, Any]) -> None:
        for order in orders.glob(f"batch-{batch_id}/*"):
            order.rename(orders / order.name)
        write(self, batch, batch_id, state)
        if scripted_storage.take(orders, f"after-{batch_id}"):
            scripted_storage.hang()

    StreamTarget.write = write_and_follow_script  # type: ignore[method-assign]


if __name__ == "__main__":
    main(*sys.argv[1:])
