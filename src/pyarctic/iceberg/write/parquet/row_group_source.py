"""Parquet files as sources of row groups: the footer parsed, the bytes read as copying needs them."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Protocol, Self

import pyarrow as pa

from pyarctic.errors import Damaged
from pyarctic.iceberg.read.data_files import translate_damage
from pyarctic.iceberg.write.parquet.footer import Chunk, Footer, NotCopyable, ParquetSchema, RowGroup, parse_footer
from pyarctic.iceberg.write.parquet.thrift import number, read_struct

MAGIC, _ENCRYPTED_MAGIC = b"PAR1", b"PARE"
_TAIL_BYTES = 64 << 10
"""Read at once in the hope that footer and indexes are in it."""

_COPY_BYTES = 8 << 20
"""Copied at a time. Every piece is a request to a remote store."""

_GAP_BYTES = 64 << 10
"""Bytes nobody wants are read when they are so few: that is quicker than another request."""

_BLOOM_HEADER_BYTES = 32
"""At least as many as there are; a footer, which follows somewhere, has more."""

Range = tuple[int, int]
"""The first byte, and the one behind the last."""


class Readable(Protocol):
    """A file open for reading: PyIceberg's streams, Arrow's and Python's."""

    def read(self, size: int, /) -> bytes: ...
    def seek(self, offset: int, whence: int, /) -> int: ...
    def tell(self) -> int: ...


class RowGroupSource:
    """A Parquet file whose row groups can be copied. The stream must stay open as long as they are; closing it is up to
    whoever opened it."""

    def __init__(self, path: str, size: int, tail: memoryview, stream: Readable | None) -> None:
        self.path = path
        self._stream = stream
        self._tail = tail
        self._tail_start = size - len(tail)
        with nonsense_told(path):
            self._footer = self._parsed(size)

    @classmethod
    def open(cls, stream: Readable, path: str) -> Self:
        """Reads the footer only. Raises NotCopyable for what cannot be copied, and Damaged."""
        with translate_damage(path):
            stream.seek(0, os.SEEK_END)
            size = stream.tell()
            tail = _read(stream, max(size - _TAIL_BYTES, 0), min(size, _TAIL_BYTES))
            return cls(path, size, memoryview(tail), stream)

    @classmethod
    def of_bytes(cls, data: bytes | pa.Buffer, path: str = "a file in memory") -> Self:
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

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.groups)

    @property
    def codecs(self) -> frozenset[str]:
        return self._footer.codecs

    def without_last(self, field_id: int) -> Self:
        """The same file, its last column left out if it has this id."""
        if not self.schema.fields or self.schema.fields[-1][1] != field_id:
            return self
        less = copy(self)
        with nonsense_told(self.path):
            less._footer = self._footer.without_last()
        return less

    def fits(self, other: RowGroupSource) -> bool:
        """Can row groups of both stand in one file?"""
        return self.schema == other.schema

    def pieces(self, ranges: Iterable[Range]) -> Iterator[bytes]:
        """The bytes of these ranges in this order, some megabytes at a time."""
        for run in _runs(_joined(ranges)):
            position, end = run[0][0], run[-1][1]
            while position < end:
                piece = self.read(position, min(end - position, _COPY_BYTES))
                if len(run) == 1:
                    yield piece
                else:
                    overlaps = (piece[max(start - position, 0) : max(stop - position, 0)] for start, stop in run)
                    yield from filter(None, overlaps)
                position += len(piece)

    def read_ranges(self, ranges: Sequence[Range]) -> list[bytes]:
        """What small ranges hold, each."""
        found: dict[Range, bytes] = {}
        for run in _runs(sorted(ranges)):
            start, end = run[0][0], run[-1][1]
            data = self.read(start, end - start)
            found.update({part: data[part[0] - start : part[1] - start] for part in run})
        return [found[part] for part in ranges]

    def read(self, start: int, length: int) -> bytes:
        with translate_damage(self.path):
            if start < self._tail_start and self._stream is not None:
                return _read(self._stream, start, length)
            start -= self._tail_start
            data = bytes(self._tail[start : start + length])
            if len(data) < length:
                raise EOFError(f"it ends {length - len(data)} bytes too early")
            return data

    def bloom_range(self, chunk: Chunk) -> Range | None:
        """Where the chunk's bloom filter lies, with its header."""
        if chunk.bloom is None:
            return None
        start, length = chunk.bloom
        if length is None:
            # Writers did not tell it before version 2.10 of the format.
            with nonsense_told(self.path):
                data = self.read(start, _BLOOM_HEADER_BYTES)
                header, header_size = read_struct(data, 0)
                length = header_size + number(data, header[1])
        return start, start + length

    def _parsed(self, size: int) -> Footer:
        magic = bytes(self._tail[-4:])
        if magic == _ENCRYPTED_MAGIC:
            raise NotCopyable("its footer is encrypted")
        if magic != MAGIC or size < 12:
            raise ValueError("it does not end as Parquet files do")
        (length,) = struct.unpack("<I", self._tail[-8:-4])
        start = size - 8 - length
        if start < len(MAGIC):
            raise ValueError("its footer is longer than the file")
        return parse_footer(self.read(start, length), start)


def _joined(ranges: Iterable[Range]) -> Iterator[Range]:
    """Neighbours as one."""
    start = end = 0
    for next_start, next_end in ranges:
        if next_start != end:
            if end > start:
                yield start, end
            start = next_start
        end = next_end
    if end > start:
        yield start, end


def _runs(ranges: Iterable[Range]) -> Iterator[list[Range]]:
    """Ranges to be read at once: each begins where the one before it ends, or a little behind."""
    run: list[Range] = []
    for place in ranges:
        if run and not 0 <= place[0] - run[-1][1] <= _GAP_BYTES:
            yield run
            run = []
        run.append(place)
    if run:
        yield run


def _read(stream: Readable, start: int, length: int) -> bytes:
    stream.seek(start, os.SEEK_SET)
    data = stream.read(length)
    if len(data) == length:
        return data
    pieces = [data]
    missing = length - len(data)
    while missing and pieces[-1]:  # a stream may give less than there is
        pieces.append(stream.read(missing))
        missing -= len(pieces[-1])
    if missing:
        raise EOFError(f"it ends {missing} bytes too early")
    return b"".join(pieces)


@contextmanager
def nonsense_told(path: str) -> Iterator[None]:
    try:
        yield
    except NotCopyable as refusal:
        raise NotCopyable(f"{path}: {refusal}") from refusal
    except (ValueError, IndexError, KeyError, TypeError, RecursionError) as cause:
        raise Damaged(
            f"file cannot be read: {path} ({str(cause) or type(cause).__name__})",
            hint="The file was cut off, overwritten or is of another format than the manifest says.",
            file=path,
        ) from cause
