"""A job that uses every data path of PyArctic on Spark, in a folder: `python versions_job.py FOLDER`.

It prints what it saw as one line of JSON. It needs no jar, so that any version of Spark can run it.
"""

from __future__ import annotations

import json
import sys
import warnings
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark

import pyarctic as arctic
import pyarctic.spark as arctic_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYED, NATIVE = "demo.shop.people", "demo.shop.events"
COLUMNS = (
    "id bigint, name string, amount decimal(12,2), at timestamp, day date, tags array<string>, "
    "place struct<city: string, zip: int>, data binary"
)
_ROW = (
    "id, concat('n', id) AS name, CAST(id AS decimal(12,2)) / 4 AS amount, "
    "timestamp'2026-01-01 00:00:00' + make_interval(0, 0, 0, 0, 0, 0, id) AS at, date'2026-01-01' AS day, "
    "array('a', name) AS tags, named_struct('city', 'Oslo', 'zip', CAST(id AS int)) AS place, CAST(name AS binary) AS data"
)


def main(folder: str) -> None:
    arctic.catalog("demo", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
    spark = arctic_spark.session("versions", **{"spark.master": "local[2]", "spark.sql.session.timeZone": "Asia/Tokyo"})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        arctic_spark.register(spark)
    create_tables(spark)
    seen: dict[str, Any] = {"spark": pyspark.__version__, "advice": _advice(caught)}
    seen["written"] = write_and_read(spark)
    seen["streamed"] = stream(spark, folder)
    if hasattr(spark, "dataSource"):
        seen["format"] = read_format(spark, folder)
    seen["optimized"] = optimize(spark)
    seen["function"] = spark.sql(f"SELECT * FROM arctic_explain('{KEYED}')").count() > 0
    spark.stop()
    print(json.dumps(seen))  # noqa: T201


def _advice(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(warning.message) for warning in caught if warning.category.__name__ == "SessionAdvice"]


def create_tables(spark: SparkSession) -> None:
    schema = spark.createDataFrame([], COLUMNS).schema
    arctic_spark.create_table(KEYED, schema, primary_key=["id"])
    arctic.create_table(NATIVE, pa.schema([("id", pa.int64()), ("name", pa.string())]), format="iceberg", format_version=3)


def rows(spark: SparkSession, start: int, end: int, name: str = "concat('n', id)") -> DataFrame:
    named = spark.range(start, end).selectExpr("id", f"{name} AS name")
    return named.selectExpr(*_split(_ROW.replace("concat('n', id) AS name", "name")))


def _split(text: str) -> list[str]:
    """Split a list of SQL expressions at the commas outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def write_and_read(spark: SparkSession) -> dict[str, Any]:
    """All modes of writing; then the rows as Spark and as the library read them."""
    arctic_spark.write(rows(spark, 0, 1000), KEYED)
    arctic_spark.write(rows(spark, 0, 100, "'upserted'").selectExpr("*", "id AS o"), KEYED, "upsert", ["o"])
    arctic_spark.write(spark.range(990, 1000), KEYED, "delete")
    changes = rows(spark, 200, 210, "'changed'").selectExpr("*", "'UPDATE_AFTER' AS _change_action", "id AS o")
    arctic_spark.write(changes, KEYED, "cdc", ["o"])
    for _ in range(6):
        arctic_spark.write(spark.range(0, 50).selectExpr("id", "concat('e', id) AS name"), NATIVE)
    arctic_spark.view(spark, KEYED, "people")
    counted = spark.sql("SELECT name, count(*) AS n FROM people WHERE name IN ('upserted', 'changed') GROUP BY name")
    (first,) = arctic_spark.read(spark, KEYED, where="id = 7").collect()
    return {
        "rows": arctic_spark.read(spark, KEYED, columns=["id"]).count(),
        "names": {row["name"]: row["n"] for row in counted.collect()},
        "same_rows": _content(spark) == _content_of_library(),
        "types": [
            str(first["amount"]),
            first["day"].isoformat(),
            first["tags"],
            first["place"]["zip"],
            first["data"].decode(),
        ],
    }


def _content(spark: SparkSession) -> list[str]:
    read = arctic_spark.read(spark, KEYED).selectExpr("id", "name", "amount", "unix_micros(at) AS at", "place.zip AS zip")
    return sorted(json.dumps(row.asDict(), default=str) for row in read.collect())


def _content_of_library() -> list[str]:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return sorted(
        json.dumps(
            {
                "id": row["id"],
                "name": row["name"],
                "amount": Decimal(row["amount"]),
                "at": (row["at"] - epoch) // (datetime.resolution),
                "zip": row["place"]["zip"],
            },
            default=str,
        )
        for row in arctic.table(KEYED).scan().to_arrow().to_pylist()
    )


def stream(spark: SparkSession, folder: str) -> int:
    """Upserts through a stream, twice with one checkpoint; the number of streamed rows."""
    source = f"{folder}/source"
    for start in (300, 320):
        rows(spark, start, start + 20, "'streamed'").selectExpr("*", "id AS o").write.mode("append").parquet(source)
        files = spark.readStream.schema(spark.read.parquet(source).schema).parquet(source)
        query = arctic_spark.write_stream(
            files, KEYED, "upsert", ["o"], checkpoint=f"file://{folder}/checkpoint", trigger="available-now"
        )
        query.awaitTermination()
    return arctic_spark.read(spark, KEYED).where("name = 'streamed'").count()


def optimize(spark: SparkSession) -> dict[str, Any]:
    """Both tables, in Spark's executors."""
    before = _content(spark)
    reports = [arctic.optimize(name, kind="full", engine=spark) for name in (KEYED, NATIVE)]
    return {
        "changed": [report.changed for report in reports],
        "failures": [failure for report in reports for failure in report.to_dict()["failures"]],
        "same_rows": _content(spark) == before == _content_of_library(),
        "native_rows": arctic_spark.read(spark, NATIVE).count(),
    }


def read_format(spark: SparkSession, folder: str) -> dict[str, int]:
    """`format("arctic")`: merged rows, and changes as a stream."""
    changes = spark.readStream.format("arctic").option("from", "earliest").load(KEYED)
    query = changes.writeStream.format("parquet").option("checkpointLocation", f"{folder}/out-checkpoint")
    query.trigger(availableNow=True).start(f"{folder}/out").awaitTermination()
    return {"rows": spark.read.format("arctic").load(KEYED).count(), "changes": spark.read.parquet(f"{folder}/out").count()}


if __name__ == "__main__":
    main(*sys.argv[1:])
