"""A write in three steps: prepare it, write files (on one or many machines), commit them."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

import polars as pl
import pyarrow as pa

from pyarctic.errors import ArcticError, Conflict, Damaged, Rejected, Unavailable, Unsupported, UsageError
from pyarctic.iceberg import file_from_json, remove_quietly
from pyarctic.iceberg.commit import Change, NumberedStep
from pyarctic.iceberg.delete import KeyIndex, encode_keys
from pyarctic.iceberg.manifest import PartitionDecoder
from pyarctic.iceberg.read import TableView
from pyarctic.iceberg.write import NewFile, random_id
from pyarctic.tables.commit_outcomes import remove_outputs
from pyarctic.tables.format.merged_sequence import merged_sequences, record_merged_sequences
from pyarctic.tables.format.transactions import COMMITTED, ENDED
from pyarctic.tables.write.arrow_rows import check_keys, fit_to_schema, key_frame, partition_columns
from pyarctic.tables.write.base_writer import (
    BaseWriter,
    check_first_batch,
    fit_base_rows,
)
from pyarctic.tables.write.change_writer import ChangeMode, ChangeWriter
from pyarctic.tables.write.distributed import DistributedWriter, WriterResult
from pyarctic.tables.write.overwrite_scope import (
    OverwriteScope,
    find_replaced_files,
    merged_by_overwrite,
    written_partitions,
)
from pyarctic.tables.write.partition_moves import PartitionMoves
from pyarctic.tables.write.row_sources import to_batches

if TYPE_CHECKING:
    from pyarctic.tables.keyed_table import KeyedTable
    from pyarctic.tables.table import Table


@dataclass(frozen=True, kw_only=True)
class CommitNote:
    """What a commit records beside its files: entries of the snapshot summary, and a step that is committed only once."""

    summary: Mapping[str, str] = field(default_factory=dict)
    once: NumberedStep | None = None


_NOT_COMMITTED = (Conflict, Rejected, UsageError, Unsupported, Damaged, Unavailable)
"""Errors after which the commit is known not to be in the table."""


class PreparedWrite(ABC):
    """A write that was checked as far as possible without its rows.

    >>> write = table.prepare_write("upsert")
    >>> write.rows(data)  # write and commit on this machine

    Or, with many writers: `file_writer` gives the object to send to them, `files_of` collects their results, and `commit` or
    `abandon` ends the write."""

    table: Table
    prepared_on: int | None
    """The snapshot of the store when the write was prepared; it is older than all files of the write."""
    table_uuid: UUID
    """The uuid of the store when the write was prepared."""
    moved_columns: tuple[str, ...] = ()
    """The columns that are needed to delete a row in its partition, when keys are looked up."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.prepared_on = self.view.snapshot_id
        self.table_uuid = self.view.metadata.table_uuid

    @property
    def store(self) -> Table:
        """The store that gets the files."""
        return self.table

    @property
    def view(self) -> TableView:
        return self.store.view

    def check_columns(self, schema: pa.Schema) -> None:
        """Refuse rows with such columns if they cannot be written."""
        fit_base_rows(_empty_batch(schema), self.table.view.metadata)

    def file_writer(self, order: Sequence[str] = (), looked_up: Sequence[str] = ()) -> DistributedWriter:
        """Begin the write; gives the object to send to many writers. The file names of every call are unique."""
        return DistributedWriter(writer=self.writer(), operation=random_id(), order=tuple(order), looked_up=tuple(looked_up))

    def files_of(self, results: Iterable[WriterResult]) -> list[NewFile]:
        """The files of the writers' results."""
        decoder = PartitionDecoder(self.view.metadata)
        return [file_from_json(file, decoder) for result in results for file in result.files]

    def abandon(self, results: Iterable[WriterResult]) -> None:
        """Remove the files that the writers wrote: they will not be committed."""
        remove_quietly(self.view.io, [file["path"] for result in results for file in result.files])

    @abstractmethod
    def rows(self, data: Any, note: CommitNote | None = None) -> int | None:
        """Write rows and commit them; gives the snapshot, or None if there was nothing to write."""

    @abstractmethod
    def writer(self) -> ChangeWriter | BaseWriter:
        """Begin the write; gives the object that writes files."""

    def commit(self, files: Sequence[NewFile], note: CommitNote | None = None) -> int | None:
        """Commit all files at once; gives the snapshot, or None if there was nothing to change. If the commit fails, the
        files are removed."""
        try:
            return self._commit(files, note or CommitNote())
        except _NOT_COMMITTED:
            paths = [file.path for file in files]
            remove_outputs(self.store, paths, table_uuid=self.table_uuid, since=self.prepared_on)
            raise

    @abstractmethod
    def _commit(self, files: Sequence[NewFile], note: CommitNote) -> int | None: ...


class UnkeyedWrite(PreparedWrite):
    """Rows for a table without a primary key: files are added, and an overwrite replaces others."""

    def __init__(self, table: Table, scope: OverwriteScope, *, appends: bool) -> None:
        super().__init__(table)
        self._scope = scope
        self._appends = appends

    def rows(self, data: Any, note: CommitNote | None = None) -> int | None:
        return self.commit(self.writer().files(data), note)

    def writer(self) -> BaseWriter:
        return BaseWriter(view=self.view, scope=self._scope)

    def _commit(self, files: Sequence[NewFile], note: CommitNote) -> int | None:
        table, add = self.table, tuple(files)
        if self._appends:
            return _append(table, add, note) if add else None

        def plan() -> Change | None:
            metadata = table.view.metadata
            removed = find_replaced_files(metadata, table.file_list, self._scope, written_partitions(metadata, add))
            if not add and removed.is_empty():
                return None
            return Change(
                start=table.view.snapshot_id,
                add=add,
                remove=removed,
                alone=True,
                once=note.once,
                snapshot_properties=note.summary,
            )

        return table._commit_alone(plan)


class ChangeWrite(PreparedWrite):
    """Changes of a keyed table."""

    table: KeyedTable

    def __init__(self, table: KeyedTable, mode: ChangeMode, *, across_partitions: bool) -> None:
        super().__init__(table)
        self._mode = mode
        self._across_partitions = across_partitions
        needed = {*table.primary_key, *partition_columns(table.view.metadata)}
        self.moved_columns = tuple(f.name for f in table.schema.fields if f.name in needed or f.required)

    @property
    def store(self) -> Table:
        return self.table.change_store

    def check_columns(self, schema: pa.Schema) -> None:
        self.writer().parse_batch(_empty_batch(schema), looks_up=self._across_partitions)

    def rows(self, data: Any, note: CommitNote | None = None) -> int | None:
        moves = None
        if self._across_partitions:
            data = list(to_batches(data))
            moves = self._look_up(data)
        return self.commit(self.writer().files(data, moves=moves), note)

    def writer(self) -> ChangeWriter:
        return ChangeWriter(view=self.view, mode=self._mode)

    def _commit(self, files: Sequence[NewFile], note: CommitNote) -> int | None:
        return _append(self.table.change_store, tuple(files), note) if files else None

    def _look_up(self, batches: list[pa.RecordBatch]) -> PartitionMoves:
        """Look up the rows that the keys of some batches have at present."""
        schema, names = self.table.schema, self.table.primary_key
        rows = [fit_to_schema(batch, schema) for batch in batches]
        for batch in rows:
            check_keys(batch, names)
        keys = pl.concat([key_frame(batch, names) for batch in rows]) if rows else None
        scan = self.table.scan(list(self.moved_columns))
        present: Iterable[pa.RecordBatch] = ()
        if keys is not None and keys.height:
            index = KeyIndex([encode_keys(keys)], pl.zeros(keys.height, pl.Int8, eager=True).to_numpy(), keys)
            present = (batch.filter(pa.array(index.matches_since(key_frame(batch, names), 0))) for batch in scan.batches())
        return PartitionMoves(schema, names, pa.Table.from_batches(present, schema=scan.schema))


class BaseWrite(PreparedWrite):
    """An overwrite of a keyed table: rows are written directly into Base."""

    table: KeyedTable

    def __init__(self, table: KeyedTable, scope: OverwriteScope) -> None:
        super().__init__(table)
        self._scope = scope
        self._transactions: list[int] = []
        """Begun by this write; the last one counts."""
        # A wrong condition is refused before a transaction is begun.
        for files in (table.file_list, table.change_store.file_list):
            scope.partitions(table.view.metadata, files.frame(), frozenset())

    def rows(self, data: Any, note: CommitNote | None = None) -> int | None:
        batches = check_first_batch(self.table.view, data, self._scope)  # before a transaction is begun
        writer = self.writer()
        try:
            files = writer.files(batches)
        except BaseException:
            self._end_transactions()
            raise
        return self.commit(files, note)

    def writer(self) -> BaseWriter:
        self._transactions = [self.table._begin()]
        return BaseWriter(view=self.view, scope=self._scope, transaction_id=self._transactions[0])

    def abandon(self, results: Iterable[WriterResult]) -> None:
        super().abandon(results)
        self._end_transactions()

    def _end_transactions(self) -> None:
        """End the begun transactions: changes from them on are not merged while they are open. It is no error if this
        fails: they time out."""
        with contextlib.suppress(ArcticError):
            self.table._end(self._transactions)

    def commit(self, files: Sequence[NewFile], note: CommitNote | None = None) -> int | None:
        try:
            snapshot_id = super().commit(files, note)
        except _NOT_COMMITTED:
            self._end_transactions()
            raise
        if snapshot_id is None:
            self._end_transactions()
        return snapshot_id

    def _commit(self, files: Sequence[NewFile], note: CommitNote) -> int | None:
        return self.table._commit_alone(lambda: self._plan(tuple(files), note))

    def _plan(self, files: tuple[NewFile, ...], note: CommitNote) -> Change | None:
        """The overwrite as a change of the current state of Base."""
        table, scope = self.table, self._scope
        metadata, io = table.view.metadata, table.view.io
        written = written_partitions(metadata, files)
        removed = find_replaced_files(metadata, table.file_list, scope, written)
        changes = table.change_store.file_list.frame()
        merged = merged_by_overwrite(metadata, removed, changes, scope, written, self._transactions[-1])
        merged_before = merged_sequences(metadata, io, metadata.current_snapshot())
        if any(merged_before.get(path, -1) > self._transactions[-1] for path in merged):
            # Another commit has merged later changes than those of this transaction: a new one comes after all of them.
            self._transactions.append(table._begin())
            merged = dict.fromkeys(merged, self._transactions[-1])
        if not files and removed.is_empty() and not merged:
            return None
        change = Change(
            start=table.view.snapshot_id,
            add=files,
            remove=removed,
            alone=True,
            empty=not files and removed.is_empty(),
            once=note.once,
            snapshot_properties={
                **note.summary,
                COMMITTED: str(self._transactions[-1]),
                ENDED: ",".join(map(str, self._transactions)),
            },
        )
        return record_merged_sequences(metadata, io, change.snapshot_id, merged).add_to(change)


def _append(table: Table, files: tuple[NewFile, ...], note: CommitNote) -> int | None:
    return table._append(add=files, once=note.once, snapshot_properties=note.summary).snapshot_id


def _empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema)
