"""The files of a keyed table's task: changes are merged into the rows of Base, one row per key, by the rule of scans.

Rows of files that are written anew come first, then inserted ones; all that are not the last word of their key are left out.
Of files that stay, the positions of such rows are written, together with those that were dead already.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import chain
from types import TracebackType
from typing import Self

import polars as pl

from pyarctic.iceberg.delete import PARTITION_SCOPED
from pyarctic.iceberg.read import DataFileReader, TableView
from pyarctic.iceberg.write import NewFile, write_position_deletes
from pyarctic.optimizing.execute.kernel.copy_row_groups import adopted
from pyarctic.optimizing.execute.kernel.inputs import Attempt
from pyarctic.optimizing.protocol.tasks import KeyedTask
from pyarctic.tables.format import (
    Node,
    PrimaryKey,
    StoreTarget,
    parse_change_file_names,
    parse_file_names,
    read_change_files,
)
from pyarctic.tables.read import (
    KeyVersions,
    MergedBaseFile,
    MergedChangeFile,
    MergedFile,
    competing_base_files,
    has_concurrent_inserts,
    rank_transactions,
    resolve,
)


class KeyedFiles:
    """Files of both stores, their rows judged together."""

    def __init__(self, attempt: Attempt, keyed: KeyedTask) -> None:
        job = attempt.job
        self._attempt = attempt
        self._node = Node.of_id(keyed.node_id)
        self._key = PrimaryKey.of(job.metadata, job.table)
        self._base_reading = attempt.reading()
        view = TableView(name=job.table, metadata=job.metadata, io=attempt.bench.io)
        self._change_reading = read_change_files(view, keyed.changes)
        base = parse_file_names(self._base_reading.numbered(), "base")
        base, self._changes = rank_transactions(base, parse_change_file_names(self._change_reading.numbered()))
        is_kept = pl.col("file_path").is_in(list(keyed.kept))
        self._base, self._replaced, self._kept = base, base.filter(~is_kept), base.filter(is_kept)
        self._inserts = self._changes.filter(pl.col("kind") != "ED")
        self._shareable = set(keyed.shareable)
        self.paths: list[str] = self._replaced["file_path"].to_list()
        self.restated: list[str] = []
        self.shared: list[NewFile] = []
        later = competing_base_files(base, self._inserts)
        rows = int(self._changes["record_count"].sum()) + int(later["record_count"].sum())
        self._words = KeyVersions(job.memory_bytes, rows, check_ties=has_concurrent_inserts(self._changes))
        self._speakers = chain(self._of_changes(self._changes), self._of_base(later))

    def __enter__(self) -> Self:
        if self._changes.height:
            try:
                resolve([*self._written, *self._staying], self._speakers, self._words)
                self._share()
            except BaseException as error:
                self._words.__exit__(type(error), error, None)
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._words.__exit__(kind, error, trace)

    def _share(self) -> None:
        """Leave out files of inserts that can be part of Base as they are."""
        for file in self._written:
            if file.path not in self._shareable or len(file.find_deleted_positions()):
                continue
            found = adopted(self._attempt, file)
            if found is not None and found.record_count == file.row["record_count"]:
                self.shared.append(found)
        paths = [file.path for file in self.shared]
        self._inserts = self._inserts.filter(~pl.col("file_path").is_in(paths))
        self._written = [file for file in self._written if file.path not in paths]

    @property
    def listed(self) -> pl.DataFrame:
        return pl.concat([self._replaced, self._inserts], how="diagonal")

    @cached_property
    def _written(self) -> list[MergedFile]:
        return [*self._of_base(self._replaced), *self._of_changes(self._inserts)]

    @cached_property
    def _staying(self) -> list[MergedFile]:
        return list(self._of_base(self._kept))

    def _of_base(self, files: pl.DataFrame) -> Iterator[MergedFile]:
        for row in files.iter_rows(named=True):
            yield MergedBaseFile(self._base_reading, row, self._key, self._own_part(row["node_id"]))

    def _of_changes(self, files: pl.DataFrame) -> Iterator[MergedFile]:
        for row in files.iter_rows(named=True):
            yield MergedChangeFile(self._change_reading, row, self._key, self._own_part(row["node_id"]))

    def _own_part(self, node_id: int) -> Node | None:
        """The task's node, if a file holds rows of others as well."""
        return None if Node.of_id(node_id).is_within(self._node) else self._node

    def files(self) -> Iterator[DataFileReader]:
        return iter(self._written)

    def files_without_equality_deletes(self) -> Iterator[DataFileReader]:
        return chain(self._of_base(self._replaced), self._of_changes(self._inserts))

    def untouched(self) -> pl.DataFrame:
        """Changes may hit any row, or none; that is seen when they are asked."""
        return self.listed

    def deletes(self) -> Iterator[NewFile]:
        """Each about one data file: then it can be replaced by the next, and leaves together with its file."""
        for file in self._staying:
            known = file.named_positions()
            dead = file.positions_in_node(file.find_deleted_positions())
            self._attempt.progress(0, 0)
            # A file of several tasks must be told by all of them, or by none; a delete file about several files likewise.
            shares = file.row[f"{PARTITION_SCOPED}_to"] > file.row[f"{PARTITION_SCOPED}_from"]
            if file.node is None and not shares and len(dead) == len(known):
                continue
            self.restated.append(file.path)
            if len(dead):
                yield write_position_deletes(self._target(file), {file.path: dead})

    def _target(self, file: MergedFile) -> StoreTarget:
        place = self._attempt.target()
        assert isinstance(place, StoreTarget)  # noqa: S101  # of a keyed table
        return StoreTarget(
            metadata=place.metadata,
            io=place.io,
            spec_id=place.spec_id,
            partition=place.partition,
            names=place.names,
            node_id=file.row["node_id"],
            kind="PD",
            transaction_id=place.transaction_id,
        )
