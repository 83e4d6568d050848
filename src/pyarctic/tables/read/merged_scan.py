"""One row per key over both stores: base rows and unmerged changes, by the rule of `latest_versions`.

Files that no change concerns are read like those of any Iceberg table. For the others the key columns of the changes are
read first; then every row is compared with the latest version of its key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import polars as pl
import pyarrow as pa
from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from pyarctic.errors import Unsupported, about
from pyarctic.iceberg.delete import DeleteMatches, EqualityDeletes, PositionDeletes, match_deletes
from pyarctic.iceberg.manifest import EQUALITY_DELETES, FileList, PartitionDecoder
from pyarctic.iceberg.predicate import (
    ALWAYS_TRUE,
    bind_condition,
    parse_condition,
    prune_by_metrics,
    prune_partitions,
    with_optional_parents,
)
from pyarctic.iceberg.read import (
    DataFileReader,
    ScanColumns,
    TableReader,
    TableView,
    arrow_schema,
    newest_first,
    select_fields,
)
from pyarctic.tables.format.change_columns import ChangeFile
from pyarctic.tables.format.file_names import Store, StorePaths, parse_change_file_names, parse_file_names
from pyarctic.tables.format.merged_sequence import merged_sequences
from pyarctic.tables.format.primary_key import PrimaryKey
from pyarctic.tables.format.tree import ROOT
from pyarctic.tables.read.key_groups import (
    KeyGroup,
    KeyGroups,
    group_by_keys,
    has_concurrent_inserts,
    rank_transactions,
    select_unmerged,
    with_key_ranges,
)
from pyarctic.tables.read.latest_versions import KeyVersions
from pyarctic.tables.read.merged_file import MergedBaseFile, MergedChangeFile, MergedFile, resolve

MEMORY_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreState:
    """A store at one of its snapshots, with the files of that."""

    view: TableView
    snapshot: Snapshot | None
    files: FileList


class MergedScan:
    """A prepared merged read. It is lazy: every call of `batches` or `count` reads the files again."""

    def __init__(
        self,
        base: StoreState,
        change: StoreState,
        *,
        schema: Schema,
        columns: Sequence[str] | None = None,
        where: str | BooleanExpression | None = None,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self._base, self._change = base, change
        self.table_schema = schema
        self.wanted = select_fields(schema, columns, extra={})
        self.condition = parse_condition(schema, where)
        self.memory_bytes = memory_bytes
        self._key = PrimaryKey.of(base.view.metadata, base.view.name)

    def __repr__(self) -> str:
        where = "" if self.condition == ALWAYS_TRUE else f" where {self.condition}"
        return f"<MergedScan of {self._base.view.name}: {', '.join(field.name for field in self.wanted)}{where}>"

    @property
    def table_name(self) -> str:
        return self._base.view.name

    @property
    def views(self) -> tuple[TableView, TableView]:
        """The base store and the change store."""
        return self._base.view, self._change.view

    @property
    def base_matches(self) -> DeleteMatches:
        """The files of the base store with their deletes."""
        return self._base_store.matches

    @property
    def base_files(self) -> FileList:
        return self._base.files

    def data_files(self, store: Store) -> pl.DataFrame:
        """The data files of a store; `row` is the number by which their deletes are found."""
        return (self._base_store if store == "base" else self._change_store).all.numbered_files()

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the batches."""
        return arrow_schema(self.wanted)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows; memory is bounded, whatever the size of the table and of its changes."""
        for group in self.groups:
            yield from self.batches_of(group)

    def batches_of(self, group: KeyGroup) -> Iterator[pa.RecordBatch]:
        """The rows of one key group, or of a part of one."""
        with about(table=self._base.view.name), self._open_files(group) as files:
            for file in files:
                yield from self._columns.batches(file)

    def to_arrow(self) -> pa.Table:
        """All rows in memory."""
        return pa.Table.from_batches(self.batches(), schema=self.schema)

    def count(self) -> int:
        """The number of rows; files without deletes, changes and conditions are counted by their metadata."""
        total = 0
        with about(table=self._base.view.name):
            for group in self.groups:
                with self._open_files(group) as files:
                    total += sum(self._columns.count(file, self._matches(file)) for file in files)
        return total

    @cached_property
    def groups(self) -> KeyGroups:
        """The files to read, in groups of which no two have a key in common."""
        with about(table=self._base.view.name):
            base, change = rank_transactions(self._base_files(), self._change_files())
            if change.height:
                base, change = self._with_ranges(base, self._base), self._with_ranges(change, self._change)
                stores = (self._base.view.metadata, self._change.view.metadata)
                if self._key.was_widened(stores, (base, change)):
                    base, change = (files.with_columns(node_id=pl.lit(ROOT.id, pl.Int64)) for files in (base, change))
            return group_by_keys(base, change, self._key.fields)

    def _base_files(self) -> pl.DataFrame:
        data = parse_file_names(self._base_store.all.numbered_files(), "base")
        return self._mark_wanted(data, self._base)

    def _change_files(self) -> pl.DataFrame:
        data = self._change_store.all.numbered_files()
        if self.condition != ALWAYS_TRUE and data.height:
            schema = with_optional_parents(self.table_schema)
            data = prune_partitions(data, self._change.view.metadata, schema, self.condition)
        view = self._base.view
        merged = merged_sequences(view.metadata, view.io, self._base.snapshot)
        unmerged = select_unmerged(data, StorePaths(self._change.view.metadata), merged)
        return self._mark_wanted(parse_change_file_names(unmerged), self._change)

    def _mark_wanted(self, data: pl.DataFrame, state: StoreState) -> pl.DataFrame:
        """Add `wanted`: whether a file may hold rows that meet the condition."""
        if self.condition == ALWAYS_TRUE or data.is_empty():
            return data.with_columns(wanted=pl.lit(value=True))
        schema = with_optional_parents(self.table_schema)
        kept = prune_partitions(data, state.view.metadata, schema, self.condition)
        bound = bind_condition(schema, self.condition)
        kept = prune_by_metrics(kept, state.files, state.view.io, schema, bound)
        return data.with_columns(wanted=pl.col("row").is_in(kept["row"].implode()))

    def _with_ranges(self, data: pl.DataFrame, state: StoreState) -> pl.DataFrame:
        """Add the key ranges of the files."""
        return with_key_ranges(data, state.files, state.view.io, self._key.fields)

    @cached_property
    def _columns(self) -> ScanColumns:
        return ScanColumns(self.table_schema, self.wanted, self.condition)

    @cached_property
    def _base_store(self) -> _Store:
        return _Store(self._base, self._columns, self.memory_bytes)

    @cached_property
    def _change_store(self) -> _Store:
        return _Store(self._change, self._columns, self.memory_bytes)

    def _matches(self, file: DataFileReader) -> DeleteMatches:
        return (self._change_store if isinstance(file, ChangeFile) else self._base_store).matches

    @contextmanager
    def _open_files(self, group: KeyGroup) -> Iterator[Iterator[DataFileReader]]:
        """The files of a key group, ready to be read."""
        files = self._merged_files(group.base, group.inserts, self._base_store.wanted, self._change_store.wanted)
        if group.changes.is_empty() or not group.data_bytes:
            yield files  # one by one: a group without changes may be a whole table
            return
        # Versions count whether their rows meet the condition or not.
        version_files = self._merged_files(group.competing_base, group.changes, self._base_store.all, self._change_store.all)
        check_ties = has_concurrent_inserts(group.changes)
        with KeyVersions(self.memory_bytes, group.version_rows, check_ties=check_ties) as versions:
            files_to_read = list(files)
            resolve(files_to_read, version_files, versions)
            yield iter(files_to_read)

    def _merged_files(
        self, base: pl.DataFrame, changes: pl.DataFrame, base_reader: TableReader, change_reader: TableReader
    ) -> Iterator[MergedFile]:
        return chain(
            (MergedBaseFile(base_reader, row, self._key) for row in base.iter_rows(named=True)),
            (MergedChangeFile(change_reader, row, self._key) for row in changes.iter_rows(named=True)),
        )


def check_files(files: FileList, metadata: TableMetadata) -> pl.DataFrame:
    """The files of a store; refuses what the format does not allow."""
    frame = files.frame()
    if frame.filter(pl.col("content") == EQUALITY_DELETES).height:
        raise Unsupported(
            "a store of the table has equality deletes, which its format does not allow",
            hint="Another engine wrote them. Roll its commit back.",
        )
    if frame.filter(pl.col("spec_id") != metadata.default_spec_id).height:
        raise Unsupported(
            "a store of the table has files of another partition spec than its own",
            hint="Keys are unique within a partition. Roll back the commit that added them.",
        )
    return frame


class _Store:
    """The files of a store with their deletes, and two ways to read them."""

    def __init__(self, state: StoreState, columns: ScanColumns, memory_bytes: int) -> None:
        metadata, io = state.view.metadata, state.view.io
        files = check_files(state.files, metadata)
        self.matches = match_deletes(files, PartitionDecoder(metadata).unpartitioned_specs())
        positions = PositionDeletes(io, memory_bytes // 4)
        equality = EqualityDeletes(io, newest_first(metadata), memory_bytes // 4)
        self.wanted = TableReader(metadata, io, self.matches, positions, equality, columns.row_groups)
        """Skips row groups without any row that meets the condition."""
        self.all = TableReader(metadata, io, self.matches, positions, equality)
        """Reads all row groups."""
