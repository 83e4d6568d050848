"""Events of Debezium, as Kafka Connect writes them in JSON, turned into changes that a keyed table takes.

An event that is not understood ends the query: left out, it would be lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from pyarctic.errors import UsageError
from pyarctic.spark.debezium_values import UNITS, Unit, kinds_of, member, needs_kind, path, value
from pyarctic.spark.schemas import spark_schema
from pyarctic.tables import open_table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField, StructType

ORDER = "_order"
_SHOWN = 200
"""How much of an event an error shows."""
_FULL = "The source has to tell whole rows: ALTER TABLE … REPLICA IDENTITY FULL"


def from_debezium(
    df: DataFrame,
    table: str | StructType,
    column: str = "value",
    order: str | None = None,
    timestamps: Unit | Mapping[str, Unit] = "micros",
) -> DataFrame:
    """The changes in a frame of events: the columns of `table` (its name, or a schema), `_change_action`, and `_order`.

    `column` holds the events, with or without their schema, as text or bytes; null ones, which follow deletes for Kafka's
    own use, are left out. `_order` is what the SQL expression `order` says; without it the offset of the message in Kafka,
    or else the time of the event. Hand it on: `write_stream(changes, …, mode="cdc", order_by=["_order"])`.

    `timestamps` is the unit of instants that are numbers, for all columns or by column, where events come without their
    schema. Columns that the table does not have are left out; those that an event does not have are null."""
    from pyspark.sql import functions as F  # noqa: N812

    if column not in df.columns:
        raise UsageError(f"the events lack the column {column!r}", hint=f"They have: {', '.join(df.columns)}.")
    target = _Target.of(table)
    units = _units(timestamps, target.schema)
    text = F.col(f"`{column}`").cast("string")
    at = F.expr(order) if order is not None else F.col("offset") if "offset" in df.columns else F.lit(None)
    parsed = df.where(text.isNotNull()).select(text.alias("text"), F.try_parse_json(text).alias("json"), at.alias(ORDER))
    # With its schema an event is one level further down.
    event = F.coalesce(member(F.col("json"), "payload"), F.col("json"))
    kinds = kinds_of(F.col("json")) if any(needs_kind(field.dataType) for field in target.schema) else F.lit(None)
    # Step by step, so that Spark finds out once what is used several times.
    events = parsed.select("text", event.alias("event"), kinds.alias("kinds"), ORDER).select(
        "text",
        "kinds",
        F.try_variant_get("event", "$.op", "string").alias("op"),
        member(F.col("event"), "before").alias("before"),
        member(F.col("event"), "after").alias("after"),
        (F.col(ORDER) if order or "offset" in df.columns else F.try_variant_get("event", "$.ts_ms", "long")).alias(ORDER),
    )
    checked = events.select("*", target.fault().alias("fault"), target.is_known(F.col("before")).alias("is_known"))
    images = checked.select("kinds", ORDER, F.explode(_images(has_key=bool(target.keys))).alias("image"))
    told = [_told(field).alias(f"told{at}") for at, field in enumerate(target.schema)]
    texts = [F.try_variant_get(f"told{at}", "$", "string").alias(f"text{at}") for at in range(len(told))]
    values = [
        value(
            F.col(f"told{at}"),
            field.dataType,
            field.name,
            units[field.name],
            text=F.col(f"text{at}"),
            kind=F.try_element_at(F.col("kinds"), F.lit(field.name)) if needs_kind(field.dataType) else None,
        ).alias(field.name)
        for at, field in enumerate(target.schema)
    ]
    rows = images.select("kinds", ORDER, F.col("image.action").alias("_change_action"), *told).select("*", *texts)
    return rows.select(*values, "_change_action", ORDER)


def _told(field: StructField) -> Column:
    """What an image has for a column. A before-image may know nothing, or little more than the key: what must not be null,
    and so the key, is then taken from the row that follows."""
    from pyspark.sql import functions as F  # noqa: N812

    if field.nullable:
        return F.try_variant_get("image.row", path(field.name), "variant")
    return F.coalesce(member(F.col("image.row"), field.name), member(F.col("image.later"), field.name))


def _images(*, has_key: bool) -> Column:
    """The rows of an event, each with what it is. An update has a row before even if nothing is known of it but the key:
    other engines of the format do not replace a row that is only inserted. Where the key is not known it is the new row."""
    from pyspark.sql import functions as F  # noqa: N812

    after, before = F.col("after"), F.col("before")
    op = F.when(F.col("fault").isNotNull(), F.raise_error(F.col("fault"))).otherwise(F.col("op"))

    def image(action: str, row: Column) -> Column:
        return F.struct(F.lit(action).alias("action"), row.alias("row"), after.alias("later"))

    known = F.when(F.col("is_known"), before).otherwise(F.lit(None) if has_key else after)
    return (
        F.when(op == "u", F.array(image("UPDATE_BEFORE", known), image("UPDATE_AFTER", after)))
        .when(F.col("op") == "d", F.array(image("DELETE", before)))
        .otherwise(F.array(image("INSERT", after)))
    )


@dataclass(frozen=True, kw_only=True)
class _Target:
    """What the changes are for."""

    schema: StructType
    keys: tuple[str, ...] = ()
    moved_by: tuple[str, ...] = ()
    """Columns outside of the key that decide about the partition: a row that is deleted must tell them."""

    @classmethod
    def of(cls, table: str | StructType) -> _Target:
        if not isinstance(table, str):
            return cls(schema=table)
        opened = open_table(table)
        metadata = opened.view.metadata
        sources = [str(metadata.schema().find_column_name(field.source_id)) for field in metadata.spec().fields]
        moved_by = [name.split(".")[0] for name in sources if name not in opened.primary_key]
        return cls(schema=spark_schema(opened.arrow_schema), keys=opened.primary_key, moved_by=tuple(moved_by))

    def is_known(self, row: Column) -> Column:
        """Whether a row tells its key; without one, whether it is a row."""
        from pyspark.sql import functions as F  # noqa: N812

        if not self.keys:
            return F.try_variant_get(row, "$", "map<string,variant>").isNotNull()
        return reduce(and_, [member(row, name).isNotNull() for name in self.keys])

    def fault(self) -> Column:
        """What is wrong with an event, or null."""
        from pyspark.sql import functions as F  # noqa: N812

        op, before = F.col("op"), F.col("before")
        is_delete, is_update = op == "d", op == "u"
        what = "the key" if self.keys else "its columns"
        faults = [
            (op == "t", "the source table was truncated. Empty this table too, then go on behind the event"),
            (op.isNull() | ~op.isin("c", "r", "u", "d"), "not an event of Debezium that changes a row"),
            (~is_delete & ~self.is_known(F.col("after")), f"the row after the change does not tell {what}"),
            (is_delete & ~self.is_known(before), f"the row that was deleted does not tell {what}. {_FULL}"),
        ]
        for name in self.moved_by:
            lacks = F.try_variant_get(before, path(name), "variant").isNull()
            told = f"the row before the change does not tell {name}, and so not its partition. {_FULL}"
            faults.append(((is_delete | is_update) & (before.isNull() | lacks), told))
        fault = F.coalesce(*[F.when(is_so, F.lit(text)) for is_so, text in faults])
        return F.concat(fault, F.lit(": "), F.substring("text", 1, _SHOWN))


def _units(timestamps: Unit | Mapping[str, Unit], schema: StructType) -> dict[str, Unit]:
    by_column: dict[str, Unit] = dict.fromkeys(schema.names, "micros")
    if isinstance(timestamps, str):
        by_column = dict.fromkeys(schema.names, timestamps)
    else:
        if unknown := sorted(timestamps.keys() - by_column.keys()):
            raise UsageError(f"there is no column {unknown[0]!r}", hint=f"There are: {', '.join(schema.names)}.")
        by_column |= timestamps
    if strange := [unit for unit in by_column.values() if unit not in UNITS]:
        raise UsageError(f"unknown unit of instants: {strange[0]!r}", hint=f"One of: {', '.join(UNITS)}.")
    return by_column
