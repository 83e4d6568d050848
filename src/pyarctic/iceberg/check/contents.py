"""Reading all rows of files: pages must decode and match their checksums, rows must be in files of their partition, and
deletes must name rows that exist."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from pyiceberg.io import FileIO

from pyarctic.errors import Damaged, Unsupported
from pyarctic.iceberg.check.problems import Problem, damage_of, join_problems, problems_of
from pyarctic.iceberg.check.row_partitions import RowPartitions
from pyarctic.iceberg.check.stored_files import check_count
from pyarctic.iceberg.delete.delete_files import KeyColumns, read_position_deletes
from pyarctic.iceberg.delete.deletion_vectors import read_vector
from pyarctic.iceberg.manifest.file_list import IS_DATA
from pyarctic.iceberg.manifest.partition_keys import LOST_VALUE, PARTITION_KEY, PartitionDecoder
from pyarctic.iceberg.manifest.reader import EQUALITY_DELETES
from pyarctic.iceberg.read.data_files import FileBatch, read_file_batches, translate_damage
from pyarctic.iceberg.read.live_rows import TableView, newest_first
from pyarctic.iceberg.read.projection import Projection, is_decodable
from pyarctic.iceberg.storage import open_input
from pyarctic.iceberg.write.parquet.footer import NotCopyable
from pyarctic.iceberg.write.parquet.page_checksums import check_pages
from pyarctic.iceberg.write.parquet.row_group_source import RowGroupSource

InspectBatch = Callable[[Mapping[str, Any], FileBatch], list[Problem]]
"""Looks at rows of a data file, in any thread, and gives problems; the file is a row of a file list."""

NAMED_SCHEMA = pl.Schema(
    {
        "file_path": pl.String,
        "spec_id": pl.Int32,
        "partition": pl.String,
        "data_file": pl.String,
        "least": pl.Int64,
        "greatest": pl.Int64,
        "rows": pl.Int64,
    }
)
"""The positions that a delete file names, by data file. Spec and partition are those of the delete file."""
_BOTH_PARTITIONS = ["spec_id", "partition", "spec_id_data", "partition_data"]


class RowReader:
    """Reads the rows of single files, in any thread."""

    def __init__(self, view: TableView, inspect: InspectBatch) -> None:
        self._io = view.io
        fields = view.metadata.schema().fields
        self._fields = [field for field in fields if is_decodable(field.field_type)]
        self._undecodable = [field for field in fields if not is_decodable(field.field_type)]
        self._mapping = view.metadata.name_mapping()
        self._partitions = PartitionDecoder(view.metadata)
        self._schemas = newest_first(view.metadata)
        self._inspect = inspect
        self.row_partitions = RowPartitions(view)

    def check(self, row: Mapping[str, Any]) -> list[Problem]:
        """The problems of one data file or equality delete file."""
        path, count = row["file_path"], 0
        problems: list[Problem] = []
        look = self._look_at_deletes(row) if row["content"] == EQUALITY_DELETES else self._look_at_rows(row)
        try:
            with translate_damage(path):
                for batch in read_file_batches(self._io, path, row["file_format"], self._mapping, None):
                    count += batch.batch.num_rows
                    problems += look(batch)
        except Damaged as error:
            return [*problems, damage_of(error, path, row["record_count"])]
        except Unsupported as error:
            return [*problems, damage_of(error, path, row["record_count"]), *self._check_pages(row)]
        return [*problems, *check_count(count, row), *self._not_checked(row)]

    def _check_pages(self, row: Mapping[str, Any]) -> list[Problem]:
        """Compare the pages of a file that cannot be decoded with their checksums."""
        path = row["file_path"]
        if row["file_format"] != "PARQUET":
            return []
        try:
            with open_input(self._io, path) as stream:
                check_pages(RowGroupSource.open(stream, path))
        except (Damaged, Unsupported) as error:
            return [damage_of(error, path, row["record_count"])]
        except NotCopyable:
            return []
        return []

    def _not_checked(self, row: Mapping[str, Any]) -> list[Problem]:
        if not self._undecodable or row["content"] == EQUALITY_DELETES:
            return []
        columns = ", ".join(f"{field.name} ({field.field_type})" for field in self._undecodable)
        return [Problem("not-checked", f"of columns {columns} only the pages were checked", row["file_path"])]

    def _look_at_rows(self, row: Mapping[str, Any]) -> Callable[[FileBatch], list[Problem]]:
        constants = self._partitions.constants(row["spec_id"], row["partition"])

        def look(batch: FileBatch) -> list[Problem]:
            # Readers must be able to make the columns of the table out of those of the file.
            Projection.of(batch.batch.schema, batch.file.names, self._fields, constants).apply(batch.batch)
            self.row_partitions.look(row, batch)
            return self._inspect(row, batch)

        return look

    def _look_at_deletes(self, row: Mapping[str, Any]) -> Callable[[FileBatch], list[Problem]]:
        def look(batch: FileBatch) -> list[Problem]:
            KeyColumns.of(row["equality_ids"] or (), self._schemas, row["file_path"]).check_present_in(batch.file)
            return []

        return look


class NamedPositions:
    """Reads delete files that name rows by their positions, in any thread."""

    def __init__(self, io: FileIO) -> None:
        self._io = io

    def read(self, row: Mapping[str, Any]) -> tuple[pl.DataFrame, list[Problem]]:
        """The positions that a position delete file or deletion vector names, as NAMED_SCHEMA, and its problems."""
        path, is_vector = row["file_path"], row["file_format"] == "PUFFIN"
        try:
            if is_vector:
                blob = (row["content_offset"], row["content_size_bytes"], row["record_count"])
                named = {row["referenced_data_file"]: read_vector(self._io, path, *blob)}
            else:
                named = read_position_deletes(self._io, path, row["file_format"])
        except (Damaged, Unsupported) as error:
            problem = damage_of(error, path, row["record_count"])
            is_corrupt = is_vector and problem.code == "unreadable-file"
            return pl.DataFrame(schema=NAMED_SCHEMA), [problem._replace(code="corrupt-vector") if is_corrupt else problem]
        ranges = [
            (
                path,
                row["spec_id"],
                row["partition"],
                data_file,
                int(np.min(positions)),
                int(np.max(positions)),
                len(positions),
            )
            for data_file, positions in named.items()
            if len(positions)
        ]
        return pl.DataFrame(ranges, NAMED_SCHEMA, orient="row"), []


def check_positions(named: Sequence[pl.DataFrame], files: pl.DataFrame) -> pl.DataFrame:
    """Whether delete files name rows that exist, in their own partition; `files` is the file list in which the data files
    are looked up."""
    data = files.filter(IS_DATA).select("record_count", *PARTITION_KEY, data_file="file_path").unique("data_file")
    ranges = pl.concat([pl.DataFrame(schema=NAMED_SCHEMA), *named]).join(data, on="data_file", how="left", suffix="_data")
    beyond = (pl.col("greatest") >= pl.col("record_count")) | (pl.col("least") < 0)
    detail = pl.format("position {} of {}, which has {} rows", "greatest", "data_file", "record_count")
    absent = (
        ranges.filter(pl.col("record_count").is_null())
        .group_by("file_path", maintain_order=True)
        .agg(pl.col("rows").sum(), pl.col("data_file").first(), count=pl.len())
    )
    elsewhere = ranges.filter(
        (pl.col("spec_id") != pl.col("spec_id_data")) | (pl.col("partition") != pl.col("partition_data"))
    )
    may_be_same = [_may_be_same(*keys) for keys in elsewhere.select(_BOTH_PARTITIONS).iter_rows()]
    elsewhere = elsewhere.filter(~pl.Series(may_be_same, dtype=pl.Boolean))
    elsewhere_detail = pl.format("names {}, which is in another partition", "data_file")
    absent_detail = pl.format("{} data files, such as {}", "count", "data_file")
    return join_problems(
        [
            problems_of(ranges.filter(beyond), "wrong-positions", detail, pl.col("rows")),
            problems_of(elsewhere, "contradicting-deletes", elsewhere_detail, pl.col("rows")),
            problems_of(absent, "dangling-positions", absent_detail, pl.col("rows")),
        ]
    )


def _may_be_same(spec_id: int, key: str, other_spec_id: int, other_key: str) -> bool:
    """Whether two partitions differ in nothing but values that one of them has lost."""
    if spec_id != other_spec_id:
        return False
    pairs = zip(json.loads(key), json.loads(other_key), strict=True)
    return all(LOST_VALUE in (value, other) or value == other for value, other in pairs)
