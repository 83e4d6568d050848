"""Pieces of work on keyed tables, each measured in a process of its own (see `work`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from benchmarks.measuring import Outcome, measured, peak_mb


def _table(folder: Path) -> Any:
    import pyarctic
    from benchmarks.keyedtables import CATALOG, TABLE
    from benchmarks.tables import properties

    pyarctic.catalog(CATALOG, **properties(folder))
    return pyarctic.table(TABLE)


def merged_scan(folder: Path) -> Outcome:
    table = _table(folder)
    return measured(lambda: sum(batch.num_rows for batch in table.scan().batches()), repeat=3)


def plain_scan(folder: Path) -> Outcome:
    """The plain scan of the same files, of both stores, each as the Iceberg table it is; and of the base files alone."""
    table = _table(folder)

    def rows(store: Any) -> int:
        return sum(batch.num_rows for batch in store.batches())

    base = measured(lambda: rows(table.scan(store="base")), repeat=3)
    both = measured(lambda: rows(table.scan(store="base")) + rows(table.change_store.scan()), repeat=3)
    return both | {"base_seconds": base["cpu_seconds"], "base_rows": base["result"]}


def merged_within_budget(folder: Path) -> Outcome:
    """Rows and sum of a merged read within 256 MB, and the memory that it took beyond what was there before."""
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

    return measured(run) | {"before_mb": before}


def minor_within_budget(folder: Path) -> Outcome:
    """Positions found by the one task of a minor within 256 MB, its memory beyond what was there before, and whether it left
    something behind. Nothing is committed."""
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
        outcome = measured(lambda: execute(bench, task))
        left = any(Path(spill).iterdir())
    result = outcome["result"]
    remove_quietly(table.view.io, result.paths)
    found = sum(file.record_count for file in result.add if file.content == 1)
    return outcome | {"result": found, "before_mb": before, "spill_left": left}


def write_inserts(folder: Path) -> Outcome:
    return _write(folder, "insert")


def write_upserts(folder: Path) -> Outcome:
    return _write(folder, "upsert")


def _write(folder: Path, mode: Any) -> Outcome:
    """The files of a batch; they are removed again."""
    from pyarctic.iceberg import remove_quietly
    from pyarctic.tables.write.change_writer import ChangeWriter

    table, rows = _table(folder), _batch()
    view = table.change_store.view

    def run() -> int:
        files = ChangeWriter(view=view, mode=mode).files(rows)
        remove_quietly(view.io, [file.path for file in files])
        return sum(file.record_count for file in files)

    return measured(run, repeat=3)


def write_plain_parquet(folder: Path) -> Outcome:
    import pyarrow.parquet as pq

    rows, path = _batch(), folder / "plain.parquet"

    def run() -> int:
        pq.write_table(
            rows, path, compression="zstd", row_group_size=1 << 20, data_page_size=1 << 20, dictionary_pagesize_limit=2 << 20
        )
        path.unlink()
        return int(rows.num_rows)

    return measured(run, repeat=3)


def _batch() -> Any:
    import numpy as np

    from benchmarks.keyedtables import rows_of

    return rows_of(np.random.default_rng(3).permutation(1_000_000), 3)


def hash_integers(_: Path) -> Outcome:
    import numpy as np
    import pyarrow as pa
    from pyiceberg.types import LongType

    return _hashed(pa.array(np.random.default_rng(1).integers(-(1 << 62), 1 << 62, 4_000_000)), LongType())


def hash_texts(_: Path) -> Outcome:
    import pyarrow as pa
    from pyiceberg.types import StringType

    return _hashed(pa.array([f"user-{number:07d}" for number in range(2_000_000)]), StringType())


def _hashed(column: Any, type_: Any) -> Outcome:
    from pyarctic.tables.format.key_hash import key_hashes

    outcome = measured(lambda: int(key_hashes([column], [type_])[-1]), repeat=5)
    return outcome | {"nanoseconds": outcome["cpu_seconds"] / len(column) * 1e9}


WORK = {
    function.__name__: function
    for function in (
        merged_scan,
        plain_scan,
        merged_within_budget,
        minor_within_budget,
        write_inserts,
        write_upserts,
        write_plain_parquet,
        hash_integers,
        hash_texts,
    )
}
