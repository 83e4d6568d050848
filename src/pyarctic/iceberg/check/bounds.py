"""Column bounds and counts of a manifest entry, compared with the statistics in the footer of its Parquet file.

A scan skips a file by them, so that a value outside of its bounds, or a null that is not counted, is a row that scans lose.
Only what is certain is reported: columns whose statistics are missing, truncated or in another unit are not compared.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
)

from pyarctic.iceberg.delete.delete_files import POSITION_ID
from pyarctic.iceberg.manifest.reader import FILE_PATH_ID
from pyarctic.iceberg.read.live_rows import newest_first
from pyarctic.iceberg.read.projection import fields_by_id, names_for
from pyarctic.iceberg.write.parquet.metrics import footer_null_count, footer_ranges

Bounds = Mapping[int, tuple[bytes | None, bytes | None]]
"""Field id → lower and upper bound, in Iceberg's single-value serialization."""
Counts = Mapping[int, int]
"""Field id → number."""

_TRUNCATED_BYTES = 64
"""Some writers cut values of this length or longer in the statistics of footers."""
_UNITS: dict[type[IcebergType], str] = {
    TimeType: "us",
    TimestampType: "us",
    TimestamptzType: "us",
    TimestampNanoType: "ns",
    TimestamptzNanoType: "ns",
}


def column_types(metadata: TableMetadata) -> dict[int, IcebergType]:
    """The types of all columns that files of the table may have, by field id; the newest one, if a column was widened."""
    types: dict[int, IcebergType] = {FILE_PATH_ID: StringType(), POSITION_ID: LongType()}
    for schema in reversed(newest_first(metadata)):
        types |= {field.field_id: field.field_type for field in schema.fields}
    return types


def columns_outside(
    footer: pq.FileMetaData, bounds: Bounds, types: Mapping[int, IcebergType], mapping: NameMapping | None
) -> Iterator[str]:
    """The names of the top-level columns of a file that hold values outside of their bounds."""
    for column in _top_level_columns(footer, mapping):
        type_ = types.get(column.field_id)
        if column.field_id not in bounds or type_ is None or not _has_unit_of(column.stored, type_):
            continue
        ranges = footer_ranges(footer, column.number)
        if not all(_is_within(range_, bounds[column.field_id], type_) for range_ in ranges):
            yield column.name


def columns_miscounted(footer: pq.FileMetaData, values: Counts, nulls: Counts, mapping: NameMapping | None) -> Iterator[str]:
    """The names of the top-level columns of a file that have another number of values or of nulls."""
    for column in _top_level_columns(footer, mapping):
        counted = footer_null_count(footer, column.number)
        has_other_nulls = counted is not None and nulls.get(column.field_id, counted) != counted
        if has_other_nulls or values.get(column.field_id, footer.num_rows) != footer.num_rows:
            yield column.name


class _Column(NamedTuple):
    field_id: int
    name: str
    number: int
    stored: pa.DataType


def _top_level_columns(footer: pq.FileMetaData, mapping: NameMapping | None) -> Iterator[_Column]:
    """The columns of a file that are not nested: they have one value per row."""
    schema = footer.schema.to_arrow_schema()
    indexes = {footer.schema.column(index).path: index for index in range(footer.num_columns)}
    for field_id, file_field in fields_by_id(schema, names_for(schema, mapping)).items():
        field = file_field.field
        if field.name in indexes:
            yield _Column(field_id, field.name, indexes[field.name], field.type)


def _has_unit_of(stored: pa.DataType, type_: IcebergType) -> bool:
    unit = _UNITS.get(type(type_))
    return unit is None or getattr(stored, "unit", None) == unit


def _is_within(range_: tuple[Any, Any], bounds: tuple[bytes | None, bytes | None], type_: IcebergType) -> bool:
    """Whether a bound does not contradict the least and the greatest value of the file."""
    least, greatest = (_footer_value(value, type_) for value in range_)
    lower, upper = (None if bound is None else bound_value(bound, type_) for bound in bounds)
    if least is None or greatest is None:
        return True
    if isinstance(least, bytes) and isinstance(greatest, bytes):
        lower = None if isinstance(lower, bytes) and len(least) >= _TRUNCATED_BYTES else lower
        upper = None if isinstance(upper, bytes) and len(greatest) >= _TRUNCATED_BYTES else upper
    return (lower is None or lower <= least) and (upper is None or upper >= greatest)


def _footer_value(value: Any, type_: IcebergType) -> Any:
    if isinstance(type_, DecimalType) and isinstance(value, bytes):
        return int.from_bytes(value, "big", signed=True)
    return value


def bound_value(bound: bytes, type_: IcebergType) -> Any:
    """A bound as a value that compares with those of footers; None if it does not compare with them."""
    match type_:
        case IntegerType() | LongType() | DateType() | TimeType() | TimestampType() | TimestamptzType():
            return int.from_bytes(bound, "little", signed=True)
        case TimestampNanoType() | TimestamptzNanoType() if len(bound) == 8:
            return int.from_bytes(bound, "little", signed=True)
        case FloatType() | DoubleType() if len(bound) in (4, 8):
            (number,) = struct.unpack("<f" if len(bound) == 4 else "<d", bound)
            return None if number != number else number  # NaN differs from itself
        case DecimalType():
            return int.from_bytes(bound, "big", signed=True)
        case BooleanType():
            return bound != b"\0"
        case StringType() | BinaryType() | FixedType():
            return bound
    return None  # among others uuid: engines disagree about the order
