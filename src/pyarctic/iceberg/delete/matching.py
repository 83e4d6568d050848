"""Which delete files apply to which data files: the scan planning rules of the specification, as ranges.

Deletes are sorted by sequence number within their scope (data file, partition or table), so the deletes of one data file
are a contiguous range: from the first one that is new enough to the end of the scope. A million data files and a hundred
thousand deletes therefore give a few integer columns, never all pairs.

The rules, with d = data sequence number of the data file and e = that of the delete:

* deletion vector: for exactly one data file, d <= e, same partition; it replaces all position deletes of that file
* position deletes: d <= e, same partition, and for this file if they reference one
* equality deletes: d < e, same partition, or the whole table if their partition spec is unpartitioned
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from pyarctic.errors import Damaged
from pyarctic.iceberg.manifest.file_list import IS_DATA, IS_VECTOR
from pyarctic.iceberg.manifest.partition_keys import PARTITION_KEY, find_lost_values
from pyarctic.iceberg.manifest.reader import EQUALITY_DELETES, POSITION_DELETES

Integers = npt.NDArray[np.int64]
POSITION_SCOPE = ["spec_id", "position_scope"]
"""The partition without lost values. Position deletes name their data file, so that values which a rewritten manifest lost
may be left out of the comparison."""

FILE_SCOPED = "file"
PARTITION_SCOPED = "partition"
EQUALITY = "equality"
GLOBAL_EQUALITY = "global"
DELETE_SCOPES = (FILE_SCOPED, PARTITION_SCOPED, EQUALITY, GLOBAL_EQUALITY)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDeletes:
    """The deletes that apply to one data file."""

    vector: dict[str, Any] | None
    positions: pl.DataFrame
    equality: pl.DataFrame

    def __bool__(self) -> bool:
        return self.vector is not None or bool(self.positions.height or self.equality.height)


@dataclass(frozen=True, kw_only=True)
class DeleteMatches:
    """Data files with the deletes that apply to them.

    `data` has these columns beside those of the data files: `vector`, a row number in `vectors` or null, and for each of
    the kinds in DELETE_SCOPES `<kind>_from` and `<kind>_to`, a range of rows in `by_kind`. An empty range means that no
    delete of this kind applies.
    """

    data: pl.DataFrame
    vectors: pl.DataFrame
    by_kind: dict[str, pl.DataFrame]

    @property
    def has_deletes(self) -> pl.Expr:
        """An expression over `data`: True for data files with any delete."""
        ranges = [pl.col(f"{kind}_to") > pl.col(f"{kind}_from") for kind in DELETE_SCOPES]
        return pl.any_horizontal(pl.col("vector").is_not_null(), *ranges)

    def unused(self) -> pl.DataFrame:
        """The dangling delete files: they apply to no data file, and never will, because later data is too new for them."""
        return self._deletes(self.data, applying=False)

    def applying_to(self, data: pl.DataFrame) -> pl.DataFrame:
        """The delete files that apply to any of the given rows of `data`."""
        return self._deletes(data, applying=True)

    def _deletes(self, data: pl.DataFrame, *, applying: bool) -> pl.DataFrame:
        if not self.vectors.height and not any(deletes.height for deletes in self.by_kind.values()):
            return self.vectors.drop("position_scope")
        parts = []
        for kind, deletes in self.by_kind.items():
            is_covered = _ranges_cover(data[f"{kind}_from"], data[f"{kind}_to"], deletes.height)
            parts.append(deletes.filter(is_covered if applying else ~is_covered))
        is_used = pl.col("row").is_in(data["vector"].drop_nulls().implode())
        vectors = self.vectors.with_row_index("row").filter(is_used if applying else ~is_used).drop("row")
        return pl.concat([*parts, vectors]).drop("position_scope")

    def of(self, row: int) -> FileDeletes:
        """The deletes that apply to the data file in the given row of `data`."""
        vectors, ranges = self._ranges
        deletes = {}
        for kind, (starts, ends) in ranges.items():
            start = int(starts[row])
            deletes[kind] = self.by_kind[kind].slice(start, max(int(ends[row]) - start, 0))
        vector = vectors[row]
        return FileDeletes(
            vector=None if vector is None else self.vectors.row(vector, named=True),
            positions=_concat(deletes[FILE_SCOPED], deletes[PARTITION_SCOPED]),
            equality=_concat(deletes[EQUALITY], deletes[GLOBAL_EQUALITY]),
        )

    @cached_property
    def _ranges(self) -> tuple[list[int | None], dict[str, tuple[Integers, Integers]]]:
        """Vector and ranges of every data file, as arrays: single values of a frame are slow to access."""
        ranges = {kind: (self.data[f"{kind}_from"].to_numpy(), self.data[f"{kind}_to"].to_numpy()) for kind in DELETE_SCOPES}
        return self.data["vector"].to_list(), ranges


def match_deletes(files: pl.DataFrame, unpartitioned_specs: Collection[int]) -> DeleteMatches:
    """Match the data files of a file list with the deletes that apply to them."""
    if files.select(IS_DATA.all()).item():
        return _match_nothing(files)
    files = _with_position_scope(files)
    data = files.filter(IS_DATA)
    deletes = files.filter(~IS_DATA)
    vectors = deletes.filter(IS_VECTOR)
    positions = deletes.filter(~IS_VECTOR & (pl.col("content") == POSITION_DELETES))
    equality = deletes.filter(pl.col("content") == EQUALITY_DELETES)
    is_global = pl.col("spec_id").is_in(list(unpartitioned_specs))
    scoped = {
        FILE_SCOPED: (
            positions.filter(pl.col("referenced_data_file").is_not_null()),
            ["referenced_data_file"],
            ["file_path"],
        ),
        PARTITION_SCOPED: (positions.filter(pl.col("referenced_data_file").is_null()), POSITION_SCOPE, POSITION_SCOPE),
        EQUALITY: (equality.filter(~is_global), PARTITION_KEY, PARTITION_KEY),
        GLOBAL_EQUALITY: (equality.filter(is_global), [], []),
    }
    _refuse_foreign_partitions(data, vectors, scoped[FILE_SCOPED][0])
    vector_rows = _match_vectors(data, vectors)
    ranges: dict[str, pl.Series] = {}
    by_kind: dict[str, pl.DataFrame] = {}
    has_vector = vector_rows.is_not_null().to_numpy()
    for kind, (scope_deletes, delete_keys, data_keys) in scoped.items():
        # Equality deletes must be newer than the data; position deletes may come in the same commit.
        strictly_newer = kind in (EQUALITY, GLOBAL_EQUALITY)
        ordered, start, end = _find_ranges(data, scope_deletes, data_keys, delete_keys, strictly_newer=strictly_newer)
        if kind in (FILE_SCOPED, PARTITION_SCOPED):
            start = np.where(has_vector, end, start)
        by_kind[kind] = ordered
        ranges |= {f"{kind}_from": pl.Series(start), f"{kind}_to": pl.Series(end)}
    return DeleteMatches(data=data.with_columns(vector=vector_rows, **ranges), vectors=vectors, by_kind=by_kind)


def _match_nothing(data: pl.DataFrame) -> DeleteMatches:
    """The answer for data files without any deletes, as most tables have them."""
    ranges = {f"{kind}_{end}": pl.lit(0, pl.Int64) for kind in DELETE_SCOPES for end in ("from", "to")}
    matched = data.with_columns(position_scope=pl.col("partition"), vector=pl.lit(None, pl.UInt32), **ranges)
    deletes = matched.select(*data.columns, "position_scope").clear()
    return DeleteMatches(data=matched, vectors=deletes, by_kind=dict.fromkeys(DELETE_SCOPES, deletes))


def _with_position_scope(files: pl.DataFrame) -> pl.DataFrame:
    """Add `position_scope`: the partition key without the fields whose value any file of the spec has lost."""
    keys = files.select(PARTITION_KEY).unique()
    lost_fields: dict[int, set[int]] = {}
    for spec_id, _, indices in find_lost_values(keys):
        lost_fields.setdefault(spec_id, set()).update(indices)
    if not lost_fields:
        return files.with_columns(position_scope=pl.col("partition"))
    unmatchable = files.filter((pl.col("content") == EQUALITY_DELETES) & pl.col("spec_id").is_in(list(lost_fields)))
    if unmatchable.height:
        raise Damaged(
            f"equality delete {unmatchable['file_path'][0]} cannot be matched: partition values were lost",
            hint="The partition's column was dropped and a manifest rewritten since, so it is not known which data the "
            "delete applies to. Read or roll back to the snapshot before that.",
            file=unmatchable["file_path"][0],
        )
    scopes = [_without_fields(key, lost_fields.get(spec_id, set())) for spec_id, key in keys.iter_rows()]
    scope_of_keys = keys.with_columns(pl.Series("position_scope", scopes, dtype=pl.String))
    return files.join(scope_of_keys, on=PARTITION_KEY, how="left", maintain_order="left")


def _without_fields(key: str, indices: set[int]) -> str:
    return json.dumps([value for index, value in enumerate(json.loads(key)) if index not in indices]) if indices else key


def _find_ranges(
    data: pl.DataFrame,
    deletes: pl.DataFrame,
    data_keys: Sequence[str],
    delete_keys: Sequence[str],
    *,
    strictly_newer: bool,
) -> tuple[pl.DataFrame, Integers, Integers]:
    """Sort the deletes by (scope, sequence); per data file the range of its scope that is new enough."""
    if deletes.is_empty():
        empty = np.zeros(data.height, np.int64)
        return deletes, empty, empty
    if delete_keys:
        scopes = deletes.select(delete_keys).unique(maintain_order=True).with_row_index("scope")
        delete_scope = deletes.join(scopes, on=delete_keys, how="left", maintain_order="left")["scope"]
        data_scope = data.join(scopes, left_on=data_keys, right_on=delete_keys, how="left", maintain_order="left")["scope"]
        scope_count = scopes.height
    else:
        delete_scope = pl.zeros(deletes.height, pl.UInt32, eager=True)
        data_scope = pl.zeros(data.height, pl.UInt32, eager=True)
        scope_count = 1
    ordered = deletes.with_columns(delete_scope.alias("scope")).sort("scope", "data_sequence_number", maintain_order=True)
    # Sequence numbers are compared by rank, so that (scope, rank) fits into one integer however large the numbers are.
    sequences = np.unique(ordered["data_sequence_number"].to_numpy())
    rank_count = len(sequences) + 1
    key = ordered["scope"].to_numpy().astype(np.int64) * rank_count + np.searchsorted(
        sequences, ordered["data_sequence_number"].to_numpy()
    )
    side: Literal["left", "right"] = "right" if strictly_newer else "left"
    rank = np.searchsorted(sequences, data["data_sequence_number"].to_numpy(), side=side)
    scope = data_scope.fill_null(scope_count).to_numpy().astype(np.int64)
    start = np.searchsorted(key, scope * rank_count + rank).astype(np.int64)
    end = np.searchsorted(key, (scope + 1) * rank_count).astype(np.int64)
    return ordered.drop("scope"), start, end


def _match_vectors(data: pl.DataFrame, vectors: pl.DataFrame) -> pl.Series:
    """For every data file the row of its deletion vector, checked: at most one, and not older than the file."""
    if vectors.is_empty():
        return pl.repeat(None, data.height, dtype=pl.UInt32, eager=True).alias("vector")
    targets = vectors.select("referenced_data_file", "data_sequence_number").with_row_index("vector")
    duplicates = targets.filter(pl.col("referenced_data_file").is_duplicated())
    if duplicates.height:
        path = duplicates["referenced_data_file"][0]
        raise Damaged(
            f"two deletion vectors for one data file: {path}",
            hint="A writer violated the rules of format version 3. Roll back to the snapshot before its commit.",
            file=path,
        )
    matched = data.select("file_path", "data_sequence_number").join(
        targets, left_on="file_path", right_on="referenced_data_file", how="left", maintain_order="left", suffix="_vector"
    )
    older = matched.filter(pl.col("data_sequence_number_vector") < pl.col("data_sequence_number"))
    if older.height:
        path = older["file_path"][0]
        raise Damaged(
            f"deletion vector is older than its data file: {path}",
            hint="The metadata contradicts itself. Roll back to the snapshot before the last commit.",
            file=path,
        )
    return matched["vector"]


def _refuse_foreign_partitions(data: pl.DataFrame, *referencing_deletes: pl.DataFrame) -> None:
    """A delete that references a live data file must be in its partition; readers disagree about any other."""
    for deletes in referencing_deletes:
        if deletes.is_empty():
            continue
        foreign = (
            deletes.select("file_path", "referenced_data_file", *POSITION_SCOPE)
            .join(
                data.select("file_path", *POSITION_SCOPE),
                left_on="referenced_data_file",
                right_on="file_path",
                how="inner",
                suffix="_data",
            )
            .filter(
                (pl.col("spec_id") != pl.col("spec_id_data")) | (pl.col("position_scope") != pl.col("position_scope_data"))
            )
        )
        if foreign.height:
            row = foreign.row(0, named=True)
            raise Damaged(
                f"delete file {row['file_path']} names a data file of another partition: {row['referenced_data_file']}",
                hint="Engines disagree about such deletes, so no result would be safe. Roll back to the snapshot "
                "before the commit that added it, and report the problem to the project of the writer.",
                file=row["file_path"],
                data_file=row["referenced_data_file"],
            )


def _ranges_cover(starts: pl.Series, ends: pl.Series, size: int) -> pl.Series:
    """Which of `size` rows lie in any of the ranges."""
    steps = np.zeros(size + 1, np.int64)
    is_filled = (ends > starts).to_numpy()
    np.add.at(steps, starts.to_numpy()[is_filled], 1)
    np.add.at(steps, ends.to_numpy()[is_filled], -1)
    return pl.Series(np.cumsum(steps)[:size] > 0, dtype=pl.Boolean)


def _concat(first: pl.DataFrame, second: pl.DataFrame) -> pl.DataFrame:
    if first.is_empty() or second.is_empty():
        return first if second.is_empty() else second
    return pl.concat([first, second], rechunk=False)
