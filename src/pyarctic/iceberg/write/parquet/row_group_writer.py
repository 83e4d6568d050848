"""Row groups copied as is from file to file: their pages are neither decompressed nor decoded.

    source = RowGroupSource.open(stream, path)
    writer = RowGroupWriter(output)
    writer.append_all(source)
    metadata = writer.close()

Pages do not contain their position in the file. The footer and the offset indexes do, and are rewritten; statistics, column
indexes and bloom filters are copied as is. Pages that have a checksum are compared with it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from pyarctic._version import __version__
from pyarctic.iceberg.write.parquet.footer import ICEBERG_SCHEMA_KEY, Chunk, NotCopyable, ParquetSchema, RowGroup, key_of
from pyarctic.iceberg.write.parquet.page_checksums import PageChecker, Part
from pyarctic.iceberg.write.parquet.row_group_source import MAGIC, Range, RowGroupSource, translate_invalid_footer
from pyarctic.iceberg.write.parquet.thrift import (
    BINARY,
    I16,
    I32,
    I64,
    LIST,
    encode_binary,
    encode_fields,
    encode_list,
    encode_number,
    list_header,
    number,
    read_struct,
)

_MAX_ORDINAL = (1 << 15) - 1
_CREATED_BY = f"pyarctic version {__version__}".encode()
"""In the format that parquet-java parses; it does not trust bounds of strings in files of unknown writers."""


class Writable(Protocol):
    """A file open for writing."""

    def write(self, data: bytes, /) -> int: ...


@dataclass(slots=True)
class _MovedGroup:
    """A row group in the new file, whose indexes are still to be written."""

    fields: list[tuple[int, int, bytes]]
    """All fields of the RowGroup but its columns."""
    chunks: list[bytes]
    """The encoded ColumnChunks, up to the offsets of their indexes."""
    column_indexes: list[bytes]
    offset_indexes: list[bytes]


@dataclass(slots=True)
class _CopySource:
    """The byte ranges to copy from one source, in the order in which they are written."""

    source: RowGroupSource
    parts: list[Part] = field(default_factory=list)


class RowGroupWriter:
    """Writes a Parquet file of row groups of other files. All must have the same columns."""

    def __init__(self, stream: Writable) -> None:
        """The stream is at the beginning of a file; the caller closes it."""
        self.rows = 0
        self._stream = stream
        self._position = 0
        self._expected_position = len(MAGIC)
        self._groups: list[_MovedGroup] = []
        self._schema: ParquetSchema | None = None
        self._version = 1
        self._key_values: tuple[bytes, ...] = ()
        self._write(MAGIC)

    def tell(self) -> int:
        """Bytes written so far, without the footer."""
        return self._position

    def append(self, source: RowGroupSource, index: int, beside: RowGroupSource | None = None) -> None:
        """Copy one row group, with the columns of `beside` after its own: a file of one row group with as many rows.

        Raises NotCopyable before anything is written. After any other error the file is incomplete: Damaged if a page does
        not match its checksum."""
        group = source.groups[index]
        if beside is not None and [other.rows for other in beside.groups] != [group.rows]:
            raise NotCopyable(f"{source.path}: row group {index} has {group.rows} rows, the columns beside it have others")
        self._append(source, [group], beside)

    def append_all(self, source: RowGroupSource) -> None:
        """Copy all row groups of a file, with as few reads as possible."""
        self._append(source, source.groups, None)

    def close(self) -> pq.FileMetaData:
        """Write the indexes and the footer; returns the file's metadata as a reader would find it."""
        if self._schema is None:
            raise ValueError("a file without a source has no columns")
        if self._position != self._expected_position:
            raise ValueError("a row group was copied in part only")
        column_indexes = self._write_indexes([group.column_indexes for group in self._groups])
        offset_indexes = self._write_indexes([group.offset_indexes for group in self._groups])
        groups = [
            _encode_group(group, columns, offsets, ordinal)
            for ordinal, (group, columns, offsets) in enumerate(
                zip(self._groups, column_indexes, offset_indexes, strict=True)
            )
        ]
        fields = [
            (1, I32, encode_number(self._version)),
            (2, LIST, self._schema.encode()),
            (3, I64, encode_number(self.rows)),
            (4, LIST, encode_list(groups, len(groups))),
            *([(5, LIST, encode_list(self._key_values, len(self._key_values)))] if self._key_values else []),
            (6, BINARY, encode_binary(_CREATED_BY)),
        ]
        if self._schema.encoded_orders is not None:
            fields.append((7, LIST, encode_list([self._schema.encoded_orders], self._schema.leaves)))
        footer = encode_fields(fields) + b"\0"
        end = footer + struct.pack("<I", len(footer)) + MAGIC
        self._write(end)
        return pq.read_metadata(pa.BufferReader(MAGIC + end))

    def _append(self, source: RowGroupSource, groups: Sequence[RowGroup], beside: RowGroupSource | None) -> None:
        schema, key_values = self._check_fits(source, beside)
        sources = [_CopySource(source)] if beside is None else [_CopySource(source), _CopySource(beside)]
        position = self._position
        moved_groups = []
        for group in groups:
            if not group.rows:
                continue  # some writers make row groups of empty tables, and some readers fail on them
            combined = [group] if beside is None else [group, beside.groups[0]]
            moved_group, position = _move_groups(sources, combined, position)
            moved_groups.append(moved_group)
        # NotCopyable is not raised any more: from here on the file is written.
        self._schema, self._key_values = schema, key_values
        self._version = max(self._version, source.footer.version)
        self._groups += moved_groups
        self.rows += sum(group.rows for group in groups)
        self._expected_position = position
        for copy_source in sources:
            checker = PageChecker(copy_source.source, copy_source.parts)
            for data in copy_source.source.stream_ranges(range_ for range_, _ in copy_source.parts):
                checker.add(data)
                self._write(data)

    def _check_fits(self, source: RowGroupSource, beside: RowGroupSource | None) -> tuple[ParquetSchema, tuple[bytes, ...]]:
        """Schema and key-value metadata of the file with this source; raises NotCopyable if its columns differ."""
        schema, key_values = source.schema, source.footer.key_values
        if beside is not None:
            with translate_invalid_footer(source.path):
                schema = schema.beside(beside.schema)
            key_values = tuple(pair for pair in key_values if key_of(pair) != ICEBERG_SCHEMA_KEY)
        if self._schema is None:
            return schema, key_values
        if schema != self._schema:
            raise NotCopyable(f"{source.path}: its columns are not those of the row groups before it")
        if key_values != self._key_values:
            key_values = tuple(pair for pair in self._key_values if pair in key_values)
        return schema, key_values

    def _write_indexes(self, groups: list[list[bytes]]) -> list[list[Range]]:
        ranges: list[list[Range]] = []
        position = self._position
        for indexes in groups:
            group_ranges = []
            for index in indexes:
                group_ranges.append((position, position + len(index)))
                position += len(index)
            ranges.append(group_ranges)
        self._write(b"".join(chain.from_iterable(groups)))
        return ranges

    def _write(self, data: bytes) -> None:
        self._stream.write(data)
        self._position += len(data)


def _move_groups(sources: Sequence[_CopySource], groups: Sequence[RowGroup], position: int) -> tuple[_MovedGroup, int]:
    """Combine the groups, one of each source, into one row group at `position`. Returns it and the position after it."""
    first = groups[0]
    moved = _MovedGroup(fields=[], chunks=[], column_indexes=[], offset_indexes=[])
    start = position
    for copy_source, group in zip(sources, groups, strict=True):
        starts: dict[int, int] = {}
        bloom_starts: dict[int, int] = {}
        for index, chunk in sorted(enumerate(group.chunks), key=_chunk_start):
            copy_source.parts.append(((chunk.start, chunk.end), chunk))
            starts[index] = position
            position += chunk.end - chunk.start
        for index, chunk in enumerate(group.chunks):
            if bloom := copy_source.source.bloom_range(chunk):
                copy_source.parts.append((bloom, None))
                bloom_starts[index] = position
                position += bloom[1] - bloom[0]
        moved.chunks += [
            chunk.encode_moved(starts[index], bloom_starts.get(index, 0)) for index, chunk in enumerate(group.chunks)
        ]
        columns, offsets = _moved_indexes(copy_source.source, group.chunks, starts)
        moved.column_indexes += columns
        moved.offset_indexes += offsets
    moved.fields += [
        (2, I64, encode_number(sum(group.uncompressed_bytes for group in groups))),
        (3, I64, encode_number(first.rows)),
        *([(4, *first.sorting)] if first.sorting else []),
        (5, I64, encode_number(start)),
        (6, I64, encode_number(sum(group.compressed_bytes for group in groups))),
    ]
    return moved, position


def _chunk_start(entry: tuple[int, Chunk]) -> int:
    return entry[1].start


def _moved_indexes(
    source: RowGroupSource, chunks: Sequence[Chunk], starts: dict[int, int]
) -> tuple[list[bytes], list[bytes]]:
    """The column indexes as is, and the offset indexes for chunks that begin at `starts`; empty if a chunk has none."""
    wanted = [chunk.column_index or (0, 0) for chunk in chunks] + [chunk.offset_index or (0, 0) for chunk in chunks]
    ranges = [part for part in wanted if part[1]]
    if not ranges:
        return [b""] * len(chunks), [b""] * len(chunks)
    data = dict(zip(ranges, source.read_ranges(ranges), strict=True))
    indexes = [data[part] if part[1] else b"" for part in wanted]
    with translate_invalid_footer(source.path):
        offsets = [
            _move_pages(index, starts[position] - chunk.start, chunk.start, chunk.end) if index else b""
            for position, (chunk, index) in enumerate(zip(chunks, indexes[len(chunks) :], strict=True))
        ]
    return indexes[: len(chunks)], offsets


def _move_pages(index: bytes, distance: int, start: int, end: int) -> bytes:
    """An offset index with its pages moved by `distance`; before, they were between `start` and `end`."""
    parts: list[bytes] = []
    copied = 0

    def move_page_locations(data: bytes, position: int) -> tuple[None, int]:
        nonlocal copied
        _, count, position = list_header(data, position)
        for _ in range(count):
            page, position = read_struct(data, position)
            span = page[1]
            offset = number(data, span)
            # This also verifies the size of the chunk in the footer.
            if offset < start or offset + number(data, page[2]) > end:
                raise NotCopyable("a page lies outside of its column")
            parts.append(data[copied : span[1]])
            parts.append(encode_number(offset + distance))
            copied = span[2]
        return None, position

    _, position = read_struct(index, 0, {1: move_page_locations})
    parts.append(index[copied:position])
    return b"".join(parts)


def _encode_group(group: _MovedGroup, column_indexes: list[Range], offset_indexes: list[Range], ordinal: int) -> bytes:
    parts = []
    for chunk, columns, offsets in zip(group.chunks, column_indexes, offset_indexes, strict=True):
        index_fields = []
        for field_id, (start, end) in ((4, offsets), (6, columns)):
            if end > start:
                index_fields += [(field_id, I64, encode_number(start)), (field_id + 1, I32, encode_number(end - start))]
        parts += [chunk, encode_fields(index_fields, last_id=3), b"\0"]
    fields = [(1, LIST, encode_list(parts, len(group.chunks))), *group.fields]
    if ordinal <= _MAX_ORDINAL:
        fields.append((7, I16, encode_number(ordinal)))
    return encode_fields(fields) + b"\0"
