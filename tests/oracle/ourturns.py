"""What PyArctic does to a shared table: each turn is planned, and committed at once or after others had theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from random import Random

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table
from pyiceberg.types import NestedField

from pyarctic.iceberg.commit import Change, ManifestRewrite, Rejected
from pyarctic.iceberg.delete import DeleteMatches, match_deletes
from pyarctic.iceberg.delete.delete_files import read_position_deletes
from pyarctic.iceberg.delete.deletion_vectors import read_vector
from pyarctic.iceberg.manifest import FileList, PartitionDecoder
from pyarctic.iceberg.manifest.file_list import FILE_IDENTITY, IS_DATA, IS_VECTOR
from pyarctic.iceberg.storage import open_input
from pyarctic.iceberg.write import NewFile, write_equality_deletes, write_position_deletes, write_vectors
from tests.oracle.sharedtable import COLUMNS, Row, Rows, SharedTable, arrow, has_row_ids
from tests.support import changes

Effect = Callable[[Rows], object]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A change, and what it does to the rows of the model when it is committed."""

    name: str
    change: Change | ManifestRewrite
    effect: Effect = lambda _: None
    can_wait: bool = True
    """False when the effect is known only if nobody moves the rows meanwhile."""


@dataclass(frozen=True, kw_only=True)
class OurTurns:
    """Plans turns at random. Files are chosen by the rows in them: their names differ from run to run, the rows do not."""

    shared: SharedTable
    random: Random
    fresh: Callable[[int], list[Row]]
    """New rows."""

    def append(self, table: Table, branch: str) -> Turn:
        rows = self.fresh(self.random.randint(3, 30))
        change = replace(changes.append(table, arrow(rows)), branch=branch, start=changes.head(table, branch))
        return Turn(name="append", change=change, effect=lambda model: model.update(_by_id(rows)))

    def append_and_set_properties(self, table: Table, branch: str) -> Turn:
        """Java's next DELETE rewrites files or marks rows, as it is told here."""
        turn = self.append(table, branch)
        assert isinstance(turn.change, Change)
        # Java refuses to write deletes in version 1, and to fall back.
        mode = self.random.choice(["copy-on-write", "merge-on-read"]) if table.format_version > 1 else "copy-on-write"
        change = replace(turn.change, set_properties={"write.delete.mode": mode})
        return replace(turn, name=f"append, {mode}", change=change)

    def equality_delete(self, table: Table, branch: str) -> Turn | None:
        """By id, in the partitions where the rows are."""
        dead = self._some_rows(table, branch, 4)
        if not dead.num_rows:
            return None
        add = [
            write_equality_deletes(changes.target(table, partition, spec_id), part.select(["id"]), _fields(table, ["id"]))
            for (spec_id, partition), part in _by_place(table, dead, branch)
        ]
        ids = dead["id"].to_pylist()
        return Turn(
            name=f"equality delete of {ids}",
            change=Change(start=changes.head(table, branch), add=tuple(add), branch=branch),
            effect=lambda model: _kill(model, ids),
            can_wait=False,
        )

    def global_equality_delete(self, table: Table, branch: str) -> Turn | None:
        """By one or two columns, everywhere: the delete's spec has no partitions."""
        specs = PartitionDecoder(table.metadata).unpartitioned_specs()
        dead = self._some_rows(table, branch, 2)
        if not dead.num_rows or not specs:
            return None
        columns = self.random.choice([["id"], ["id"], ["p"], ["id", "p"]])
        keys = dead.select(columns)
        if columns == ["p"]:
            keys = keys.slice(0, 1)
        file = write_equality_deletes(changes.target(table, (), min(specs)), keys, _fields(table, columns))
        places = [COLUMNS.index(column) for column in columns]
        wanted = {tuple(key.values()) for key in keys.to_pylist()}

        def effect(model: Rows) -> None:
            _kill(model, [key for key, row in model.items() if tuple(row[place] for place in places) in wanted])

        change = Change(start=changes.head(table, branch), add=(file,), branch=branch)
        return Turn(name=f"global equality delete of {columns} {wanted}", change=change, effect=effect)

    def position_delete(self, table: Table, branch: str) -> Turn | None:
        dead = self._some_rows(table, branch, 4)
        change = changes.position_delete_of(table, dead, branch)
        if change is None:
            return None
        rows = _rows(dead)
        return Turn(name=f"position delete of {sorted(rows)}", change=change, effect=lambda model: _kill_same(model, rows))

    def larger_vector(self, table: Table, branch: str) -> Turn | None:
        """Instead of leaving it to the commit: the old vector is removed, the new one has its positions too."""
        vectors = changes.files(table, branch).filter(IS_VECTOR)
        old = {row["referenced_data_file"]: row for row in vectors.iter_rows(named=True)}
        alive = changes.rows(table, [*COLUMNS, *changes.ORIGIN], branch=branch).to_pylist()
        rows = sorted((row for row in alive if row["_file"] in old), key=lambda row: int(row["id"]))
        if not rows:
            return None
        row = self.random.choice(rows)
        was = old[row["_file"]]
        positions = read_vector(
            table.io, was["file_path"], was["content_offset"], was["content_size_bytes"], was["record_count"]
        )
        place = changes.target(
            table, PartitionDecoder(table.metadata).values(was["spec_id"], was["partition"]), was["spec_id"]
        )
        change = Change(
            start=changes.head(table, branch),
            add=tuple(write_vectors(place, {row["_file"]: np.append(positions, row["_pos"])})),
            remove=vectors.filter(pl.col("referenced_data_file") == row["_file"]),
            branch=branch,
        )
        dead = {row["id"]: (row["id"], row["p"], row["v"])}
        return Turn(name=f"larger vector without {row['id']}", change=change, effect=lambda model: _kill_same(model, dead))

    def rewrite(self, table: Table, branch: str) -> Turn | None:
        chosen, _ = self._some_files(table, branch)
        if chosen.is_empty():
            return None
        change = changes.rewrite(table, chosen, branch=branch, hashed=self.random.random() < 0.5)
        return Turn(name=f"rewrite of {chosen.height} files", change=change)

    def convert(self, table: Table, branch: str) -> Turn | None:
        """Equality deletes become positions, and leave."""
        listed = changes.files(table, branch)
        leaving = listed.filter(pl.col("content") == 2)
        if leaving.is_empty():
            return None
        change = Change(
            start=changes.head(table, branch),
            add=tuple(converted(table, listed, leaving)),
            remove=leaving,
            rewrites=True,
            converts=True,
            branch=branch,
        )
        return Turn(name=f"conversion of {leaving.height} equality deletes", change=change)

    def remove_unused_deletes(self, table: Table, branch: str) -> Turn | None:
        """Delete files that hit nothing leave."""
        unused = matches(table, changes.files(table, branch)).unused()
        if unused.is_empty():
            return None
        change = Change(start=changes.head(table, branch), remove=unused, rewrites=True, branch=branch)
        return Turn(name=f"removal of {unused.height} unused deletes", change=change)

    def remove_files(self, table: Table, branch: str) -> Turn | None:
        """Whole data files leave with their rows."""
        chosen, rows = self._some_files(table, branch, most=1)
        if chosen.is_empty():
            return None
        change = Change(start=changes.head(table, branch), remove=chosen, branch=branch)
        return Turn(name=f"removal of {sorted(rows)}", change=change, effect=lambda model: _kill_same(model, rows))

    def overwrite(self, table: Table, branch: str) -> Turn | None:
        """Copy-on-write: every other row of some files dies, the rest moves to new files."""
        chosen, rows = self._some_files(table, branch, most=2)
        if chosen.is_empty():
            return None
        dead = {key: rows[key] for key in sorted(rows)[::2]}
        lineage = changes.LINEAGE if table.format_version > 2 else []
        kept = changes.rows(table, [*COLUMNS, *lineage], branch=branch)
        kept = kept.filter(pa.compute.is_in(kept["id"], pa.array(sorted(set(rows) - set(dead)), pa.int64())))
        change = Change(
            start=changes.head(table, branch),
            add=tuple(changes.write_data(table, kept)) if kept.num_rows else (),
            remove=chosen,
            branch=branch,
        )
        return Turn(
            name=f"overwrite without {sorted(dead)}",
            change=change,
            effect=lambda model: _kill_same(model, dead),
            # Rows that get their ids while they are moved lose them again: the commit cannot know them for the same rows.
            can_wait=table.format_version == 1 or has_row_ids(table, branch),
        )

    def rewrite_manifests(self, table: Table, branch: str) -> Turn:
        snapshot = table.metadata.snapshot_by_name(branch)
        assert snapshot is not None
        paths = [manifest.manifest_path for manifest in snapshot.manifests(table.io)]
        some = None if self.random.random() < 0.5 else frozenset(paths[: len(paths) // 2 + 1])
        return Turn(name="rewrite of manifests", change=ManifestRewrite(manifests=some, branch=branch))

    def _some_rows(self, table: Table, branch: str, most: int) -> pa.Table:
        model = self.shared.rows[branch]
        ids = self.random.sample(sorted(model), min(len(model), self.random.randint(1, most)))
        rows = changes.rows(table, [*COLUMNS, *changes.ORIGIN], branch=branch)
        return rows.filter(pa.compute.is_in(rows["id"], pa.array(ids, pa.int64())))

    def _some_files(self, table: Table, branch: str, most: int = 4) -> tuple[pl.DataFrame, Rows]:
        """Data files and the living rows in them; sometimes all that there are."""
        data = changes.files(table, branch).filter(IS_DATA)
        rows = changes.rows(table, [*COLUMNS, *changes.ORIGIN], branch=branch)
        if most > 2 and self.random.random() < 0.3:
            return data, _rows(rows)
        named = self._some_rows(table, branch, most)["_file"].to_pylist()
        inside = rows.filter(pa.compute.is_in(rows["_file"], pa.array(named, pa.string())))
        return data.filter(pl.col("file_path").is_in(named)), _rows(inside)


def matches(table: Table, listed: pl.DataFrame) -> DeleteMatches:
    return match_deletes(listed, PartitionDecoder(table.metadata).unpartitioned_specs())


def converted(table: Table, listed: pl.DataFrame, leaving: pl.DataFrame) -> Iterable[NewFile]:
    """Deletes by position of all rows that the equality deletes `leaving` kill in the files listed."""
    found = matches(table, pl.concat([listed.filter(IS_DATA), leaving]))
    dead: dict[tuple[int, str], dict[str, np.ndarray]] = {}
    for index, row in enumerate(found.data.iter_rows(named=True)):
        deletes = found.of(index).equality
        positions = _positions(table, row["file_path"], deletes) if deletes.height else []
        if len(positions):
            dead.setdefault((row["spec_id"], row["partition"]), {})[row["file_path"]] = np.array(positions)
    decoder = PartitionDecoder(table.metadata)
    for (spec_id, key), of_files in dead.items():
        place = changes.target(table, decoder.values(spec_id, key), spec_id)
        if table.format_version > 2:
            yield from write_vectors(place, of_files)
        else:
            yield write_position_deletes(place, of_files)


def _positions(table: Table, path: str, deletes: pl.DataFrame) -> list[int]:
    rows = _read(table, path, list(COLUMNS))
    dead: set[int] = set()
    for delete in deletes.iter_rows(named=True):
        columns = [table.schema().find_column_name(i) or "" for i in delete["equality_ids"]]
        keys = {tuple(key.values()) for key in _read(table, delete["file_path"], columns)}
        dead |= {at for at, row in enumerate(rows) if tuple(row[column] for column in columns) in keys}
    return sorted(dead)


def _read(table: Table, path: str, columns: list[str]) -> list[dict[str, object]]:
    with open_input(table.io, path) as stream:
        read: list[dict[str, object]] = pq.read_table(stream, columns=columns).to_pylist()
    return read


def assert_rejected_rightly(table: Table, change: Change | ManifestRewrite, rejected: Rejected) -> None:
    """The code says what happened, and it did happen."""
    branch = change.branch
    now = changes.files(table, branch)
    if isinstance(change, ManifestRewrite):
        assert rejected.code == "files-gone"
        assert not set(change.manifests or ()) & set(now["manifest_path"])
        return
    head = table.metadata.snapshot_by_name(branch)
    match rejected.code:
        case "files-gone":
            assert change.remove.join(now, on=FILE_IDENTITY, how="anti", nulls_equal=True).height
        case "not-live":
            assert _named_files(table, change.added_deletes) - set(now["file_path"])
        case "history-lost":
            assert change.start not in _history(table, head.snapshot_id if head else None)
        case "deletes-arrived":
            assert change.start is not None
            start = table.metadata.snapshot_by_id(change.start)
            then = FileList.of(table.metadata, table.io, start).frame()
            added = now.join(then, on=[*FILE_IDENTITY, "data_sequence_number"], how="anti", nulls_equal=True)
            assert added.height
        case "still-needed":
            leaving = change.remove.filter(pl.col("content") == 2)
            needing = matches(table, pl.concat([now.filter(IS_DATA), leaving.select(now.columns)]))
            assert needing.data.filter(needing.has_deletes).height
        case "format":
            assert table.format_version == 3
            # Position delete files came too late for version 2, or rows were rewritten before they got their ids.
            late = any(file.content == 1 and not file.is_vector for file in change.add)
            begun = table.metadata.snapshot_by_id(change.start) if change.start is not None else None
            assert late or (change.rewrites and begun is not None and begun.first_row_id is None)
        case _:
            raise AssertionError(f"rejected as {rejected.code}: {rejected.reason}")


def _named_files(table: Table, deletes: Iterable[NewFile]) -> set[str]:
    """The data files that position deletes are about."""
    named = {file.referenced_data_file for file in deletes if file.referenced_data_file is not None}
    for file in deletes:
        if file.content == 1 and file.referenced_data_file is None:
            named |= read_position_deletes(table.io, file.path, file.file_format).keys()
    return named


def _history(table: Table, snapshot_id: int | None) -> list[int]:
    found = []
    while snapshot_id is not None and (snapshot := table.metadata.snapshot_by_id(snapshot_id)):
        found.append(snapshot_id)
        snapshot_id = snapshot.parent_snapshot_id
    return found


def _by_place(table: Table, rows: pa.Table, branch: str) -> Iterable[tuple[tuple[int, tuple[object, ...]], pa.Table]]:
    """Rows by the spec and partition of the files they are in."""
    listed = changes.files(table, branch).filter(IS_DATA)
    decoder = PartitionDecoder(table.metadata)
    named = pl.DataFrame(pl.from_arrow(rows)).join(listed, left_on="_file", right_on="file_path")
    for (spec_id, key), group in named.group_by("spec_id", "partition"):
        yield (int(str(spec_id)), decoder.values(int(str(spec_id)), str(key))), group.select(COLUMNS).to_arrow()


def _fields(table: Table, columns: list[str]) -> list[NestedField]:
    return [table.schema().find_field(column) for column in columns]


def _rows(rows: pa.Table) -> Rows:
    return {row["id"]: (row["id"], row["p"], row["v"]) for row in rows.to_pylist()}


def _by_id(rows: Iterable[Row]) -> Rows:
    return {row[0]: row for row in rows}


def _kill(model: Rows, ids: Iterable[int]) -> None:
    for key in ids:
        model.pop(key, None)


def _kill_same(model: Rows, rows: Rows) -> None:
    """Rows die that nobody updated or deleted meanwhile."""
    _kill(model, [key for key, row in rows.items() if model.get(key) == row])
