"""Spark: the way of the data in and out of tables, and a place to run PyArctic's tasks.

    import pyarctic.spark as arctic_spark

    spark = arctic_spark.session()
    arctic_spark.write(df, "demo.shop.orders", mode="upsert", order_by=["op_ts"])
    arctic_spark.read(spark, "demo.shop.orders", columns=["id", "total"]).show()

Knows: which Java and which Python Spark must use, the settings that make many small Python tasks cheap, how to keep
Spark quiet, how work and code get to executors, how rows come together by key and in order. It is the only room that may
import pyspark, and does so inside functions: `import pyarctic` needs no Java.

Must not know: what a command line is, or how a table is laid out (it asks the rooms below).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports
from pyarctic.spark.session import session

if TYPE_CHECKING:
    from pyarctic.spark.creating import create_table
    from pyarctic.spark.debezium import from_debezium
    from pyarctic.spark.engine import SparkEngine
    from pyarctic.spark.java import find_java
    from pyarctic.spark.reading import read, view
    from pyarctic.spark.registering import register
    from pyarctic.spark.streaming import write_stream
    from pyarctic.spark.writing import write

__all__ = [
    "SparkEngine",
    "create_table",
    "find_java",
    "from_debezium",
    "read",
    "register",
    "session",
    "view",
    "write",
    "write_stream",
]

# Spark's daemon is part of this room and must never load Polars, which most of these need (see daemon.py).
__getattr__ = lazy_exports(
    __name__,
    {
        "creating": ("create_table",),
        "debezium": ("from_debezium",),
        "engine": ("SparkEngine",),
        "java": ("find_java",),
        "reading": ("read", "view"),
        "registering": ("register",),
        "streaming": ("write_stream",),
        "writing": ("write",),
    },
)
