"""Create tables from Spark schemas."""

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
    *,
    format: str = "mixed-iceberg",  # noqa: A002
    format_version: int | None = None,
    if_not_exists: bool = False,
) -> tables.Table:
    """Create a table for rows with a Spark schema.

        create_table("demo.shop.orders", df.schema, primary_key=["id"], partition_by=["day(ts)"])

    The parameters are those of `pyarctic.create_table`.
    """
    if not hasattr(schema, "fields"):
        raise UsageError("the schema is not a Spark schema", hint="Pass df.schema, or a StructType.", table=name)
    return tables.create_table(
        name,
        arrow_schema(schema),
        primary_key,
        partition_by,
        properties,
        format=format,
        format_version=format_version,
        if_not_exists=if_not_exists,
    )
