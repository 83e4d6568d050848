"""Small data files read together, so that deletes are applied to the rows of hundreds of files at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import NestedField

from pyarctic.iceberg.delete.key_index import Mask
from pyarctic.iceberg.read.data_files import FileBatch, translate_damage
from pyarctic.iceberg.read.joined_batches import JoinedBatch, join_batches
from pyarctic.iceberg.read.live_rows import METADATA_IDS, DataFileReader
from pyarctic.iceberg.read.projection import Projection

JoinedFiles = JoinedBatch[DataFileReader]


def group_small_files(files: Iterable[DataFileReader]) -> Iterator[list[DataFileReader]]:
    """The files in their order: consecutive small ones of a partition together, all others alone."""
    group: list[DataFileReader] = []
    for file in files:
        if group and not (file.is_joinable and file.partition == group[0].partition):
            yield group
            group = []
        if file.is_joinable:
            group.append(file)
        else:
            yield [file]
    if group:
        yield group


def joined_live_batches(
    files: Sequence[DataFileReader], fields: Sequence[NestedField]
) -> Iterator[tuple[JoinedFiles, pa.RecordBatch, Mask | None]]:
    """Batches of the rows of small files of one partition, projected to the given columns, each with a mask of its live rows
    (None: all are live)."""
    # The index knows when a key was deleted: it may be asked for files that no delete of the partition applies to.
    delete_batches = {id(batch): batch for file in files for batch in file.delete_batches}.values()
    key_ids = {field_id for delete_batch in delete_batches for field_id in delete_batch.keys.top_level_ids}
    field_ids = {field.field_id for field in fields} | key_ids
    constants, equality = files[0].constants, files[0].reader.equality
    for batch in join_batches((file, batch) for file in files for batch in file.read_all(field_ids)):
        is_deleted = _deleted_by_position(batch)
        sequences = batch.of_rows(np.array([file.sequence for file in batch.owners], np.int64))
        for delete_batch in delete_batches:
            keys = delete_batch.keys.frame(batch.joined, constants)
            is_deleted |= equality.index(delete_batch).is_deleted(keys, sequences)
        yield batch, _project(batch, fields), ~is_deleted if is_deleted.any() else None


def _deleted_by_position(batch: JoinedFiles) -> Mask:
    is_deleted = np.zeros(batch.joined.batch.num_rows, dtype=bool)
    starts = np.cumsum(batch.heights) - batch.heights
    for file, position, height, start in zip(batch.owners, batch.positions, batch.heights, starts, strict=True):
        positions = file.deleted_positions()
        first, last = np.searchsorted(positions, (position, position + height)) if len(positions) else (0, 0)
        is_deleted[positions[first:last] - position + start] = True
    return is_deleted


def _project(batch: JoinedFiles, fields: Sequence[NestedField]) -> pa.RecordBatch:
    joined: FileBatch = batch.joined
    with translate_damage(batch.owners[0].path):
        rows = Projection.of(joined.batch.schema, joined.file.names, fields, batch.owners[0].constants).apply(joined.batch)
        for index, field in enumerate(fields):
            if field.field_id not in METADATA_IDS:
                continue
            parts = zip(batch.owners, batch.positions.tolist(), batch.heights.tolist(), strict=True)
            values = pa.concat_arrays([file.metadata_values(field.field_id, *part) for file, *part in parts])
            # A rewritten file contains the lineage of its rows; only nulls are computed.
            rows = rows.set_column(index, rows.schema.field(index), pc.coalesce(rows.column(index), values))
    return rows
