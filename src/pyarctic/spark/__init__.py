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

import importlib
from typing import TYPE_CHECKING, Any

from pyarctic.spark.session import session

if TYPE_CHECKING:
    from pyarctic.spark.creating import create_table
    from pyarctic.spark.debezium import from_debezium
    from pyarctic.spark.engine import SparkEngine
    from pyarctic.spark.reading import read, view
    from pyarctic.spark.registering import register
    from pyarctic.spark.streaming import write_stream
    from pyarctic.spark.writing import write

__all__ = [
    "SparkEngine",
    "create_table",
    "from_debezium",
    "read",
    "register",
    "session",
    "view",
    "write",
    "write_stream",
]

# Loaded when asked for: Spark's daemon is part of this room and must never load Polars, which they need (see daemon.py).
_HOMES = {
    "SparkEngine": "engine",
    "create_table": "creating",
    "from_debezium": "debezium",
    "read": "reading",
    "register": "registering",
    "view": "reading",
    "write": "writing",
    "write_stream": "streaming",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
