"""Files of the change store: inserted and deleted rows, with their order."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
from pyiceberg.types import LongType, NestedField, StringType

from pyarctic.iceberg.delete import EqualityDeletes, PositionDeletes, match_deletes
from pyarctic.iceberg.manifest import PartitionDecoder
from pyarctic.iceberg.read import METADATA_COLUMNS, DataFileReader, FileBatch, Projection, TableReader, TableView

Offsets = npt.NDArray[np.int64]
TRANSACTION_ID = NestedField(2147482646, "_transaction_id", LongType(), required=False)
FILE_OFFSET = NestedField(2147482645, "_file_offset", LongType(), required=False)
"""The only one of the three that is stored in files: the writer counts it over all its files."""
CHANGE_ACTION = NestedField(2147482644, "_change_action", StringType(), required=False)
CHANGE_COLUMNS = {field.name: field for field in (TRANSACTION_ID, FILE_OFFSET, CHANGE_ACTION)}
INSERT, DELETE, UPDATE_BEFORE, UPDATE_AFTER = ACTIONS = ("INSERT", "DELETE", "UPDATE_BEFORE", "UPDATE_AFTER")


def read_change_files(view: TableView, files: pl.DataFrame) -> TableReader:
    """A reader of change store files. They have no delete files."""
    matches = match_deletes(files, PartitionDecoder(view.metadata).unpartitioned_specs())
    return TableReader(view.metadata, view.io, matches, PositionDeletes(view.io, 0), EqualityDeletes(view.io, [], 0))


class ChangeFile(DataFileReader):
    """A file of the change store. Its name tells whether its rows were inserted or deleted, and by which transaction."""

    def __init__(self, reading: TableReader, row: dict[str, Any]) -> None:
        super().__init__(reading, row, [])
        self.inserts = row["kind"] != "ED"
        self.constants = self.constants | {
            TRANSACTION_ID.field_id: row["transaction_id"],
            CHANGE_ACTION.field_id: INSERT if self.inserts else DELETE,
        }

    def offsets(self, batch: FileBatch) -> Offsets:
        """The offsets of the rows. Files of other engines may have none: then the positions of the rows are used."""
        stored = Projection.of(batch.batch.schema, batch.file.names, (FILE_OFFSET,), {}).apply(batch.batch).column(0)
        if not stored.null_count:
            offsets: Offsets = stored.to_numpy()
            return offsets
        positions = np.arange(batch.position + 1, batch.position + 1 + len(stored))
        return np.where(stored.is_valid().to_numpy(zero_copy_only=False), stored.fill_null(0).to_numpy(), positions)

    def project(self, batch: FileBatch, fields: Any) -> pa.RecordBatch:
        rows = super().project(batch, fields)
        for index, field in enumerate(fields):
            if field.field_id == FILE_OFFSET.field_id and rows.column(index).null_count:
                rows = rows.set_column(index, rows.schema.field(index), pa.array(self.offsets(batch)))
        return rows


ALL_COLUMNS = METADATA_COLUMNS | CHANGE_COLUMNS
"""The columns that can be selected by name beside the table's when the change store is read."""
