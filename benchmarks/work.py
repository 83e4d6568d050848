"""The measured pieces of work, each in a separate process: `python -m benchmarks.work NAME ARGUMENT` prints JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import keyed_work
from benchmarks.measuring import Outcome, measure, peak_mb


def file_list_ours(folder: Path) -> Outcome:
    from pyarctic.iceberg.manifest import FileList

    table = _load_table(folder)
    snapshot = table.metadata.snapshots[0]
    return measure(lambda: FileList.of(table.metadata, table.io, snapshot).frame().height)


def file_list_pyiceberg(folder: Path) -> Outcome:
    table = _load_table(folder)
    snapshot_id = table.metadata.snapshots[0].snapshot_id
    return measure(lambda: sum(1 for _ in table.scan(snapshot_id=snapshot_id).plan_files()))


def refresh_ours(folder: Path) -> Outcome:
    from pyarctic.iceberg.manifest import FileList

    table = _load_table(folder)
    before, after = table.metadata.snapshots[:2]
    file_list = FileList.of(table.metadata, table.io, before)
    return measure(lambda: file_list.at(table.io, after).frame().height, repeat=20)


def match_ours(size: Path) -> Outcome:
    from benchmarks.frames import files_and_deletes
    from pyarctic.iceberg.delete import match_deletes

    data, deletes = (int(part) for part in str(size).split("x"))
    files = files_and_deletes(data, deletes)

    def run() -> int:
        matches = match_deletes(files, unpartitioned_specs=[0])
        return int(matches.data.select(matches.has_deletes.sum()).item())

    return measure(run)


def plan_ours(size: Path) -> Outcome:
    """Match deletes, evaluate and plan; the result is the number of tasks."""
    import numpy as np
    import polars as pl

    from benchmarks.frames import files_and_deletes
    from pyarctic.optimizing.evaluate.evaluation import evaluate
    from pyarctic.optimizing.plan.planner import make_plan
    from tests.support.observations import observed

    data, deletes = (int(part) for part in str(size).split("x"))
    files = files_and_deletes(data, deletes)
    files = files.with_columns(
        spec_id=pl.lit(0, pl.Int32),
        record_count=pl.lit(10_000, pl.Int64),
        file_size_bytes=pl.Series(np.random.default_rng(1).integers(1_000, 60_000_000, files.height)),
    )
    sizes = {"self-optimizing.target-size": "128MB"}
    return measure(lambda: len(make_plan(evaluate(observed(files, sizes))).tasks))


def scan_ours(folder: Path) -> Outcome:
    import pyarctic
    from benchmarks.tables import properties

    pyarctic.catalog("bench", **properties(folder))
    table = pyarctic.table("bench.b.t")
    return measure(lambda: sum(batch.num_rows for batch in table.scan().batches()), repeat=3)


def scan_checksum(folder: Path) -> Outcome:
    """The number of rows, and the sums of two columns."""
    import pyarrow.compute as pc

    import pyarctic
    from benchmarks.tables import properties

    pyarctic.catalog("bench", **properties(folder))

    def run() -> list[int]:
        rows = pyarctic.table("bench.b.t").scan(["id", "k"]).to_arrow()
        return [rows.num_rows, *(pc.sum(column).as_py() for column in rows.columns)]

    return measure(run)


def scan_dataset(folder: Path) -> Outcome:
    import pyarrow.dataset as ds

    table = _load_table(folder)
    paths = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    return measure(lambda: sum(batch.num_rows for batch in ds.dataset(paths).to_batches()), repeat=3)


def write_ours(folder: Path) -> Outcome:
    from pyarctic.iceberg.write import FileNames, FileTarget
    from pyarctic.iceberg.write.parquet import DataFileWriter

    loaded, rows = _load_table(folder), _rows(folder)

    def run() -> int:
        target = FileTarget(metadata=loaded.metadata, io=loaded.io, spec_id=0, partition=(), names=FileNames())
        with DataFileWriter(target) as writer:
            for batch in rows.to_batches(max_chunksize=1 << 18):
                writer.write(batch)
        count = sum(file.record_count for file in writer.files)
        writer.abort()
        return count

    return measure(run, repeat=3)


def write_pyarrow(folder: Path) -> Outcome:
    import pyarrow.parquet as pq

    rows, path = _rows(folder), folder / "plain.parquet"

    def run() -> int:
        # With the defaults of Iceberg, so that both sides write the same pages.
        pq.write_table(
            rows, path, compression="zstd", row_group_size=1 << 20, data_page_size=1 << 20, dictionary_pagesize_limit=2 << 20
        )
        path.unlink()
        return int(rows.num_rows)

    return measure(run, repeat=3)


def replace_ours(folder: Path) -> Outcome:
    from benchmarks.commits import replace_with_ours

    return replace_with_ours(*_folder_and_number(folder))


def replace_pyiceberg(folder: Path) -> Outcome:
    from benchmarks.commits import replace_with_pyiceberg

    return replace_with_pyiceberg(*_folder_and_number(folder))


def append_ours(folder: Path) -> Outcome:
    from benchmarks.commits import append_many

    return append_many(folder)


def _folder_and_number(argument: Path) -> tuple[Path, int]:
    """`folder/number`."""
    return argument.parent, int(argument.name)


def _rows(folder: Path) -> Any:
    import pyarrow.parquet as pq

    return pq.read_table(min((folder / "table" / "data").glob("*.parquet")))


def _load_table(folder: Path) -> Any:
    from pyiceberg.catalog.sql import SqlCatalog

    from benchmarks.tables import properties

    return SqlCatalog("bench", **properties(folder)).load_table("b.t")


WORK = {
    function.__name__: function
    for function in (
        file_list_ours,
        file_list_pyiceberg,
        refresh_ours,
        match_ours,
        plan_ours,
        scan_ours,
        scan_checksum,
        scan_dataset,
        write_ours,
        write_pyarrow,
        replace_ours,
        replace_pyiceberg,
        append_ours,
    )
} | keyed_work.WORK

if __name__ == "__main__":
    outcome = WORK[sys.argv[1]](Path(sys.argv[2]))
    outcome["peak_mb"] = peak_mb()
    json.dump(outcome, sys.stdout)
