"""Parsing Parquet footers as far as moving row groups needs: sizes, schema, and all offsets in the file."""

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

_DROPPED_KEYS = frozenset(
    {b"ARROW:schema", b"org.apache.spark.sql.parquet.row.metadata", b"pandas", b"parquet.avro.schema", b"avro.schema"}
)
"""Schemas in formats of certain writers. Their readers would prefer them to the schema of the file."""

_WRITER_NAME = re.compile(rb"(parquet-mr|parquet-cpp)(?![-\w])(?: version (\d+)\.(\d+))?")
_FIRST_CORRECT_VERSION = {b"parquet-mr": (1, 8), b"parquet-cpp": (2, 0)}
"""Readers recognize older versions by name and work around their bugs: sizes without the dictionary's header (PARQUET-816),
deltas across pages (PARQUET-246), bounds of strings (PARQUET-251), compressed pages marked as uncompressed (ARROW-10353).
With another writer's name in the footer their pages would be misread. parquet-cpp has since become parquet-cpp-arrow."""

_FIRST_PAGE_OFFSET = 4
"""After the magic bytes."""


class NotCopyable(ValueError):
    """Row groups of this file cannot be copied as is: decode and encode them instead."""


class Chunk(NamedTuple):
    """A column chunk: one column of a row group."""

    start: int
    end: int
    file_offset: int
    metadata: tuple[bytes, ...]
    """The encoded ColumnMetaData, split where it contains an offset."""
    offsets: tuple[int, ...]
    """The offsets between the parts of `metadata`. That of a bloom filter is the last one."""
    bloom: tuple[int, int | None] | None
    """Offset of the bloom filter, and its size if the footer has it."""
    column_index: tuple[int, int] | None
    offset_index: tuple[int, int] | None

    def encode_moved(self, start: int, bloom_start: int) -> bytes:
        """The encoded ColumnChunk for pages that begin at `start`, up to the offsets of its indexes, which follow later."""
        distance = start - self.start
        offsets = [offset + distance if offset > 0 else offset for offset in self.offsets]
        if self.bloom:
            offsets[-1] = bloom_start
        parts = [self.metadata[0]]
        for offset, part in zip(offsets, self.metadata[1:], strict=True):
            parts += [encode_number(offset), part]
        # Some writers put a copy of the metadata after the chunk and point there; it is not copied.
        file_offset = self.file_offset + distance if self.start <= self.file_offset < self.end else 0
        return encode_fields(
            [(_CHUNK_FILE_OFFSET, I64, encode_number(file_offset)), (_CHUNK_METADATA, STRUCT, b"".join(parts))]
        )


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group of a file."""

    rows: int
    compressed_bytes: int
    """The size of its pages, which copying reads and writes."""
    uncompressed_bytes: int
    sorting: tuple[int, bytes] | None
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class ParquetSchema:
    """The schema of a file. Row groups of equal schemas may be in one file; the name of the root, which is unused, may
    differ."""

    root: tuple[tuple[int, int, bytes], ...] = field(compare=False, repr=False)
    columns: int
    """The number of top-level columns."""
    elements: int
    """The number of schema elements without the root."""
    encoded_elements: bytes = field(repr=False)
    leaves: int
    encoded_orders: bytes | None = field(repr=False)
    """The ColumnOrder of each leaf, which tells how its statistics compare; None if the footer has none."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the top-level columns."""
        return tuple(name for name, _ in self.fields)

    @property
    def fields(self) -> tuple[tuple[str, int | None], ...]:
        """Names and field ids of the top-level columns."""
        return _top_level_fields(self.columns, self.encoded_elements)

    def beside(self, other: ParquetSchema) -> ParquetSchema:
        """These columns followed by those of the other schema."""
        if duplicates := set(self.names) & set(other.names):
            raise NotCopyable(f"column {min(duplicates)!r} is there already")
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
        """The schema without its last column, which must not be nested."""
        *_, last = _struct_offsets(self.encoded_elements, self.elements)
        if _child_count(self.encoded_elements, read_struct(self.encoded_elements, last)[0]) or self.columns < 2:
            raise NotCopyable("its last column cannot be dropped")
        orders = self.encoded_orders
        return replace(
            self,
            columns=self.columns - 1,
            elements=self.elements - 1,
            encoded_elements=self.encoded_elements[:last],
            leaves=max(self.leaves - 1, 0),
            encoded_orders=None if orders is None else orders[: _struct_offsets(orders, self.leaves)[-1]],
        )

    def encode(self) -> bytes:
        """The encoded list of schema elements."""
        others = [part for part in self.root if part[0] != _ELEMENT_CHILD_COUNT]
        root = sorted([*others, (_ELEMENT_CHILD_COUNT, I32, encode_number(self.columns))])
        return encode_list([encode_fields(root), b"\0", self.encoded_elements], self.elements + 1)


@dataclass(frozen=True, slots=True)
class Footer:
    """The footer of a file."""

    version: int
    schema: ParquetSchema
    groups: tuple[RowGroup, ...]
    key_values: tuple[bytes, ...]
    """The encoded key-value metadata that may be kept."""

    def without_last(self) -> Footer:
        """The footer without the last column."""
        groups = [
            replace(
                group,
                compressed_bytes=group.compressed_bytes - (group.chunks[-1].end - group.chunks[-1].start),
                sorting=None,
                chunks=group.chunks[:-1],
            )
            for group in self.groups
        ]
        kept = tuple(pair for pair in self.key_values if key_of(pair) != ICEBERG_SCHEMA_KEY)
        return replace(self, schema=self.schema.without_last(), groups=tuple(groups), key_values=kept)


ICEBERG_SCHEMA_KEY = b"iceberg.schema"
"""Key of the writer's schema as JSON, which is wrong once columns are added or dropped."""
# Field ids of the Thrift structs SchemaElement, ColumnChunk and ColumnMetaData.
_ELEMENT_NAME, _ELEMENT_CHILD_COUNT, _ELEMENT_FIELD_ID = 4, 5, 9
_CHUNK_FILE_PATH, _CHUNK_FILE_OFFSET, _CHUNK_METADATA, _CHUNK_OFFSET_INDEX, _CHUNK_COLUMN_INDEX = 1, 2, 3, 4, 6
_CODEC, _TOTAL_COMPRESSED_SIZE, _BLOOM_OFFSET, _BLOOM_LENGTH = 4, 7, 14, 15
_DATA_PAGE_OFFSET, _INDEX_PAGE_OFFSET, _DICTIONARY_PAGE_OFFSET = 9, 10, 11
_PAGE_OFFSETS = (_DATA_PAGE_OFFSET, _INDEX_PAGE_OFFSET, _DICTIONARY_PAGE_OFFSET)


def parse_footer(data: bytes, data_end: int) -> Footer:
    """Parse a footer. `data_end`: the end of the pages. Invalid data raises what `thrift` raises, or KeyError."""

    def parse_chunk(data: bytes, position: int) -> tuple[Chunk, int]:
        return _parse_chunk(data, position, data_end)

    def parse_group(data: bytes, position: int) -> tuple[RowGroup, int]:
        fields, end = read_struct(data, position, {1: lambda data, position: read_list(data, position, parse_chunk)})
        return _to_row_group(data, fields), end

    parsers = {
        2: _parse_schema_elements,
        4: lambda data, position: read_list(data, position, parse_group),
        5: lambda data, position: read_list(data, position, _parse_raw_struct),
        7: _parse_column_orders,
    }
    fields, _ = read_struct(data, 0, parsers)
    if not {1, 2, 3, 4} <= fields.keys():
        raise ValueError("its footer lacks required fields")
    _refuse_unknown_fields(fields, 7, "the file")  # 8 and 9 are about encryption
    _refuse_incorrect_writers(binary(data, fields[6]) if 6 in fields else b"")
    root, elements, encoded_elements = fields[2]
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
            columns=_child_count(data, root),
            elements=elements,
            encoded_elements=encoded_elements,
            leaves=leaves,
            encoded_orders=orders,
        ),
        groups=tuple(groups),
        key_values=tuple(pair for pair in fields.get(5, ()) if key_of(pair) not in _DROPPED_KEYS),
    )


def key_of(pair: bytes) -> bytes:
    """The key of an encoded key-value pair."""
    fields, _ = read_struct(pair, 0)
    return binary(pair, fields[1])


def _to_row_group(data: bytes, fields: dict[int, Any]) -> RowGroup:
    _refuse_unknown_fields(fields, 7, "a row group")
    chunks: list[Chunk] = fields[1]
    kind, start, end = fields.get(4, (0, 0, 0))
    return RowGroup(
        rows=number(data, fields[3]),
        compressed_bytes=sum(chunk.end - chunk.start for chunk in chunks),
        uncompressed_bytes=number(data, fields[2]),
        sorting=(kind, data[start:end]) if end else None,
        chunks=tuple(chunks),
    )


def _parse_chunk(data: bytes, position: int, data_end: int) -> tuple[Chunk, int]:
    fields, end = read_struct(data, position, _CHUNK_PARSERS)
    if _CHUNK_FILE_PATH in fields:
        raise NotCopyable("it keeps columns in other files")
    _refuse_unknown_fields(fields, 7, "a column")  # 8 and 9 are for encryption
    if _CHUNK_METADATA not in fields:
        raise NotCopyable("it keeps the metadata of columns outside of its footer")
    metadata, metadata_start, metadata_end = fields[_CHUNK_METADATA]
    _refuse_unknown_fields(metadata, 17, "a column")
    if _CODEC not in metadata:
        raise ValueError("the metadata of a column lacks its codec")
    spans = sorted([metadata[key] for key in _PAGE_OFFSETS if key in metadata], key=_span_start)
    bloom = _bloom_filter(data, metadata, data_end)
    if bloom is not None:
        bloom_span = metadata[_BLOOM_OFFSET]
        if spans and bloom_span[1] < spans[-1][1]:
            raise ValueError("the offset of a bloom filter comes before that of its pages")
        spans.append(bloom_span)
    start, pages_end = _page_range(data, metadata, data_end)
    chunk = Chunk(
        start=start,
        end=pages_end,
        file_offset=number(data, fields[_CHUNK_FILE_OFFSET]),
        metadata=tuple(_split_at(data, metadata_start, spans, metadata_end)),
        offsets=tuple([number(data, span) for span in spans]),
        bloom=bloom,
        column_index=_index_range(data, fields, _CHUNK_COLUMN_INDEX, data_end),
        offset_index=_index_range(data, fields, _CHUNK_OFFSET_INDEX, data_end),
    )
    return chunk, end


def _bloom_filter(data: bytes, metadata: dict[int, Any], data_end: int) -> tuple[int, int | None] | None:
    """The offset of the bloom filter, and its size if known."""
    if _BLOOM_OFFSET not in metadata or (offset := number(data, metadata[_BLOOM_OFFSET])) <= 0:
        return None
    length = number(data, metadata[_BLOOM_LENGTH]) if _BLOOM_LENGTH in metadata else 0
    if offset + length > data_end:
        raise ValueError("a bloom filter lies outside of the file")
    return offset, length if length > 0 else None


def _page_range(data: bytes, metadata: dict[int, Any], data_end: int) -> tuple[int, int]:
    """Where the pages begin and end."""
    offsets = [number(data, metadata[key]) for key in (_DATA_PAGE_OFFSET, _DICTIONARY_PAGE_OFFSET) if key in metadata]
    start = min((offset for offset in offsets if offset >= _FIRST_PAGE_OFFSET), default=_FIRST_PAGE_OFFSET)
    size = number(data, metadata[_TOTAL_COMPRESSED_SIZE])
    if size < 0 or start + size > data_end or _DATA_PAGE_OFFSET not in metadata:
        raise ValueError("a column lies outside of the file")
    return start, start + size


def _parse_chunk_metadata(data: bytes, position: int) -> tuple[tuple[dict[int, Any], int, int], int]:
    fields, end = read_struct(data, position)
    return (fields, position, end), end


_CHUNK_PARSERS = {3: _parse_chunk_metadata}


def _span_start(span: tuple[int, int, int]) -> int:
    return span[1]


def _split_at(data: bytes, start: int, spans: list[tuple[int, int, int]], end: int) -> Iterator[bytes]:
    for _, span_start, span_end in spans:
        yield data[start:span_start]
        start = span_end
    yield data[start:end]


def _index_range(data: bytes, fields: dict[int, Any], offset_id: int, data_end: int) -> tuple[int, int] | None:
    """Where a page index begins and ends. The field after its offset is its length."""
    if offset_id not in fields or offset_id + 1 not in fields:
        return None
    start, length = number(data, fields[offset_id]), number(data, fields[offset_id + 1])
    if start < _FIRST_PAGE_OFFSET or length <= 0:
        return None
    if start + length > data_end:
        raise ValueError("a page index lies outside of the file")
    return start, start + length


def _parse_raw_struct(data: bytes, position: int) -> tuple[bytes, int]:
    end = skip(data, position, STRUCT)
    return data[position:end], end


def _parse_schema_elements(data: bytes, position: int) -> tuple[tuple[dict[int, Any], int, bytes], int]:
    _, count, position = list_header(data, position)
    root, position = read_struct(data, position)
    start = position
    for _ in range(count - 1):
        position = skip(data, position, STRUCT)
    return (root, count - 1, data[start:position]), position


def _parse_column_orders(data: bytes, position: int) -> tuple[tuple[int, bytes], int]:
    _, count, position = list_header(data, position)
    start = position
    for _ in range(count):
        position = skip(data, position, STRUCT)
    return (count, data[start:position]), position


def _struct_offsets(data: bytes, count: int) -> list[int]:
    """The offsets of `count` consecutive structs."""
    offsets, position = [], 0
    for _ in range(count):
        offsets.append(position)
        position = skip(data, position, STRUCT)
    return offsets


@lru_cache(maxsize=64)
def _top_level_fields(columns: int, elements: bytes) -> tuple[tuple[str, int | None], ...]:
    fields: list[tuple[str, int | None]] = []
    position = 0
    for _ in range(columns):
        column, position = read_struct(elements, position)
        field_id = number(elements, column[_ELEMENT_FIELD_ID]) if _ELEMENT_FIELD_ID in column else None
        fields.append((binary(elements, column[_ELEMENT_NAME]).decode(), field_id))
        remaining = _child_count(elements, column)
        while remaining:  # they follow in depth-first order
            element, position = read_struct(elements, position)
            remaining += _child_count(elements, element) - 1
    return tuple(fields)


def _child_count(data: bytes, element: dict[int, Any]) -> int:
    return number(data, element[_ELEMENT_CHILD_COUNT]) if _ELEMENT_CHILD_COUNT in element else 0


def _refuse_unknown_fields(fields: dict[int, Any], last: int, what: str) -> None:
    # An unknown field may be an offset in the file, which would have to be moved.
    if fields and max(fields) > last:
        raise NotCopyable(f"it is encrypted, or {what} has metadata unknown to PyArctic (field {max(fields)})")


def _refuse_incorrect_writers(created_by: bytes) -> None:
    name = _WRITER_NAME.match(created_by)
    if not created_by or (name and (name[2] is None or (int(name[2]), int(name[3])) < _FIRST_CORRECT_VERSION[name[1]])):
        writer = created_by.decode(errors="replace") or "an unnamed writer"
        raise NotCopyable(f"it was written by {writer}, whose files readers treat by its name")
