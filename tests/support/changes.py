"""Changes of tables in their plainest form: whole tables in memory, one row at a time where that is simpler.

What PyArctic's own writers and optimizers do well, these do obviously right; they serve to try the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table

from pyarctic.iceberg.commit import ROW_MAP_SCHEMA, Change, Committed, Proof, commit
from pyarctic.iceberg.commit.content_hash import ContentHash
from pyarctic.iceberg.manifest import FileList, PartitionDecoder
from pyarctic.iceberg.read import TableView
from pyarctic.iceberg.read.live_rows import LAST_UPDATED, ROW_ID
from pyarctic.iceberg.read.table_scan import plan_scan
from pyarctic.iceberg.write import (
    FileNames,
    FileTarget,
    NewFile,
    write_equality_deletes,
    write_position_deletes,
    write_vectors,
)
from pyarctic.iceberg.write.parquet import DataFileWriter

ORIGIN = ["_file", "_pos"]
LINEAGE = [ROW_ID.name, LAST_UPDATED.name]


def head(table: Table, branch: str = "main") -> int | None:
    snapshot = table.metadata.snapshot_by_name(branch)
    return snapshot.snapshot_id if snapshot else None


def files(table: Table, branch: str = "main") -> pl.DataFrame:
    """The file list of the branch's head."""
    return file_list(table, branch).frame()


def file_list(table: Table, branch: str = "main") -> FileList:
    return FileList.of(table.metadata, table.io, table.metadata.snapshot_by_name(branch))


def rows(table: Table, columns: Sequence[str] | None = None, where: str | None = None, branch: str = "main") -> pa.Table:
    """The live rows as PyArctic reads them."""
    view = TableView(name=".".join(table.name()), metadata=table.metadata, io=table.io)
    snapshot = table.metadata.snapshot_by_name(branch)
    return plan_scan(view, snapshot=snapshot, schema=table.schema(), columns=columns, where=where).to_arrow()


def target(table: Table, partition: tuple[Any, ...] = (), spec_id: int | None = None) -> FileTarget:
    spec = table.metadata.default_spec_id if spec_id is None else spec_id
    return FileTarget(metadata=table.metadata, io=table.io, spec_id=spec, partition=partition, names=FileNames())


def write_data(table: Table, data: pa.Table, *, sequence_number: int | None = None) -> list[NewFile]:
    """Data files of the current spec, one or more for each partition; order of the rows is kept within them."""
    lineage = [field for field in (ROW_ID, LAST_UPDATED) if field.name in data.schema.names]
    written: list[NewFile] = []
    for partition, part in by_partition(table, data):
        with DataFileWriter(target(table, partition), extra_fields=lineage) as writer:
            for batch in part.to_batches():
                writer.write(batch)
        written += [replace(file, data_sequence_number=sequence_number) for file in writer.files]
    return written


def by_partition(table: Table, data: pa.Table) -> list[tuple[tuple[Any, ...], pa.Table]]:
    """Rows by partition of the current spec."""
    spec, schema = table.spec(), table.schema()
    if not spec.fields:
        return [((), data)]
    transforms = [
        (schema.find_column_name(f.source_id), f.transform.transform(schema.find_type(f.source_id))) for f in spec.fields
    ]
    keys = [tuple(apply(row[name]) for name, apply in transforms) for row in data.to_pylist()]
    order = sorted(range(len(keys)), key=lambda index: (repr(keys[index]), index))
    groups = groupby(order, key=lambda index: keys[index])
    return [(key, data.take(list(indices))) for key, indices in groups]


def append(table: Table, data: pa.Table) -> Change:
    return Change(start=head(table), add=tuple(write_data(table, data)))


def equality_delete(table: Table, keys: pa.Table, partition: tuple[Any, ...] = ()) -> Change:
    """Every row that is equal to one of `keys` in their columns dies, if it is older."""
    fields = [table.schema().find_field(name) for name in keys.schema.names]
    return Change(start=head(table), add=(write_equality_deletes(target(table, partition), keys, fields),))


def position_delete(table: Table, where: str) -> Change | None:
    """The rows that a condition selects die by their positions; None if it selects none."""
    return position_delete_of(table, rows(table, ORIGIN, where))


def position_delete_of(table: Table, dead: pa.Table, branch: str = "main") -> Change | None:
    """The rows with these origins die: position delete files in version 2, vectors in version 3."""
    if not dead.num_rows:
        return None
    listed = files(table, branch).filter(pl.col("content") == 0)
    decoder = PartitionDecoder(table.metadata)
    named = pl.DataFrame(pl.from_arrow(dead)).join(listed, left_on="_file", right_on="file_path")
    add: list[NewFile] = []
    for (spec_id, key), group in named.group_by("spec_id", "partition"):
        positions = {str(path): part["_pos"].to_numpy() for (path,), part in group.group_by("_file")}
        place = target(table, decoder.values(int(str(spec_id)), str(key)), int(str(spec_id)))
        if table.format_version > 2:
            add += write_vectors(place, positions)
        else:
            add.append(write_position_deletes(place, positions))
    return Change(start=head(table, branch), add=tuple(add), branch=branch)


def rewrite(
    table: Table, chosen: pl.DataFrame | None = None, *, hashed: bool = False, branch: str = "main", **more: Any
) -> Change:
    """Merge data files into as few as possible, with all deletes applied; `chosen` of the file list, or all."""
    snapshot = table.metadata.snapshot_by_name(branch)
    assert snapshot is not None
    replaced = files(table, branch).filter(pl.col("content") == 0) if chosen is None else chosen
    columns = [*table.schema().column_names, *ORIGIN, *(LINEAGE if table.format_version > 2 else [])]
    top_level = [name for name in columns if "." not in name]
    alive = rows(table, top_level, branch=branch)
    alive = alive.filter(pc.is_in(alive["_file"], pa.array(replaced["file_path"].to_list(), pa.string())))
    parts = by_partition(table, alive)
    added: list[NewFile] = []
    runs: list[tuple[str, int, int, str, int]] = []
    for _, part in parts:
        new = write_data(table, part.drop_columns(ORIGIN), sequence_number=_kept_sequence(table, branch))
        added += new
        runs += _runs(part, new)
    hash_in = ContentHash().add(alive.drop_columns(ORIGIN)).text() if hashed else None
    read = int(replaced["record_count"].sum())
    proof = Proof(
        rows_in=read,
        rows_deleted=read - alive.num_rows,
        rows_out=sum(file.record_count for file in added),
        hash_in=hash_in,
        hash_out=hash_in,
    )
    row_map = pl.DataFrame(runs, ROW_MAP_SCHEMA, orient="row")
    return Change(
        start=snapshot.snapshot_id,
        add=tuple(added),
        remove=replaced,
        rewrites=True,
        proof=proof,
        row_map=row_map,
        branch=branch,
        **more,
    )


def _kept_sequence(table: Table, branch: str) -> int | None:
    snapshot = table.metadata.snapshot_by_name(branch)
    return snapshot.sequence_number if snapshot and table.format_version > 1 else None


def _runs(part: pa.Table, new: list[NewFile]) -> list[tuple[str, int, int, str, int]]:
    """The row map of rows that were written in order into these files."""
    places = [(file.path, at) for file in new for at in range(file.record_count)]
    origins = zip(part["_file"].to_pylist(), part["_pos"].to_pylist(), strict=True)
    return [(source, at, 1, path, to) for (source, at), (path, to) in zip(origins, places, strict=True)]


def apply(table: Table, make: Callable[[Table], Change | None]) -> Table:
    """Make a change of the table as it is now and commit it, again and again until it is in; gives the table after it."""
    while True:
        current = table.catalog.load_table(table.name())
        change = make(current)
        if change is None:
            return current
        outcome = commit(current, change)
        if isinstance(outcome, Committed):
            for path in outcome.unused_files:
                current.io.delete(path)
            return table.catalog.load_table(table.name())
