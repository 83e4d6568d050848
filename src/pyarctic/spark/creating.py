"""Tables made for the rows of a frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyarctic import tables
from pyarctic.errors import UsageError
from pyarctic.spark.schemas import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def create_table(
    name: str,
    schema: StructType,
    primary_key: Sequence[str] = (),
    partition_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> tables.Table:
    """Make a table for rows with Spark's schema: `create_table("demo.shop.orders", df.schema, primary_key=["id"])`."""
    if not hasattr(schema, "fields"):
        raise UsageError("the schema is not one of Spark", hint="Give df.schema, or a StructType.", table=name)
    return tables.create_table(name, arrow_schema(schema), primary_key, partition_by, properties)
