"""Whether files are stored as their manifest entries say: present, of the right size, with a readable footer, as many rows,
no value outside of the column bounds, and as many nulls. Footers are read, rows are not."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow.parquet as pq
from pyarrow import orc
from pyiceberg.io import InputStream

from pyarctic.errors import Damaged, Unsupported
from pyarctic.iceberg.check.bounds import column_types, columns_miscounted, columns_outside
from pyarctic.iceberg.check.problems import Problem, damage_of
from pyarctic.iceberg.read.data_files import translate_damage
from pyarctic.iceberg.read.live_rows import TableView
from pyarctic.iceberg.storage import open_input


class StoredFileCheck:
    """Checks single files, in any thread."""

    def __init__(self, view: TableView) -> None:
        self._io = view.io
        self._types = column_types(view.metadata)
        self._mapping = view.metadata.name_mapping()

    def check(self, row: Mapping[str, Any]) -> list[Problem]:
        """The problems of one file; `row` has FILE_SCHEMA and the metrics of its manifest entry."""
        path, rows = row["file_path"], row["record_count"]
        try:
            with translate_damage(path), open_input(self._io, path) as stream:
                size = stored_size(stream)
                if size != row["file_size_bytes"]:
                    detail = f"the file has {size} bytes, its manifest says {row['file_size_bytes']}"
                    return [Problem("wrong-size", detail, path, rows)]
                stream.seek(0)
                return list(self._check_footer(stream, row))
        except (Damaged, Unsupported) as error:
            return [damage_of(error, path, rows)]

    def _check_footer(self, stream: InputStream, row: Mapping[str, Any]) -> Iterator[Problem]:
        path = row["file_path"]
        if row["key_metadata_bytes"] is not None:
            yield Problem("not-checked", "the file is encrypted", path)
        elif row["file_format"] == "PARQUET":
            footer = pq.ParquetFile(stream).metadata
            yield from check_count(footer.num_rows, row)
            bounds = _bounds_by_field(row)
            if names := list(columns_outside(footer, bounds, self._types, self._mapping)):
                yield Problem("wrong-bounds", f"columns: {', '.join(names)}", path, row["record_count"])
            values, nulls = _by_field(row["value_counts"]), _by_field(row["null_counts"])
            if footer.num_rows and (names := list(columns_miscounted(footer, values, nulls, self._mapping))):
                yield Problem("wrong-bounds", f"counts of values or nulls: {', '.join(names)}", path, row["record_count"])
        elif row["file_format"] == "ORC":
            yield from check_count(orc.ORCFile(stream).nrows, row)


def stored_size(stream: InputStream) -> int:
    """The size of an open file; it is at its end afterwards."""
    stream.seek(0, os.SEEK_END)
    return stream.tell()


def check_count(count: int, row: Mapping[str, Any]) -> Iterator[Problem]:
    """Whether a file has as many rows as its manifest entry says."""
    if count != row["record_count"]:
        detail = f"the file has {count} rows, its manifest says {row['record_count']}"
        yield Problem("wrong-record-count", detail, row["file_path"], abs(count - row["record_count"]))


def _bounds_by_field(row: Mapping[str, Any]) -> dict[int, tuple[bytes | None, bytes | None]]:
    lower, upper = _by_field(row["lower_bounds"]), _by_field(row["upper_bounds"])
    return {field_id: (lower.get(field_id), upper.get(field_id)) for field_id in lower.keys() | upper.keys()}


def _by_field(pairs: Sequence[Mapping[str, Any]] | None) -> dict[int, Any]:
    return {pair["key"]: pair["value"] for pair in pairs or ()}
