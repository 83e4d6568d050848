"""Convert values of Debezium events to the types of their columns. A value that does not fit fails the query by name.

Events are Spark variants, in which numbers keep all their digits. The schema of an event, if it has one, says what its
numbers and bytes mean (Kafka Connect calls that the semantic type); without a schema the caller has to know.
"""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructType

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
_SCHEMA_FIELDS = "array<struct<field:string,fields:array<struct<field:string,name:string,parameters:map<string,string>>>>>"

_UNAVAILABLE = "__debezium_unavailable_value"
_UNAVAILABLE_FORMS = (
    _UNAVAILABLE,
    base64.b64encode(_UNAVAILABLE.encode()).decode(),
    json.dumps([_UNAVAILABLE]),
    json.dumps(list(_UNAVAILABLE.encode()), separators=(",", ":")),
)
"""Debezium's placeholder for a large value that an update did not change, as text, bytes, and arrays of texts or numbers."""

_INTEGER = "^-?[0-9]+$"
_TIMESTAMP = r"^[+-]?\d{4,}-\d\d-\d\d[T ]\d\d:"
_ZONE = r"(Z|[+-]\d\d(:?\d\d)?)$"
_UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_HEX = "0123456789ABCDEF"
_MAX_SHOWN = 200


def json_path(name: str) -> str:
    """The JSON path of a member of an object."""
    return f"$['{name}']" if '"' in name else f'$["{name}"]'


def get_member(parent: Column, name: str) -> Column:
    """The member of an object as a variant; null if it is null or absent."""
    from pyspark.sql import functions as F  # noqa: N812

    member = F.try_variant_get(parent, json_path(name), "variant")
    return F.when(~F.is_variant_null(member), member)


def has_semantic_type(type_: DataType) -> bool:
    """Whether such values have several encodings, which the semantic type tells apart."""
    from pyspark.sql.types import DateType, DecimalType, TimestampNTZType, TimestampType

    return isinstance(type_, DateType | DecimalType | TimestampNTZType | TimestampType)


def semantic_types(event: Column) -> Column:
    """A map from column names to semantic types (name and parameters), from the schema of an event if it has one."""
    from pyspark.sql import functions as F  # noqa: N812

    parts = F.try_variant_get(event, "$.schema.fields", _SCHEMA_FIELDS)
    rows = F.filter(parts, lambda part: part["field"].isin("before", "after"))
    entries = F.transform(
        F.try_element_at(rows, F.lit(1))["fields"],
        lambda field: F.struct(
            field["field"], F.struct(field["name"].alias("name"), field["parameters"].alias("parameters"))
        ),
    )
    return F.map_from_entries(entries)


def convert_value(
    raw: Column,
    type_: DataType,
    name: str,
    unit: Unit,
    *,
    text: Column | None = None,
    semantic_type: Column | None = None,
) -> Column:
    """Convert a variant to the type of its column.

    `text` is the value as text, if the caller has it. `unit` is the unit of numeric timestamps without a `semantic_type`.
    """
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

    text = F.try_variant_get(raw, "$", "string") if text is None else text
    if isinstance(type_, ArrayType | MapType | StructType):
        converted = _convert_nested(raw, text, type_, name, unit)
    else:
        converted = _convert_scalar(raw, text, type_, unit, semantic_type)
    if isinstance(type_, ArrayType | BinaryType | StringType):
        unavailable = F.raise_error(
            f"the event lacks the value of {name}, which is large and was not changed. "
            "The source must send full rows: ALTER TABLE … REPLICA IDENTITY FULL"
        )
        converted = F.when(text.isin(*_UNAVAILABLE_FORMS), unavailable).otherwise(converted)
    if isinstance(type_, StringType):
        return converted
    shown = F.substring(text, 1, _MAX_SHOWN)
    misfit = F.raise_error(F.concat(F.lit(f"the value of {name} does not fit {type_.simpleString()}: "), shown))
    return F.when(text.isNotNull(), F.coalesce(converted, misfit))


def _convert_scalar(raw: Column, text: Column, type_: DataType, unit: Unit, semantic_type: Column | None) -> Column:
    """Null if the value does not fit the type."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import BinaryType, DateType, DecimalType, StringType, TimestampNTZType, TimestampType

    type_name = F.lit(None).cast("string") if semantic_type is None else semantic_type["name"]
    match type_:
        case StringType():
            return text
        case BinaryType():
            uuid = F.unhex(F.replace(text, F.lit("-"), F.lit("")))
            return F.when(text.rlike(_UUID), uuid).otherwise(F.try_to_binary(text, F.lit("base64")))
        case DateType():
            days = F.when(type_name.isNull() | type_name.isin(*_DATES), F.date_from_unix_date(text.try_cast("int")))
            return F.when(text.rlike(_INTEGER), days).otherwise(F.regexp_replace(text, "Z$", "").try_cast("date"))
        case TimestampType():
            return F.timestamp_micros(_to_epoch_micros(text, type_name, unit))
        case TimestampNTZType():
            # Not through a timestamp with time zone: that would depend on the time zone of the session.
            epoch = F.lit("1970-01-01 00:00:00").cast("timestamp_ntz")
            return F.timestamp_add("MICROSECOND", _to_epoch_micros(text, type_name, unit), epoch)
        case DecimalType():
            return _convert_decimal(raw, text, semantic_type, type_)
        case _:
            return text.try_cast(type_)


def _convert_nested(raw: Column, text: Column, type_: ArrayType | MapType | StructType, name: str, unit: Unit) -> Column:
    """Convert arrays, maps and structs; also from a text that contains JSON."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import ArrayType, MapType

    raw = F.when(F.schema_of_variant(raw) == "STRING", F.try_parse_json(text)).otherwise(raw)
    if isinstance(type_, ArrayType):
        element_type = type_.elementType
        elements = F.try_variant_get(raw, "$", "array<variant>")
        return F.transform(elements, lambda element: convert_value(element, element_type, name, unit))
    members = F.try_variant_get(raw, "$", "map<string,variant>")
    if isinstance(type_, MapType):
        key_type, value_type = type_.keyType, type_.valueType
        converted = F.transform_values(members, lambda _, value: convert_value(value, value_type, name, unit))
        return F.transform_keys(converted, lambda key, _: key.try_cast(key_type))
    fields = [convert_value(get_member(raw, f.name), f.dataType, f"{name}.{f.name}", unit).alias(f.name) for f in type_]
    return F.when(members.isNotNull(), F.struct(*fields))


def _to_epoch_micros(text: Column, type_name: Column, unit: Unit) -> Column:
    """Microseconds since 1970 in UTC. A text without a time zone is read as UTC, like numbers."""
    from pyspark.sql import functions as F  # noqa: N812

    number = text.try_cast("bigint")
    nanos_as_micros = ((number - F.pmod(number, F.lit(1000))).cast("decimal(20,0)") / 1000).cast("bigint")
    by_unit = {"millis": F.try_multiply(number, F.lit(1000)), "micros": number, "nanos": nanos_as_micros}
    by_type = [F.when(type_name.isin(*names), by_unit[type_unit]) for type_unit, names in _TIMESTAMPS.items()]
    zoned = F.when(text.rlike(_ZONE), text).otherwise(F.concat(text, F.lit("Z")))
    from_text = F.when(text.rlike(_TIMESTAMP), F.unix_micros(zoned.try_cast("timestamp")))
    from_number = F.coalesce(*by_type, F.when(type_name.isNull(), by_unit[unit]))
    return F.when(text.rlike(_INTEGER), from_number).otherwise(from_text)


def _convert_decimal(raw: Column, text: Column, semantic_type: Column | None, type_: DecimalType) -> Column:
    """Convert digits (text or number), or the bytes of an unscaled number, whose scale is in the semantic type or in the
    value itself. Bytes without a known scale do not fit."""
    from pyspark.sql import functions as F  # noqa: N812

    encoded, scale = F.try_variant_get(raw, "$.value", "string"), F.try_variant_get(raw, "$.scale", "int")
    if semantic_type is not None:
        is_encoded = (semantic_type["name"] == _DECIMAL) & (F.schema_of_variant(raw) == "STRING")
        encoded = F.when(is_encoded, text).otherwise(encoded)
        scale = F.when(is_encoded, semantic_type["parameters"]["scale"].try_cast("int")).otherwise(scale)
    # A cast rounds; values that would lose digits do not fit.
    number = text.try_cast(type_)
    is_rounded = text.rlike(rf"^[^eE]*\.[0-9]{{{type_.scale}}}[0-9]*[1-9]")
    is_inexact = text.rlike("[eE]") & (number.cast("double") != text.try_cast("double"))
    from_digits = F.when(~is_rounded & ~is_inexact, number)
    return F.when(encoded.isNull(), from_digits).otherwise(_decode_decimal(encoded, scale, type_))


def _decode_decimal(encoded: Column, scale: Column, type_: DecimalType) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    number, sign = _decode_unscaled(encoded)
    excess_digits = F.greatest(scale - type_.scale, F.lit(0))
    divisor = F.concat(F.lit("1"), F.repeat(F.lit("0"), excess_digits)).try_cast("decimal(38,0)")
    digits = F.concat(sign, number.cast("string"), F.lit("E"), (-scale).cast("string"))
    return F.when(number % divisor == 0, digits.try_cast(type_))


def _decode_unscaled(encoded: Column) -> tuple[Column, Column]:
    """The absolute value and the sign of a number of up to 16 bytes, big-endian in two's complement. They are separate,
    because Spark loses digits when it negates a large number (seen in 4.1)."""
    from pyspark.sql import functions as F  # noqa: N812

    hex_digits = F.hex(F.try_to_binary(encoded, F.lit("base64")))
    is_negative = hex_digits.rlike("^[89A-F]")
    inverted = F.translate(hex_digits, _HEX, _HEX[::-1])
    padded = F.lpad(F.when(is_negative, inverted).otherwise(hex_digits), 32, "0")
    high, low = (F.conv(F.substring(padded, start, 16), 16, 10).cast("decimal(20,0)") for start in (1, 17))
    number = high * F.lit(Decimal(1 << 64)) + (low + F.when(is_negative, 1).otherwise(0))
    return F.when(F.length(hex_digits).between(2, 32), number), F.when(is_negative, "-").otherwise("")
