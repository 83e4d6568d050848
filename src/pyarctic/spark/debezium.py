"""Convert Debezium events (JSON, as written by Kafka Connect) to changes for a keyed table.

An event that cannot be parsed fails the query: if it were skipped, its change would be lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from pyarctic.errors import UsageError
from pyarctic.spark.debezium_values import (
    UNITS,
    Unit,
    convert_value,
    get_member,
    has_semantic_type,
    json_path,
    semantic_types,
)
from pyarctic.spark.schemas import spark_schema
from pyarctic.tables import open_table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField, StructType

ORDER = "_order"
_MAX_SHOWN = 200
"""How many characters of an event an error message shows."""
_FULL_ROWS_HINT = "The source must send full rows: ALTER TABLE … REPLICA IDENTITY FULL"


def from_debezium(
    df: DataFrame,
    table: str | StructType,
    column: str = "value",
    order: str | None = None,
    timestamps: Unit | Mapping[str, Unit] = "micros",
) -> DataFrame:
    """Convert a frame of Debezium events to a frame of changes for `table` (a table name, or a schema).

        changes = from_debezium(kafka_messages, "demo.shop.orders")
        write_stream(changes, "demo.shop.orders", mode="cdc", order_by=["_order"], checkpoint=…)

    The result has the columns of the table, `_change_action` and `_order`. Columns that the table does not have are dropped;
    columns that an event does not have are null.

    Args:
        df: the frame with the events.
        table: the name of the target table, or its schema.
        column: the column with the events as string or binary, with or without their Kafka Connect schema. Null events
            (Kafka's tombstones after deletes) are skipped.
        order: a SQL expression for `_order`; the default is Kafka's `offset` column if there is one, else the time of the
            event.
        timestamps: the unit of numeric timestamps in events without a schema, for all columns or by column name.
    """
    from pyspark.sql import functions as F  # noqa: N812

    if column not in df.columns:
        raise UsageError(f"the events lack the column {column!r}", hint=f"Existing columns: {', '.join(df.columns)}.")
    if order is None and "offset" in df.columns:
        order = "`offset`"
    target = _Target.of(table)
    units = _timestamp_units(timestamps, target.schema)
    events = _parse_events(df, column, order, with_types=any(has_semantic_type(field.dataType) for field in target.schema))
    checked = events.select("*", target.fault().alias("fault"), target.is_identified(F.col("before")).alias("is_identified"))
    images = checked.select("types", ORDER, F.explode(_images(has_key=bool(target.keys))).alias("image"))
    return _select_values(images, target.schema, units)


def _parse_events(df: DataFrame, column: str, order: str | None, *, with_types: bool) -> DataFrame:
    """The parts of each event: `text`, `types` (of its schema), `op`, `before`, `after`, and the order."""
    from pyspark.sql import functions as F  # noqa: N812

    text = F.col(f"`{column}`").cast("string")
    position = F.lit(None) if order is None else F.expr(order)
    parsed = df.where(text.isNotNull()).select(
        text.alias("text"), F.try_parse_json(text).alias("json"), position.alias(ORDER)
    )
    # An event with a schema is one level deeper.
    event = F.coalesce(get_member(F.col("json"), "payload"), F.col("json"))
    types = semantic_types(F.col("json")) if with_types else F.lit(None)
    # In steps, so that Spark evaluates common subexpressions only once.
    return parsed.select("text", event.alias("event"), types.alias("types"), ORDER).select(
        "text",
        "types",
        F.try_variant_get("event", "$.op", "string").alias("op"),
        get_member(F.col("event"), "before").alias("before"),
        get_member(F.col("event"), "after").alias("after"),
        (F.try_variant_get("event", "$.ts_ms", "long") if order is None else F.col(ORDER)).alias(ORDER),
    )


def _select_values(images: DataFrame, schema: StructType, units: Mapping[str, Unit]) -> DataFrame:
    """The columns of the table from the row images, in steps like `_parse_events`."""
    from pyspark.sql import functions as F  # noqa: N812

    raw_values = [_image_value(field).alias(f"raw{index}") for index, field in enumerate(schema)]
    texts = [F.try_variant_get(f"raw{index}", "$", "string").alias(f"text{index}") for index in range(len(raw_values))]
    values = [
        convert_value(
            F.col(f"raw{index}"),
            field.dataType,
            field.name,
            units[field.name],
            text=F.col(f"text{index}"),
            semantic_type=(
                F.try_element_at(F.col("types"), F.lit(field.name)) if has_semantic_type(field.dataType) else None
            ),
        ).alias(field.name)
        for index, field in enumerate(schema)
    ]
    rows = images.select("types", ORDER, F.col("image.action").alias("_change_action"), *raw_values).select("*", *texts)
    return rows.select(*values, "_change_action", ORDER)


def _image_value(field: StructField) -> Column:
    """The value of a column in a row image. A before-image may be empty or contain little more than the key: required
    columns, and so the key, are then taken from the after-image."""
    from pyspark.sql import functions as F  # noqa: N812

    if field.nullable:
        return F.try_variant_get("image.row", json_path(field.name), "variant")
    return F.coalesce(get_member(F.col("image.row"), field.name), get_member(F.col("image.later"), field.name))


def _images(*, has_key: bool) -> Column:
    """The row images of an event with their actions. An update always has a before-image, even if only its key is known:
    other engines of the format do not replace a row that is only inserted. Without a known key it is the new row."""
    from pyspark.sql import functions as F  # noqa: N812

    after, before = F.col("after"), F.col("before")
    op = F.when(F.col("fault").isNotNull(), F.raise_error(F.col("fault"))).otherwise(F.col("op"))

    def image(action: str, row: Column) -> Column:
        return F.struct(F.lit(action).alias("action"), row.alias("row"), after.alias("later"))

    identified_before = F.when(F.col("is_identified"), before).otherwise(F.lit(None) if has_key else after)
    return (
        F.when(op == "u", F.array(image("UPDATE_BEFORE", identified_before), image("UPDATE_AFTER", after)))
        .when(F.col("op") == "d", F.array(image("DELETE", before)))
        .otherwise(F.array(image("INSERT", after)))
    )


@dataclass(frozen=True, kw_only=True)
class _Target:
    """The table that the changes are for."""

    schema: StructType
    keys: tuple[str, ...] = ()
    partition_columns: tuple[str, ...] = ()
    """Columns outside of the key that determine the partition: a deleted row must contain them."""

    @classmethod
    def of(cls, table: str | StructType) -> _Target:
        if not isinstance(table, str):
            return cls(schema=table)
        opened = open_table(table)
        metadata = opened.view.metadata
        sources = [str(metadata.schema().find_column_name(field.source_id)) for field in metadata.spec().fields]
        partition_columns = tuple(name.split(".")[0] for name in sources if name not in opened.primary_key)
        return cls(schema=spark_schema(opened.arrow_schema), keys=opened.primary_key, partition_columns=partition_columns)

    def is_identified(self, row: Column) -> Column:
        """Whether a row contains its key; for tables without a key, whether it is a row at all."""
        from pyspark.sql import functions as F  # noqa: N812

        if not self.keys:
            return F.try_variant_get(row, "$", "map<string,variant>").isNotNull()
        return reduce(and_, [get_member(row, name).isNotNull() for name in self.keys])

    def fault(self) -> Column:
        """What is wrong with an event, or null."""
        from pyspark.sql import functions as F  # noqa: N812

        op, before = F.col("op"), F.col("before")
        is_delete, is_update = op == "d", op == "u"
        missing = "the key" if self.keys else "its columns"
        faults = [
            (op == "t", "the source table was truncated. Empty this table too, then continue after the event"),
            (op.isNull() | ~op.isin("c", "r", "u", "d"), "not a Debezium event that changes a row"),
            (~is_delete & ~self.is_identified(F.col("after")), f"the row after the change does not contain {missing}"),
            (is_delete & ~self.is_identified(before), f"the deleted row does not contain {missing}. {_FULL_ROWS_HINT}"),
        ]
        for name in self.partition_columns:
            is_missing = F.try_variant_get(before, json_path(name), "variant").isNull()
            message = f"the row before the change does not contain {name}, so its partition is unknown. {_FULL_ROWS_HINT}"
            faults.append(((is_delete | is_update) & (before.isNull() | is_missing), message))
        fault = F.coalesce(*[F.when(condition, F.lit(message)) for condition, message in faults])
        return F.concat(fault, F.lit(": "), F.substring("text", 1, _MAX_SHOWN))


def _timestamp_units(timestamps: Unit | Mapping[str, Unit], schema: StructType) -> dict[str, Unit]:
    by_column: dict[str, Unit] = dict.fromkeys(schema.names, "micros")
    if isinstance(timestamps, str):
        by_column = dict.fromkeys(schema.names, timestamps)
    else:
        if unknown := sorted(timestamps.keys() - by_column.keys()):
            raise UsageError(f"there is no column {unknown[0]!r}", hint=f"Existing columns: {', '.join(schema.names)}.")
        by_column |= timestamps
    if unknown_units := [unit for unit in by_column.values() if unit not in UNITS]:
        raise UsageError(f"unknown timestamp unit: {unknown_units[0]!r}", hint=f"One of: {', '.join(UNITS)}.")
    return by_column
