"""Thrift's compact protocol, as Parquet's footers use it: where the fields of a struct lie, and structs made of such spans.

Little of a footer changes when a row group is moved: its offsets. So nothing is decoded into objects; a struct is a map of
spans, a few numbers are replaced in it, and all else is copied as it is, fields of later versions of the format included.

What is not Thrift raises ValueError or IndexError, or RecursionError where structs are nested without end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

I16, I32, I64, BINARY, LIST, STRUCT = 4, 5, 6, 8, 9, 12
_TRUE, _FALSE, _BYTE, _DOUBLE, _SET, _MAP = 1, 2, 3, 7, 10, 11

Span = tuple[int, int, int]
"""The type of a value, where it begins, and where it ends."""

Inner = Callable[[bytes, int], tuple[Any, int]]
"""Reads a value at a position; gives it and the position behind it."""

_NO_INNER: Mapping[int, Inner] = {}
_MOST_SHIFT = 63
"""A number of 64 bits has ten groups of seven: the last is shifted by so much."""


def read_struct(data: bytes, position: int, inner: Mapping[int, Inner] = _NO_INNER) -> tuple[dict[int, Any], int]:
    """The spans of a struct's fields by id. A field in `inner` is read by that function instead, and its value is given: no
    byte is looked at twice, however deep it lies."""
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
        if field_id in inner:
            if kind not in (STRUCT, LIST):
                raise ValueError(f"field {field_id} is of type {kind}")
            fields[field_id], position = inner[field_id](data, position)
        elif I16 <= kind <= I64:  # most fields are numbers: a call for each would take half of the time
            while data[position] > 127:
                position += 1
            position += 1
            fields[field_id] = (kind, start, position)
        else:
            position = skip(data, position, kind)
            fields[field_id] = (kind, start, position)
    return fields, position + 1


def read_list(data: bytes, position: int, element: Inner) -> tuple[list[Any], int]:
    """The structs of a list, each read by `element`."""
    kind, count, position = list_header(data, position)
    if kind != STRUCT and count:
        raise ValueError(f"a list holds type {kind} instead of structs")
    found = []
    for _ in range(count):
        value, position = element(data, position)
        found.append(value)
    return found, position


def list_header(data: bytes, position: int) -> tuple[int, int, int]:
    """The type of a list's elements, their number, and where the first begins."""
    header = data[position]
    if header < 0xF0:
        return header & 15, header >> 4, position + 1
    count, position = _unsigned(data, position + 1)
    return header & 15, count, position


def read_number(data: bytes, position: int) -> tuple[int, int]:
    """A signed number, and the position behind it."""
    value, position = _unsigned(data, position)
    return (value >> 1) ^ -(value & 1), position


def number(data: bytes, span: Span) -> int:
    """The number that a span holds."""
    if not I16 <= span[0] <= I64:
        raise ValueError(f"type {span[0]} is not a number")
    value = data[span[1]]
    if value > 127:
        value, _ = _unsigned(data, span[1])
    return (value >> 1) ^ -(value & 1)


def binary(data: bytes, span: Span) -> bytes:
    """The text or bytes that a span holds."""
    if span[0] != BINARY:
        raise ValueError(f"type {span[0]} is not binary")
    _, start = _unsigned(data, span[1])
    return data[start : span[2]]


def skip(data: bytes, position: int, kind: int) -> int:
    """The position behind a value."""
    if I16 <= kind <= I64:
        while data[position] > 127:
            position += 1
        return position + 1
    if kind == BINARY:
        length = data[position]
        if length < 128:
            return position + 1 + length
        length, position = _unsigned(data, position)
        return position + length
    if kind == STRUCT:
        while header := data[position]:
            position += 1
            if header < 16:
                _, position = _unsigned(data, position)
            kind = header & 15
            if I16 <= kind <= I64:
                while data[position] > 127:
                    position += 1
                position += 1
            else:
                position = skip(data, position, kind)
        return position + 1
    if kind in (LIST, _SET):
        element, count, position = list_header(data, position)
        if element in (_TRUE, _FALSE, _BYTE):
            return position + count
        if I16 <= element <= I64:
            for _ in range(count):
                while data[position] > 127:
                    position += 1
                position += 1
            return position
        for _ in range(count):
            position = skip(data, position, element)
        return position
    if kind in (_TRUE, _FALSE):  # a field's type is its value; in lists, see above, it takes a byte
        return position
    if kind == _BYTE:
        return position + 1
    if kind == _DOUBLE:
        return position + 8
    if kind == _MAP:
        return _skip_map(data, position)
    raise ValueError(f"no type {kind}")


def encode_number(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    if value < 128:
        return bytes((value,))
    return _encode_unsigned(value)


def encode_binary(value: bytes) -> bytes:
    return _encode_unsigned(len(value)) + value


def encode_list(elements: Iterable[bytes], count: int) -> bytes:
    """A list of `count` structs that are encoded already, in as many pieces as you like."""
    header = bytes((count << 4 | STRUCT,)) if count < 15 else bytes((0xF0 | STRUCT,)) + _encode_unsigned(count)
    return header + b"".join(elements)


def encode_fields(fields: Iterable[tuple[int, int, bytes]], last_id: int = 0) -> bytes:
    """Fields (id, type, value) in the order of their ids, to stand behind the field `last_id`; a zero byte ends a struct."""
    pieces = []
    for field_id, kind, value in fields:
        if not 0 < field_id - last_id < 16:
            raise ValueError(f"field {field_id} cannot stand behind {last_id}")
        pieces += [bytes(((field_id - last_id) << 4 | kind,)), value]
        last_id = field_id
    return b"".join(pieces)


def _unsigned(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
        if shift > _MOST_SHIFT:
            raise ValueError("a number has more than 64 bits")


def _encode_unsigned(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _skip_map(data: bytes, position: int) -> int:
    count, position = _unsigned(data, position)
    if not count:
        return position
    kinds = data[position]
    position += 1
    for _ in range(count):
        for kind in (kinds >> 4, kinds & 15):
            position = position + 1 if kind in (_TRUE, _FALSE) else skip(data, position, kind)
    return position
