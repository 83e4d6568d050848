"""Rebasing a change onto deletes that were committed since it was planned, instead of discarding its work.

* A rewrite moved rows out of old files. Position deletes and vectors that were committed for those files since then are
  translated by the row map into deletes of the new files. Equality deletes need no translation: rewritten files keep the
  sequence number of the snapshot they were planned on, so that every later delete applies to them.
* A change adds vectors for files that got vectors by concurrent commits. A data file has at most one vector, which replaces
  older position delete files, so the new vector is merged with the positions that were deleted already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from pyiceberg.io import FileIO

from pyarctic.errors import ArcticError
from pyarctic.iceberg.commit.change import Change, no_files
from pyarctic.iceberg.commit.table_state import PLAN_AGAIN, ChangeRejected, TableState
from pyarctic.iceberg.delete.delete_files import NO_POSITIONS, PositionDeletes, read_position_deletes
from pyarctic.iceberg.delete.deletion_vectors import Positions, merge_positions, read_vector
from pyarctic.iceberg.delete.matching import FILE_SCOPED, PARTITION_SCOPED, DeleteMatches, match_deletes
from pyarctic.iceberg.manifest.file_list import FILE_IDENTITY
from pyarctic.iceberg.manifest.reader import POSITION_DELETES
from pyarctic.iceberg.storage import remove_quietly
from pyarctic.iceberg.write.commit_names import new_file_id
from pyarctic.iceberg.write.delete_files import write_position_deletes, write_vectors
from pyarctic.iceberg.write.new_file import FileNames, FileTarget, NewFile

_DELETE_MEMORY_BYTES = 256 << 20
DeletedPositions = dict[str, Positions]


@dataclass(frozen=True, kw_only=True)
class Rebase:
    """What an attempt adds to a change: positions to delete, and vectors and position delete files that they replace."""

    deleted: Mapping[str, Positions]
    """Data file → all positions to delete in it, by the change and by concurrent commits."""
    replaced_vectors: frozenset[str]
    """Data files whose vectors of the change are not used, because `deleted` has more positions."""
    removed: pl.DataFrame
    moved_rows: int

    def key(self) -> tuple[tuple[str, bytes], ...]:
        """Equal for attempts that need the same delete files."""
        return tuple((path, self.deleted[path].tobytes()) for path in sorted(self.deleted))


def rebase(change: Change, state: TableState, since: pl.DataFrame) -> Rebase:
    """Find the deletes that were committed since for the files of the change."""
    moved = _translate_new_deletes(change, state, since)
    moved_rows = sum(len(positions) for positions in moved.values())
    if state.version < 3:
        return Rebase(deleted=moved, replaced_vectors=frozenset(), removed=no_files(), moved_rows=moved_rows)
    return _merge_vectors(change, state, moved, moved_rows)


def write_rebased_deletes(change: Change, state: TableState, deleted: Mapping[str, Positions]) -> list[NewFile]:
    """Write position delete files or vectors for the positions, in the partitions of their data files. Their paths do not
    depend on the partition, so that those of a commit that was killed are found."""
    partitions = {f.path: (f.spec_id, f.partition) for f in change.added_data}
    partitions |= {f.referenced_data_file: (f.spec_id, f.partition) for f in change.added_deletes if f.referenced_data_file}
    by_partition: dict[tuple[int, tuple[object, ...]], DeletedPositions] = {}
    for path, positions in deleted.items():
        by_partition.setdefault(partitions[path], {})[path] = positions
    written: list[NewFile] = []
    names = FileNames(job_id=str(new_file_id(change.names_of)))
    io = state.reader.io
    try:
        for (spec_id, partition), positions_of in by_partition.items():
            target = FileTarget(
                metadata=state.metadata, io=io, spec_id=spec_id, partition=partition, names=names, listed=True
            )
            if state.version > 2:
                written += write_vectors(target, positions_of)
            else:
                written.append(write_position_deletes(target, positions_of))
    except ArcticError:
        remove_quietly(io, [file.path for file in written])
        raise
    return written


def _translate_new_deletes(change: Change, state: TableState, since: pl.DataFrame) -> DeletedPositions:
    """Deletes that were committed since for replaced data files, as positions in the new files."""
    replaced = change.removed_data
    if replaced.is_empty() or since.is_empty() or not (change.added_data or change.rewrites or change.proof):
        return {}
    positions = PositionDeletes(state.reader.io, _DELETE_MEMORY_BYTES)
    _check_not_undeleted(replaced, state, since, positions)
    if not change.added_data:
        return {}
    new_deletes = since.filter((pl.col("change") == "added") & (pl.col("content") == POSITION_DELETES)).drop("change")
    deleted = _deleted_positions(_match(replaced, new_deletes, state), positions)
    if not deleted:
        return {}
    if change.row_map is None:
        raise ChangeRejected(
            "deletes-arrived",
            f"rows of {len(deleted)} replaced files were deleted meanwhile, such as {min(deleted)}",
            "The change has no row map to translate the deletes to the new files. " + PLAN_AGAIN,
            file=min(deleted),
        )
    return translate_positions(change.row_map, deleted)


def translate_positions(row_map: pl.DataFrame | pl.LazyFrame, deleted: Mapping[str, Positions]) -> DeletedPositions:
    """Positions in old files as positions in new files; rows that are not in the row map are ignored."""
    old = pl.concat(
        [
            pl.DataFrame({"source": pl.repeat(path, len(positions), eager=True), "position": positions})
            for path, positions in deleted.items()
        ]
    )
    runs = row_map.lazy().filter(pl.col("source").is_in(list(deleted))).rename({"position": "run_start"}).collect()
    matched = old.sort("position").join_asof(
        runs.sort("run_start"),
        left_on="position",
        right_on="run_start",
        by="source",
        strategy="backward",
        check_sortedness=False,
    )
    offset = pl.col("position") - pl.col("run_start")
    new = matched.filter(offset < pl.col("length")).select("target", position=pl.col("target_position") + offset)
    return {
        str(target): np.sort(group["position"].to_numpy()).astype(np.int64)
        for (target,), group in new.group_by("target", maintain_order=True)
    }


def _match(data: pl.DataFrame, deletes: pl.DataFrame, state: TableState) -> DeleteMatches:
    columns = deletes.columns
    return match_deletes(pl.concat([data.select(columns), deletes]), state.decoder.unpartitioned_specs())


def _deleted_positions(matches: DeleteMatches, positions: PositionDeletes) -> DeletedPositions:
    """Data file → positions that position deletes and vectors name, for the data files that have any."""
    has_deletes = pl.col("vector").is_not_null()
    for kind in (FILE_SCOPED, PARTITION_SCOPED):
        has_deletes = has_deletes | (pl.col(f"{kind}_to") > pl.col(f"{kind}_from"))
    rows = matches.data.select(pl.arg_where(has_deletes)).to_series()
    deleted = {}
    for row in rows:
        path = matches.data["file_path"][row]
        file_positions = positions.of(path, matches.of(row))
        if len(file_positions):
            deleted[path] = file_positions
    return deleted


def _check_not_undeleted(replaced: pl.DataFrame, state: TableState, since: pl.DataFrame, positions: PositionDeletes) -> None:
    """Deleted rows of replaced files that a concurrent commit restored would be missing in the rewrite."""
    removed_deletes = since.filter((pl.col("change") == "removed") & (pl.col("content") == POSITION_DELETES)).drop("change")
    if removed_deletes.is_empty():
        return
    deleted_before = _deleted_positions(_match(replaced, removed_deletes, state), positions)
    if not deleted_before:
        return
    affected = replaced.filter(pl.col("file_path").is_in(list(deleted_before)))
    deleted_now = _deleted_positions(_match(affected, state.deletes(), state), positions)
    if path := _first_undeleted(deleted_before, deleted_now):
        raise ChangeRejected(
            "deletes-arrived",
            f"deletes of replaced data file {path} were removed meanwhile",
            "The new files lack rows that are live again. " + PLAN_AGAIN,
            file=path,
        )


def _first_undeleted(before: Mapping[str, Positions], after: Mapping[str, Positions]) -> str | None:
    """A data file with positions that are deleted in `before` and not in `after`."""
    for path, positions in before.items():
        if not np.isin(positions, after.get(path, NO_POSITIONS)).all():
            return path
    return None


def _merge_vectors(change: Change, state: TableState, moved: DeletedPositions, moved_rows: int) -> Rebase:
    """Merge the vectors of the change with the deletes that their data files have now."""
    vectors = {file.referenced_data_file: file for file in change.add if file.is_vector and file.referenced_data_file}
    deleted: DeletedPositions = dict(moved)
    removed = no_files()
    existing_files = set(vectors) - {file.path for file in change.added_data}
    if existing_files:
        remaining = state.deletes().join(change.removed_deletes, on=FILE_IDENTITY, how="anti", nulls_equal=True)
        in_existing = pl.col("file_path").is_in(list(existing_files))
        targets = state.data({file.spec_id for file in vectors.values()}).filter(in_existing)
        positions = PositionDeletes(state.reader.io, _DELETE_MEMORY_BYTES)
        deleted_now = _deleted_positions(_match(targets, remaining, state), positions)
        _check_vectors_only_delete(change, state, targets, deleted_now, positions)
        for path, file_positions in deleted_now.items():
            deleted[path] = merge_positions(deleted.get(path, NO_POSITIONS), file_positions)
        references_target = pl.col("referenced_data_file").is_in(list(existing_files))
        removed = remaining.filter(references_target & (pl.col("content") == POSITION_DELETES))
    merged = {
        path: merge_positions(file_positions, _read_vector_of(state.reader.io, vectors[path]))
        for path, file_positions in deleted.items()
        if path in vectors
    }
    return Rebase(deleted=deleted | merged, replaced_vectors=frozenset(merged), removed=removed, moved_rows=moved_rows)


def _check_vectors_only_delete(
    change: Change, state: TableState, targets: pl.DataFrame, deleted_now: DeletedPositions, positions: PositionDeletes
) -> None:
    """Vectors can be merged if both sides only deleted rows, but not if one of them restored rows."""
    replaced = change.removed_deletes.join(state.deletes(), on=FILE_IDENTITY, how="anti", nulls_equal=True)
    replaced = replaced.filter(pl.col("content") == POSITION_DELETES)
    vectors = {file.referenced_data_file: file for file in change.add if file.is_vector}
    before = _deleted_positions(_match(targets, replaced, state), positions)
    in_both = {
        path: np.intersect1d(_read_vector_of(state.reader.io, vectors[path]), deleted_now.get(path, NO_POSITIONS))
        for path in before
    }
    if path := _first_undeleted(before, in_both):
        raise ChangeRejected(
            "deletes-arrived",
            f"the deletion vector of {path} was replaced meanwhile, and one of both vectors restores deleted rows",
            file=path,
        )


def check_positions_kept(change: Change, state: TableState) -> None:
    """A change that keeps all rows may remove position deletes and vectors only if the rows they delete stay deleted, or are
    in a removed data file."""
    removed = change.removed_deletes.filter(pl.col("content") == POSITION_DELETES)
    if not (change.rewrites or change.proof) or removed.is_empty():
        return
    remaining_data = state.data(set(removed["spec_id"])).join(change.removed_data, on="file_path", how="anti")
    positions = PositionDeletes(state.reader.io, _DELETE_MEMORY_BYTES)
    deleted_before = _deleted_positions(_match(remaining_data, removed.select(remaining_data.columns), state), positions)
    if not deleted_before:
        return
    affected = remaining_data.filter(pl.col("file_path").is_in(list(deleted_before)))
    remaining_deletes = state.deletes().join(removed, on=FILE_IDENTITY, how="anti", nulls_equal=True)
    deleted_after = _deleted_positions(_match(affected, remaining_deletes, state), positions)
    for path, file_positions in _added_positions(change, state.reader.io).items():
        deleted_after[path] = merge_positions(deleted_after.get(path, NO_POSITIONS), file_positions)
    if undeleted := _first_undeleted(deleted_before, deleted_after):
        raise ChangeRejected(
            "still-needed",
            f"rows of {undeleted} are deleted by position deletes that the change removes, and would come back",
            "A rewrite keeps all rows as they are. " + PLAN_AGAIN,
            file=undeleted,
        )


def _added_positions(change: Change, io: FileIO) -> DeletedPositions:
    """Data file → positions that the delete files of the change name."""
    added: DeletedPositions = {}
    for file in change.added_deletes:
        named: Mapping[str, Positions] = {}
        if file.is_vector:
            named = {str(file.referenced_data_file): _read_vector_of(io, file)}
        elif file.content == POSITION_DELETES:
            named = read_position_deletes(io, file.path, file.file_format, size=file.file_size_bytes)
        for path, positions in named.items():
            added[path] = merge_positions(added.get(path, NO_POSITIONS), positions)
    return added


def _read_vector_of(io: FileIO, vector: NewFile) -> Positions:
    assert vector.content_offset is not None  # noqa: S101  # checked by Change
    assert vector.content_size_bytes is not None  # noqa: S101
    return read_vector(io, vector.path, vector.content_offset, vector.content_size_bytes, vector.record_count)
