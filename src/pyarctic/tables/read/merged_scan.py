"""One row per key over both stores: base rows and unmerged changes, by the rule of `latest_versions`.

Files that no change concerns are read like those of any Iceberg table. For the others the key columns of the changes are
read first; then every row is compared with the latest version of its key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
    RowScan,
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
from pyarctic.tables.read.foreign_files import IS_FOREIGN, order_foreign_files
from pyarctic.tables.read.key_groups import (
    KeyGroup,
    KeyGroups,
    group_by_keys,
    has_concurrent_inserts,
    rank_transactions,
    select_unmerged,
    with_key_ranges,
)
from pyarctic.tables.read.key_lookup import KeyLookup, ignore_nodes_if_widened
from pyarctic.tables.read.latest_versions import KeyVersions
from pyarctic.tables.read.merged_file import MergedBaseFile, MergedChangeFile, MergedFile, resolve, resolve_foreign

MEMORY_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreState:
    """A store at one of its snapshots, with the files of that."""

    view: TableView
    snapshot: Snapshot | None
    files: FileList


class MergedScan(RowScan):
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
        """The name of the scanned table."""
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
            states = self._base, self._change
            frames: Sequence[pl.DataFrame] = self._base_files(), self._change_files()
            has_versions = frames[1].height or frames[0].filter(IS_FOREIGN).height
            if has_versions or self._lookup.hashes is not None:
                ranged = [self._with_ranges(files, state) for files, state in zip(frames, states, strict=True)]
                frames = ignore_nodes_if_widened(self._key, [state.view.metadata for state in states], ranged)
            selected = (self._select_files(files, state) for files, state in zip(frames, states, strict=True))
            base, change = rank_transactions(*selected)
            return group_by_keys(base, change, self._key.fields)

    def _base_files(self) -> pl.DataFrame:
        view, files = self._base.view, self._base.files
        data = parse_file_names(self._prune_partitions(self._base_store.all.numbered_files(), view), "base")
        return order_foreign_files(data, files.frame(), view, files.reader(view.io))

    def _change_files(self) -> pl.DataFrame:
        data = self._prune_partitions(self._change_store.all.numbered_files(), self._change.view)
        view = self._base.view
        merged = merged_sequences(view.metadata, view.io, self._base.snapshot)
        return parse_change_file_names(select_unmerged(data, StorePaths(self._change.view.metadata), merged))

    def _prune_partitions(self, data: pl.DataFrame, view: TableView) -> pl.DataFrame:
        # Files of different partitions have no key in common, so those of unwanted partitions do not matter at all.
        if self.condition == ALWAYS_TRUE or data.is_empty():
            return data
        return prune_partitions(data, view.metadata, with_optional_parents(self.table_schema), self.condition)

    def _select_files(self, data: pl.DataFrame, state: StoreState) -> pl.DataFrame:
        """The files that may hold wanted keys, with `wanted`: whether they may hold rows that meet the condition."""
        data = self._lookup.select_files(data, state.files, state.view.io)
        if self.condition == self._lookup.condition or data.is_empty():
            return data.with_columns(wanted=pl.lit(value=True))
        schema = with_optional_parents(self.table_schema)
        kept = prune_by_metrics(data, state.files, state.view.io, schema, bind_condition(schema, self.condition))
        return data.with_columns(wanted=pl.col("row").is_in(kept["row"].implode()))

    def _with_ranges(self, data: pl.DataFrame, state: StoreState) -> pl.DataFrame:
        """Add the key ranges of the files."""
        return with_key_ranges(data, state.files, state.view.io, self._key.fields)

    @cached_property
    def _columns(self) -> ScanColumns:
        return ScanColumns(self.table_schema, self.wanted, self.condition)

    @cached_property
    def _lookup(self) -> KeyLookup:
        return KeyLookup.of(self._key, self.table_schema, self.condition)

    @cached_property
    def _base_store(self) -> _Store:
        return self._open_store(self._base)

    @cached_property
    def _change_store(self) -> _Store:
        return self._open_store(self._change)

    def _open_store(self, state: StoreState) -> _Store:
        of_keys = ScanColumns(self.table_schema, (), self._lookup.condition)
        return _Store(state, self._columns, of_keys, self.memory_bytes)

    def _matches(self, file: DataFileReader) -> DeleteMatches:
        return (self._change_store if isinstance(file, ChangeFile) else self._base_store).matches

    @contextmanager
    def _open_files(self, group: KeyGroup) -> Iterator[Iterator[DataFileReader]]:
        """The files of a key group, ready to be read."""
        base = self._open_base(group.base, self._base_store.wanted)
        inserts = self._open_changes(group.inserts, self._change_store.wanted)
        if not group.data_bytes or (group.changes.is_empty() and group.foreign.is_empty()):
            yield chain(base, inserts)  # one by one: a group without versions may be a whole table
            return
        base_files = list(base)
        files_to_read = [*base_files, *inserts]
        # Versions count whether their rows meet the condition or not.
        competing = list(self._open_base(group.competing_base, self._base_store.all))
        if group.foreign.height:
            self._resolve_foreign(group, [*base_files, *competing])
        version_files: Iterable[MergedFile] = chain(competing, self._open_changes(group.changes, self._change_store.all))
        check_ties = has_concurrent_inserts(group.changes)
        with KeyVersions(self.memory_bytes, group.version_rows, check_ties=check_ties) as versions:
            if group.changes.height:
                resolve(files_to_read, version_files, versions)
            yield iter(files_to_read)

    def _resolve_foreign(self, group: KeyGroup, files: Sequence[MergedBaseFile]) -> None:
        with KeyVersions(self.memory_bytes, int(group.foreign["record_count"].sum())) as versions:
            resolve_foreign(files, self._open_base(group.foreign, self._base_store.all), versions)

    def _open_base(self, files: pl.DataFrame, reader: TableReader) -> Iterator[MergedBaseFile]:
        return (MergedBaseFile(reader, row, self._key) for row in files.iter_rows(named=True))

    def _open_changes(self, files: pl.DataFrame, reader: TableReader) -> Iterator[MergedFile]:
        return (MergedChangeFile(reader, row, self._key) for row in files.iter_rows(named=True))


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

    def __init__(self, state: StoreState, columns: ScanColumns, of_keys: ScanColumns, memory_bytes: int) -> None:
        metadata, io = state.view.metadata, state.view.io
        files = check_files(state.files, metadata)
        self.matches = match_deletes(files, PartitionDecoder(metadata).unpartitioned_specs())
        positions = PositionDeletes(io, memory_bytes // 4)
        equality = EqualityDeletes(io, newest_first(metadata), memory_bytes // 4)
        self.wanted = TableReader(metadata, io, self.matches, positions, equality, columns.row_groups)
        """Skips row groups without any row that meets the condition."""
        self.all = TableReader(metadata, io, self.matches, positions, equality, of_keys.row_groups)
        """Skips row groups without any wanted key."""
