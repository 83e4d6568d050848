"""One job on the cluster given as argument; prints as JSON what the Python worker saw. Run by test_cluster.py."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator

import pyarrow as pa


def look_around(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    loaded = set(sys.modules)
    import pyarctic.spark

    rows = sum(batch.num_rows for batch in batches)
    seen = {
        "rows": rows,
        "pyarctic": pyarctic.spark.__file__,
        "python": sys.executable,
        "preloaded": "pyiceberg.io.pyarrow" in loaded,
        "polars": "polars" in loaded,
    }
    yield pa.RecordBatch.from_pydict({"seen": [json.dumps(seen)]})


def main(master: str) -> None:
    from pyarctic.spark import session

    settings = {"spark.master": master, "spark.executor.memory": "512m", "spark.driver.memory": "512m"}
    spark = session("cluster-job", **settings)
    [row] = spark.range(0, 1000, 1, 1).mapInArrow(look_around, "seen string").toArrow().to_pylist()
    sys.stdout.write(row["seen"])
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
