"""Writing rows of many partitions and tree nodes at once: one open file for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.types import NestedField

from pyarctic.iceberg import partition_values
from pyarctic.iceberg.read import TableView
from pyarctic.iceberg.write import FileTarget, NewFile, RollingPolicy, positive_property
from pyarctic.iceberg.write.parquet import DataFileWriter, Dictionaries, file_schema, repetitive_columns
from pyarctic.tables.format.file_names import FileKind, PartitionId, StoreFileNames, StorePaths, StoreTarget
from pyarctic.tables.format.key_hash import key_hashes
from pyarctic.tables.format.store_properties import key_names, store_of
from pyarctic.tables.format.tree import ROOT, node_ids

_MEMORY_BYTES = 128 << 20
_TARGET_BYTES = 128 << 20
_TARGET = "write.target-file-size-bytes"


class Fanout:
    """The files of one writer in one store: `with Fanout(…) as out: out.write(…)`, then `out.files`. If the block is left by
    an exception, the files are removed."""

    def __init__(
        self,
        view: TableView,
        *,
        mask: int,
        transaction_id: int = 0,
        extra_fields: Sequence[NestedField] = (),
        names: StoreFileNames | None = None,
    ) -> None:
        """`mask`: the level of the tree to write at. `extra_fields`: columns beside those of the table. `names`: for a
        writer among others."""
        metadata = view.metadata
        self.files: list[NewFile] = []
        self._view = view
        self._mask = mask
        self._transaction_id = transaction_id
        self._extra = tuple(extra_fields)
        self._names = names or StoreFileNames()
        self._paths = StorePaths(metadata)
        self._spec = metadata.spec()
        self._schema = metadata.schema()
        self._keys = [self._schema.find_field(name) for name in key_names(metadata)]
        self._rolling = RollingPolicy(target_bytes=positive_property(metadata.properties, _TARGET, _TARGET_BYTES))
        self._writers: dict[tuple[PartitionId, int, FileKind], DataFileWriter] = {}
        """By partition, node and kind."""
        self._dictionaries: Dictionaries | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            try:
                for writer in self._writers.values():
                    self.files += writer.close()
            except BaseException:
                self._abort()
                raise
        else:
            self._abort()

    def _abort(self) -> None:
        for writer in self._writers.values():
            writer.abort()

    def locate(self, rows: pa.RecordBatch) -> RowLocations:
        """The partition and node of every row."""
        codes, partitions = partition_values(self._spec, self._schema, rows)
        if not self._keys or self._mask == 0:
            nodes = np.full(rows.num_rows, ROOT.id)
        else:
            hashes = key_hashes([rows.column(f.name) for f in self._keys], [f.field_type for f in self._keys])
            nodes = node_ids(hashes, self._mask)
        return RowLocations(codes=codes, partitions=partitions, nodes=nodes, mask=self._mask)

    def write(self, rows: pa.RecordBatch, locations: RowLocations, kinds: Mapping[FileKind, pa.Array | None]) -> None:
        """Append rows, each to the file of its partition and node; within a file they keep their order. Rows are written to
        a file of every given kind, each with its own values of the extra column."""
        if self._dictionaries is None and rows.num_rows:
            # Not for the extra column: its values hardly repeat.
            self._dictionaries = repetitive_columns(file_schema(self._schema.fields), rows)
        order, runs = locations.runs()
        if order is not None:
            rows = rows.take(order)
        for kind, extra_values in kinds.items():
            columns = rows
            if extra_values is not None:
                ordered = extra_values if order is None else extra_values.take(order)
                columns = rows.append_column(self._extra[0].name, ordered)
            for run in runs:
                writer = self._writer(locations.partitions[run.code], run.node, kind)
                writer.write(columns.slice(run.start, run.end - run.start))
        if sum(writer.buffered_bytes for writer in self._writers.values()) > _MEMORY_BYTES:
            for writer in self._writers.values():
                writer.flush()

    def _writer(self, partition: tuple[Any, ...], node: int, kind: FileKind) -> DataFileWriter:
        key = (self._paths.partition_id(self._spec.spec_id, partition), node, kind)
        if key not in self._writers:
            target = self._target(partition, node, kind)
            self._writers[key] = DataFileWriter(
                target, extra_fields=self._extra, rolling=self._rolling, dictionaries=self._dictionaries
            )
        return self._writers[key]

    def _target(self, partition: tuple[Any, ...], node: int, kind: FileKind) -> FileTarget:
        metadata, io, spec_id = self._view.metadata, self._view.io, self._spec.spec_id
        if store_of(metadata.properties) is None:
            return FileTarget(metadata=metadata, io=io, spec_id=spec_id, partition=partition, names=self._names)
        return StoreTarget(
            metadata=metadata,
            io=io,
            spec_id=spec_id,
            partition=partition,
            names=self._names,
            node_id=node,
            kind=kind,
            transaction_id=self._transaction_id,
        )


class Run(NamedTuple):
    """Rows of one partition and node, from `start` to `end`: the code of their partition, and their node."""

    start: int
    end: int
    code: int
    node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLocations:
    """Partitions and nodes of some rows."""

    codes: npt.NDArray[np.int32]
    """For every row the index of its partition in `partitions`."""
    partitions: list[tuple[Any, ...]]
    nodes: npt.NDArray[np.int64]
    mask: int

    def filter(self, mask: npt.NDArray[np.bool_]) -> RowLocations:
        """The locations of some of the rows."""
        return replace(self, codes=self.codes[mask], nodes=self.nodes[mask])

    def runs(self) -> tuple[pa.Array | None, list[Run]]:
        """The order that brings rows of one partition and node together (None: they already are), and the runs in it."""
        if not len(self.codes):
            return None, []
        width = self.mask + 1
        numbers: npt.NDArray[Any] = self.codes.astype(np.int64) * width + (self.nodes - width)
        if len(self.partitions) * width < 1 << 16:
            numbers = numbers.astype(np.uint16)  # such numbers are sorted in one pass
        if numbers.min() == numbers.max():
            return None, [Run(0, len(numbers), int(self.codes[0]), int(self.nodes[0]))]
        order = np.argsort(numbers, kind="stable")
        starts = np.flatnonzero(np.diff(numbers[order].astype(np.int64), prepend=-1)).tolist()
        ends = [*starts[1:], len(order)]
        runs = [
            Run(start, end, int(self.codes[order[start]]), int(self.nodes[order[start]]))
            for start, end in zip(starts, ends, strict=True)
        ]
        return pa.array(order), runs
