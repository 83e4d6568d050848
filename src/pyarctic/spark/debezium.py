"""Events of Debezium, as Kafka Connect writes them in JSON, turned into changes that a keyed table takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pyarctic.errors import UsageError
from pyarctic.spark.schemas import spark_schema
from pyarctic.tables import open_table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

ORDER = "_order"
_OPERATIONS = {"c": "INSERT", "r": "INSERT", "u": "UPDATE_AFTER", "d": "DELETE"}
_UNITS = {"millis": 1_000, "micros": 1}


def from_debezium(
    df: DataFrame,
    table: str | StructType,
    column: str = "value",
    order: str | None = None,
    timestamps: Literal["micros", "millis"] = "micros",
) -> DataFrame:
    """The changes in a frame of events: the columns of `table` (its name, or a schema), `_change_action`, and `_order`.

    `column` holds the events, with or without their schema, as text or bytes; null ones are left out. `_order` is what
    `order` says; without it the offset of the message in its Kafka topic, or else the time of the event. Hand it on:
    `write_stream(changes, …, mode="cdc", order_by=["_order"])`. `timestamps`: the unit of instants that are numbers."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StructField, StructType

    if timestamps not in _UNITS:
        raise UsageError(f"unknown unit of instants: {timestamps!r}", hint=f"One of: {', '.join(_UNITS)}.")
    if column not in df.columns:
        raise UsageError(f"the events lack the column {column!r}", hint=f"They have: {', '.join(df.columns)}.")
    wanted = spark_schema(open_table(table).scan().schema) if isinstance(table, str) else table
    # Values come in many spellings: they are taken as text first.
    image = StructType([StructField(field.name, _spelled(field.dataType)) for field in wanted])
    event = f"op string, ts_ms long, before {image.simpleString()}, after {image.simpleString()}"
    text = F.col(column).cast("string")
    # With its schema an event is one level further down.
    bare = F.coalesce(F.get_json_object(text, "$.payload"), text)
    parsed = df.where(F.col(column).isNotNull()).withColumn("_event", F.from_json(bare, event))
    known = parsed.select(_checked(F.col("_event"), text).alias("_event"), _order(df, order).alias(ORDER))
    images = F.when(
        F.col("_event.op") == "u",
        F.array(
            F.struct(F.lit("UPDATE_BEFORE").alias("action"), F.col("_event.before").alias("row")),
            F.struct(F.lit("UPDATE_AFTER").alias("action"), F.col("_event.after").alias("row")),
        ),
    ).otherwise(
        F.array(
            F.struct(
                F.when(F.col("_event.op") == "d", "DELETE").otherwise("INSERT").alias("action"),
                F.when(F.col("_event.op") == "d", F.col("_event.before")).otherwise(F.col("_event.after")).alias("row"),
            )
        )
    )
    rows = known.select(ORDER, F.explode(images).alias("_image")).where(F.col("_image.row").isNotNull())
    columns = [
        _value(F.col(f"_image.row.`{field.name}`"), field.dataType, _UNITS[timestamps]).alias(field.name) for field in wanted
    ]
    return rows.select(*columns, F.col("_image.action").alias("_change_action"), F.col(ORDER))


def _order(df: DataFrame, order: str | None) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    if order is not None:
        return F.expr(order)
    return F.col("offset") if "offset" in df.columns else F.col("_event.ts_ms")


def _checked(event: Column, text: Column) -> Column:
    """An event that is not understood ends the query: left out, it would be lost."""
    from pyspark.sql import functions as F  # noqa: N812

    is_known = event.getField("op").isin([*_OPERATIONS])
    lost = F.raise_error(F.concat(F.lit("not an event of Debezium that changes a row: "), F.substring(text, 1, 200)))
    return F.when(is_known, event).otherwise(lost)


def _spelled(type_: DataType) -> DataType:
    from pyspark.sql.types import ArrayType, BinaryType, BooleanType, MapType, StringType, StructType

    return type_ if isinstance(type_, ArrayType | MapType | StructType | BinaryType | BooleanType) else StringType()


def _value(text: Column, type_: DataType, micros: int) -> Column:
    """Dates are days or ISO, instants are numbers or ISO, everything else is as Spark reads it."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import DateType, TimestampNTZType, TimestampType

    is_number = text.rlike("^-?[0-9]+$")
    if isinstance(type_, DateType):
        days = F.date_add(F.lit("1970-01-01").cast("date"), text.cast("int"))
        return F.when(is_number, days).otherwise(text.cast("date"))
    if isinstance(type_, TimestampType | TimestampNTZType):
        instant = F.timestamp_micros(text.cast("long") * micros)
        if isinstance(type_, TimestampNTZType):
            instant = F.to_utc_timestamp(instant.cast("timestamp"), F.current_timezone()).cast("timestamp_ntz")
        return F.when(is_number, instant).otherwise(text.cast(type_))
    return text.cast(type_)
