"""Row groups copied from file to file as they are: their pages are neither decompressed nor decoded.

    source = ParquetSource.open(stream, path)
    writer = RowGroupWriter(output)
    writer.append_all(source)
    metadata = writer.close()

Pages do not know where they lie. What does, the footer, the offset indexes and the places of bloom filters, is written anew;
statistics, column indexes and bloom filters stay as they are.
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
from pyarctic.iceberg.write.parquet.footer import ICEBERG_SCHEMA, Chunk, NotCopyable, ParquetSchema, RowGroup, key_of
from pyarctic.iceberg.write.parquet.row_group_source import MAGIC, Range, RowGroupSource, nonsense_told
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

_MOST_ORDINAL = (1 << 15) - 1
_CREATED_BY = f"pyarctic version {__version__}".encode()
"""In the form that parquet-java takes apart; it mistrusts bounds of text in files whose writer it cannot tell."""


class Writable(Protocol):
    def write(self, data: bytes, /) -> int: ...


@dataclass(slots=True)
class _Moved:
    """A row group in the new file, whose indexes are still to be written."""

    fields: list[tuple[int, int, bytes]]
    """Of the RowGroup, all but its columns."""
    chunks: list[bytes]
    """Each a ColumnChunk, up to the places of its indexes."""
    column_indexes: list[bytes]
    offset_indexes: list[bytes]


@dataclass(slots=True)
class _Part:
    """Row groups' bytes from one source, in the order they are written in."""

    source: RowGroupSource
    ranges: list[Range] = field(default_factory=list)


class RowGroupWriter:
    """Writes a Parquet file of row groups of others. All must have the same columns."""

    def __init__(self, stream: Writable) -> None:
        """The stream stands at the beginning of a file; closing it is up to whoever opened it."""
        self.rows = 0
        self._stream = stream
        self._position = 0
        self._promised = len(MAGIC)
        self._groups: list[_Moved] = []
        self._schema: ParquetSchema | None = None
        self._version = 1
        self._key_values: tuple[bytes, ...] = ()
        self._write(MAGIC)

    def tell(self) -> int:
        """Bytes written so far; the footer is yet to come."""
        return self._position

    def append(self, source: RowGroupSource, index: int, beside: RowGroupSource | None = None) -> None:
        """Copy one row group, and behind its columns those of `beside`, a file of one row group with as many rows.

        Raises NotCopyable before anything is written. After any other error the file is worth nothing."""
        group = source.groups[index]
        if beside is not None and [other.rows for other in beside.groups] != [group.rows]:
            raise NotCopyable(f"{source.path}: row group {index} has {group.rows} rows, the columns beside it have others")
        self._append(source, [group], beside)

    def append_all(self, source: RowGroupSource) -> None:
        """Copy all row groups of a file, with as few reads as their places allow."""
        self._append(source, source.groups, None)

    def close(self) -> pq.FileMetaData:
        """Write the indexes and the footer; gives the file's metadata as a reader would find it."""
        if self._schema is None:
            raise ValueError("a file without a source has no columns")
        if self._position != self._promised:
            raise ValueError("a row group was copied in part only")
        column_indexes = self._write_indexes([group.column_indexes for group in self._groups])
        offset_indexes = self._write_indexes([group.offset_indexes for group in self._groups])
        groups = [
            _encoded_group(group, columns, offsets, ordinal)
            for ordinal, (group, columns, offsets) in enumerate(
                zip(self._groups, column_indexes, offset_indexes, strict=True)
            )
        ]
        fields = [
            (1, I32, encode_number(self._version)),
            (2, LIST, self._schema.encoded()),
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
        schema, key_values = self._admitted(source, beside)
        parts = [_Part(source)] if beside is None else [_Part(source), _Part(beside)]
        position = self._position
        moved = []
        for group in groups:
            if not group.rows:
                continue  # some writers make such groups of empty tables, some readers stumble over them
            together = [group] if beside is None else [group, beside.groups[0]]
            one, position = _move(parts, together, position)
            moved.append(one)
        # All that may be refused was: from here on the file grows.
        self._schema, self._key_values = schema, key_values
        self._version = max(self._version, source.footer.version)
        self._groups += moved
        self.rows += sum(group.rows for group in groups)
        self._promised = position
        for part in parts:
            for piece in part.source.pieces(part.ranges):
                self._write(piece)

    def _admitted(self, source: RowGroupSource, beside: RowGroupSource | None) -> tuple[ParquetSchema, tuple[bytes, ...]]:
        schema, key_values = source.schema, source.footer.key_values
        if beside is not None:
            with nonsense_told(source.path):
                schema = schema.beside(beside.schema)
            key_values = tuple(pair for pair in key_values if key_of(pair) != ICEBERG_SCHEMA)
        if self._schema is None:
            return schema, key_values
        if schema != self._schema:
            raise NotCopyable(f"{source.path}: its columns are not those of the row groups before it")
        if key_values != self._key_values:
            key_values = tuple(pair for pair in self._key_values if pair in key_values)
        return schema, key_values

    def _write_indexes(self, groups: list[list[bytes]]) -> list[list[Range]]:
        places: list[list[Range]] = []
        position = self._position
        for indexes in groups:
            row = []
            for index in indexes:
                row.append((position, position + len(index)))
                position += len(index)
            places.append(row)
        self._write(b"".join(chain.from_iterable(groups)))
        return places

    def _write(self, data: bytes) -> None:
        self._stream.write(data)
        self._position += len(data)


def _move(parts: Sequence[_Part], groups: Sequence[RowGroup], position: int) -> tuple[_Moved, int]:
    """Let the groups, one of each part, be one row group at `position`. Gives it, and the position behind it."""
    first = groups[0]
    moved = _Moved(fields=[], chunks=[], column_indexes=[], offset_indexes=[])
    start = position
    for part, group in zip(parts, groups, strict=True):
        places: dict[int, int] = {}
        blooms: dict[int, int] = {}
        for index, chunk in sorted(enumerate(group.chunks), key=_start_of_chunk):
            part.ranges.append((chunk.start, chunk.end))
            places[index] = position
            position += chunk.end - chunk.start
        for index, chunk in enumerate(group.chunks):
            if bloom := part.source.bloom_range(chunk):
                part.ranges.append(bloom)
                blooms[index] = position
                position += bloom[1] - bloom[0]
        moved.chunks += [chunk.moved(places[index], blooms.get(index, 0)) for index, chunk in enumerate(group.chunks)]
        columns, offsets = _indexes(part.source, group.chunks, places)
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


def _start_of_chunk(entry: tuple[int, Chunk]) -> int:
    return entry[1].start


def _indexes(source: RowGroupSource, chunks: Sequence[Chunk], places: dict[int, int]) -> tuple[list[bytes], list[bytes]]:
    """The column indexes as they are, the offset indexes for chunks at their new places; empty where there is none."""
    wanted = [chunk.column_index or (0, 0) for chunk in chunks] + [chunk.offset_index or (0, 0) for chunk in chunks]
    ranges = [part for part in wanted if part[1]]
    if not ranges:
        return [b""] * len(chunks), [b""] * len(chunks)
    data = dict(zip(ranges, source.read_ranges(ranges), strict=True))
    found = [data[part] if part[1] else b"" for part in wanted]
    with nonsense_told(source.path):
        offsets = [
            _moved_pages(index, places[place] - chunk.start, chunk.start, chunk.end) if index else b""
            for place, (chunk, index) in enumerate(zip(chunks, found[len(chunks) :], strict=True))
        ]
    return found[: len(chunks)], offsets


def _moved_pages(index: bytes, move: int, start: int, end: int) -> bytes:
    """An offset index whose pages are moved; before, they lay between `start` and `end`."""
    pieces: list[bytes] = []
    copied = 0

    def pages(data: bytes, position: int) -> tuple[None, int]:
        nonlocal copied
        _, count, position = list_header(data, position)
        for _ in range(count):
            page, position = read_struct(data, position)
            span = page[1]
            place = number(data, span)
            # Also a proof that the size told of the chunk is right.
            if place < start or place + number(data, page[2]) > end:
                raise NotCopyable("a page lies outside of its column")
            pieces.append(data[copied : span[1]])
            pieces.append(encode_number(place + move))
            copied = span[2]
        return None, position

    _, position = read_struct(index, 0, {1: pages})
    pieces.append(index[copied:position])
    return b"".join(pieces)


def _encoded_group(group: _Moved, column_indexes: list[Range], offset_indexes: list[Range], ordinal: int) -> bytes:
    pieces = []
    for chunk, columns, offsets in zip(group.chunks, column_indexes, offset_indexes, strict=True):
        places = []
        for field_id, (start, end) in ((4, offsets), (6, columns)):
            if end > start:
                places += [(field_id, I64, encode_number(start)), (field_id + 1, I32, encode_number(end - start))]
        pieces += [chunk, encode_fields(places, last_id=3), b"\0"]
    fields = [(1, LIST, encode_list(pieces, len(group.chunks))), *group.fields]
    if ordinal <= _MOST_ORDINAL:
        fields.append((7, I16, encode_number(ordinal)))
    return encode_fields(fields) + b"\0"
