"""Writing delete files: position deletes, equality deletes, and deletion vectors in Puffin files."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.types import NestedField
from pyroaring import BitMap64

from pyarctic.errors import UsageError
from pyarctic.iceberg.delete.delete_files import POSITION_ID
from pyarctic.iceberg.delete.deletion_vectors import MAGIC, Positions, to_bitmap
from pyarctic.iceberg.manifest.reader import EQUALITY_DELETES, FILE_PATH_ID, POSITION_DELETES
from pyarctic.iceberg.read.live_rows import POSITION
from pyarctic.iceberg.storage import remove_if_incomplete
from pyarctic.iceberg.write.new_file import FileTarget, Metrics, NewFile
from pyarctic.iceberg.write.parquet.data_file_writer import file_schema
from pyarctic.iceberg.write.parquet.metrics import parquet_metrics
from pyarctic.iceberg.write.parquet.settings import Dictionaries, ParquetSettings
from pyarctic.iceberg.write.puffin import INHERITED, Blob, write_puffin

_PATH = pa.dictionary(pa.int32(), pa.string())
_POSITION_SCHEMA = pa.schema(
    [
        pa.field("file_path", _PATH, nullable=False, metadata={"PARQUET:field_id": str(FILE_PATH_ID)}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": str(POSITION_ID)}),
    ]
)


def write_position_deletes(target: FileTarget, deleted: Mapping[str, Positions]) -> NewFile:
    """Write one position delete file of format version 2. `deleted`: data file → positions, all in the partition."""
    if target.metadata.format_version != 2:
        raise UsageError(
            f"position delete files are for format version 2, the table has {target.metadata.format_version}",
            hint="Write deletion vectors for version 3 and later; version 1 has no deletes.",
        )
    paths = sorted(path for path, positions in deleted.items() if len(positions))
    if not paths:
        raise UsageError("no position to delete was given")
    # Ordered by path and position, as the specification requires.
    ordered = [_sort_distinct(np.asarray(deleted[path], dtype=np.int64)) for path in paths]
    codes = np.repeat(np.arange(len(paths), dtype=np.int32), [len(positions) for positions in ordered])
    # Dictionary-encoded, as in the file: a path is long and repeated for each row.
    file_path = pa.DictionaryArray.from_arrays(codes, pa.array(paths))
    table = pa.Table.from_arrays([file_path, pa.array(np.concatenate(ordered))], schema=_POSITION_SCHEMA)
    path, size, metadata = _write_parquet(target, table, dictionaries=Dictionaries(columns=("file_path",)))
    # Never truncated: equal bounds tell readers that the file refers to one data file.
    bounds = {FILE_PATH_ID: paths[0].encode()}, {FILE_PATH_ID: paths[-1].encode()}
    return NewFile(
        content=POSITION_DELETES,
        path=path,
        file_format="PARQUET",
        spec_id=target.spec_id,
        partition=target.partition,
        record_count=table.num_rows,
        file_size_bytes=size,
        metrics=Metrics(
            column_sizes=_column_sizes(metadata),
            value_counts=dict.fromkeys((FILE_PATH_ID, POSITION_ID), table.num_rows),
            null_counts=dict.fromkeys((FILE_PATH_ID, POSITION_ID), 0),
            lower_bounds=bounds[0],
            upper_bounds=bounds[1],
        ),
        referenced_data_file=paths[0] if len(paths) == 1 else None,
    )


def _sort_distinct(positions: Positions) -> Positions:
    """Positions in order, each once. Mostly they are already, and checking costs a tenth of sorting."""
    return positions if bool((np.diff(positions) > 0).all()) else np.unique(positions)


def write_equality_deletes(target: FileTarget, keys: pa.Table, fields: Sequence[NestedField]) -> NewFile:
    """Write one equality delete file: it deletes all older rows that equal a row of `keys` in all `fields`."""
    if target.metadata.format_version < 2:
        raise UsageError("format version 1 has no deletes", hint="Upgrade the table to format version 2 or 3.")
    if not keys.num_rows or not fields:
        raise UsageError("no key to delete was given")
    schema = file_schema(fields)
    try:
        table = keys.select(schema.names).cast(schema)
    except (KeyError, pa.ArrowException) as cause:
        raise UsageError(f"keys do not fit the key columns {schema.names}: {cause}") from cause
    path, size, metadata = _write_parquet(target, table)
    metrics, offsets = parquet_metrics(metadata, fields, target.metadata.properties, {})
    return NewFile(
        content=EQUALITY_DELETES,
        path=path,
        file_format="PARQUET",
        spec_id=target.spec_id,
        partition=target.partition,
        record_count=table.num_rows,
        file_size_bytes=size,
        metrics=metrics,
        split_offsets=offsets,
        equality_ids=tuple(field.field_id for field in fields),
    )


def write_vectors(target: FileTarget, deleted: Mapping[str, Positions]) -> list[NewFile]:
    """Write deletion vectors of format version 3 into one Puffin file. `deleted`: data file → positions, all in the target's
    partition."""
    if target.metadata.format_version < 3:
        raise UsageError(
            f"deletion vectors need format version 3, the table has {target.metadata.format_version}",
            hint="Write position delete files for version 2.",
        )
    if not deleted or not all(len(positions) for positions in deleted.values()):
        raise UsageError("no position to delete was given, or none for one of the data files")
    vectors = {path: to_bitmap(np.asarray(deleted[path], np.int64)) for path in sorted(deleted)}
    blobs = {path: encode_vector(vector) for path, vector in vectors.items()}
    location = target.new_path("-deletes.puffin")
    puffin = write_puffin(
        target.io,
        location,
        [
            Blob(
                type="deletion-vector-v1",
                data=blob,
                fields=(POSITION.field_id,),
                snapshot_id=INHERITED,
                sequence_number=INHERITED,
                properties={"referenced-data-file": path, "cardinality": str(len(vectors[path]))},
            )
            for path, blob in blobs.items()
        ],
    )
    return [
        NewFile(
            content=POSITION_DELETES,
            path=location,
            file_format="PUFFIN",
            spec_id=target.spec_id,
            partition=target.partition,
            record_count=len(vectors[path]),
            file_size_bytes=puffin.size,
            referenced_data_file=path,
            content_offset=offset,
            content_size_bytes=len(blob),
        )
        for (path, blob), offset in zip(blobs.items(), puffin.offsets, strict=True)
    ]


def encode_vector(positions: BitMap64) -> bytes:
    """Encode a `deletion-vector-v1` blob: length, magic, 64-bit Roaring bitmap in portable format, checksum."""
    positions = positions.copy()
    positions.run_optimize()
    body = MAGIC + positions.serialize()
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def _write_parquet(
    target: FileTarget, table: pa.Table, dictionaries: Dictionaries | None = None
) -> tuple[str, int, pq.FileMetaData]:
    path = target.new_path("-deletes.parquet")
    collected: list[pq.FileMetaData] = []
    settings = ParquetSettings.of(target.metadata.properties, deletes=True)
    with remove_if_incomplete(target.io, path), target.io.new_output(path).create() as stream:
        with settings.writer(stream, table.schema, collected, dictionaries) as writer:
            writer.write_table(table)
        size = stream.tell()
    return path, size, collected[0]


def _column_sizes(metadata: pq.FileMetaData) -> dict[int, int]:
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    return {
        field_id: sum(group.column(column).total_compressed_size for group in groups)
        for column, field_id in enumerate((FILE_PATH_ID, POSITION_ID))
    }
