"""What the installed Spark can do. PyArctic works with the Spark that is there: 3.5, 4.0 or 4.1."""

from __future__ import annotations

from importlib.util import find_spec


def has_arrow_functions() -> bool:
    """Whether functions of columns can take Arrow arrays (`arrow_udf`, Spark 4.1)."""
    from pyspark.sql.pandas import functions

    return hasattr(functions, "arrow_udf")


def has_data_sources() -> bool:
    """Whether formats can be written in Python (Spark 4.0)."""
    return find_spec("pyspark.sql.datasource") is not None
