"""A file list of any size, made without files."""

from __future__ import annotations

import numpy as np
import polars as pl

from pyarctic.iceberg.manifest import FILE_SCHEMA

PARTITIONS = 1_000
SEQUENCES = 5_000


def files_and_deletes(data: int, deletes: int) -> pl.DataFrame:
    """Data files over 1,000 partitions; deletes half equality, a quarter position deletes of a partition and a quarter
    of one file."""
    rng = np.random.default_rng(7)
    files = _frame(rng, data, 0, "data")
    equality = _frame(rng, deletes // 2, 2, "equality")
    positions = _frame(rng, deletes // 4, 1, "positions")
    about = files[rng.choice(data, deletes // 4, replace=False)]
    of_files = _frame(rng, deletes // 4, 1, "of-file").with_columns(
        about["partition"], about["file_path"].alias("referenced_data_file"), about["data_sequence_number"] + 1
    )
    return pl.concat([files, equality, positions, of_files])


def _frame(rng: np.random.Generator, rows: int, content: int, name: str) -> pl.DataFrame:
    number = pl.int_range(rows, eager=True).cast(pl.String).str.zfill(9)
    known = {
        "content": pl.repeat(content, rows, eager=True),
        "file_path": "s3://bucket/warehouse/db/table/data/" + name + "-" + number + ".parquet",
        "file_format": pl.repeat("PARQUET", rows, eager=True),
        "spec_id": pl.repeat(1, rows, eager=True),
        "partition": '["' + pl.Series(rng.integers(0, PARTITIONS, rows)).cast(pl.String) + '"]',
        "data_sequence_number": pl.Series(rng.integers(1, SEQUENCES, rows)),
    }
    missing = {column: pl.repeat(None, rows, dtype=dtype, eager=True) for column, dtype in FILE_SCHEMA.items()}
    return pl.DataFrame(missing | known).cast(FILE_SCHEMA)
