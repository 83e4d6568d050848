"""Parquet files as sources of row groups: footer and pages, read as copying needs them."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Protocol, Self

import pyarrow as pa
import pyarrow.parquet as pq

from pyarctic.errors import Damaged
from pyarctic.iceberg.read.data_files import translate_damage
from pyarctic.iceberg.write.parquet.footer import Chunk, Footer, NotCopyable, ParquetSchema, RowGroup, parse_footer
from pyarctic.iceberg.write.parquet.thrift import number, read_struct

MAGIC, _ENCRYPTED_MAGIC = b"PAR1", b"PARE"
_TAIL_BYTES = 64 << 10
"""Read with one request, because it mostly contains the footer and the indexes."""

_COPY_BYTES = 8 << 20
"""Copied at a time. Every part is a request to remote storage."""

_MAX_GAP_BYTES = 64 << 10
"""Unneeded bytes between two ranges are read up to this size, which is faster than another request."""

_BLOOM_HEADER_BYTES = 32
"""An upper limit of the header's size. Reading beyond it is safe, because the footer follows and is larger."""

Range = tuple[int, int]
"""The first byte, and the position after the last."""


class Readable(Protocol):
    """A file open for reading: PyIceberg's streams, Arrow's and Python's."""

    def read(self, size: int, /) -> bytes: ...
    def seek(self, offset: int, whence: int, /) -> int: ...
    def tell(self) -> int: ...


class RowGroupSource:
    """A Parquet file whose row groups can be copied. The stream must stay open meanwhile; the caller closes it."""

    def __init__(self, path: str, size: int, tail: memoryview, stream: Readable | None) -> None:
        self.path = path
        self._stream = stream
        self._tail = tail
        self._tail_start = size - len(tail)
        with translate_invalid_footer(path):
            self._footer = self._parse_footer(size)

    @classmethod
    def open(cls, stream: Readable, path: str) -> Self:
        """Open a file and read its footer. Raises NotCopyable if it cannot be copied, or Damaged."""
        with translate_damage(path):
            stream.seek(0, os.SEEK_END)
            size = stream.tell()
            tail = _read(stream, max(size - _TAIL_BYTES, 0), min(size, _TAIL_BYTES))
            return cls(path, size, memoryview(tail), stream)

    @classmethod
    def of_bytes(cls, data: bytes | pa.Buffer, path: str = "a file in memory") -> Self:
        """A file in memory."""
        return cls(path, len(data), memoryview(data).cast("B"), None)

    @property
    def groups(self) -> tuple[RowGroup, ...]:
        return self._footer.groups

    @property
    def schema(self) -> ParquetSchema:
        return self._footer.schema

    @property
    def footer(self) -> Footer:
        return self._footer

    def read_metadata(self) -> pq.FileMetaData:
        """The footer as Arrow reads it."""
        (length,) = struct.unpack("<I", self._tail[-8:-4])
        size = self._tail_start + len(self._tail)
        with translate_damage(self.path):
            return pq.read_metadata(pa.BufferReader(MAGIC + self.read(size - 8 - length, length + 8)))

    def without_last(self, field_id: int) -> Self:
        """The same file without its last column, if that has this id."""
        if not self.schema.fields or self.schema.fields[-1][1] != field_id:
            return self
        source = copy(self)
        with translate_invalid_footer(self.path):
            source._footer = self._footer.without_last()
        return source

    def stream_ranges(self, ranges: Iterable[Range]) -> Iterator[bytes]:
        """The bytes of the ranges in this order, some megabytes at a time."""
        for group in _group_close_ranges(_merge_adjacent(ranges)):
            position, end = group[0][0], group[-1][1]
            while position < end:
                data = self.read(position, min(end - position, _COPY_BYTES))
                if len(group) == 1:
                    yield data
                else:
                    overlaps = (data[max(start - position, 0) : max(stop - position, 0)] for start, stop in group)
                    yield from filter(None, overlaps)
                position += len(data)

    def read_ranges(self, ranges: Sequence[Range]) -> list[bytes]:
        """The bytes of each of some small ranges."""
        bytes_of: dict[Range, bytes] = {}
        for group in _group_close_ranges(sorted(ranges)):
            start, end = group[0][0], group[-1][1]
            data = self.read(start, end - start)
            bytes_of.update({part: data[part[0] - start : part[1] - start] for part in group})
        return [bytes_of[part] for part in ranges]

    def read(self, start: int, length: int) -> bytes:
        """`length` bytes of the file."""
        with translate_damage(self.path):
            if start < self._tail_start and self._stream is not None:
                return _read(self._stream, start, length)
            start -= self._tail_start
            data = bytes(self._tail[start : start + length])
            if len(data) < length:
                raise EOFError(f"it ends {length - len(data)} bytes too early")
            return data

    def bloom_range(self, chunk: Chunk) -> Range | None:
        """The range of the chunk's bloom filter with its header."""
        if chunk.bloom is None:
            return None
        start, length = chunk.bloom
        if length is None:
            # Its length is in the footer only since version 2.10 of the format.
            with translate_invalid_footer(self.path):
                data = self.read(start, _BLOOM_HEADER_BYTES)
                header, header_size = read_struct(data, 0)
                length = header_size + number(data, header[1])
        return start, start + length

    def _parse_footer(self, size: int) -> Footer:
        magic = bytes(self._tail[-4:])
        if magic == _ENCRYPTED_MAGIC:
            raise NotCopyable("its footer is encrypted")
        if magic != MAGIC or size < 12:
            raise ValueError("it does not end like a Parquet file")
        (length,) = struct.unpack("<I", self._tail[-8:-4])
        start = size - 8 - length
        if start < len(MAGIC):
            raise ValueError("its footer is longer than the file")
        return parse_footer(self.read(start, length), start)


def _merge_adjacent(ranges: Iterable[Range]) -> Iterator[Range]:
    """Adjacent ranges merged into one."""
    start = end = 0
    for next_start, next_end in ranges:
        if next_start != end:
            if end > start:
                yield start, end
            start = next_start
        end = next_end
    if end > start:
        yield start, end


def _group_close_ranges(ranges: Iterable[Range]) -> Iterator[list[Range]]:
    """Groups of ranges to be read at once: each starts where the previous one ends, or shortly after."""
    group: list[Range] = []
    for range_ in ranges:
        if group and not 0 <= range_[0] - group[-1][1] <= _MAX_GAP_BYTES:
            yield group
            group = []
        group.append(range_)
    if group:
        yield group


def _read(stream: Readable, start: int, length: int) -> bytes:
    stream.seek(start, os.SEEK_SET)
    data = stream.read(length)
    if len(data) == length:
        return data
    parts = [data]
    missing = length - len(data)
    while missing and parts[-1]:  # a stream may return less than requested
        parts.append(stream.read(missing))
        missing -= len(parts[-1])
    if missing:
        raise EOFError(f"it ends {missing} bytes too early")
    return b"".join(parts)


@contextmanager
def translate_invalid_footer(path: str) -> Iterator[None]:
    """Raise errors of parsing a footer or index as Damaged, and name the file in NotCopyable."""
    try:
        yield
    except NotCopyable as refusal:
        raise NotCopyable(f"{path}: {refusal}") from refusal
    except (ValueError, IndexError, KeyError, TypeError, RecursionError) as cause:
        raise Damaged(
            f"file cannot be read: {path} ({str(cause) or type(cause).__name__})",
            hint="The file was cut off or overwritten, or is not in the format that the manifest says.",
            file=path,
        ) from cause
