"""Inputs of tasks of all tables: the deletes that apply to their files, and the expected size of their output."""

from __future__ import annotations

import polars as pl
from pyiceberg.table.metadata import TableMetadata

from pyarctic.iceberg.delete import DELETE_SCOPES, FILE_SCOPED, DeleteMatches
from pyarctic.iceberg.manifest import FILE_SCHEMA
from pyarctic.optimizing.protocol.task import OptimizingKind

COPY_LEAST_ROWS: dict[OptimizingKind, int] = {"minor": 20_000, "major": 500_000, "full": 500_000}
"""Smaller row groups are encoded again: copied as is they would stay small, and readers pay for each. Minor optimizing is
about having fewer files quickly."""
_FOOTER_BYTES = 1024
_FOOTER_BYTES_PER_COLUMN = 150
"""What a small file holds besides its rows; a merged file has it once."""


def footer_bytes(metadata: TableMetadata) -> int:
    """The estimated size of a file's footer."""
    return _FOOTER_BYTES + _FOOTER_BYTES_PER_COLUMN * len(metadata.schema().field_ids)


def estimate_output(files: pl.DataFrame, metadata: TableMetadata) -> pl.DataFrame:
    """Data files with `expected_bytes` and `expected_rows`: the estimated size of their live rows in a larger file."""
    deleted_share = (pl.col("own_deleted_rows") / pl.col("record_count")).fill_nan(0).clip(0, 1)
    size = pl.col("file_size_bytes")
    row_bytes = pl.max_horizontal(size - footer_bytes(metadata), size / 20)
    return files.with_columns(
        expected_bytes=row_bytes * (1 - deleted_share),
        expected_rows=(pl.col("record_count") - pl.col("own_deleted_rows")).clip(lower_bound=0),
    )


def deletes_for(files: pl.DataFrame, matches: DeleteMatches) -> pl.DataFrame:
    """The delete files that apply to any of these data files."""
    deletes = [pl.DataFrame(schema=FILE_SCHEMA)]
    for scope in DELETE_SCOPES:
        with_deletes = files.filter(pl.col(f"{scope}_to") > pl.col(f"{scope}_from"))
        if with_deletes.is_empty():
            continue
        start, end = int(with_deletes[f"{scope}_from"].min()), int(with_deletes[f"{scope}_to"].max())  # type: ignore[arg-type]
        in_scope = matches.by_kind[scope].slice(start, end - start)
        if scope == FILE_SCOPED:
            paths = files.select("file_path")
            in_scope = in_scope.join(paths, left_on="referenced_data_file", right_on="file_path", how="semi")
        deletes.append(in_scope)
    vectors = files["vector"].drop_nulls()
    if len(vectors):
        deletes.append(matches.vectors[vectors.to_list()])
    # A task may span partitions whose deletes are the same.
    all_deletes = pl.concat([frame.select(FILE_SCHEMA.names()) for frame in deletes])
    return all_deletes.unique(["file_path", "content_offset"], maintain_order=True)
