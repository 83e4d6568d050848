"""The primary key of a table: its columns, in the order in which they are hashed and in which they are compared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import polars as pl
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import LongType, NestedField

from pyarctic.iceberg.delete import KeyColumns
from pyarctic.iceberg.read import newest_first
from pyarctic.tables.format.store_properties import key_ids

_INT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimaryKey:
    """The key columns of a table."""

    fields: tuple[NestedField, ...]
    """In the order of their declaration, in which they are hashed."""
    columns: KeyColumns
    """In the order in which they are compared."""

    @classmethod
    def of(cls, metadata: TableMetadata, table: str) -> Self:
        """The key of a table with this metadata; `table` is its name, for error messages."""
        ids = key_ids(metadata)
        return cls(
            fields=tuple(metadata.schema().find_field(field_id) for field_id in ids),
            columns=KeyColumns.of(ids, [metadata.schema(), *newest_first(metadata)], table),
        )

    def was_widened(self, stores: Iterable[TableMetadata], files: Iterable[pl.DataFrame]) -> bool:
        """Whether another engine widened a key column from int to long.

        Negative values have another hash since then, so that nodes do not tell which files may share a key. Old schemas
        show it; where they were removed, the width of bounds does."""
        types = {(f.field_id, type(f.field_type)) for metadata in stores for s in metadata.schemas for f in s.fields}
        if any(sum(field_id == key.field_id for field_id, _ in types) > 1 for key in self.fields):
            return True
        longs = [f"lower_{key.field_id}" for key in self.fields if isinstance(key.field_type, LongType)]
        return any((frame[name].bin.size() == _INT_BYTES).any() for frame in files for name in longs)
