"""Commits to a table of many files, by us and by PyIceberg, each on a copy of the catalog: the table is not changed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from benchmarks.tables import properties
from pyarctic.iceberg.commit import Change, Committed, Proof, commit
from pyarctic.iceberg.manifest import FileList
from pyarctic.iceberg.write import NewFile
from pyarctic.iceberg.write.new_file import Metrics

REPLACED = 50


@contextmanager
def open_copy(folder: Path) -> Iterator[Table]:
    """The table through a copy of the catalog; files that commits add to its metadata folder are removed."""
    before = set((folder / "table" / "metadata").iterdir())
    copy = folder / "copy.db"
    shutil.copy(folder / "catalog.db", copy)
    try:
        yield SqlCatalog("bench", **properties(folder) | {"uri": f"sqlite:///{copy}"}).load_table("b.t")
    finally:
        copy.unlink()
        for path in set((folder / "table" / "metadata").iterdir()) - before:
            path.unlink()


def replace_with_ours(folder: Path, manifests: int) -> dict[str, Any]:
    with open_copy(folder) as table:
        files_to_replace = _choose_files(table, manifests)
        new = tuple(_new_file(row, number) for number, row in enumerate(files_to_replace.iter_rows(named=True)))
        rows = int(files_to_replace["record_count"].sum())
        proof = Proof(rows_in=rows, rows_deleted=0, rows_out=rows)
        change = Change(
            start=table.metadata.current_snapshot_id, add=new, remove=files_to_replace, rewrites=True, proof=proof
        )
        start = time.process_time()
        outcome = commit(table, change)
        seconds = time.process_time() - start
        assert isinstance(outcome, Committed), outcome
        return {"cpu_seconds": seconds, "result": _total(table)}


def replace_with_pyiceberg(folder: Path, manifests: int) -> dict[str, Any]:
    with open_copy(folder) as table:
        files_to_replace = _choose_files(table, manifests)
        paths = set(files_to_replace["file_path"])
        entries = [task.file for task in table.scan().plan_files() if task.file.file_path in paths]
        new = [_new_entry(row, number) for number, row in enumerate(files_to_replace.iter_rows(named=True))]
        table.catalog.load_table("b.t")
        start = time.process_time()
        with table.transaction() as transaction, transaction.update_snapshot().overwrite() as overwrite:
            for file in entries:
                overwrite.delete_data_file(file)
            for file in new:
                overwrite.append_data_file(file)
        return {"cpu_seconds": time.process_time() - start, "result": _total(table)}


def append_many(folder: Path) -> dict[str, Any]:
    """A hundred appends of one file each; the medians of the first ten and of the last ten."""
    with open_copy(folder) as table:
        row = _choose_files(table, 1).row(0, named=True)
        seconds = []
        for number in range(100):
            change = Change(start=table.metadata.current_snapshot_id, add=(_new_file(row, number),))
            start = time.process_time()
            outcome = commit(table, change)
            seconds.append(time.process_time() - start)
            assert isinstance(outcome, Committed), outcome
            table = table.catalog.load_table("b.t")
        return {
            "cpu_seconds": sum(seconds),
            "first_seconds": median(seconds[:10]),
            "last_seconds": median(seconds[-10:]),
            "result": _total(table),
        }


def _choose_files(table: Table, manifests: int) -> pl.DataFrame:
    """The same number of files from each of this many manifests."""
    files = FileList.of(table.metadata, table.io, table.current_snapshot()).frame()
    full = files.group_by("manifest_path").len().filter(pl.col("len") > REPLACED).sort("manifest_path")
    candidates = files.filter(pl.col("manifest_path").is_in(full["manifest_path"].head(manifests).implode()))
    each = REPLACED // min(manifests, full.height)
    return candidates.group_by("manifest_path").head(each).select(files.columns)


def _new_file(row: dict[str, Any], number: int) -> NewFile:
    """A file like the one in the list, with metrics of ten columns."""
    bounds = {column: number.to_bytes(8, "little") for column in range(1, 11)}
    counts = dict.fromkeys(range(1, 11), 100_000)
    return NewFile(
        content=0,
        path=f"{row['file_path']}-{number}",
        file_format="PARQUET",
        spec_id=row["spec_id"],
        partition=(int(row["partition"].strip('["]')),),
        record_count=row["record_count"],
        file_size_bytes=row["file_size_bytes"],
        metrics=Metrics(
            column_sizes=counts, value_counts=counts, null_counts=counts, lower_bounds=bounds, upper_bounds=bounds
        ),
        split_offsets=(4,),
        sort_order_id=0,
    )


def _new_entry(row: dict[str, Any], number: int) -> DataFile:
    like = _new_file(row, number)
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=like.path,
        file_format=FileFormat.PARQUET,
        partition=Record(*like.partition),
        record_count=like.record_count,
        file_size_in_bytes=like.file_size_bytes,
        column_sizes=dict(like.metrics.column_sizes),
        value_counts=dict(like.metrics.value_counts),
        null_value_counts=dict(like.metrics.null_counts),
        lower_bounds=dict(like.metrics.lower_bounds),
        upper_bounds=dict(like.metrics.upper_bounds),
        split_offsets=list(like.split_offsets),
        sort_order_id=0,
    )
    file.spec_id = like.spec_id
    return file


def _total(table: Table) -> int:
    snapshot = table.catalog.load_table("b.t").current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return int(snapshot.summary.additional_properties["total-data-files"])
