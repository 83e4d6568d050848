"""Values in events of Debezium, read as what their columns are. One that does not fit ends the query and is named.

Events are variants, in which numbers keep all their digits. An event that comes with its schema says what its numbers and
bytes mean; of others it has to be known.
"""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, DecimalType

Unit: TypeAlias = Literal["millis", "micros", "nanos"]
UNITS: tuple[Unit, ...] = ("millis", "micros", "nanos")

_CONNECT, _DEBEZIUM = "org.apache.kafka.connect.data.", "io.debezium.time."
_DATES = (f"{_CONNECT}Date", f"{_DEBEZIUM}Date")
_TIMESTAMPS: dict[Unit, tuple[str, ...]] = {
    "millis": (f"{_CONNECT}Timestamp", f"{_DEBEZIUM}Timestamp"),
    "micros": (f"{_DEBEZIUM}MicroTimestamp",),
    "nanos": (f"{_DEBEZIUM}NanoTimestamp",),
}
_DECIMAL = f"{_CONNECT}Decimal"
_KINDS = "array<struct<field:string,fields:array<struct<field:string,name:string,parameters:map<string,string>>>>>"

_WITHHELD = "__debezium_unavailable_value"
_WITHHELD_SPELLINGS = (
    _WITHHELD,
    base64.b64encode(_WITHHELD.encode()).decode(),
    json.dumps([_WITHHELD]),
    json.dumps(list(_WITHHELD.encode()), separators=(",", ":")),
)
"""In place of a large value that an update did not touch, as text, bytes and arrays of texts or numbers."""

_WHOLE = "^-?[0-9]+$"
_INSTANT = r"^[+-]?\d{4,}-\d\d-\d\d[T ]\d\d:"
_ZONE = r"(Z|[+-]\d\d(:?\d\d)?)$"
_UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_HEX = "0123456789ABCDEF"
_TOO_MUCH = 200


def path(name: str) -> str:
    """The way to a member of an object."""
    return f"$['{name}']" if '"' in name else f'$["{name}"]'


def member(holder: Column, name: str) -> Column:
    """What an object has under a name, as a variant; null if it is null there, or not there."""
    from pyspark.sql import functions as F  # noqa: N812

    found = F.try_variant_get(holder, path(name), "variant")
    return F.when(~F.is_variant_null(found), found)


def needs_kind(type_: DataType) -> bool:
    """Whether there are several ways to write such values."""
    from pyspark.sql.types import DateType, DecimalType, TimestampNTZType, TimestampType

    return isinstance(type_, DateType | DecimalType | TimestampNTZType | TimestampType)


def kinds_of(event: Column) -> Column:
    """The names of the columns' types and their parameters, out of the schema that an event may have."""
    from pyspark.sql import functions as F  # noqa: N812

    parts = F.try_variant_get(event, "$.schema.fields", _KINDS)
    rows = F.filter(parts, lambda part: part["field"].isin("before", "after"))
    entries = F.transform(
        F.try_element_at(rows, F.lit(1))["fields"],
        lambda one: F.struct(one["field"], F.struct(one["name"].alias("name"), one["parameters"].alias("parameters"))),
    )
    return F.map_from_entries(entries)


def value(
    told: Column, type_: DataType, name: str, unit: Unit, *, text: Column | None = None, kind: Column | None = None
) -> Column:
    """A value as its column takes it. `unit` is that of instants of no known `kind`. `text` is the value as text."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        DateType,
        DecimalType,
        MapType,
        StringType,
        StructType,
        TimestampNTZType,
        TimestampType,
    )

    text = F.try_variant_get(told, "$", "string") if text is None else text
    kind_name = F.lit(None).cast("string") if kind is None else kind["name"]
    if isinstance(type_, ArrayType | MapType | StructType):
        read = _nested(told, text, type_, name, unit)
    elif isinstance(type_, StringType):
        read = text
    elif isinstance(type_, BinaryType):
        read = F.when(text.rlike(_UUID), F.unhex(F.replace(text, F.lit("-"), F.lit("")))).otherwise(
            F.try_to_binary(text, F.lit("base64"))
        )
    elif isinstance(type_, DateType):
        days = F.when(kind_name.isNull() | kind_name.isin(*_DATES), F.date_from_unix_date(text.try_cast("int")))
        read = F.when(text.rlike(_WHOLE), days).otherwise(F.regexp_replace(text, "Z$", "").try_cast("date"))
    elif isinstance(type_, TimestampType):
        read = F.timestamp_micros(_micros(text, kind_name, unit))
    elif isinstance(type_, TimestampNTZType):
        # Not by way of an instant: that would depend on the session's time zone.
        epoch = F.lit("1970-01-01 00:00:00").cast("timestamp_ntz")
        read = F.timestamp_add("MICROSECOND", _micros(text, kind_name, unit), epoch)
    elif isinstance(type_, DecimalType):
        read = _decimal(told, text, kind, type_)
    else:
        read = text.try_cast(type_)
    if isinstance(type_, ArrayType | BinaryType | StringType):
        withheld = F.raise_error(
            f"the event lacks the value of {name}, which is large and was not changed. "
            "The source has to tell whole rows: ALTER TABLE … REPLICA IDENTITY FULL"
        )
        read = F.when(text.isin(*_WITHHELD_SPELLINGS), withheld).otherwise(read)
    if isinstance(type_, StringType):
        return read
    shown = F.substring(text, 1, _TOO_MUCH)
    strange = F.raise_error(F.concat(F.lit(f"the value of {name} does not fit {type_.simpleString()}: "), shown))
    return F.when(text.isNotNull(), F.coalesce(read, strange))


def _nested(told: Column, text: Column, type_: DataType, name: str, unit: Unit) -> Column:
    """Arrays, objects and maps; JSON in a text is read, too."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import ArrayType, MapType, StructType

    told = F.when(F.schema_of_variant(told) == "STRING", F.try_parse_json(text)).otherwise(told)
    if isinstance(type_, ArrayType):
        element = type_.elementType
        return F.transform(F.try_variant_get(told, "$", "array<variant>"), lambda one: value(one, element, name, unit))
    named = F.try_variant_get(told, "$", "map<string,variant>")
    if isinstance(type_, MapType):
        keys, values = type_.keyType, type_.valueType
        typed = F.transform_values(named, lambda _, one: value(one, values, name, unit))
        return F.transform_keys(typed, lambda key, _: key.try_cast(keys))
    assert isinstance(type_, StructType)  # noqa: S101
    fields = [value(member(told, f.name), f.dataType, f"{name}.{f.name}", unit).alias(f.name) for f in type_]
    return F.when(named.isNotNull(), F.struct(*fields))


def _micros(text: Column, kind: Column, unit: Unit) -> Column:
    """Since 1970, in UTC. A text without a zone is read as one in UTC, as numbers are."""
    from pyspark.sql import functions as F  # noqa: N812

    number = text.try_cast("bigint")
    whole_micros = ((number - F.pmod(number, F.lit(1000))).cast("decimal(20,0)") / 1000).cast("bigint")
    counted = {"millis": F.try_multiply(number, F.lit(1000)), "micros": number, "nanos": whole_micros}
    units = [F.when(kind.isin(*names), counted[of]) for of, names in _TIMESTAMPS.items()]
    zoned = F.when(text.rlike(_ZONE), text).otherwise(F.concat(text, F.lit("Z")))
    said = F.when(text.rlike(_INSTANT), F.unix_micros(zoned.try_cast("timestamp")))
    return F.when(text.rlike(_WHOLE), F.coalesce(*units, F.when(kind.isNull(), counted[unit]))).otherwise(said)


def _decimal(told: Column, text: Column, kind: Column | None, type_: DecimalType) -> Column:
    """Digits, as text or number, or the bytes of a number without its point: then the schema says where the point is, or the
    value itself. Bytes of which nobody says it are not read."""
    from pyspark.sql import functions as F  # noqa: N812

    encoded, scale = F.try_variant_get(told, "$.value", "string"), F.try_variant_get(told, "$.scale", "int")
    if kind is not None:
        is_encoded = (kind["name"] == _DECIMAL) & (F.schema_of_variant(told) == "STRING")
        encoded = F.when(is_encoded, text).otherwise(encoded)
        scale = F.when(is_encoded, kind["parameters"]["scale"].try_cast("int")).otherwise(scale)
    # A cast rounds; what would be lost is refused.
    read = text.try_cast(type_)
    is_rounded = text.rlike(rf"^[^eE]*\.[0-9]{{{type_.scale}}}[0-9]*[1-9]")
    is_other = text.rlike("[eE]") & (read.cast("double") != text.try_cast("double"))
    return F.when(encoded.isNull(), F.when(~is_rounded & ~is_other, read)).otherwise(_decoded(encoded, scale, type_))


def _decoded(encoded: Column, scale: Column, type_: DecimalType) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    number, sign = _unscaled(encoded)
    beyond = F.greatest(scale - type_.scale, F.lit(0))
    lost = F.concat(F.lit("1"), F.repeat(F.lit("0"), beyond)).try_cast("decimal(38,0)")
    digits = F.concat(sign, number.cast("string"), F.lit("E"), (-scale).cast("string"))
    return F.when(number % lost == 0, digits.try_cast(type_))


def _unscaled(encoded: Column) -> tuple[Column, Column]:
    """The number in up to 16 bytes, the highest first, in two's complement; and its sign. Spark loses digits when it negates
    a large number (seen in 4.1)."""
    from pyspark.sql import functions as F  # noqa: N812

    code = F.hex(F.try_to_binary(encoded, F.lit("base64")))
    is_negative = code.rlike("^[89A-F]")
    full = F.lpad(F.when(is_negative, F.translate(code, _HEX, _HEX[::-1])).otherwise(code), 32, "0")
    high, low = (F.conv(F.substring(full, at, 16), 16, 10).cast("decimal(20,0)") for at in (1, 17))
    number = high * F.lit(Decimal(1 << 64)) + (low + F.when(is_negative, 1).otherwise(0))
    return F.when(F.length(code).between(2, 32), number), F.when(is_negative, "-").otherwise("")
