"""Spark: read and write tables as DataFrames and streams, and run optimizer tasks on executors.

    import pyarctic.spark as arctic_spark

    spark = arctic_spark.session()
    arctic_spark.write(df, "demo.shop.orders", mode="upsert", order_by=["op_ts"])
    arctic_spark.read(spark, "demo.shop.orders", columns=["id", "total"]).show()

Knows which Java and Python Spark must use, which settings make many small Python tasks cheap, how code and work get to
executors, and how rows are shuffled by key and sorted. It is the only package that may import pyspark, and does so inside
functions: `import pyarctic` needs no Java.

Does not know the command line, or how a table is laid out (the packages below know that).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyarctic._lazy import lazy_exports
from pyarctic._pandas import show_pandas
from pyarctic.errors import import_extra

if TYPE_CHECKING:
    from pyarctic.spark.creating import create_table
    from pyarctic.spark.debezium import from_debezium
    from pyarctic.spark.engine import SparkEngine, open_spark_engine
    from pyarctic.spark.java import find_java
    from pyarctic.spark.reading import read, view
    from pyarctic.spark.registering import register
    from pyarctic.spark.sessions import session
    from pyarctic.spark.streaming import write_stream
    from pyarctic.spark.writing import write

__all__ = [
    "SparkEngine",
    "create_table",
    "find_java",
    "from_debezium",
    "open_spark_engine",
    "read",
    "register",
    "session",
    "view",
    "write",
    "write_stream",
]

show_pandas()  # the command line hides it until here

# Spark's daemon is part of this package and must never import Polars, which most of these modules need (see daemon.py).
_load_export = lazy_exports(
    __name__,
    {
        "creating": ("create_table",),
        "debezium": ("from_debezium",),
        "engine": ("SparkEngine", "open_spark_engine"),
        "java": ("find_java",),
        "reading": ("read", "view"),
        "registering": ("register",),
        "sessions": ("session",),
        "streaming": ("write_stream",),
        "writing": ("write",),
    },
)


def __getattr__(name: str) -> Any:
    if name in __all__ and name != "find_java":
        import_extra("pyspark", "spark")
    return _load_export(name)
