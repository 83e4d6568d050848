"""A job that upserts many rows, and then reads the table into a file of its own.

    python pipeline_job.py TABLE ROWS FILE SETTINGS

SETTINGS are those of Spark, as JSON.
"""

import json
import sys

import pyarrow.parquet as pq
import scripted_storage  # type: ignore[import-not-found]  # it lies beside this script

from pyarctic.spark import session
from pyarctic.spark.reading import read
from pyarctic.spark.writing import write


def main(table: str, rows: str, file: str, settings: str) -> None:
    spark = session("pipeline", **json.loads(settings))
    spark.sparkContext.addPyFile(scripted_storage.__file__)
    frame = spark.range(0, int(rows), 1, 4).selectExpr("id", "if(id % 2 = 0, 'a', 'b') AS part", "id * 3 AS value")
    # Each key twice, far apart: only the order tells which row comes later.
    twice = frame.selectExpr("*", "1 AS n").unionByName(frame.selectExpr("id", "part", "-1L AS value", "0 AS n"))
    write(twice, table, "upsert", ["n"])
    pq.write_table(read(spark, table).toArrow(), file)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
