"""Thrift's compact protocol, as used in Parquet footers: the byte spans of the fields of a struct, and encoding of structs.

When a row group is moved, only the offsets in its footer change. So nothing is decoded into objects: a struct is a map of
spans, a few numbers are replaced in it, and everything else is copied as is, including fields of later format versions.

Invalid data raises ValueError or IndexError, or RecursionError if structs are nested too deeply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

I16, I32, I64, BINARY, LIST, STRUCT = 4, 5, 6, 8, 9, 12
_TRUE, _FALSE, _BYTE = 1, 2, 3

Span = tuple[int, int, int]
"""The type of a value, its first position, and the position after it."""

Parser = Callable[[bytes, int], tuple[Any, int]]
"""Parses the value at a position; returns it and the position after it."""

_NO_PARSERS: Mapping[int, Parser] = {}
_MAX_SHIFT = 63
"""The shift of the last group of seven bits in a 64-bit number, which has ten."""


def read_struct(data: bytes, position: int, parsers: Mapping[int, Parser] = _NO_PARSERS) -> tuple[dict[int, Any], int]:
    """The spans of the fields of a struct by id, and the position after it. Fields in `parsers` are parsed by these
    functions and have their results instead, so that nested values are read only once."""
    fields: dict[int, Any] = {}
    field_id = 0
    while header := data[position]:
        position += 1
        if header > 15:
            field_id += header >> 4
        else:
            field_id, position = read_number(data, position)
        kind = header & 15
        start = position
        if field_id in parsers:
            if kind not in (STRUCT, LIST):
                raise ValueError(f"field {field_id} is of type {kind}")
            fields[field_id], position = parsers[field_id](data, position)
        elif I16 <= kind <= I64:  # most fields are numbers: a function call for each would take half of the time
            while data[position] > 127:
                position += 1
            position += 1
            fields[field_id] = (kind, start, position)
        else:
            position = skip(data, position, kind)
            fields[field_id] = (kind, start, position)
    return fields, position + 1


def read_list(data: bytes, position: int, parse_element: Parser) -> tuple[list[Any], int]:
    """The structs of a list, each parsed by `parse_element`, and the position after it."""
    kind, count, position = list_header(data, position)
    if kind != STRUCT and count:
        raise ValueError(f"a list has elements of type {kind} instead of structs")
    values = []
    for _ in range(count):
        value, position = parse_element(data, position)
        values.append(value)
    return values, position


def list_header(data: bytes, position: int) -> tuple[int, int, int]:
    """The type of a list's elements, their number, and the position of the first one."""
    header = data[position]
    if header < 0xF0:
        return header & 15, header >> 4, position + 1
    count, position = _read_unsigned(data, position + 1)
    return header & 15, count, position


def read_number(data: bytes, position: int) -> tuple[int, int]:
    """A signed number, and the position after it."""
    value, position = _read_unsigned(data, position)
    return (value >> 1) ^ -(value & 1), position


def number(data: bytes, span: Span) -> int:
    """Decode the number in a span."""
    if not I16 <= span[0] <= I64:
        raise ValueError(f"type {span[0]} is not a number")
    value = data[span[1]]
    if value > 127:
        value, _ = _read_unsigned(data, span[1])
    return (value >> 1) ^ -(value & 1)


def binary(data: bytes, span: Span) -> bytes:
    """The bytes of a binary or string in a span."""
    if span[0] != BINARY:
        raise ValueError(f"type {span[0]} is not binary")
    _, start = _read_unsigned(data, span[1])
    return data[start : span[2]]


def skip(data: bytes, position: int, kind: int) -> int:
    """The position after a value of a type."""
    return _SKIP_BY_TYPE[kind](data, position)


def _skip_number(data: bytes, position: int) -> int:
    while data[position] > 127:
        position += 1
    return position + 1


def _skip_binary(data: bytes, position: int) -> int:
    length = data[position]
    if length < 128:
        return position + 1 + length
    length, position = _read_unsigned(data, position)
    return position + length


def _skip_struct(data: bytes, position: int) -> int:
    while header := data[position]:
        position += 1
        if header < 16:
            _, position = _read_unsigned(data, position)
        kind = header & 15
        if I16 <= kind <= I64:
            while data[position] > 127:
                position += 1
            position += 1
        else:
            position = _SKIP_BY_TYPE[kind](data, position)
    return position + 1


def _skip_list(data: bytes, position: int) -> int:
    kind, count, position = list_header(data, position)
    if kind in (_TRUE, _FALSE, _BYTE):
        return position + count
    skip_element = _SKIP_BY_TYPE[kind]
    for _ in range(count):
        position = skip_element(data, position)
    return position


def _skip_map(data: bytes, position: int) -> int:
    count, position = _read_unsigned(data, position)
    if not count:
        return position
    kinds = data[position]
    position += 1
    for _ in range(count):
        for kind in (kinds >> 4, kinds & 15):
            position = position + 1 if kind in (_TRUE, _FALSE) else skip(data, position, kind)
    return position


def _skip_nothing(_: bytes, position: int) -> int:
    return position


def _skip_byte(_: bytes, position: int) -> int:
    return position + 1


def _skip_double(_: bytes, position: int) -> int:
    return position + 8


def _refuse_type(_: bytes, position: int) -> int:
    raise ValueError(f"unknown type at byte {position}")


_SKIP_BY_TYPE: tuple[Callable[[bytes, int], int], ...] = (
    _refuse_type,
    _skip_nothing,  # true: the type of a boolean field is its value; only in lists and maps it takes a byte
    _skip_nothing,  # false
    _skip_byte,
    _skip_number,  # 16 bits
    _skip_number,  # 32 bits
    _skip_number,  # 64 bits
    _skip_double,
    _skip_binary,
    _skip_list,
    _skip_list,  # sets are encoded as lists
    _skip_map,
    _skip_struct,
    _refuse_type,
    _refuse_type,
    _refuse_type,
)


def encode_number(value: int) -> bytes:
    """Encode a signed number."""
    value = (value << 1) ^ (value >> 63)
    if value < 128:
        return bytes((value,))
    return _encode_unsigned(value)


def encode_binary(value: bytes) -> bytes:
    """Encode bytes or the UTF-8 bytes of a string."""
    return _encode_unsigned(len(value)) + value


def encode_list(elements: Iterable[bytes], count: int) -> bytes:
    """Encode a list of `count` structs. `elements` are their encoded bytes, in any number of parts."""
    header = bytes((count << 4 | STRUCT,)) if count < 15 else bytes((0xF0 | STRUCT,)) + _encode_unsigned(count)
    return header + b"".join(elements)


def encode_fields(fields: Iterable[tuple[int, int, bytes]], last_id: int = 0) -> bytes:
    """Encode fields (id, type, value) in the order of their ids, to follow the field `last_id`. The zero byte that ends a
    struct is not included."""
    parts = []
    for field_id, kind, value in fields:
        if not 0 < field_id - last_id < 16:
            raise ValueError(f"field {field_id} cannot follow field {last_id}")
        parts += [bytes(((field_id - last_id) << 4 | kind,)), value]
        last_id = field_id
    return b"".join(parts)


def _read_unsigned(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
        if shift > _MAX_SHIFT:
            raise ValueError("a number has more than 64 bits")


def _encode_unsigned(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
