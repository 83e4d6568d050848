"""File lists of any size, without files."""

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
    referenced = files[rng.choice(data, deletes // 4, replace=False)]
    of_files = _frame(rng, deletes // 4, 1, "of-file").with_columns(
        referenced["partition"],
        referenced["file_path"].alias("referenced_data_file"),
        referenced["data_sequence_number"] + 1,
    )
    return pl.concat([files, equality, positions, of_files])


def _frame(rng: np.random.Generator, rows: int, content: int, name: str) -> pl.DataFrame:
    number = pl.int_range(rows, eager=True).cast(pl.String).str.zfill(9)
    values = {
        "content": pl.repeat(content, rows, eager=True),
        "file_path": "s3://bucket/warehouse/db/table/data/" + name + "-" + number + ".parquet",
        "file_format": pl.repeat("PARQUET", rows, eager=True),
        "spec_id": pl.repeat(1, rows, eager=True),
        "partition": '["' + pl.Series(rng.integers(0, PARTITIONS, rows)).cast(pl.String) + '"]',
        "data_sequence_number": pl.Series(rng.integers(1, SEQUENCES, rows)),
    }
    missing = {column: pl.repeat(None, rows, dtype=dtype, eager=True) for column, dtype in FILE_SCHEMA.items()}
    return pl.DataFrame(missing | values).cast(FILE_SCHEMA)


def keyed_files(groups: int, kind: str, sequence: int) -> pl.DataFrame:
    """One file of a keyed table for each key group: partitions with four nodes each, all with the same range of keys."""
    number = pl.int_range(groups, eager=True)
    node, partition = number % 4 + 4, number // 4
    name = pl.format("p={}/{}-{}-{}-00000-0-7301827364518273645-{}.parquet", partition, node, pl.lit(kind), sequence, number)
    values = {
        "content": pl.repeat(0, groups, eager=True),
        "file_path": "s3://bucket/warehouse/db/table/data/" + pl.select(name).to_series(),
        "file_format": pl.repeat("PARQUET", groups, eager=True),
        "spec_id": pl.repeat(0, groups, eager=True),
        "partition": '["' + partition.cast(pl.String) + '"]',
        "record_count": pl.repeat(1_000, groups, eager=True),
        "file_size_bytes": pl.repeat(1 << 20, groups, eager=True),
        "data_sequence_number": pl.repeat(sequence, groups, eager=True),
    }
    missing = {column: pl.repeat(None, groups, dtype=dtype, eager=True) for column, dtype in FILE_SCHEMA.items()}
    lower, upper = (bound.to_bytes(8, "little") for bound in (0, 1 << 40))
    return pl.DataFrame(missing | values).cast(FILE_SCHEMA).with_columns(wanted=True, lower_1=lower, upper_1=upper)
