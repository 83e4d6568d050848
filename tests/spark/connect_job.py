"""The way of the data over Spark Connect, told as JSON.

python connect_job.py URL FOLDER
"""

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import pyarctic
import pyarctic.spark as arctic_spark

COLUMNS = "id long, city string, amount double, at long"


def main(url: str, folder: str) -> None:
    place = Path(folder)
    pyarctic.catalog("demo", type="sql", uri=f"sqlite:///{place}/catalog.db", warehouse=(place / "lake").as_uri())
    spark = SparkSession.builder.remote(url).getOrCreate()
    told: dict[str, Any] = {"session": type(spark).__module__}
    name = "demo.shop.orders"

    rows = spark.createDataFrame([(n, "Oslo", float(n), 0) for n in range(10)], COLUMNS)
    arctic_spark.create_table(name, rows.drop("at").schema, primary_key=["id"])
    arctic_spark.write(rows.drop("at"), name, "overwrite")
    changes = [(1, "Rome", 7.5, 3), (1, "Bonn", 8.5, 9), (1, "Lyon", 9.5, 6), (12, "Rome", 1.0, 1), (3, "Rome", 1.0, 1)]
    told["snapshot"] = arctic_spark.write(spark.createDataFrame(changes, COLUMNS).repartition(3), name, "upsert", ["at"])
    arctic_spark.write(spark.createDataFrame([(2,), (3,)], "id long"), name, "delete")

    read = arctic_spark.read(spark, name, ["id", "city"], "id < 5 or id > 10")
    told["read"] = sorted(map(list, read.collect()))
    view = arctic_spark.view(spark, name)
    told["view"] = [
        list(row) for row in spark.sql(f"select city, count(*), sum(amount) from {view} group by 1 order by 1").collect()
    ]

    arctic_spark.register(spark)
    source = spark.read.format("arctic").option("where", "amount > 5").load(name)
    told["format"] = sorted(row["id"] for row in source.where("city <> 'Bonn'").collect())
    told["again"] = source.count()

    (place / "in").mkdir()
    for number in (1, 2):
        lines = [{"id": 20, "city": f"c{number}{at}", "amount": 1.0, "at": at} for at in (2, 3, 1)]
        (place / "in" / f"{number}.json").write_text("\n".join(map(json.dumps, lines)))
    stream = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", "1").json(str(place / "in"))
    for _ in range(2):
        query = arctic_spark.write_stream(
            stream, name, "upsert", ["at"], (place / "checkpoint").as_uri(), trigger="available-now"
        )
        query.awaitTermination(120)
        failure = query.exception()
        told["stream failed"] = None if failure is None else str(failure)[:2000]
    told["streamed"] = [list(row) for row in arctic_spark.read(spark, name, where="id = 20").collect()]

    try:
        arctic_spark.write(spark.createDataFrame(changes, COLUMNS).drop("at"), name, "upsert")
    except pyarctic.errors.UsageError as refusal:
        told["refusal"] = str(refusal)
    spark.stop()
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
