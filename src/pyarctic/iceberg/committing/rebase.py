"""Deletes that arrived while a change was made are moved over to what it brings, instead of throwing the work away.

* A rewrite took rows out of old files. Position deletes and vectors that came for those files since then are translated
  through the row map into deletes of the new files. Equality deletes need nothing: rewritten files keep the sequence number
  of the snapshot they were planned on, so that every later delete reaches them.
* A change brings vectors for files that got vectors from others meanwhile. A data file has one vector at most, and it hides
  older position delete files, so the new one takes in what was dead already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from pyiceberg.io import FileIO

from pyarctic.errors import ArcticError
from pyarctic.iceberg.committing.change import Change, no_files
from pyarctic.iceberg.committing.state import Refusal, TableState
from pyarctic.iceberg.deletefiles import NO_POSITIONS, PositionDeletes
from pyarctic.iceberg.deletes import EQUALITY, FILE_SCOPED, GLOBAL_EQUALITY, PARTITION_SCOPED, DeleteMatches, match_deletes
from pyarctic.iceberg.filelist import FILE_IDENTITY, IS_DATA, IS_VECTOR
from pyarctic.iceberg.storage import remove_quietly
from pyarctic.iceberg.vectors import Positions, read_vector
from pyarctic.iceberg.writing.deletes import write_position_deletes, write_vectors
from pyarctic.iceberg.writing.newfile import FileNames, NewFile, Target

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
            target = Target(metadata=state.metadata, io=io, spec_id=spec_id, partition=partition, names=names)
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
    arrived = since.filter((pl.col("change") == "added") & ~IS_DATA).drop("change")
    if replaced.is_empty() or not change.added_data or since.is_empty():
        return {}
    positions = PositionDeletes(state.reader.io, _MEMORY)
    matches = _matches(replaced, arrived, state)
    _check_equality_deletes(change, state, matches)
    dead = _dead(matches, positions)
    _check_taken_back(replaced, state, since, positions)
    if not dead:
        return {}
    if change.row_map is None:
        raise Refusal(
            "deletes-arrived",
            f"rows of {len(dead)} replaced files were deleted meanwhile, such as {min(dead)}",
            "The change has no row map to move the deletes to the new files. Plan it anew on the current snapshot.",
            file=min(dead),
        )
    return translate(change.row_map, dead)


def translate(row_map: pl.DataFrame, dead: Mapping[str, Positions]) -> Dead:
    """Positions in old files as positions in new files; rows that were left out are forgotten."""
    old = pl.concat(
        [pl.DataFrame({"source": pl.repeat(path, len(at), eager=True), "position": at}) for path, at in dead.items()]
    )
    runs = row_map.filter(pl.col("source").is_in(list(dead))).rename({"position": "run"})
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


def _check_equality_deletes(change: Change, state: TableState, matches: DeleteMatches) -> None:
    """New equality deletes must reach the rows in their new files: by sequence number, and by partition."""
    hit_in_partition = pl.col(f"{EQUALITY}_to") > pl.col(f"{EQUALITY}_from")
    hit_everywhere = pl.col(f"{GLOBAL_EQUALITY}_to") > pl.col(f"{GLOBAL_EQUALITY}_from")
    hit = matches.data.filter(hit_in_partition | hit_everywhere)
    if hit.is_empty():
        return
    path = hit["file_path"][0]
    if any(file.data_sequence_number is None for file in change.added_data):
        raise Refusal(
            "deletes-arrived",
            f"equality deletes arrived meanwhile for {hit.height} replaced files, such as {path}",
            "The new files do not keep the sequence number of the planned snapshot, so the deletes would miss their rows. "
            "Plan it anew on the current snapshot.",
            file=path,
        )
    scoped = hit.filter(hit_in_partition)
    for (spec_id, key), sources in scoped.group_by("spec_id", "partition"):
        place = (spec_id, state.decoder.values(int(str(spec_id)), str(key)))
        for file in _targets(change, sources["file_path"]):
            if (file.spec_id, file.partition) != place:
                raise Refusal(
                    "deletes-arrived",
                    f"equality deletes arrived meanwhile in the partition of {sources['file_path'][0]}, whose rows move to "
                    "another partition",
                    "A delete of one partition does not reach another. Plan it anew on the current snapshot.",
                    file=sources["file_path"][0],
                )


def _targets(change: Change, sources: pl.Series) -> Iterable[NewFile]:
    """The new files that hold rows of these old ones; all of them when nobody says which."""
    if change.row_map is None:
        return change.added_data
    paths = set(change.row_map.filter(pl.col("source").is_in(sources.implode()))["target"])
    return [file for file in change.added_data if file.path in paths]


def _check_taken_back(replaced: pl.DataFrame, state: TableState, since: pl.DataFrame, positions: PositionDeletes) -> None:
    """Deleted rows of replaced files that somebody brought back to life are missing in the rewrite."""
    taken = since.filter((pl.col("change") == "removed") & (pl.col("content") == 1)).drop("change")
    if taken.is_empty():
        return
    were_dead = _dead(_matches(replaced, taken, state), positions)
    if not were_dead:
        return
    of_those = replaced.filter(pl.col("file_path").is_in(list(were_dead)))
    are_dead = _dead(_matches(of_those, state.deletes(), state), positions)
    for path, at in were_dead.items():
        if not np.isin(at, are_dead.get(path, NO_POSITIONS)).all():
            raise Refusal(
                "deletes-arrived",
                f"deletes of replaced data file {path} were taken back meanwhile",
                "The new files lack rows that are alive again. Plan it anew on the current snapshot.",
                file=path,
            )


def _with_merged_vectors(change: Change, state: TableState, moved: Dead, rows: int) -> Rebase:
    own = {file.referenced_data_file: file for file in change.add if file.is_vector and file.referenced_data_file}
    dead: dict[str, Positions] = dict(moved)
    leaving = no_files()
    if own:
        stayed = state.deletes().join(change.removed_deletes, on=FILE_IDENTITY, how="anti", nulls_equal=True)
        elsewhere = set(own) - {file.path for file in change.added_data}
        targets = state.data({file.spec_id for file in own.values()}).filter(pl.col("file_path").is_in(list(elsewhere)))
        others = _dead(_matches(targets, stayed, state), PositionDeletes(state.reader.io, _MEMORY))
        for path, at in others.items():
            dead[path] = np.union1d(dead.get(path, NO_POSITIONS), at)
        about_targets = pl.col("referenced_data_file").is_in(list(elsewhere)) & (IS_VECTOR | (pl.col("content") == 1))
        leaving = stayed.filter(about_targets)
    merged = {path: np.union1d(at, _own(state.reader.io, own[path])) for path, at in dead.items() if path in own}
    return Rebase(dead=dead | merged, replaced_vectors=frozenset(merged), leaving=leaving, moved_rows=rows)


def _own(io: FileIO, vector: NewFile) -> Positions:
    assert vector.content_offset is not None  # noqa: S101  # Change made sure
    assert vector.content_size_bytes is not None  # noqa: S101
    return read_vector(io, vector.path, vector.content_offset, vector.content_size_bytes, vector.record_count)
