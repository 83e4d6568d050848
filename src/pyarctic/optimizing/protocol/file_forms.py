"""Whether new files are described as tables have them: readers of the table rely on it, and nobody looks at it again."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from pyiceberg import conversions
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import PrimitiveType

from pyarctic.iceberg.write import NewFile

_DATA = 0


def faults_of(file: NewFile, metadata: TableMetadata) -> Iterator[str]:
    """What is wrong with the description of a file."""
    if file.is_vector:
        yield from _faults_of_vector(file)
    elif file.file_format != "PARQUET":
        yield f"its format is {file.file_format!r}"
    elif file.content_offset is not None or file.content_size_bytes is not None:
        yield "it has a content offset, and is no deletion vector"
    if file.equality_ids:
        yield "it has equality ids, and is no equality delete file"
    if file.content == _DATA and file.referenced_data_file is not None:
        yield "it is a data file, and refers to one"
    orders = {order.order_id for order in metadata.sort_orders}
    if file.sort_order_id is not None and file.sort_order_id not in orders:
        yield f"the table has no sort order {file.sort_order_id}"
    if "\0" in file.path:
        yield "its path has a zero character"
    if file.content == _DATA:
        yield from _faults_of_bounds(file, metadata)


def _faults_of_vector(file: NewFile) -> Iterator[str]:
    if file.referenced_data_file is None or file.content_offset is None or file.content_size_bytes is None:
        yield "a deletion vector needs the path of its data file, its offset and its size"
    elif file.content_offset < 0 or file.content_size_bytes < 0:
        yield "its offset or size is negative"


def _faults_of_bounds(file: NewFile, metadata: TableMetadata) -> Iterator[str]:
    schema = metadata.schema()
    for bounds in (file.metrics.lower_bounds, file.metrics.upper_bounds):
        for field_id, value in bounds.items():
            field = schema._lazy_id_to_field.get(field_id)
            if field is not None and isinstance(field.field_type, PrimitiveType):
                try:
                    conversions.from_bytes(field.field_type, value)
                except (struct.error, ValueError, TypeError, IndexError):
                    yield f"a bound of column {field.name} is no {field.field_type}"
