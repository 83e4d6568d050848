"""The files of a keyed table's task: changes are merged into the rows of the base store, one row per key, as scans do it.

Rows of rewritten files come first, then inserted ones; all rows that are not the latest version of their key are left out.
For kept files, the positions of such rows are written, together with those that were deleted before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from itertools import chain
from types import TracebackType
from typing import Self

import polars as pl

from pyarctic.iceberg.delete import PARTITION_SCOPED
from pyarctic.iceberg.read import DataFileReader, TableView
from pyarctic.iceberg.write import NewFile, write_position_deletes
from pyarctic.optimizing.execute.kernel.copy_row_groups import adopt_file
from pyarctic.optimizing.execute.kernel.inputs import KeyedAttempt
from pyarctic.tables.format import Node, PrimaryKey, parse_change_file_names, parse_file_names, read_change_files
from pyarctic.tables.read import (
    IS_FOREIGN,
    KeyVersions,
    MergedBaseFile,
    MergedChangeFile,
    MergedFile,
    competing_base_files,
    has_concurrent_inserts,
    rank_transactions,
    resolve,
    resolve_foreign,
    restore_foreign_order,
)


class KeyedFiles:
    """Files of both stores, with the versions of their keys resolved."""

    def __init__(self, attempt: KeyedAttempt) -> None:
        job, task = attempt.job, attempt.task
        self._attempt = attempt
        self._node = Node.of_id(task.node_id)
        self._key = PrimaryKey.of(job.metadata, job.table)
        self._base_reader = attempt.reader()
        view = TableView(name=job.table, metadata=job.metadata, io=attempt.context.io)
        self._change_reader = read_change_files(view, task.changes)
        base = parse_file_names(self._base_reader.numbered_files(), "base")
        base = restore_foreign_order(base, task.foreign)
        base, self._changes = rank_transactions(base, parse_change_file_names(self._change_reader.numbered_files()))
        is_kept = pl.col("file_path").is_in(list(task.kept))
        self._replaced, self._kept = base.filter(~is_kept), base.filter(is_kept)
        self._inserts = self._changes.filter(pl.col("kind") != "ED")
        self.replaced_paths: list[str] = self._replaced["file_path"].to_list()
        self.files_with_rewritten_deletes: list[str] = []
        self.shared_files: list[NewFile] = []
        self._foreign = base.filter(IS_FOREIGN)
        self._competing = competing_base_files(base, self._inserts)
        rows = int(self._changes["record_count"].sum()) + int(self._competing["record_count"].sum())
        self._versions = KeyVersions(job.memory_bytes, rows, check_ties=has_concurrent_inserts(self._changes))

    def __enter__(self) -> Self:
        if self._changes.height or self._foreign.height:
            try:
                self._resolve()
                self._share_inserts()
            except BaseException as error:
                self._versions.__exit__(type(error), error, None)
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._versions.__exit__(kind, error, trace)

    def _resolve(self) -> None:
        replaced, kept, competing = (list(self._open_base(files)) for files in (self._replaced, self._kept, self._competing))
        if self._foreign.height:
            rows = int(self._foreign["record_count"].sum())
            with KeyVersions(self._attempt.job.memory_bytes, rows) as versions:
                resolve_foreign([*replaced, *kept, *competing], self._open_base(self._foreign), versions)
        self._written_files = [*replaced, *self._open_changes(self._inserts)]
        self._kept_files = [*kept]
        if self._changes.height:
            version_files = chain(self._open_changes(self._changes), competing)
            resolve([*self._written_files, *self._kept_files], version_files, self._versions)

    def _share_inserts(self) -> None:
        """Leave out insert files that can become part of the base store as they are."""
        shareable = set(self._attempt.task.shareable)
        for file in self._written_files:
            if file.path not in shareable or len(file.find_deleted_positions()):
                continue
            adopted = adopt_file(self._attempt, file)
            if adopted is not None and adopted.record_count == file.row["record_count"]:
                self.shared_files.append(adopted)
        paths = [file.path for file in self.shared_files]
        self._inserts = self._inserts.filter(~pl.col("file_path").is_in(paths))
        self._written_files = [file for file in self._written_files if file.path not in paths]

    @property
    def file_list(self) -> pl.DataFrame:
        """The files as rows of a file list."""
        return pl.concat([self._replaced, self._inserts], how="diagonal")

    @cached_property
    def _written_files(self) -> list[MergedFile]:
        return [*self._open_base(self._replaced), *self._open_changes(self._inserts)]

    @cached_property
    def _kept_files(self) -> list[MergedFile]:
        return list(self._open_base(self._kept))

    def _open_base(self, files: pl.DataFrame) -> Iterator[MergedBaseFile]:
        for row in files.iter_rows(named=True):
            yield MergedBaseFile(self._base_reader, row, self._key, self._node_filter(row["node_id"]))

    def _open_changes(self, files: pl.DataFrame) -> Iterator[MergedFile]:
        for row in files.iter_rows(named=True):
            yield MergedChangeFile(self._change_reader, row, self._key, self._node_filter(row["node_id"]))

    def _node_filter(self, node_id: int) -> Node | None:
        """The task's node, if a file also holds rows of other nodes."""
        return None if Node.of_id(node_id).is_within(self._node) else self._node

    def files(self) -> Iterator[DataFileReader]:
        """The files in the order in which their rows are written."""
        return iter(self._written_files)

    def files_without_equality_deletes(self) -> Iterator[DataFileReader]:
        """The files, for a sample of rows of which some may be superseded."""
        return chain(self._open_base(self._replaced), self._open_changes(self._inserts))

    def files_without_deletes(self) -> pl.DataFrame:
        """All files: whether changes supersede any of their rows is known only when they are read."""
        return self.file_list

    def write_deletes(self) -> Iterator[NewFile]:
        """Write delete files, each for one data file: then it can be replaced by the next one, and is removed together with
        its data file."""
        for file in self._kept_files:
            known = file.named_positions()
            positions = file.positions_in_node(file.find_deleted_positions())
            self._attempt.progress(0, 0)
            # If several tasks read a file, all of them must list its deletes, or none; likewise if it shares a delete file.
            shares_deletes = file.row[f"{PARTITION_SCOPED}_to"] > file.row[f"{PARTITION_SCOPED}_from"]
            if file.node is None and not shares_deletes and len(positions) == len(known):
                continue
            self.files_with_rewritten_deletes.append(file.path)
            if len(positions):
                target = replace(self._attempt.target(), node_id=file.row["node_id"], kind="PD")
                yield write_position_deletes(target, {file.path: positions})
