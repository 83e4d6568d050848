"""Deletes that arrived while a change was made are moved over to what it brings, instead of throwing the work away.

* A rewrite took rows out of old files. Position deletes and vectors that came for those files since then are translated
  through the row map into deletes of the new files. Equality deletes need nothing: rewritten files keep the sequence number
  of the snapshot they were planned on, so that every later delete reaches them.
* A change brings vectors for files that got vectors from others meanwhile. A data file has one vector at most, and it hides
  older position delete files, so the new one takes in what was dead already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from pyiceberg.io import FileIO

from pyarctic.errors import ArcticError
from pyarctic.iceberg.commit.change import Change, no_files
from pyarctic.iceberg.commit.table_state import PLAN_ANEW, Refusal, TableState
from pyarctic.iceberg.delete.delete_files import NO_POSITIONS, PositionDeletes, read_position_deletes
from pyarctic.iceberg.delete.deletion_vectors import Positions, read_vector, united
from pyarctic.iceberg.delete.matching import FILE_SCOPED, PARTITION_SCOPED, DeleteMatches, match_deletes
from pyarctic.iceberg.manifest.file_list import FILE_IDENTITY
from pyarctic.iceberg.manifest.reader import POSITION_DELETES
from pyarctic.iceberg.storage import remove_quietly
from pyarctic.iceberg.write.delete_files import write_position_deletes, write_vectors
from pyarctic.iceberg.write.new_file import FileNames, FileTarget, NewFile

_MEMORY = 256 << 20
Dead = dict[str, Positions]


@dataclass(frozen=True, kw_only=True)
class Rebase:
    """What an attempt adds to a change: positions to delete, vectors and position delete files that leave for it."""

    dead: Mapping[str, Positions]
    """Data file → positions that must be deleted in it, all that the change and others know of."""
    replaced_vectors: frozenset[str]
    """Data files whose vectors of the change are not to be used, because `dead` says more."""
    leaving: pl.DataFrame
    moved_rows: int

    def key(self) -> tuple[tuple[str, bytes], ...]:
        """Equal for attempts that need the same delete files."""
        return tuple((path, self.dead[path].tobytes()) for path in sorted(self.dead))


def rebase(change: Change, state: TableState, since: pl.DataFrame) -> Rebase:
    """Find out what arrived for the files that the change is about."""
    moved = _moved_deletes(change, state, since)
    rows = sum(len(positions) for positions in moved.values())
    if state.version < 3:
        return Rebase(dead=moved, replaced_vectors=frozenset(), leaving=no_files(), moved_rows=rows)
    return _with_merged_vectors(change, state, moved, rows)


def write_rebased(change: Change, state: TableState, dead: Mapping[str, Positions]) -> list[NewFile]:
    """Delete files or vectors for the positions, in the partitions of their data files."""
    places = {f.path: (f.spec_id, f.partition) for f in change.added_data}
    places |= {f.referenced_data_file: (f.spec_id, f.partition) for f in change.added_deletes if f.referenced_data_file}
    grouped: dict[tuple[int, tuple[object, ...]], Dead] = {}
    for path, positions in dead.items():
        grouped.setdefault(places[path], {})[path] = positions
    written: list[NewFile] = []
    names = FileNames()
    io = state.reader.io
    try:
        for (spec_id, partition), positions_of in grouped.items():
            target = FileTarget(metadata=state.metadata, io=io, spec_id=spec_id, partition=partition, names=names)
            if state.version > 2:
                written += write_vectors(target, positions_of)
            else:
                written.append(write_position_deletes(target, positions_of))
    except ArcticError:
        remove_quietly(io, [file.path for file in written])
        raise
    return written


def _moved_deletes(change: Change, state: TableState, since: pl.DataFrame) -> Dead:
    """Deletes that came for replaced data files, as positions in the new files."""
    replaced = change.removed_data
    if replaced.is_empty() or since.is_empty() or not (change.added_data or change.rewrites or change.proof):
        return {}
    positions = PositionDeletes(state.reader.io, _MEMORY)
    _check_taken_back(replaced, state, since, positions)
    if not change.added_data:
        return {}
    arrived = since.filter((pl.col("change") == "added") & (pl.col("content") == POSITION_DELETES)).drop("change")
    dead = _dead(_matches(replaced, arrived, state), positions)
    if not dead:
        return {}
    if change.row_map is None:
        raise Refusal(
            "deletes-arrived",
            f"rows of {len(dead)} replaced files were deleted meanwhile, such as {min(dead)}",
            "The change has no row map to move the deletes to the new files. " + PLAN_ANEW,
            file=min(dead),
        )
    return translate(change.row_map, dead)


def translate(row_map: pl.DataFrame | pl.LazyFrame, dead: Mapping[str, Positions]) -> Dead:
    """Positions in old files as positions in new files; rows that were left out are forgotten."""
    old = pl.concat(
        [pl.DataFrame({"source": pl.repeat(path, len(at), eager=True), "position": at}) for path, at in dead.items()]
    )
    runs = row_map.lazy().filter(pl.col("source").is_in(list(dead))).rename({"position": "run"}).collect()
    placed = old.sort("position").join_asof(
        runs.sort("run"), left_on="position", right_on="run", by="source", strategy="backward", check_sortedness=False
    )
    offset = pl.col("position") - pl.col("run")
    new = placed.filter(offset < pl.col("length")).select("target", position=pl.col("target_position") + offset)
    return {
        str(target): np.sort(group["position"].to_numpy()).astype(np.int64)
        for (target,), group in new.group_by("target", maintain_order=True)
    }


def _matches(data: pl.DataFrame, deletes: pl.DataFrame, state: TableState) -> DeleteMatches:
    columns = deletes.columns
    return match_deletes(pl.concat([data.select(columns), deletes]), state.decoder.unpartitioned_specs())


def _dead(matches: DeleteMatches, positions: PositionDeletes) -> Dead:
    """Positions that position deletes and vectors name, of the data files that have any."""
    has = pl.col("vector").is_not_null()
    for kind in (FILE_SCOPED, PARTITION_SCOPED):
        has = has | (pl.col(f"{kind}_to") > pl.col(f"{kind}_from"))
    rows = matches.data.select(pl.arg_where(has)).to_series()
    found = {matches.data["file_path"][row]: positions.of(matches.data["file_path"][row], matches.of(row)) for row in rows}
    return {path: at for path, at in found.items() if len(at)}


def _check_taken_back(replaced: pl.DataFrame, state: TableState, since: pl.DataFrame, positions: PositionDeletes) -> None:
    """Deleted rows of replaced files that somebody brought back to life are missing in the rewrite."""
    taken = since.filter((pl.col("change") == "removed") & (pl.col("content") == POSITION_DELETES)).drop("change")
    if taken.is_empty():
        return
    were_dead = _dead(_matches(replaced, taken, state), positions)
    if not were_dead:
        return
    of_those = replaced.filter(pl.col("file_path").is_in(list(were_dead)))
    are_dead = _dead(_matches(of_those, state.deletes(), state), positions)
    if path := _first_alive(were_dead, are_dead):
        raise Refusal(
            "deletes-arrived",
            f"deletes of replaced data file {path} were taken back meanwhile",
            "The new files lack rows that are alive again. " + PLAN_ANEW,
            file=path,
        )


def _first_alive(were_dead: Mapping[str, Positions], are_dead: Mapping[str, Positions]) -> str | None:
    """A data file with rows that were dead and are not any more."""
    for path, at in were_dead.items():
        if not np.isin(at, are_dead.get(path, NO_POSITIONS)).all():
            return path
    return None


def _with_merged_vectors(change: Change, state: TableState, moved: Dead, rows: int) -> Rebase:
    own = {file.referenced_data_file: file for file in change.add if file.is_vector and file.referenced_data_file}
    dead: dict[str, Positions] = dict(moved)
    leaving = no_files()
    elsewhere = set(own) - {file.path for file in change.added_data}
    if elsewhere:
        stayed = state.deletes().join(change.removed_deletes, on=FILE_IDENTITY, how="anti", nulls_equal=True)
        targets = state.data({file.spec_id for file in own.values()}).filter(pl.col("file_path").is_in(list(elsewhere)))
        positions = PositionDeletes(state.reader.io, _MEMORY)
        others = _dead(_matches(targets, stayed, state), positions)
        _check_undeletes(change, state, targets, others, positions)
        for path, at in others.items():
            dead[path] = united(dead.get(path, NO_POSITIONS), at)
        about_targets = pl.col("referenced_data_file").is_in(list(elsewhere)) & (pl.col("content") == POSITION_DELETES)
        leaving = stayed.filter(about_targets)
    merged = {path: united(at, _own(state.reader.io, own[path])) for path, at in dead.items() if path in own}
    return Rebase(dead=dead | merged, replaced_vectors=frozenset(merged), leaving=leaving, moved_rows=rows)


def _check_undeletes(
    change: Change, state: TableState, targets: pl.DataFrame, others: Dead, positions: PositionDeletes
) -> None:
    """Vectors are merged when both sides only deleted. If one brought rows back, the other does not know."""
    gone = change.removed_deletes.join(state.deletes(), on=FILE_IDENTITY, how="anti", nulls_equal=True)
    gone = gone.filter(pl.col("content") == POSITION_DELETES)
    own = {file.referenced_data_file: file for file in change.add if file.is_vector}
    before = _dead(_matches(targets, gone, state), positions)
    both = {path: np.intersect1d(_own(state.reader.io, own[path]), others.get(path, NO_POSITIONS)) for path in before}
    if path := _first_alive(before, both):
        raise Refusal(
            "deletes-arrived",
            f"the deletion vector of {path} was replaced meanwhile, and one of both brings deleted rows back",
            file=path,
        )


def check_positions_kept(change: Change, state: TableState) -> None:
    """A change that proves to keep all rows may drop position deletes and vectors only if every row they delete stays
    deleted, or leaves."""
    leaving = change.removed_deletes.filter(pl.col("content") == POSITION_DELETES)
    if not (change.rewrites or change.proof) or leaving.is_empty():
        return
    staying_data = state.data(set(leaving["spec_id"])).join(change.removed_data, on="file_path", how="anti")
    positions = PositionDeletes(state.reader.io, _MEMORY)
    were_dead = _dead(_matches(staying_data, leaving.select(staying_data.columns), state), positions)
    if not were_dead:
        return
    concerned = staying_data.filter(pl.col("file_path").is_in(list(were_dead)))
    rest = state.deletes().join(leaving, on=FILE_IDENTITY, how="anti", nulls_equal=True)
    are_dead = _dead(_matches(concerned, rest, state), positions)
    for path, at in _brought(change, state.reader.io).items():
        are_dead[path] = united(are_dead.get(path, NO_POSITIONS), at)
    if alive := _first_alive(were_dead, are_dead):
        raise Refusal(
            "still-needed",
            f"rows of {alive} are deleted by position deletes that the change removes, and would come back",
            "A rewrite keeps all rows as they are. " + PLAN_ANEW,
            file=alive,
        )


def _brought(change: Change, io: FileIO) -> Dead:
    """Positions that the change's own delete files name."""
    brought: Dead = {}
    for file in change.added_deletes:
        named: Mapping[str, Positions] = {}
        if file.is_vector:
            named = {str(file.referenced_data_file): _own(io, file)}
        elif file.content == POSITION_DELETES:
            named = read_position_deletes(io, file.path, file.file_format)
        for path, at in named.items():
            brought[path] = united(brought.get(path, NO_POSITIONS), at)
    return brought


def _own(io: FileIO, vector: NewFile) -> Positions:
    assert vector.content_offset is not None  # noqa: S101  # Change made sure
    assert vector.content_size_bytes is not None  # noqa: S101
    return read_vector(io, vector.path, vector.content_offset, vector.content_size_bytes, vector.record_count)
