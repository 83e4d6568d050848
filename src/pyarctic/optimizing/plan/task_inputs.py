"""What tasks of all tables are made of: the deletes that hit their files, and what is expected of their rows."""

from __future__ import annotations

import polars as pl
from pyiceberg.table.metadata import TableMetadata

from pyarctic.iceberg.delete import DELETE_SCOPES as DELETE_KINDS
from pyarctic.iceberg.delete import FILE_SCOPED, DeleteMatches
from pyarctic.iceberg.manifest import FILE_SCHEMA
from pyarctic.optimizing.protocol.tasks import OptimizingKind

COPY_LEAST_ROWS: dict[OptimizingKind, int] = {"minor": 20_000, "major": 500_000, "full": 500_000}
"""Smaller row groups are encoded anew: copied, they would stay small, and readers pay for each. Minor optimizing is about
fewer files at once."""
_FOOTER_BYTES = 1024
_FOOTER_BYTES_A_COLUMN = 150
"""What a small file is made of beside its rows; a merged one has it once."""


def footer_bytes(metadata: TableMetadata) -> int:
    return _FOOTER_BYTES + _FOOTER_BYTES_A_COLUMN * len(metadata.schema().field_ids)


def estimate_output(files: pl.DataFrame, metadata: TableMetadata) -> pl.DataFrame:
    """Data files with `expected_bytes` and `expected_rows`: what their living rows will be in a larger file."""
    alive = 1 - (pl.col("own_dead_rows") / pl.col("record_count")).fill_nan(0).clip(0, 1)
    rows = pl.max_horizontal(pl.col("file_size_bytes") - footer_bytes(metadata), pl.col("file_size_bytes") / 20)
    return files.with_columns(
        expected_bytes=rows * alive, expected_rows=(pl.col("record_count") - pl.col("own_dead_rows")).clip(lower_bound=0)
    )


def deletes_of(group: pl.DataFrame, matches: DeleteMatches) -> pl.DataFrame:
    """The delete files that hit any of these data files."""
    found: list[pl.DataFrame] = []
    for kind in DELETE_KINDS:
        frame = matches.by_kind[kind]
        hit = group.filter(pl.col(f"{kind}_to") > pl.col(f"{kind}_from"))
        if hit.is_empty():
            continue
        start, end = int(hit[f"{kind}_from"].min()), int(hit[f"{kind}_to"].max())  # type: ignore[arg-type]
        part = frame.slice(start, end - start)
        if kind == FILE_SCOPED:
            part = part.join(group.select("file_path"), left_on="referenced_data_file", right_on="file_path", how="semi")
        found.append(part)
    vectors = group["vector"].drop_nulls()
    if len(vectors):
        found.append(matches.vectors[vectors.to_list()])
    columns = FILE_SCHEMA.names()
    none = pl.DataFrame(schema=FILE_SCHEMA)
    # A task may span partitions, whose deletes are found more than once.
    return pl.concat([none, *(part.select(columns) for part in found)]).unique(
        ["file_path", "content_offset"], maintain_order=True
    )
