"""Which delete files hit which data files: the scan-planning rules of the specification, answered as ranges.

Deletes are sorted within their group by sequence number, so the deletes of one data file are a run of neighbours:
from the first one new enough to the end of the group. A million data files and a hundred thousand deletes therefore
give a few integer columns, never the pairs.

The rules, with d = data sequence number of the data file and e = that of the delete:

* deletion vector: about exactly one data file, d <= e, same partition; it replaces all position deletes of that file
* position deletes: d <= e, same partition, and about this file when they name one
* equality deletes: d < e, same partition, or everywhere when their partition spec is unpartitioned
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
from pyarctic.iceberg.manifest.partition_keys import LOST
from pyarctic.iceberg.manifest.reader import EQUALITY_DELETES, POSITION_DELETES

Integers = npt.NDArray[np.int64]
PARTITION_KEY = ["spec_id", "partition"]
POSITION_SCOPE = ["spec_id", "position_scope"]
"""The partition as far as it is known. Position deletes name their data file, so values that a rewritten manifest lost may
be left out of the comparison."""

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
    """The answer: `data` has for every kind of delete a range into the frame of that kind, and the row of its vector.

    Columns added to the data files: `vector` (row in `vectors` or null) and `<kind>_from`, `<kind>_to` for the kinds
    "file", "partition", "equality" and "global"; an empty range means that nothing of this kind applies.
    """

    data: pl.DataFrame
    vectors: pl.DataFrame
    by_kind: dict[str, pl.DataFrame]

    @property
    def has_deletes(self) -> pl.Expr:
        """True for data files with any delete."""
        ranges = [pl.col(f"{kind}_to") > pl.col(f"{kind}_from") for kind in DELETE_SCOPES]
        return pl.any_horizontal(pl.col("vector").is_not_null(), *ranges)

    def unused(self) -> pl.DataFrame:
        """The delete files that hit no data file at all, and will hit none: data that comes later is too new for them."""
        return self._deletes(self.data, hit=False)

    def hitting(self, data: pl.DataFrame) -> pl.DataFrame:
        """The delete files that hit any of some rows of `data`."""
        return self._deletes(data, hit=True)

    def _deletes(self, data: pl.DataFrame, *, hit: bool) -> pl.DataFrame:
        parts = []
        for kind, frame in self.by_kind.items():
            covered = _covered(data[f"{kind}_from"], data[f"{kind}_to"], frame.height)
            parts.append(frame.filter(covered if hit else ~covered))
        named = pl.col("row").is_in(data["vector"].drop_nulls().implode())
        vectors = self.vectors.with_row_index("row").filter(named if hit else ~named).drop("row")
        return pl.concat([*parts, vectors]).drop("position_scope")

    def of(self, row: int) -> FileDeletes:
        """The deletes of the data file in the given row, as frames of delete files."""
        vectors, ranges = self._places
        runs = {}
        for kind, (starts, ends) in ranges.items():
            frame, start = self.by_kind[kind], int(starts[row])
            runs[kind] = frame.slice(start, max(int(ends[row]) - start, 0))
        vector = vectors[row]
        return FileDeletes(
            vector=None if vector is None else self.vectors.row(vector, named=True),
            positions=_both(runs[FILE_SCOPED], runs[PARTITION_SCOPED]),
            equality=_both(runs[EQUALITY], runs[GLOBAL_EQUALITY]),
        )

    @cached_property
    def _places(self) -> tuple[list[int | None], dict[str, tuple[Integers, Integers]]]:
        """Vector and ranges of every data file; asked one by one, a frame would be slow."""
        ranges = {kind: (self.data[f"{kind}_from"].to_numpy(), self.data[f"{kind}_to"].to_numpy()) for kind in DELETE_SCOPES}
        return self.data["vector"].to_list(), ranges


def match_deletes(files: pl.DataFrame, unpartitioned_specs: Collection[int]) -> DeleteMatches:
    """Match the data files of a file list with its deletes."""
    files = _with_position_scope(files)
    data = files.filter(IS_DATA)
    deletes = files.filter(~IS_DATA)
    vectors = deletes.filter(IS_VECTOR)
    positions = deletes.filter(~IS_VECTOR & (pl.col("content") == POSITION_DELETES))
    equality = deletes.filter(pl.col("content") == EQUALITY_DELETES)
    everywhere = pl.col("spec_id").is_in(list(unpartitioned_specs))
    grouped = {
        FILE_SCOPED: (
            positions.filter(pl.col("referenced_data_file").is_not_null()),
            ["referenced_data_file"],
            ["file_path"],
        ),
        PARTITION_SCOPED: (positions.filter(pl.col("referenced_data_file").is_null()), POSITION_SCOPE, POSITION_SCOPE),
        EQUALITY: (equality.filter(~everywhere), PARTITION_KEY, PARTITION_KEY),
        GLOBAL_EQUALITY: (equality.filter(everywhere), [], []),
    }
    _refuse_foreign_partitions(data, vectors, grouped[FILE_SCOPED][0])
    vector_rows = _vector_rows(data, vectors)
    ranges: dict[str, pl.Series] = {}
    by_kind: dict[str, pl.DataFrame] = {}
    hidden = vector_rows.is_not_null().to_numpy()
    for kind, (frame, delete_keys, data_keys) in grouped.items():
        # Equality deletes must be newer than the data; position deletes may come in the same commit.
        strictly_newer = kind in (EQUALITY, GLOBAL_EQUALITY)
        ordered, start, end = _ranges(data, frame, data_keys, delete_keys, strictly_newer=strictly_newer)
        if kind in (FILE_SCOPED, PARTITION_SCOPED):
            start = np.where(hidden, end, start)
        by_kind[kind] = ordered
        ranges |= {f"{kind}_from": pl.Series(start), f"{kind}_to": pl.Series(end)}
    return DeleteMatches(data=data.with_columns(vector=vector_rows, **ranges), vectors=vectors, by_kind=by_kind)


def _with_position_scope(files: pl.DataFrame) -> pl.DataFrame:
    """Add `position_scope`: the partition key without the places at which any file of its spec has lost the value."""
    keys = files.select(PARTITION_KEY).unique()
    lost: dict[int, set[int]] = {}
    for spec_id, key in keys.filter(pl.col("partition").str.contains("false", literal=True)).iter_rows():
        places = {place for place, value in enumerate(json.loads(key)) if value is LOST}
        if places:
            lost.setdefault(spec_id, set()).update(places)
    if not lost:
        return files.with_columns(position_scope=pl.col("partition"))
    in_question = files.filter((pl.col("content") == EQUALITY_DELETES) & pl.col("spec_id").is_in(list(lost)))
    if in_question.height:
        raise Damaged(
            f"equality delete {in_question['file_path'][0]} cannot be matched: partition values were lost",
            hint="The partition's column was dropped and a manifest rewritten since, so nobody can tell which data the "
            "delete is about. Read or roll back to the snapshot before that.",
            file=in_question["file_path"][0],
        )
    scopes = [_known_part(key, lost.get(spec_id, set())) for spec_id, key in keys.iter_rows()]
    known = keys.with_columns(pl.Series("position_scope", scopes, dtype=pl.String))
    return files.join(known, on=PARTITION_KEY, how="left", maintain_order="left")


def _known_part(key: str, lost: set[int]) -> str:
    return json.dumps([value for place, value in enumerate(json.loads(key)) if place not in lost]) if lost else key


def _ranges(
    data: pl.DataFrame,
    deletes: pl.DataFrame,
    data_keys: Sequence[str],
    delete_keys: Sequence[str],
    *,
    strictly_newer: bool,
) -> tuple[pl.DataFrame, Integers, Integers]:
    """Sort the deletes by (group, sequence); per data file the run of its group that is new enough."""
    if deletes.is_empty():
        nothing = np.zeros(data.height, np.int64)
        return deletes, nothing, nothing
    if delete_keys:
        groups = deletes.select(delete_keys).unique(maintain_order=True).with_row_index("group")
        delete_group = deletes.join(groups, on=delete_keys, how="left", maintain_order="left")["group"]
        data_group = data.join(groups, left_on=data_keys, right_on=delete_keys, how="left", maintain_order="left")["group"]
        number_of_groups = groups.height
    else:
        delete_group = pl.zeros(deletes.height, pl.UInt32, eager=True)
        data_group = pl.zeros(data.height, pl.UInt32, eager=True)
        number_of_groups = 1
    ordered = deletes.with_columns(delete_group.alias("group")).sort("group", "data_sequence_number", maintain_order=True)
    # Sequence numbers are compared by rank, so that (group, rank) fits one integer however large the numbers are.
    sequences = np.unique(ordered["data_sequence_number"].to_numpy())
    width = len(sequences) + 1
    key = ordered["group"].to_numpy().astype(np.int64) * width + np.searchsorted(
        sequences, ordered["data_sequence_number"].to_numpy()
    )
    side: Literal["left", "right"] = "right" if strictly_newer else "left"
    rank = np.searchsorted(sequences, data["data_sequence_number"].to_numpy(), side=side)
    group = data_group.fill_null(number_of_groups).to_numpy().astype(np.int64)
    start = np.searchsorted(key, group * width + rank).astype(np.int64)
    end = np.searchsorted(key, (group + 1) * width).astype(np.int64)
    return ordered.drop("group"), start, end


def _vector_rows(data: pl.DataFrame, vectors: pl.DataFrame) -> pl.Series:
    """For every data file the row of its deletion vector, checked: at most one, and not older than the file."""
    if vectors.is_empty():
        return pl.repeat(None, data.height, dtype=pl.UInt32, eager=True).alias("vector")
    named = vectors.select("referenced_data_file", "data_sequence_number").with_row_index("vector")
    twice = named.filter(pl.col("referenced_data_file").is_duplicated())
    if twice.height:
        path = twice["referenced_data_file"][0]
        raise Damaged(
            f"two deletion vectors for one data file: {path}",
            hint="A writer broke the v3 rules. Roll back to the snapshot before it.",
            file=path,
        )
    matched = data.select("file_path", "data_sequence_number").join(
        named, left_on="file_path", right_on="referenced_data_file", how="left", maintain_order="left", suffix="_vector"
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


def _refuse_foreign_partitions(data: pl.DataFrame, *named_deletes: pl.DataFrame) -> None:
    """A delete that names a live data file must stand in its partition; readers disagree about any other."""
    for deletes in named_deletes:
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
                hint="Engines disagree about such deletes, so no answer would be safe. Roll back to the snapshot "
                "before the commit that added it, and report it to the writer's project.",
                file=row["file_path"],
                data_file=row["referenced_data_file"],
            )


def _covered(starts: pl.Series, ends: pl.Series, size: int) -> pl.Series:
    """Which of `size` places lie in any of the ranges."""
    steps = np.zeros(size + 1, np.int64)
    some = (ends > starts).to_numpy()
    np.add.at(steps, starts.to_numpy()[some], 1)
    np.add.at(steps, ends.to_numpy()[some], -1)
    return pl.Series(np.cumsum(steps)[:size] > 0, dtype=pl.Boolean)


def _both(first: pl.DataFrame, second: pl.DataFrame) -> pl.DataFrame:
    if first.is_empty() or second.is_empty():
        return first if second.is_empty() else second
    return pl.concat([first, second], rechunk=False)
