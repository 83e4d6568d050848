"""Convert between Arrow and Spark schemas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_PARQUET_ID = b"PARQUET:field_id"
_SPARK_ID = "parquet.field.id"


def spark_schema(schema: pa.Schema) -> StructType:
    """Convert an Arrow schema to a Spark schema. Timestamps without time zone become TIMESTAMP_NTZ."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(spark_arrow_schema(schema), prefer_timestamp_ntz=True)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Convert a Spark schema to an Arrow schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema)


def spark_arrow_schema(schema: pa.Schema) -> pa.Schema:
    """The Arrow schema that Spark accepts: fixed-size binary becomes binary."""
    return pa.schema([field.with_type(_spark_arrow_type(field.type)) for field in schema])


def _spark_arrow_type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_fixed_size_binary(type_):
        return pa.binary()
    if pa.types.is_struct(type_):
        return pa.struct([_spark_arrow_field(field) for field in type_])
    if pa.types.is_list(type_):
        return pa.list_(_spark_arrow_field(type_.value_field))
    if pa.types.is_map(type_):
        return pa.map_(_spark_arrow_field(type_.key_field), _spark_arrow_field(type_.item_field))
    return type_


def _spark_arrow_field(field: pa.Field) -> pa.Field:
    return field.with_type(_spark_arrow_type(field.type))


def quote_name(name: str) -> str:
    """Quote a column name for Spark expressions."""
    return "`" + name.replace("`", "``") + "`"


def schema_with_ids(schema: pa.Schema, *, own_names: bool) -> tuple[StructType, dict[str, str]]:
    """A Spark schema that finds columns in Parquet files by field id, and the name of each column in the resulting frame.
    Without `own_names` these names are derived from field ids.

    Spark finds columns by id, but skips row groups by name (seen in 4.1): if a file has another column of that name, rows
    would be lost. Names that no file contains are safe, and nothing is skipped."""
    from pyspark.sql.types import StructField, StructType

    unique_suffix = uuid4().hex

    names = {field.name: field.name if own_names else f"field {_field_id(field)} {unique_suffix}" for field in schema}
    fields = [
        StructField(names[field.name], _type_with_ids(field.type), metadata={_SPARK_ID: _field_id(field)})
        for field in schema
    ]
    return StructType(fields), names


def _field_id(field: pa.Field) -> int:
    return int(field.metadata[_PARQUET_ID])


def _type_with_ids(type_: pa.DataType) -> DataType:
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if pa.types.is_struct(type_):
        fields: list[Any] = [
            StructField(field.name, _type_with_ids(field.type), metadata={_SPARK_ID: _field_id(field)}) for field in type_
        ]
        return StructType(fields)
    if pa.types.is_list(type_):
        return ArrayType(_type_with_ids(type_.value_type))
    if pa.types.is_map(type_):
        return MapType(_type_with_ids(type_.key_type), _type_with_ids(type_.item_type))
    return from_arrow_type(type_, prefer_timestamp_ntz=True)
