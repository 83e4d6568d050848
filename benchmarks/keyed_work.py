"""Pieces of work on keyed tables, each measured in a separate process (see `work`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from benchmarks.measuring import Outcome, measure, peak_mb


def _table(folder: Path) -> Any:
    import pyarctic
    from benchmarks.keyed_tables import CATALOG, TABLE
    from benchmarks.tables import properties

    pyarctic.catalog(CATALOG, **properties(folder))
    return pyarctic.table(TABLE)


def merged_scan(folder: Path) -> Outcome:
    table = _table(folder)
    return measure(lambda: sum(batch.num_rows for batch in table.scan().batches()), repeat=3)


def plain_scan(folder: Path) -> Outcome:
    """Scan the files of both stores as plain Iceberg tables, and the base files alone."""
    table = _table(folder)

    def rows(store: Any) -> int:
        return sum(batch.num_rows for batch in store.batches())

    base = measure(lambda: rows(table.scan(store="base")), repeat=3)
    both = measure(lambda: rows(table.scan(store="base")) + rows(table.change_store.scan()), repeat=3)
    return both | {"base_seconds": base["cpu_seconds"], "base_rows": base["result"]}


def merged_within_budget(folder: Path) -> Outcome:
    """Row count and sum of a merged scan within 256 MB, and its additional memory."""
    import pyarrow.compute as pc

    table = _table(folder)
    scan = table.scan(memory_bytes=256 << 20)
    before = peak_mb()

    def run() -> tuple[int, int]:
        rows = total = 0
        for batch in scan.batches():
            rows += batch.num_rows
            total += pc.sum(batch.column("amount")).as_py() or 0
        return rows, total

    return measure(run) | {"before_mb": before}


def point_read(folder: Path) -> Outcome:
    """How many data files are opened to read one key, and how many there are."""
    from unittest.mock import patch

    from pyarctic.iceberg.read import live_rows, read_file_batches

    table = _table(folder)
    base = table.files(content="data")
    files = base.height + table.files(store="change").height
    where = f"id = {base['record_count'].sum() // 2}"
    paths: set[str] = set()

    def spy(io: Any, path: str, *arguments: Any, **options: Any) -> Any:
        paths.add(path)
        return read_file_batches(io, path, *arguments, **options)

    with patch.object(live_rows, "read_file_batches", spy):
        outcome = measure(lambda: table.scan(where=where).count(), repeat=3)
    assert outcome["result"] == 1
    return outcome | {"result": (len(paths), files)}


def change_log(folder: Path) -> Outcome:
    """The number of changes in order, and the memory before they are read."""
    log = _table(folder).changes()
    before = peak_mb()
    return measure(lambda: sum(batch.num_rows for batch in log.batches())) | {"before_mb": before}


def plan_small_commits(folder: Path) -> Outcome:
    """The number of splits of a merged read for two readers."""
    from pyarctic.tables.read import SplitSizes, plan_splits

    table = _table(folder)
    return measure(lambda: len(plan_splits(table.scan(), SplitSizes(readers=2)).splits))


def plan_clean_files(folder: Path) -> Outcome:
    """The number of files that a merged read leaves to Spark's own reader."""
    from pyarctic.tables.read import SplitSizes, plan_splits

    table = _table(folder)
    return measure(lambda: len(plan_splits(table.scan(), SplitSizes(readers=2)).plain_files))


def minor_within_budget(folder: Path) -> Outcome:
    """The number of positions written by the only task of a minor within 256 MB, its additional memory, and whether it left
    spill files behind. Nothing is committed."""
    import tempfile

    import pyarrow as pa

    from pyarctic.iceberg import remove_quietly
    from pyarctic.optimizing import Options
    from pyarctic.optimizing.api import plan_table
    from pyarctic.optimizing.execute.kernel import JobContext, execute

    pa.set_cpu_count(1)
    options = Options(kind="minor", memory_bytes=256 << 20)
    table = _table(folder)
    plan = plan_table(table, options)
    assert plan is not None
    [task] = plan.tasks
    bench = JobContext(job=plan.make_job(memory_bytes=options.memory_bytes), io=table.view.io)
    with tempfile.TemporaryDirectory() as spill:
        os.environ["ARCTIC_SPILL_DIR"] = spill
        before = peak_mb()
        outcome = measure(lambda: execute(bench, task))
        left = any(Path(spill).iterdir())
    result = outcome["result"]
    remove_quietly(table.view.io, result.paths)
    positions = sum(file.record_count for file in result.add if file.content == 1)
    return outcome | {"result": positions, "before_mb": before, "spill_left": left}


def write_inserts(folder: Path) -> Outcome:
    return _write(folder, "insert")


def write_upserts(folder: Path) -> Outcome:
    return _write(folder, "upsert")


def _write(folder: Path, mode: Any) -> Outcome:
    """Write the files of a batch and remove them again."""
    from pyarctic.iceberg import remove_quietly
    from pyarctic.tables.write.change_writer import ChangeWriter

    table, rows = _table(folder), _batch()
    view = table.change_store.view

    def run() -> int:
        files = ChangeWriter(view=view, mode=mode).files(rows)
        remove_quietly(view.io, [file.path for file in files])
        return sum(file.record_count for file in files)

    return measure(run, repeat=3)


def write_plain_parquet(folder: Path) -> Outcome:
    import pyarrow.parquet as pq

    rows, path = _batch(), folder / "plain.parquet"

    def run() -> int:
        pq.write_table(
            rows, path, compression="zstd", row_group_size=1 << 20, data_page_size=1 << 20, dictionary_pagesize_limit=2 << 20
        )
        path.unlink()
        return int(rows.num_rows)

    return measure(run, repeat=3)


def _batch() -> Any:
    import numpy as np

    from benchmarks.keyed_tables import rows_of

    return rows_of(np.random.default_rng(3).permutation(1_000_000), 3)


def plan_merged_scan(groups: Path) -> Outcome:
    """Parse file names and group files by keys, as a merged scan does before it reads a row."""
    from pyiceberg.types import LongType, NestedField

    from benchmarks.frames import keyed_files
    from pyarctic.tables.format.file_names import parse_change_file_names, parse_file_names
    from pyarctic.tables.read.key_groups import group_by_keys

    base, changes = keyed_files(int(str(groups)), "B", 1), keyed_files(int(str(groups)), "I", 2)
    key = [NestedField(1, "id", LongType(), required=True)]

    def plan() -> int:
        key_groups = group_by_keys(parse_file_names(base, "base"), parse_change_file_names(changes), key)
        next(iter(key_groups))
        return len(key_groups)

    return measure(plan)


def follow_stream(folder: Path) -> Outcome:
    """What Spark's source does for the next offset of a stream that is one commit behind."""
    from pyarctic.iceberg.manifest import ManifestReader
    from pyarctic.tables.read import ChangeStream

    store = _table(folder).change_store
    appends = [s for s in store.view.metadata.snapshots if s.summary and s.summary.operation.value == "append"]
    at = ChangeStream(_table(folder)).beginning(str(appends[-2].snapshot_id))
    outcome = measure(lambda: ChangeStream(_table(folder)).following(at).sequence, repeat=5)
    manifests = ManifestReader(store.view.io).manifests(store.view.metadata.current_snapshot())
    return outcome | {"manifests": len(manifests)}


def hash_integers(_: Path) -> Outcome:
    import numpy as np
    import pyarrow as pa
    from pyiceberg.types import LongType

    return _measure_hash(pa.array(np.random.default_rng(1).integers(-(1 << 62), 1 << 62, 4_000_000)), LongType())


def hash_texts(_: Path) -> Outcome:
    import pyarrow as pa
    from pyiceberg.types import StringType

    return _measure_hash(pa.array([f"user-{number:07d}" for number in range(2_000_000)]), StringType())


def _measure_hash(column: Any, type_: Any) -> Outcome:
    from pyarctic.tables.format.key_hash import key_hashes

    outcome = measure(lambda: int(key_hashes([column], [type_])[-1]), repeat=5)
    return outcome | {"nanoseconds": outcome["cpu_seconds"] / len(column) * 1e9}


WORK = {
    function.__name__: function
    for function in (
        merged_scan,
        plain_scan,
        merged_within_budget,
        point_read,
        change_log,
        plan_small_commits,
        plan_clean_files,
        minor_within_budget,
        write_inserts,
        write_upserts,
        write_plain_parquet,
        plan_merged_scan,
        follow_stream,
        hash_integers,
        hash_texts,
    )
}
