"""Pages of Parquet files as bytes: their headers, and one byte changed in them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

from pyarctic.iceberg.write.parquet.row_group_source import RowGroupSource
from pyarctic.iceberg.write.parquet.thrift import number, read_struct


def pages(data: bytes) -> Iterator[tuple[int, int, bool]]:
    """Where the body of every page begins and ends, and whether its header has a checksum."""
    source = RowGroupSource.open(io.BytesIO(data), "there")
    for group in source.groups:
        for chunk in group.chunks:
            position = chunk.start
            while position < chunk.end:
                header, body = read_struct(data, position)
                position = body + number(data, header[3])
                yield body, position, 4 in header
            assert position == chunk.end


def have_checksums(path: Path) -> bool:
    """Whether every page of a file has a checksum."""
    checked = [has_checksum for _, _, has_checksum in pages(path.read_bytes())]
    assert checked
    return all(checked)


def flip(path: Path, value: bytes) -> None:
    """Change one bit of a value that occurs once in an uncompressed file: readers decode another value there."""
    content = bytearray(path.read_bytes())
    assert content.count(value) == 1
    position = content.index(value)
    assert any(begin <= position < end for begin, end, _ in pages(bytes(content)))
    content[position] ^= 1
    path.write_bytes(content)
