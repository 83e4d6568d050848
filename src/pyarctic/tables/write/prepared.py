"""A write in three steps, so that many machines can take the middle one: prepare it, write files, commit them."""

from __future__ import annotations

import contextlib
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
from pyiceberg.schema import Schema

from pyarctic.errors import ArcticError, Conflict, Damaged, Rejected, Unavailable, Unsupported, UsageError
from pyarctic.iceberg import file_from_json, remove_quietly
from pyarctic.iceberg.commit import Change, NumberedStep
from pyarctic.iceberg.delete import KeyIndex, encode_keys
from pyarctic.iceberg.manifest import PartitionDecoder
from pyarctic.iceberg.read import TableView
from pyarctic.iceberg.write import NewFile, random_id
from pyarctic.tables.commit_outcomes import remove_outputs
from pyarctic.tables.format.merged_sequence import MERGED_SUMMARY, merged_sequences, write_merged_sequences
from pyarctic.tables.format.transactions import COMMITTED, ENDED
from pyarctic.tables.write.arrow_rows import check_keys, fit_to_schema, key_frame, to_batches
from pyarctic.tables.write.base_writer import (
    BaseWriter,
    OverwriteScope,
    check_first_batch,
    find_replaced_files,
    merged_by_overwrite,
    partitions_of,
)
from pyarctic.tables.write.change_writer import ChangeMode, ChangeWriter
from pyarctic.tables.write.distributed import DistributedWriter, WriterResult
from pyarctic.tables.write.partition_moves import Moves

if TYPE_CHECKING:
    from pyarctic.tables.keyed_table import KeyedTable
    from pyarctic.tables.table import Table


@dataclass(frozen=True, kw_only=True)
class CommitNote:
    """What a commit says beside its files."""

    summary: Mapping[str, str] = field(default_factory=dict)
    once: NumberedStep | None = None


_NOT_COMMITTED = (Conflict, Rejected, UsageError, Unsupported, Damaged, Unavailable)
"""Nothing is in the table after these. After any other error that is not known."""


class PreparedWrite(ABC):
    """A prepared write."""

    table: Table
    prepared_on: int | None
    """The snapshot of the store when the write was prepared: older than all its files."""
    moved_columns: tuple[str, ...] = ()
    """What must be known of a row to delete it where it is, when keys are looked up."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.prepared_on = self.view.snapshot_id

    @property
    def store(self) -> Table:
        """The store that gets the files."""
        return self.table

    @property
    def view(self) -> TableView:
        return self.store.view

    def check_columns(self, schema: pa.Schema) -> None:
        """Refuse rows with such columns if they cannot be written."""
        fit_to_schema(_no_rows(schema), self.table.schema)

    def file_writer(self, order: Sequence[str] = (), looked_up: Sequence[str] = ()) -> DistributedWriter:
        """Begin, and give what many writers are sent. Its names are its own."""
        return DistributedWriter(writer=self.writer(), operation=random_id(), order=tuple(order), looked_up=tuple(looked_up))

    def files_of(self, answers: Iterable[WriterResult]) -> list[NewFile]:
        """The files that writers answered with."""
        decoder = PartitionDecoder(self.view.metadata)
        return [file_from_json(file, decoder) for answer in answers for file in answer.files]

    def abandon(self, answers: Iterable[WriterResult]) -> None:
        """Remove what writers wrote: it will not be committed."""
        remove_quietly(self.view.io, [file["path"] for answer in answers for file in answer.files])

    @abstractmethod
    def rows(self, data: Any) -> int | None:
        """Write rows and commit them; gives the snapshot, or None if there was nothing to write."""

    @abstractmethod
    def writer(self) -> ChangeWriter | BaseWriter:
        """Begin, and give what writes the files."""

    def commit(self, files: Sequence[NewFile], note: CommitNote | None = None) -> int | None:
        """Make all files visible, by one commit; gives the snapshot, or None if there was nothing to change. What cannot be
        committed is removed."""
        try:
            return self._commit(files, note or CommitNote())
        except _NOT_COMMITTED:
            remove_outputs(self.store, [file.path for file in files], since=self.prepared_on)
            raise

    @abstractmethod
    def _commit(self, files: Sequence[NewFile], note: CommitNote) -> int | None: ...


class UnkeyedWrite(PreparedWrite):
    """Rows into a table without a primary key: files are added, and by an overwrite others replaced."""

    def __init__(self, table: Table, scope: OverwriteScope, *, appends: bool) -> None:
        super().__init__(table)
        self._scope = scope
        self._appends = appends

    def rows(self, data: Any) -> int | None:
        return self.commit(self.writer().files(data))

    def writer(self) -> BaseWriter:
        return BaseWriter(view=self.view, scope=self._scope)

    def _commit(self, files: Sequence[NewFile], note: CommitNote) -> int | None:
        table, add = self.table, tuple(files)
        if self._appends:
            return _appended(table, add, note) if add else None

        def plan() -> Change | None:
            metadata = table.view.metadata
            removed = find_replaced_files(metadata, table.file_list, self._scope, partitions_of(metadata, add))
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
        self._across = across_partitions
        sources = {field.source_id for field in table.view.metadata.spec().fields}
        # Key and partition columns, and those that a row cannot do without.
        self.moved_columns = tuple(
            f.name
            for f in table.schema.fields
            if f.name in table.primary_key or f.required or sources & set(Schema(f).field_ids)
        )

    @property
    def store(self) -> Table:
        return self.table.change_store

    def check_columns(self, schema: pa.Schema) -> None:
        self.writer().understood(_no_rows(schema), looks_up=self._across)

    def rows(self, data: Any) -> int | None:
        moves = None
        if self._across:
            data = list(to_batches(data))
            moves = self._moves(data)
        return self.commit(self.writer().files(data, moves=moves))

    def writer(self) -> ChangeWriter:
        return ChangeWriter(view=self.view, mode=self._mode)

    def _commit(self, files: Sequence[NewFile], note: CommitNote) -> int | None:
        return _appended(self.table.change_store, tuple(files), note) if files else None

    def _moves(self, batches: list[pa.RecordBatch]) -> Moves:
        """Look up where the keys of some rows are now."""
        schema, names = self.table.schema, self.table.primary_key
        rows = [fit_to_schema(batch, schema, fill=self._mode == "delete") for batch in batches]
        for batch in rows:
            check_keys(batch, names)
        asked = pl.concat([key_frame(batch, names) for batch in rows]) if rows else None
        scan = self.table.scan(list(self.moved_columns))
        found: Iterable[pa.RecordBatch] = ()
        if asked is not None and asked.height:
            index = KeyIndex([encode_keys(asked)], pl.zeros(asked.height, pl.Int8, eager=True).to_numpy(), asked)
            found = (batch.filter(pa.array(index.matches_since(key_frame(batch, names), 0))) for batch in scan.batches())
        return Moves(schema, names, pa.Table.from_batches(found, schema=scan.schema))


class BaseWrite(PreparedWrite):
    """Rows straight into Base."""

    table: KeyedTable

    def __init__(self, table: KeyedTable, scope: OverwriteScope) -> None:
        super().__init__(table)
        self._scope = scope
        self._begun: list[int] = []
        # What is wrong with the condition is refused before anything is begun.
        for files in (table.file_list, table.change_store.file_list):
            scope.partitions(table.view.metadata, files.frame(), frozenset())

    def rows(self, data: Any) -> int | None:
        batches = check_first_batch(self.table.view, data, self._scope)  # and what is wrong from the first row on
        writer = self.writer()
        try:
            files = writer.files(batches)
        except BaseException:
            self._give_up()
            raise
        return self.commit(files)

    def writer(self) -> BaseWriter:
        self._begun = [self.table._begin()]
        return BaseWriter(view=self.view, scope=self._scope, transaction_id=self._begun[0])

    def abandon(self, answers: Iterable[WriterResult]) -> None:
        super().abandon(answers)
        self._give_up()

    def _give_up(self) -> None:
        """Others wait for transactions that were begun. That they need not is worth a try, and no error."""
        with contextlib.suppress(ArcticError):
            self.table._end(self._begun)

    def commit(self, files: Sequence[NewFile], note: CommitNote | None = None) -> int | None:
        try:
            done = super().commit(files, note)
        except _NOT_COMMITTED:
            self._give_up()
            raise
        if done is None:
            self._give_up()
        return done

    def _commit(self, files: Sequence[NewFile], note: CommitNote) -> int | None:
        return self.table._commit_alone(lambda: self._replacing(tuple(files), note))

    def _replacing(self, files: tuple[NewFile, ...], note: CommitNote) -> Change | None:
        """The overwrite as a change of Base as it is now."""
        table, scope = self.table, self._scope
        metadata, io = table.view.metadata, table.view.io
        new = partitions_of(metadata, files)
        removed = find_replaced_files(metadata, table.file_list, scope, new)
        merged = merged_by_overwrite(metadata, removed, table.change_store.file_list.frame(), scope, new, self._begun[-1])
        known = merged_sequences(metadata, io, metadata.current_snapshot())
        if any(known.get(path, -1) > self._begun[-1] for path in merged):
            # What came first has hidden later changes than this transaction would. It takes place after it all then.
            self._begun.append(table._begin())
            merged = dict.fromkeys(merged, self._begun[-1])
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
                **MERGED_SUMMARY,
                COMMITTED: str(self._begun[-1]),
                ENDED: ",".join(map(str, self._begun)),
            },
        )
        return dataclasses.replace(change, statistics=(write_merged_sequences(metadata, io, change.snapshot_id, merged),))


def _appended(table: Table, files: tuple[NewFile, ...], note: CommitNote) -> int | None:
    return table._append(add=files, once=note.once, snapshot_properties=note.summary).snapshot_id


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema)
