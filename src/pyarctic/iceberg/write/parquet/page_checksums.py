"""Comparing the pages of Parquet files with their checksums, without decompressing or decoding them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

from pyarctic.errors import Damaged
from pyarctic.iceberg.read.data_files import damaged_page
from pyarctic.iceberg.write.parquet.footer import Chunk
from pyarctic.iceberg.write.parquet.row_group_source import Range, RowGroupSource, translate_invalid_footer
from pyarctic.iceberg.write.parquet.thrift import binary, list_header, number, read_struct, skip

# Field ids of the Thrift structs PageHeader, ColumnChunk and ColumnMetaData.
_COMPRESSED_SIZE, _CHECKSUM = 3, 4
_CHUNK_METADATA, _PATH_IN_SCHEMA = 3, 3

Part = tuple[Range, Chunk | None]
"""A range of a file, and the column chunk whose pages it has; None if it has something else."""


def check_pages(source: RowGroupSource) -> None:
    """Raise Damaged if a page of a file does not match its checksum."""
    chunks = sorted((chunk for group in source.groups for chunk in group.chunks), key=lambda chunk: chunk.start)
    parts: list[Part] = [((chunk.start, chunk.end), chunk) for chunk in chunks]
    checker = PageChecker(source, parts)
    for data in source.stream_ranges(range_ for range_, _ in parts):
        checker.add(data)


class PageChecker:
    """Compares pages with their checksums as their bytes pass by. Of pages without a checksum only the sizes are checked."""

    def __init__(self, source: RowGroupSource, parts: Iterable[Part]) -> None:
        """`parts` are in the order in which their bytes will be added."""
        self._source = source
        self._parts = iter(parts)
        self._chunk: Chunk | None = None
        self._part_left = 0
        self._page_left = 0
        self._expected: int | None = None
        self._actual = 0
        self._rest = b""
        """The beginning of a page header whose end was not added yet."""

    def add(self, data: bytes) -> None:
        """Check the next bytes, any number of them. Raises Damaged."""
        if self._rest:
            data, self._rest = self._rest + data, b""
        position = 0
        with translate_invalid_footer(self._source.path):
            while position < len(data):
                if not self._part_left:
                    (start, end), self._chunk = next(self._parts)
                    self._part_left = end - start
                    continue
                part_end = position + self._part_left
                stop = min(part_end, len(data))
                if self._chunk is not None:
                    stop = self._add_pages(self._chunk, data, position, part_end)
                self._part_left = part_end - stop
                if stop == position:
                    self._rest = data[position:]
                    return
                position = stop

    def _add_pages(self, chunk: Chunk, data: bytes, position: int, part_end: int) -> int:
        """Check the pages of a chunk, which ends at `part_end`. Returns the position after the last byte that was used."""
        view, end = memoryview(data), min(part_end, len(data))
        while position < end:
            if not self._page_left:
                try:
                    header, after = read_struct(data, position)
                except IndexError:
                    if end == part_end:
                        raise
                    return position
                self._page_left = number(data, header[_COMPRESSED_SIZE])
                self._expected = number(data, header[_CHECKSUM]) & 0xFFFFFFFF if _CHECKSUM in header else None
                self._actual = 0
                if not 0 <= self._page_left <= part_end - after:
                    raise ValueError("a page is longer than its column")
                position = after
            stop = min(position + self._page_left, end)
            if self._expected is not None:
                self._actual = zlib.crc32(view[position:stop], self._actual)
            self._page_left -= stop - position
            position = stop
            if not self._page_left and self._expected not in (None, self._actual):
                raise self._damaged_page(chunk)
        return position

    def _damaged_page(self, chunk: Chunk) -> Damaged:
        row_group = next(number for number, group in enumerate(self._source.groups) if chunk in group.chunks)
        return damaged_page(self._source.path, row_group, _column_path(chunk))


def _column_path(chunk: Chunk) -> str:
    def parse_metadata(data: bytes, position: int) -> tuple[dict[int, Any], int]:
        return read_struct(data, position, {_PATH_IN_SCHEMA: _parse_strings})

    fields, _ = read_struct(chunk.encode_moved(chunk.start, 0) + b"\0", 0, {_CHUNK_METADATA: parse_metadata})
    return ".".join(fields[_CHUNK_METADATA][_PATH_IN_SCHEMA])


def _parse_strings(data: bytes, position: int) -> tuple[list[str], int]:
    kind, count, position = list_header(data, position)
    strings = []
    for _ in range(count):
        end = skip(data, position, kind)
        strings.append(binary(data, (kind, position, end)).decode(errors="replace"))
        position = end
    return strings, position
