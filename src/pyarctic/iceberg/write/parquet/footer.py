"""A Parquet footer, read as far as moving row groups needs it: sizes, schema, and where it tells places in the file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

from pyarctic.iceberg.write.parquet.thrift import (
    I32,
    I64,
    STRUCT,
    binary,
    encode_fields,
    encode_list,
    encode_number,
    list_header,
    number,
    read_list,
    read_struct,
    skip,
)

CODECS = ("uncompressed", "snappy", "gzip", "lzo", "brotli", "lz4", "zstd", "lz4_raw")
"""By their number in the format."""

_NEVER_KEPT = frozenset(
    {b"ARROW:schema", b"org.apache.spark.sql.parquet.row.metadata", b"pandas", b"parquet.avro.schema", b"avro.schema"}
)
"""Schemas in a writer's own words. Readers of its kind believe them rather than the file's schema; the table has its own."""

_NAME = re.compile(rb"(parquet-mr|parquet-cpp)(?![-\w])(?: version (\d+)\.(\d+))?")
_FIRST_SOUND = {b"parquet-mr": (1, 8), b"parquet-cpp": (2, 0)}
"""Readers know older ones by name and work around what they did wrong: sizes without the dictionary's header (PARQUET-816),
deltas across pages (PARQUET-246), bounds of text (PARQUET-251), compressed pages said to be plain (ARROW-10353). Under
another writer's name their pages would be misread. parquet-cpp is called parquet-cpp-arrow since."""

_FIRST_BYTE = 4
"""Behind the magic."""


class NotCopyable(ValueError):
    """Row groups of this file cannot be copied as they are: decode and encode them instead."""


class Chunk(NamedTuple):
    """One column of a row group: where its pages lie, and what is said of them."""

    start: int
    end: int
    file_offset: int
    metadata: tuple[bytes, ...]
    """Cut where it tells an offset,"""
    offsets: tuple[int, ...]
    """and what it tells there. That of a bloom filter is the last one."""
    bloom: tuple[int, int | None] | None
    """Where it begins, and its size if that is told."""
    column_index: tuple[int, int] | None
    offset_index: tuple[int, int] | None

    def moved(self, start: int, bloom_start: int) -> bytes:
        """The ColumnChunk for pages that begin at `start`, up to the places of its indexes, which are not known yet."""
        move = start - self.start
        places = [place + move if place > 0 else place for place in self.offsets]
        if self.bloom:
            places[-1] = bloom_start
        pieces = [self.metadata[0]]
        for place, piece in zip(places, self.metadata[1:], strict=True):
            pieces += [encode_number(place), piece]
        # Some writers put a copy of the metadata behind the chunk and point there; it is not copied.
        file_offset = self.file_offset + move if self.start <= self.file_offset < self.end else 0
        return encode_fields([(2, I64, encode_number(file_offset)), (3, STRUCT, b"".join(pieces))])


@dataclass(frozen=True, slots=True)
class RowGroup:
    rows: int
    compressed_bytes: int
    """What copying it costs: the bytes of its pages."""
    uncompressed_bytes: int
    sorting: tuple[int, bytes] | None
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class ParquetSchema:
    """The columns of a file. Equal ones fit together: they differ in the name of the root at most, which nobody uses."""

    root: tuple[tuple[int, int, bytes], ...] = field(compare=False, repr=False)
    columns: int
    """Of the top level."""
    elements: int
    """Encoded, without the root."""
    encoded_elements: bytes = field(repr=False)
    leaves: int
    encoded_orders: bytes | None = field(repr=False)
    """How each leaf's values are compared in statistics; None if nothing is said of it."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the top level."""
        return tuple(name for name, _ in self.fields)

    @property
    def fields(self) -> tuple[tuple[str, int | None], ...]:
        """Names and field ids of the top level."""
        return _top_level(self.columns, self.encoded_elements)

    def beside(self, other: ParquetSchema) -> ParquetSchema:
        """These columns, and the other's behind them."""
        if twice := set(self.names) & set(other.names):
            raise NotCopyable(f"column {min(twice)!r} is there already")
        orders = (self.encoded_orders, other.encoded_orders)
        return ParquetSchema(
            root=self.root,
            columns=self.columns + other.columns,
            elements=self.elements + other.elements,
            encoded_elements=self.encoded_elements + other.encoded_elements,
            leaves=self.leaves + other.leaves,
            encoded_orders=None if orders[0] is None or orders[1] is None else orders[0] + orders[1],
        )

    def without_last(self) -> ParquetSchema:
        """These columns but for the last one, which must not be nested."""
        *_, last = _starts(self.encoded_elements, self.elements)
        if _children(self.encoded_elements, read_struct(self.encoded_elements, last)[0]) or self.columns < 2:
            raise NotCopyable("its last column cannot be left out")
        orders = self.encoded_orders
        return replace(
            self,
            columns=self.columns - 1,
            elements=self.elements - 1,
            encoded_elements=self.encoded_elements[:last],
            leaves=max(self.leaves - 1, 0),
            encoded_orders=None if orders is None else orders[: _starts(orders, self.leaves)[-1]],
        )

    def encoded(self) -> bytes:
        others = [part for part in self.root if part[0] != _NUM_CHILDREN]
        root = sorted([*others, (_NUM_CHILDREN, I32, encode_number(self.columns))])
        return encode_list([encode_fields(root), b"\0", self.encoded_elements], self.elements + 1)


@dataclass(frozen=True, slots=True)
class Footer:
    version: int
    schema: ParquetSchema
    groups: tuple[RowGroup, ...]
    key_values: tuple[bytes, ...]
    """Encoded, those that may be kept."""
    codecs: frozenset[str]

    def without_last(self) -> Footer:
        """The file as if it did not have its last column."""
        groups = [
            replace(
                group,
                compressed_bytes=group.compressed_bytes - (group.chunks[-1].end - group.chunks[-1].start),
                sorting=None,
                chunks=group.chunks[:-1],
            )
            for group in self.groups
        ]
        kept = tuple(pair for pair in self.key_values if key_of(pair) != ICEBERG_SCHEMA)
        return replace(self, schema=self.schema.without_last(), groups=tuple(groups), key_values=kept)


ICEBERG_SCHEMA = b"iceberg.schema"
"""Tells all columns, and is wrong when some come or go."""
_NAME_OF_ELEMENT, _NUM_CHILDREN, _FIELD_ID = 4, 5, 9


def parse_footer(data: bytes, data_end: int) -> Footer:
    """`data_end`: all pages lie before it. Nonsense raises what `thriftspans` raises, or KeyError."""
    codecs: set[int] = set()

    def chunk(data: bytes, position: int) -> tuple[Chunk, int]:
        return _chunk(data, position, data_end, codecs)

    def group(data: bytes, position: int) -> tuple[RowGroup, int]:
        fields, end = read_struct(data, position, {1: lambda data, position: read_list(data, position, chunk)})
        return _row_group(data, fields), end

    inner = {
        2: _schema_elements,
        4: lambda data, position: read_list(data, position, group),
        5: lambda data, position: read_list(data, position, _raw_struct),
        7: _orders,
    }
    fields, _ = read_struct(data, 0, inner)
    if not {1, 2, 3, 4} <= fields.keys():
        raise ValueError("its footer says too little")
    _refuse_unknown(fields, 7, "the file")  # 8 and 9 are about encryption
    _refuse_unsound(binary(data, fields[6]) if 6 in fields else b"")
    root, elements, encoded = fields[2]
    leaves, orders = fields.get(7, (0, None))
    groups: list[RowGroup] = fields[4]
    if sum(group.rows for group in groups) != number(data, fields[3]):
        raise ValueError("the rows of the row groups are not those of the file")
    if len({len(group.chunks) for group in groups} | ({leaves} if orders is not None else set())) > 1:
        raise ValueError("row groups differ in their columns")
    return Footer(
        version=number(data, fields[1]),
        schema=ParquetSchema(
            root=tuple((key, kind, data[start:end]) for key, (kind, start, end) in root.items()),
            columns=_children(data, root),
            elements=elements,
            encoded_elements=encoded,
            leaves=leaves,
            encoded_orders=orders,
        ),
        groups=tuple(groups),
        key_values=tuple(pair for pair in fields.get(5, ()) if key_of(pair) not in _NEVER_KEPT),
        codecs=frozenset(CODECS[codec] if codec < len(CODECS) else str(codec) for codec in codecs),
    )


def key_of(pair: bytes) -> bytes:
    """The key of an encoded key and value."""
    fields, _ = read_struct(pair, 0)
    return binary(pair, fields[1])


def _row_group(data: bytes, fields: dict[int, Any]) -> RowGroup:
    _refuse_unknown(fields, 7, "a row group")
    chunks: list[Chunk] = fields[1]
    kind, start, end = fields.get(4, (0, 0, 0))
    return RowGroup(
        rows=number(data, fields[3]),
        compressed_bytes=sum(chunk.end - chunk.start for chunk in chunks),
        uncompressed_bytes=number(data, fields[2]),
        sorting=(kind, data[start:end]) if end else None,
        chunks=tuple(chunks),
    )


def _chunk(data: bytes, position: int, data_end: int, codecs: set[int]) -> tuple[Chunk, int]:
    fields, end = read_struct(data, position, _CHUNK)
    if 1 in fields:
        raise NotCopyable("it keeps columns in other files")
    _refuse_unknown(fields, 7, "a column")  # 8 and 9 are about encryption
    if 3 not in fields:
        raise NotCopyable("it keeps the metadata of columns outside of its footer")
    metadata, metadata_start, metadata_end = fields[3]
    _refuse_unknown(metadata, 17, "a column")
    codecs.add(number(data, metadata[4]))
    cuts = sorted([metadata[key] for key in _OFFSETS if key in metadata], key=_start)
    offsets = [number(data, span) for span in cuts]
    bloom = None
    if 14 in metadata and (place := number(data, metadata[14])) > 0:
        length = number(data, metadata[15]) if 15 in metadata else 0
        if place + length > data_end or (cuts and metadata[14][1] < cuts[-1][1]):
            raise ValueError("a bloom filter lies outside of the file, or its place is told too early")
        cuts.append(metadata[14])
        offsets.append(place)
        bloom = (place, length if length > 0 else None)
    places = [number(data, metadata[key]) for key in (9, 11) if key in metadata]
    start = min((place for place in places if place >= _FIRST_BYTE), default=_FIRST_BYTE)
    size = number(data, metadata[7])
    if size < 0 or start + size > data_end or 9 not in metadata:
        raise ValueError("a column lies outside of the file")
    found = Chunk(
        start=start,
        end=start + size,
        file_offset=number(data, fields[2]),
        metadata=tuple(_pieces(data, metadata_start, cuts, metadata_end)),
        offsets=tuple(offsets),
        bloom=bloom,
        column_index=_range(data, fields, 6, data_end),
        offset_index=_range(data, fields, 4, data_end),
    )
    return found, end


_OFFSETS = (9, 10, 11)
"""Of data pages, index pages and the dictionary."""


def _metadata(data: bytes, position: int) -> tuple[tuple[dict[int, Any], int, int], int]:
    fields, end = read_struct(data, position)
    return (fields, position, end), end


_CHUNK = {3: _metadata}


def _start(span: tuple[int, int, int]) -> int:
    return span[1]


def _pieces(data: bytes, start: int, cuts: list[tuple[int, int, int]], end: int) -> Iterator[bytes]:
    for _, cut_start, cut_end in cuts:
        yield data[start:cut_start]
        start = cut_end
    yield data[start:end]


def _range(data: bytes, fields: dict[int, Any], place: int, data_end: int) -> tuple[int, int] | None:
    if place not in fields or place + 1 not in fields:
        return None
    start, length = number(data, fields[place]), number(data, fields[place + 1])
    if start < _FIRST_BYTE or length <= 0:
        return None
    if start + length > data_end:
        raise ValueError("a page index lies outside of the file")
    return start, start + length


def _raw_struct(data: bytes, position: int) -> tuple[bytes, int]:
    end = skip(data, position, STRUCT)
    return data[position:end], end


def _schema_elements(data: bytes, position: int) -> tuple[tuple[dict[int, Any], int, bytes], int]:
    _, count, position = list_header(data, position)
    root, position = read_struct(data, position)
    start = position
    for _ in range(count - 1):
        position = skip(data, position, STRUCT)
    return (root, count - 1, data[start:position]), position


def _orders(data: bytes, position: int) -> tuple[tuple[int, bytes], int]:
    _, count, position = list_header(data, position)
    start = position
    for _ in range(count):
        position = skip(data, position, STRUCT)
    return (count, data[start:position]), position


def _starts(data: bytes, count: int) -> list[int]:
    """Where each of some structs begins, one behind the other."""
    found, position = [], 0
    for _ in range(count):
        found.append(position)
        position = skip(data, position, STRUCT)
    return found


@lru_cache(maxsize=64)
def _top_level(columns: int, elements: bytes) -> tuple[tuple[str, int | None], ...]:
    found: list[tuple[str, int | None]] = []
    position = 0
    for _ in range(columns):
        top, position = read_struct(elements, position)
        field_id = number(elements, top[_FIELD_ID]) if _FIELD_ID in top else None
        found.append((binary(elements, top[_NAME_OF_ELEMENT]).decode(), field_id))
        inside = _children(elements, top)
        while inside:  # they follow in depth-first order
            element, position = read_struct(elements, position)
            inside += _children(elements, element) - 1
    return tuple(found)


def _children(data: bytes, element: dict[int, Any]) -> int:
    return number(data, element[_NUM_CHILDREN]) if _NUM_CHILDREN in element else 0


def _refuse_unknown(fields: dict[int, Any], last: int, what: str) -> None:
    # What we do not know may be a place in the file.
    if fields and max(fields) > last:
        raise NotCopyable(f"it is encrypted, or {what} has metadata unknown to PyArctic (field {max(fields)})")


def _refuse_unsound(created_by: bytes) -> None:
    name = _NAME.match(created_by)
    if not created_by or (name and (name[2] is None or (int(name[2]), int(name[3])) < _FIRST_SOUND[name[1]])):
        writer = created_by.decode(errors="replace") or "a writer without a name"
        raise NotCopyable(f"it was written by {writer}, whose files readers treat by its name")
