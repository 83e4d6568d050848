"""PyArctic made known to any session of Spark."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from pyarctic.spark.executors import reach_executors
from pyarctic.spark.session import missing_settings
from pyarctic.spark.shipping import is_remote
from pyarctic.spark.sql_functions import register_functions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SessionAdvice(UserWarning):
    """The session would serve better with other settings; they can be given to a new one only."""


def register(spark: SparkSession) -> None:
    """Make the format "arctic" and the SQL functions `arctic_optimize` and `arctic_explain` known to a session, classic or
    of Spark Connect. Warns about settings that only a new session could have."""
    from pyarctic.spark.source import register_source

    reach_executors(spark)
    register_functions(spark)
    register_source(spark)
    missing = [] if is_remote(spark) else missing_settings(spark)
    if missing:
        warnings.warn(
            f"This session was started without: {'; '.join(missing)}. pyarctic.spark.session() starts one with them.",
            SessionAdvice,
            stacklevel=2,
        )
