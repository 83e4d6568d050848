"""Columns as Arrow has them and as Spark has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_PARQUET_ID = b"PARQUET:field_id"
_SPARK_ID = "parquet.field.id"


def spark_schema(schema: pa.Schema) -> StructType:
    """Spark's columns for a table's. Instants without a zone stay without one."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(for_spark(schema), prefer_timestamp_ntz=True)


def arrow_schema(schema: StructType) -> pa.Schema:
    """A table's columns for Spark's."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema)


def for_spark(schema: pa.Schema) -> pa.Schema:
    """As Spark takes it: bytes of fixed length are bytes."""
    return pa.schema([field.with_type(_type(field.type)) for field in schema])


def _type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_fixed_size_binary(type_):
        return pa.binary()
    if pa.types.is_struct(type_):
        return pa.struct([_field(field) for field in type_])
    if pa.types.is_list(type_):
        return pa.list_(_field(type_.value_field))
    if pa.types.is_map(type_):
        return pa.map_(_field(type_.key_field), _field(type_.item_field))
    return type_


def _field(field: pa.Field) -> pa.Field:
    return field.with_type(_type(field.type))


def quoted(name: str) -> str:
    """A column's name as Spark's expressions have it, whatever letters are in it."""
    return "`" + name.replace("`", "``") + "`"


def schema_with_ids(schema: pa.Schema, *, own_names: bool) -> tuple[StructType, dict[str, str]]:
    """Spark's columns, to be found in Parquet files by field id; and the name of each in the frame that is read. Without
    `own_names` columns are named by their ids.

    Spark finds columns by id, but skips row groups by name (seen in 4.1): where a file has another column of that name, rows
    would be lost. Names that no file has are safe, and nothing is skipped."""
    strange = uuid4().hex
    from pyspark.sql.types import StructField, StructType

    names = {field.name: field.name if own_names else f"field {_id_of(field)} {strange}" for field in schema}
    fields = [
        StructField(names[field.name], _type_with_ids(field.type), metadata={_SPARK_ID: _id_of(field)}) for field in schema
    ]
    return StructType(fields), names


def _id_of(field: pa.Field) -> int:
    return int(field.metadata[_PARQUET_ID])


def _type_with_ids(type_: pa.DataType) -> DataType:
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if pa.types.is_struct(type_):
        told: list[Any] = [
            StructField(field.name, _type_with_ids(field.type), metadata={_SPARK_ID: _id_of(field)}) for field in type_
        ]
        return StructType(told)
    if pa.types.is_list(type_):
        return ArrayType(_type_with_ids(type_.value_type))
    if pa.types.is_map(type_):
        return MapType(_type_with_ids(type_.key_type), _type_with_ids(type_.item_type))
    return from_arrow_type(type_, prefer_timestamp_ntz=True)
