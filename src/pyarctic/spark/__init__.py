"""Spark: how a session is started so that PyArctic runs well on it, and how tasks run inside its executors.

Knows: which Java and which Python Spark must use, the settings that make many small Python tasks cheap, how to keep
Spark quiet, how work and code get to executors. It is the only room that may import pyspark, and does so inside functions:
`import pyarctic` needs no Java.

Must not know: what a command line is, or how a table is laid out (it asks the rooms below).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyarctic.spark.functions import register_functions
from pyarctic.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyarctic.spark.engine import SparkEngine

__all__ = ["SparkEngine", "register", "session"]


def register(spark: SparkSession) -> None:
    """Make the SQL functions `arctic_optimize` and `arctic_explain` known to any session."""
    register_functions(spark)


def __getattr__(name: str) -> Any:
    # Spark's daemon is part of this room and must never load Polars, which the engine needs (see daemon.py).
    if name == "SparkEngine":
        from pyarctic.spark.engine import SparkEngine

        return SparkEngine
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
