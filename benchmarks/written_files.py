"""Files that PyArctic writes: their size beside those of other writers, and what a point read costs that skips pages."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import datafusion
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import pyarctic
from benchmarks.figures import Figure, console
from benchmarks.unoptimized_tables import CATALOG, TableSetup, lineitem_files, make_table, open_catalog
from pyarctic import config

_ROWS = 70_312


def written_files(scale: float) -> list[Figure]:
    """Both figures, for 32 files of the table that the other benchmarks merge."""
    files = max(int(32 * scale), 2)
    with tempfile.TemporaryDirectory(prefix="arctic-bench-") as temporary:
        folder = Path(temporary)
        catalog = open_catalog(folder)
        catalog.create_namespace("b")
        try:
            with console.status(f"merging {files} files"):
                data = lineitem_files(files, _ROWS)
                make_table(catalog, "b.merged", TableSetup(data=data))
                make_table(catalog, "b.sorted", TableSetup(data=data, sorted_by_id=True))
                for name in ("merged", "sorted"):
                    pyarctic.optimize(f"{CATALOG}.b.{name}", "full")
            return [_size(_only_file("merged"), folder), *_point_reads(_only_file("sorted"), folder)]
        finally:
            config.reset()


def _only_file(name: str) -> Path:
    (path,) = pyarctic.table(f"{CATALOG}.b.{name}").files()["file_path"]
    return Path(path.removeprefix("file://"))


def _size(ours: Path, folder: Path) -> Figure:
    rows = pq.read_table(ours)
    others = {"DuckDB": folder / "duckdb.parquet", "Polars": folder / "polars.parquet", "Arrow": folder / "arrow.parquet"}
    seconds = {
        "DuckDB": _cpu_seconds(lambda: _write_with_duckdb(rows, others["DuckDB"])),
        "Polars": _cpu_seconds(lambda: _write_with_polars(rows, others["Polars"])),
        "Arrow": _cpu_seconds(lambda: pq.write_table(rows, others["Arrow"], compression="zstd", compression_level=3)),
    }
    sizes = {name: path.stat().st_size for name, path in others.items()}
    return Figure(
        name=f"size of a merged file of {rows.num_rows:,} rows, against the smallest of DuckDB, Polars and Arrow (zstd 3)",
        measured=ours.stat().st_size / min(sizes.values()),
        target=1.05,
        unit="×",
        detail=f"{ours.stat().st_size / 1e6:.1f} MB; "
        + ", ".join(f"{name} {size / 1e6:.1f} MB in {seconds[name]:.1f} s CPU" for name, size in sizes.items()),
    )


def _write_with_duckdb(rows: pa.Table, path: Path) -> None:
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        connection.execute(f"COPY rows TO '{path}' (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 3)")


def _write_with_polars(rows: pa.Table, path: Path) -> None:
    pl.DataFrame(pl.from_arrow(rows)).write_parquet(path, compression="zstd", compression_level=3)


def _point_reads(ours: Path, folder: Path) -> list[Figure]:
    """The same file with and without page index, read by DataFusion. Bloom filters and statistics are the same."""
    rows, without = pq.read_table(ours), folder / "without.parquet"
    groups = pq.read_metadata(ours).row_group(0).num_rows
    pq.write_table(rows, without, compression="zstd", compression_level=3, row_group_size=groups)
    key = rows["id"][rows.num_rows // 2].as_py()
    indexed, plain = (_read_point(path, key) for path in (ours, without))
    return [
        Figure(
            name=f"point read by DataFusion of a sorted file of {rows.num_rows:,} rows, CPU against no page index",
            measured=indexed / plain,
            target=0.5,
            unit="×",
            detail=f"{indexed * 1000:.1f} ms to {plain * 1000:.1f} ms",
        )
    ]


def _read_point(path: Path, key: int) -> float:
    settings = {"datafusion.execution.target_partitions": "1"}
    context = datafusion.SessionContext(datafusion.SessionConfig(settings))
    context.register_parquet("t", str(path))

    def read() -> None:
        assert sum(batch.num_rows for batch in context.sql(f"SELECT * FROM t WHERE id = {key}").collect()) == 1

    return min(_cpu_seconds(read) for _ in range(5))


def _cpu_seconds(run: Callable[[], None]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start
