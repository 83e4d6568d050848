"""Choosing the columns that are worth a dictionary, from the footers of the files that are read: hashing values that hardly
repeat is the most expensive part of writing Parquet.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.table.name_mapping import NameMapping

from pyarctic.iceberg import open_input
from pyarctic.iceberg.read import ROW_ID, fields_by_id, names_for, translate_damage
from pyarctic.iceberg.write.parquet import leaf_paths

_SAMPLED_FILES = 4
_RELIABLE_ROWS = 50_000
"""In a smaller row group most values occur for the first time, even if they are repeated later; only extremes count."""
_MIN_ROWS = 5_000
_NUMBER_REPEATS, _TEXT_BYTES = 2, 16
_LINEAGE = {ROW_ID.field_id}
"""Row ids are unique."""
_WIDTHS = {"INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8}
_LARGE_DICTIONARY_BYTES = 256 << 10


def find_dictionary_columns(
    io: FileIO, paths: Sequence[str], mapping: NameMapping | None, schema: pa.Schema
) -> list[str] | None:
    """Paths of the columns of `schema` (with field ids) that are to be dictionary-encoded; None if nothing is known.

    Only top-level columns of primitive types are considered. All others keep their dictionary."""
    excluded = {int(field.metadata[b"PARQUET:field_id"]) for field in schema} & _LINEAGE
    step = max(len(paths) // _SAMPLED_FILES, 1)
    for path in paths[::step][:_SAMPLED_FILES]:
        with translate_damage(path), open_input(io, path) as stream:
            source = pq.ParquetFile(stream)
            excluded |= _excluded_ids(source, mapping)
    if not excluded:
        return None
    ids = {field.name: int(field.metadata[b"PARQUET:field_id"]) for field in schema}
    return [path for path in leaf_paths(schema) if ids.get(path) not in excluded]


def _excluded_ids(source: pq.ParquetFile, mapping: NameMapping | None) -> set[int]:
    metadata = source.metadata
    if not metadata.num_row_groups or metadata.row_group(0).num_rows < _MIN_ROWS:
        return set()
    group = metadata.row_group(0)
    chunks = {group.column(index).path_in_schema: group.column(index) for index in range(group.num_columns)}
    columns = fields_by_id(source.schema_arrow, names_for(source.schema_arrow, mapping))
    return {
        field_id
        for field_id, column in columns.items()
        if column.field.name in chunks and not _is_worthwhile(chunks[column.field.name])
    }


def _is_worthwhile(chunk: pq.ColumnChunkMetaData) -> bool:
    if chunk.physical_type == "BOOLEAN":
        return True
    if not chunk.has_dictionary_page or chunk.dictionary_page_offset is None or not chunk.num_values:
        return False
    dictionary_bytes = chunk.data_page_offset - chunk.dictionary_page_offset
    value_bytes = chunk.total_uncompressed_size / chunk.num_values
    width = _WIDTHS.get(chunk.physical_type)
    if chunk.num_values < _RELIABLE_ROWS:
        repeats = dictionary_bytes * _NUMBER_REPEATS < chunk.num_values * (width or 0)
        return bool(value_bytes < _TEXT_BYTES if width is None else repeats)
    max_value_bytes = 2.0 if width is None else min(0.55 * width, 2.2)
    return bool(dictionary_bytes <= _LARGE_DICTIONARY_BYTES and value_bytes <= max_value_bytes)
