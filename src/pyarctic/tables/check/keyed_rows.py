"""The row checks of a keyed table: keys of both stores, duplicates in Base, and whether the merged rows can be read."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from pyarctic.errors import Damaged, Unsupported
from pyarctic.iceberg.check import CheckedStore, Problem, problem_frame
from pyarctic.iceberg.delete import Positions
from pyarctic.iceberg.manifest import IS_DATA, FileList
from pyarctic.iceberg.read import TableView
from pyarctic.tables.check.duplicates import BaseRows
from pyarctic.tables.check.keys import KeyInspector
from pyarctic.tables.format.file_names import StorePaths, parse_change_file_names
from pyarctic.tables.format.primary_key import PrimaryKey
from pyarctic.tables.keyed_table import KeyedTable
from pyarctic.tables.read.foreign_files import UNKNOWN_ORDER
from pyarctic.tables.read.key_groups import select_unmerged, with_key_ranges
from pyarctic.tables.read.merged_scan import MEMORY_BYTES

_UNREADABLE = (
    "missing-file",
    "wrong-size",
    "unreadable-file",
    "unknown-spec",
    "contradicting-deletes",
    "forbidden-deletes",
)
_NO_POSITIONS: Positions = np.empty(0, np.int64)


Duplicates = dict[str, dict[str, Positions]]
"""Code of the finding → base file → positions of rows whose key has a later row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedRowProblems:
    """What is wrong with the rows of both stores, and the duplicates in Base."""

    base: pl.DataFrame
    change: pl.DataFrame
    duplicates: Duplicates = field(default_factory=dict)


class KeyedRowCheck:
    """Inspects the rows of both stores while they are read, then compares them."""

    def __init__(self, table: KeyedTable) -> None:
        self._table = table
        base, change = table.view, table.change_store.view
        self._key = PrimaryKey.of(base.metadata, table.name)
        self._was_widened = self._find_widened()
        check_nodes = not self._was_widened
        self.base = KeyInspector(base, "base", self._key, check_nodes=check_nodes)
        self.change = KeyInspector(change, "change", self._key, check_nodes=check_nodes)

    def _find_widened(self) -> bool:
        """Whether a key column was widened; if a manifest is damaged, by the schemas alone."""
        views = (self._table.view, self._table.change_store.view)
        try:
            files = [_files_with_ranges(view, self._key) for view in views]
        except Damaged:
            files = []
        return self._key.was_widened([view.metadata for view in views], files)

    def finish(self, base: CheckedStore, change: CheckedStore, *, reported: set[str]) -> KeyedRowProblems:
        """The problems, when all files were read. `reported`: the codes of the damage that is known already. Rows of
        different files are compared only if all of them can be read."""
        problems = [Problem("nodes-not-checked", "a key column was widened")] if self._was_widened else []
        changed = set() if change.current is None else set(change.current.files["file_path"])
        of_change = self.change.problems(dict.fromkeys(changed & self.change.suspects, _NO_POSITIONS))
        duplicates: Duplicates = {}
        if base.current is not None and base.current.is_complete:
            try:
                rows = BaseRows(self._table.view, base.current, self._key, MEMORY_BYTES, pending=self._pending(change))
                problems += self.base.problems(rows.deleted_positions(self.base.suspects))
            except Damaged as error:
                if error.facts.get("reason") == UNKNOWN_ORDER:
                    count = error.facts["keys"]
                    problems.append(Problem("unknown-order", error.message, error.facts["file"], count))
                # Otherwise deletes that contradict the data or cannot be read: reported already.
                return KeyedRowProblems(base=problem_frame(problems), change=problem_frame(of_change))
            if reported.isdisjoint(_UNREADABLE):
                duplicates = self._find_duplicates(rows, problems)
        if not reported:
            problems += self._check_merged_read()
        return KeyedRowProblems(base=problem_frame(problems), change=problem_frame(of_change), duplicates=duplicates)

    def _pending(self, change: CheckedStore) -> pl.Series | None:
        """The transactions of changes that are not merged; if that is not known, of all changes."""
        if change.current is None:
            return None
        files = change.current.files.filter(IS_DATA)
        with contextlib.suppress(Damaged):
            files = select_unmerged(
                files, StorePaths(self._table.change_store.view.metadata), self._table.merged_sequences()
            )
        return parse_change_file_names(files)["transaction_id"]

    def _find_duplicates(self, rows: BaseRows, problems: list[Problem]) -> Duplicates:
        duplicates: Duplicates = {"duplicate-keys": {}, "replaced-rows": {}}
        for each in rows.find_duplicates(self.base.suspects, ignore_nodes=self._was_widened):
            if isinstance(each, Damaged):
                problems.append(Problem("not-checked", f"keys: {each.message}", each.facts.get("file")))
                continue
            code, count = "replaced-rows" if each.is_replaced else "duplicate-keys", len(each.positions)
            duplicates[code][each.path] = each.positions
            detail = f"position {each.positions[0]}" + (f" and {count - 1} more" if count > 1 else "")
            problems.append(Problem(code, detail, each.path, count))
        return duplicates

    def _check_merged_read(self) -> list[Problem]:
        """Read the keys of the merged rows: the order of changes must be certain."""
        try:
            self._table.scan(self._table.primary_key).count()
        except (Damaged, Unsupported) as error:
            return [Problem("ambiguous-changes", error.message, error.facts.get("file"))]
        return []


def _files_with_ranges(view: TableView, key: PrimaryKey) -> pl.DataFrame:
    files = FileList.of(view.metadata, view.io, view.metadata.current_snapshot())
    return with_key_ranges(files.frame().filter(IS_DATA), files, view.io, key.fields)
