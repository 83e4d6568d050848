"""Whether rows are in files of their partition: scans skip files by their partition, so that others are overlooked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import polars as pl
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import NestedField

from pyarctic.errors import Damaged, Unsupported
from pyarctic.iceberg.check.manifests import SnapshotFiles
from pyarctic.iceberg.check.problems import Problem
from pyarctic.iceberg.delete.delete_files import EqualityDeletes, PositionDeletes
from pyarctic.iceberg.delete.deletion_vectors import Positions
from pyarctic.iceberg.delete.matching import match_deletes
from pyarctic.iceberg.manifest.file_list import IS_DATA
from pyarctic.iceberg.manifest.partition_keys import LOST_VALUE, PartitionDecoder
from pyarctic.iceberg.read.data_files import FileBatch
from pyarctic.iceberg.read.live_rows import TableReader, TableView, newest_first
from pyarctic.iceberg.read.projection import Projection, is_decodable
from pyarctic.iceberg.transforms import partition_values

_MEMORY_BYTES = 64 << 20


class RowPartitions:
    """Looks at rows while files are read, in any thread. Deleted rows are left out afterwards, by `problems`."""

    def __init__(self, view: TableView) -> None:
        self._view = view
        self._schema, self._specs = view.metadata.schema(), view.metadata.specs()
        self._decoder = PartitionDecoder(view.metadata)
        self._sources = lru_cache(maxsize=None)(self._find_sources)
        self._elsewhere: list[tuple[str, Positions]] = []

    def look(self, row: Mapping[str, Any], batch: FileBatch) -> None:
        """Note the rows of a batch that belong to another partition than their file."""
        fields = self._sources(row["spec_id"])
        if not fields or any(value is LOST_VALUE for value in json.loads(row["partition"])):
            return
        constants = self._decoder.constants(row["spec_id"], row["partition"])
        rows = Projection.of(batch.batch.schema, batch.file.names, fields, constants).apply(batch.batch)
        codes, partitions = partition_values(self._specs[row["spec_id"]], self._schema, rows)
        expected = PartitionDecoder.key_of(self._decoder.values(row["spec_id"], row["partition"]))
        elsewhere = [number for number, values in enumerate(partitions) if PartitionDecoder.key_of(values) != expected]
        if elsewhere:
            positions = np.flatnonzero(np.isin(codes, elsewhere)) + batch.position
            self._elsewhere.append((row["file_path"], positions))

    def _find_sources(self, spec_id: int) -> list[NestedField]:
        """The top-level columns that partitions of a spec are made of; none if not all of them can be computed: a column
        of an old spec may have been dropped."""
        spec, schema = self._specs[spec_id], self._schema
        live = [field for field in spec.fields if not isinstance(field.transform, VoidTransform)]
        if not all(field.source_id in schema.field_ids for field in live):
            return []
        if not all(field.transform.can_transform(schema.find_type(field.source_id)) for field in live):
            return []
        positions = sorted({schema.accessor_for_field(field.source_id).position for field in live})
        fields = [schema.fields[position] for position in positions]
        return fields if all(is_decodable(field.field_type) for field in fields) else []

    def problems(self, current: SnapshotFiles | None) -> Iterator[Problem]:
        """What is wrong with rows that are live; in files of older snapshots, with all rows."""
        if not self._elsewhere:
            return
        positions: dict[str, list[Positions]] = {}
        for path, some in self._elsewhere:
            positions.setdefault(path, []).append(some)
        deleted = self._deleted_positions(current, list(positions))
        for path, parts in positions.items():
            live = np.setdiff1d(np.concatenate(parts), deleted.get(path, ()))
            if len(live):
                yield Problem("wrong-partition", "their values give another partition", path, len(live))

    def _deleted_positions(self, current: SnapshotFiles | None, paths: list[str]) -> dict[str, Positions]:
        """The positions of deleted rows of data files that are in the current snapshot."""
        if current is None or not current.is_complete:
            return {}
        metadata, io = self._view.metadata, self._view.io
        files = current.files.filter(~IS_DATA | pl.col("file_path").is_in(paths))
        try:
            matches = match_deletes(files, self._decoder.unpartitioned_specs())
            schemas = [metadata.schema(), *newest_first(metadata)]
            equality = EqualityDeletes(io, schemas, _MEMORY_BYTES)
            reader = TableReader(metadata, io, matches, PositionDeletes(io, _MEMORY_BYTES, paths), equality)
            return {file.path: file.find_deleted_positions() for file in reader.files()}
        except (Damaged, Unsupported):  # deletes that contradict the data or cannot be read: reported already
            return {}
