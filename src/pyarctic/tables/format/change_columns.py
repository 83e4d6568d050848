"""Files of the change store: inserted and deleted rows, with the order in which they were written."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from pyiceberg.types import LongType, NestedField, StringType

from pyarctic.iceberg.delete import EqualityDeletes, PositionDeletes, match_deletes
from pyarctic.iceberg.manifest import PartitionDecoder
from pyarctic.iceberg.read import METADATA_COLUMNS, DataFileReader, FileBatch, Projection, TableReader, TableView
from pyarctic.tables.read.latest_versions import Versions

TRANSACTION_ID = NestedField(2147482646, "_transaction_id", LongType(), required=False)
FILE_OFFSET = NestedField(2147482645, "_file_offset", LongType(), required=False)
"""The only one of the three that is in the files: a counter of the writer, over all its files."""
CHANGE_ACTION = NestedField(2147482644, "_change_action", StringType(), required=False)
CHANGE_COLUMNS = {field.name: field for field in (TRANSACTION_ID, FILE_OFFSET, CHANGE_ACTION)}
INSERT, DELETE, UPDATE_BEFORE, UPDATE_AFTER = ACTIONS = ("INSERT", "DELETE", "UPDATE_BEFORE", "UPDATE_AFTER")


def read_change_files(view: TableView, files: pl.DataFrame) -> TableReader:
    """Files of a change store, to be read as they are: it has no delete files."""
    matches = match_deletes(files, PartitionDecoder(view.metadata).unpartitioned_specs())
    return TableReader(view.metadata, view.io, matches, PositionDeletes(view.io, 0), EqualityDeletes(view.io, [], 0))


class ChangeFile(DataFileReader):
    """A file of the change store; its name says whether its rows were inserted or deleted, and by which transaction."""

    def __init__(self, reading: TableReader, row: dict[str, Any]) -> None:
        super().__init__(reading, row, [])
        self.inserts = row["kind"] != "ED"
        self.constants = self.constants | {
            TRANSACTION_ID.field_id: row["transaction_id"],
            CHANGE_ACTION.field_id: INSERT if self.inserts else DELETE,
        }

    def offsets(self, piece: FileBatch) -> Versions:
        """The offsets of some rows. A file of another engine has none: there the order of its rows counts."""
        found = Projection.of(piece.batch.schema, piece.file.names, (FILE_OFFSET,), {}).apply(piece.batch).column(0)
        own = np.arange(piece.position + 1, piece.position + 1 + len(found))
        if not found.null_count:
            offsets: Versions = found.to_numpy()
            return offsets
        return np.where(found.is_valid().to_numpy(zero_copy_only=False), found.fill_null(0).to_numpy(), own)

    def project(self, piece: FileBatch, fields: Any) -> pa.RecordBatch:
        rows = super().project(piece, fields)
        for index, field in enumerate(fields):
            if field.field_id == FILE_OFFSET.field_id and rows.column(index).null_count:
                rows = rows.set_column(index, rows.schema.field(index), pa.array(self.offsets(piece)))
        return rows


ALL_COLUMNS = METADATA_COLUMNS | CHANGE_COLUMNS
"""What may be asked for by name beside a table's own columns when the change store is read."""
