"""Rows written directly into Base: a load, or an overwrite of the table or of partitions.

An overwrite begins a transaction: an empty commit to the change store. Its sequence number is the transaction of the new
files, and the sequence number up to which the replaced partitions are merged. So it hides every change of those partitions
that was committed before it began, and no later one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
from pyiceberg.table.metadata import TableMetadata

from pyarctic.iceberg import partition_values, remove_quietly
from pyarctic.iceberg.delete import KeyColumns, Positions, hash_rows
from pyarctic.iceberg.manifest import PartitionDecoder
from pyarctic.iceberg.read import TableView, read_file_batches
from pyarctic.iceberg.write import NewFile, write_position_deletes
from pyarctic.tables.format.file_names import StoreFileNames, StoreTarget, parse_file_names
from pyarctic.tables.format.store_properties import BASE_BUCKETS, key_ids, key_names, tree_mask
from pyarctic.tables.write.arrow_rows import check_keys, check_partition_columns, fit_to_schema, key_frame
from pyarctic.tables.write.fanout import Fanout
from pyarctic.tables.write.overwrite_scope import OverwriteScope
from pyarctic.tables.write.row_sources import to_batches

_FILE, _POSITION = "\0file", "\0position"


@dataclass(frozen=True, kw_only=True)
class BaseWriter:
    """Writes rows as files of Base, or of a table without a key; commits nothing. It can be pickled: several writers may
    share a load if all rows of a key go to one of them."""

    view: TableView
    scope: OverwriteScope
    transaction_id: int = 0

    def files(self, data: Any, names: StoreFileNames | None = None) -> list[NewFile]:
        """Write rows. Of several rows with the same key the last one counts."""
        view, metadata = self.view, self.view.metadata
        keys = key_names(metadata)
        mask = tree_mask(metadata.properties, BASE_BUCKETS) if keys else 0
        names = names or StoreFileNames()
        duplicates = _DuplicateKeys(view, names) if keys else None
        with Fanout(view, mask=mask, transaction_id=self.transaction_id, names=names) as out:
            for batch in to_batches(data):
                rows = fit_base_rows(batch, metadata)
                if duplicates is not None:
                    duplicates.add(rows)
                locations = out.locate(rows)
                self.scope.check_rows(metadata, locations.partitions)
                out.write(rows, locations, {"B": None})
        files = [*out.files]
        try:
            if duplicates is not None:
                files.extend(duplicates.write_deletes(out.files, self.transaction_id))
        except BaseException:
            remove_quietly(view.io, [file.path for file in files])
            raise
        return files


def fit_base_rows(batch: pa.RecordBatch, metadata: TableMetadata) -> pa.RecordBatch:
    """The rows in the columns of the table; or an error about what does not fit."""
    rows = fit_to_schema(batch, metadata.schema())
    if keys := key_names(metadata):
        check_keys(rows, keys)
        check_partition_columns(batch, metadata)
    return rows


def check_first_batch(view: TableView, data: Any, scope: OverwriteScope) -> Iterator[pa.RecordBatch]:
    """The batches of some data; the first one was checked against the table and the scope."""
    metadata = view.metadata
    batches = to_batches(data)
    first = list(itertools.islice(batches, 1))
    for batch in first:
        rows = fit_base_rows(batch, metadata)
        scope.check_rows(metadata, partition_values(metadata.spec(), metadata.schema(), rows)[1])
    return itertools.chain(first, batches)


class _DuplicateKeys:
    """Keys that occur several times in one load. Rows are written as they come, and only a hash of every key is kept. Where
    hashes repeat, the keys are read back and compared, and all rows but the last of a key are deleted."""

    def __init__(self, view: TableView, names: StoreFileNames) -> None:
        self._view = view
        self._file_names = names
        metadata = view.metadata
        self._key_names = list(key_names(metadata))
        self._keys = KeyColumns.of(key_ids(metadata), [metadata.schema()], view.name)
        self._hashes: list[npt.NDArray[np.uint64]] = []

    def add(self, rows: pa.RecordBatch) -> None:
        self._hashes.append(hash_rows(key_frame(rows, self._key_names)).to_numpy())

    def write_deletes(self, files: list[NewFile], transaction_id: int) -> Iterator[NewFile]:
        """Position deletes of the rows that are not the last of their key in their partition."""
        if not self._hashes:
            return
        hashes = np.sort(np.concatenate(self._hashes))
        repeated = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
        if not len(repeated):
            return
        for (_, node_id), numbers in _by_node(files):
            first = files[numbers[0]]
            deleted = self._find_duplicates([files[number] for number in numbers], repeated)
            if deleted:
                target = StoreTarget(
                    metadata=self._view.metadata,
                    io=self._view.io,
                    spec_id=first.spec_id,
                    partition=first.partition,
                    names=self._file_names,
                    node_id=node_id,
                    kind="PD",
                    transaction_id=transaction_id,
                )
                yield write_position_deletes(target, deleted)

    def _find_duplicates(self, files: list[NewFile], repeated: npt.NDArray[np.uint64]) -> dict[str, Positions]:
        """Path → positions of rows whose key comes again later. `files`: those of one node, in the order of writing."""
        parts = []
        for number, file in enumerate(files):
            key_ids, size = self._keys.top_level_ids, file.file_size_bytes
            for batch in read_file_batches(self._view.io, file.path, file.file_format, None, key_ids, size=size):
                keys = self._keys.frame(batch, {})
                hashes = hash_rows(key_frame(batch.batch, self._key_names)).to_numpy()
                chosen = np.flatnonzero(np.isin(hashes, repeated))
                origin = [pl.Series(_FILE, np.full(len(chosen), number)), pl.Series(_POSITION, chosen + batch.position)]
                parts.append(keys[chosen].with_columns(origin))
        rows = pl.concat(parts)
        names = [name for name in rows.columns if name not in (_FILE, _POSITION)]
        is_last = pl.int_range(pl.len()).over(names) == pl.len().over(names) - 1
        duplicates = rows.sort(_FILE, _POSITION).filter(~is_last)
        return {
            files[int(str(number))].path: of_file[_POSITION].sort().to_numpy()
            for (number,), of_file in duplicates.group_by(_FILE, maintain_order=True)
        }


def _by_node(files: list[NewFile]) -> Iterator[tuple[tuple[str, int], list[int]]]:
    """The numbers of files, by partition and node."""
    listed = pl.DataFrame(
        {
            "file_path": [file.path for file in files],
            "number": range(len(files)),
            "partition": [PartitionDecoder.key_of(file.partition) for file in files],
        }
    )
    for (key, node_id), group in parse_file_names(listed, "base").group_by("partition", "node_id", maintain_order=True):
        yield (str(key), int(str(node_id))), group["number"].to_list()
