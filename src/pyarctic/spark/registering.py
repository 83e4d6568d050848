"""Register PyArctic with a Spark session."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from pyarctic.spark.executors import prepare_executors
from pyarctic.spark.sessions import missing_settings
from pyarctic.spark.shipping import is_remote
from pyarctic.spark.sql_functions import register_functions
from pyarctic.spark.versions import has_data_sources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SessionAdvice(UserWarning):
    """The session lacks recommended settings, which can only be set when a session is started."""


def register(spark: SparkSession) -> None:
    """Register the format "arctic" and the SQL functions `arctic_optimize` and `arctic_explain` with a Spark session.

        register(spark)
        spark.read.format("arctic").load("demo.shop.orders").show()
        spark.sql("SELECT * FROM arctic_explain('demo.shop.orders')").show()

    Works with classic sessions and Spark Connect. Warns about missing settings that only a new session can have, and before
    Spark 4.0 about the missing format.
    """
    prepare_executors(spark)
    register_functions(spark)
    if has_data_sources():
        from pyarctic.spark.source import register_source

        register_source(spark)
    else:
        _advise('Spark before 4.0 has no formats in Python: use pyarctic.spark.read and write instead of format("arctic").')
    missing = [] if is_remote(spark) else missing_settings(spark)
    if missing:
        _advise(f"This session was started without: {'; '.join(missing)}. pyarctic.spark.session() starts one with them.")


def _advise(text: str) -> None:
    warnings.warn(text, SessionAdvice, stacklevel=3)
