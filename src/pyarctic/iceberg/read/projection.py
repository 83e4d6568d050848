"""Projection of the rows of a file to the schema of the table, column by column and by field id.

Renames, reorders, drops, additions (with default), promotions and changes inside structs, lists and maps are resolved
once per file, when the projection is created; applying it does not copy columns that need no conversion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import MappedField, NameMapping
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)

from pyarctic.errors import Damaged, Unsupported

Convert = Callable[[pa.Array], pa.Array]
Mappings = Sequence[MappedField] | None

_PARQUET_ID, _ORC_ID = b"PARQUET:field_id", b"iceberg.id"
_PRIMITIVES: dict[type[IcebergType], pa.DataType] = {
    BooleanType: pa.bool_(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    FloatType: pa.float32(),
    DoubleType: pa.float64(),
    DateType: pa.date32(),
    TimeType: pa.time64("us"),
    TimestampType: pa.timestamp("us"),
    TimestamptzType: pa.timestamp("us", "UTC"),
    TimestampNanoType: pa.timestamp("ns"),
    TimestamptzNanoType: pa.timestamp("ns", "UTC"),
    StringType: pa.string(),
    BinaryType: pa.binary(),
    UUIDType: pa.binary(16),
    UnknownType: pa.null(),
}


def arrow_type(type_: IcebergType) -> pa.DataType:
    """The Arrow type in which values of an Iceberg type are read."""
    match type_:
        case DecimalType():
            return pa.decimal128(type_.precision, type_.scale)
        case FixedType():
            return pa.binary(len(type_))
        case StructType():
            return pa.struct([arrow_field(field) for field in type_.fields])
        case ListType():
            return pa.list_(arrow_field(type_.element_field))
        case MapType():
            return pa.map_(arrow_field(type_.key_field), arrow_field(type_.value_field))
    try:
        return _PRIMITIVES[type(type_)]
    except KeyError:
        raise Unsupported(
            f"columns of type {type_} cannot be read or written",
            hint="Scan the other columns. Only another engine can read, write and rewrite such a column.",
            type=str(type_),
        ) from None


def is_decodable(type_: IcebergType) -> bool:
    """Whether values of an Iceberg type can be read and written."""
    try:
        arrow_type(type_)
    except Unsupported:
        return False
    return True


def arrow_field(field: NestedField) -> pa.Field:
    """The Arrow field in which values of a field are read."""
    with naming_column(field.name):
        return pa.field(field.name, arrow_type(field.field_type), nullable=field.optional)


@contextmanager
def naming_column(name: str) -> Iterator[None]:
    """Name the column in the error if its type, or that of a field within it, is not supported."""
    try:
        yield
    except Unsupported as error:
        column = ".".join(filter(None, (name, error.facts.get("column"))))
        type_ = error.facts["type"]
        raise Unsupported(
            f"column {column!r} of type {type_} cannot be read or written", hint=error.hint, column=column, type=type_
        ) from None


def arrow_schema(fields: Iterable[NestedField]) -> pa.Schema:
    """The Arrow schema in which rows with these fields are read."""
    return pa.schema([arrow_field(field) for field in fields])


@dataclass(frozen=True, slots=True, kw_only=True)
class FileField:
    """A field of a file: its index among its siblings, and the name mapping of its children if the file has no ids."""

    index: int
    field: pa.Field
    child_names: Mappings


def fields_by_id(fields: Iterable[pa.Field], names: Mappings) -> dict[int, FileField]:
    """Field id → field. Ids are read from the file, or else taken from the table's name mapping."""
    by_id: dict[int, FileField] = {}
    for index, field in enumerate(fields):
        metadata = field.metadata or {}
        raw = metadata.get(_PARQUET_ID, metadata.get(_ORC_ID))
        mapped = next((m for m in names or () if field.name in m.names), None)
        field_id = int(raw) if raw is not None else mapped.field_id if mapped is not None else None
        if field_id is not None:
            child_names = mapped.fields if mapped is not None else None
            by_id[field_id] = FileField(index=index, field=field, child_names=child_names)
    return by_id


def names_for(schema: pa.Schema, mapping: NameMapping | None) -> Mappings:
    """The name mapping for a file: none if it has ids, else that of the table, else by position as in Iceberg Java."""
    if _has_ids(schema):
        return None
    if mapping is not None:
        return mapping.root
    by_position = enumerate(schema.names, start=1)
    return [MappedField.model_validate({"field-id": number, "names": [name]}) for number, name in by_position]


def _has_ids(fields: Iterable[pa.Field]) -> bool:
    return any(
        _PARQUET_ID in (field.metadata or {}) or _ORC_ID in (field.metadata or {}) or _has_ids(children(field.type))
        for field in fields
    )


def children(type_: pa.DataType) -> list[pa.Field]:
    """The child fields of a nested type."""
    if pa.types.is_map(type_):
        return [type_.key_field, type_.item_field]
    return [type_.field(index) for index in range(type_.num_fields)] if pa.types.is_nested(type_) else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """Converts batches of one file to batches of `schema`."""

    schema: pa.Schema
    columns: tuple[tuple[int | None, Convert | None, Any], ...]
    """For each column its index in the file and its conversion, if any; or no index, and the value of all its rows."""

    @classmethod
    def of(
        cls, source: pa.Schema, names: Mappings, wanted: Schema | Sequence[NestedField], constants: Mapping[int, Any]
    ) -> Projection:
        """`constants`: values of identity-partitioned columns, which a file need not contain."""
        fields = wanted.fields if isinstance(wanted, Schema) else tuple(wanted)
        file_fields = fields_by_id(source, names)
        columns: list[tuple[int | None, Convert | None, Any]] = []
        target_fields: list[pa.Field] = []
        for field in fields:
            target = arrow_field(field)
            file_field = file_fields.get(field.field_id)
            if file_field is None:
                columns.append((None, None, _missing_value(field, constants)))
            elif is_dictionary_of(file_field.field.type, target.type):
                target = target.with_type(file_field.field.type)
                columns.append((file_field.index, None, None))
            else:
                convert = _conversion(file_field.field.type, file_field.child_names, field.field_type)
                columns.append((file_field.index, convert, None))
            target_fields.append(target)
        return cls(schema=pa.schema(target_fields), columns=tuple(columns))

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a batch of the file."""
        arrays = []
        for (index, convert, value), field in zip(self.columns, self.schema, strict=True):
            if index is None:
                arrays.append(repeat_value(value, field.type, batch.num_rows))
            else:
                array = batch.column(index)
                arrays.append(convert(array) if convert else array)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def is_dictionary_of(type_: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a type is the dictionary encoding of the wanted type."""
    return bool(pa.types.is_dictionary(type_)) and type_.value_type.equals(wanted)


def _no_mask(rows: int) -> pa.Array:
    return pa.array(np.zeros(rows, dtype=bool))


def _missing_value(field: NestedField, constants: Mapping[int, Any]) -> Any:
    """The value of a field that is missing in the file, by the specification's column projection rules."""
    if field.field_id in constants:
        return constants[field.field_id]
    if field.initial_default is not None:
        return field.initial_default
    if field.required:
        raise Damaged(
            f"required column {field.name!r} (id {field.field_id}) is missing in the file and has no default",
            hint="The file was written with another schema, or its writer lost the column ids.",
            column=field.name,
        )
    return None


def repeat_value(value: Any, type_: pa.DataType, rows: int) -> pa.Array:
    """A column with the same value in all rows, such as the default of a field."""
    if value is None:
        return pa.nulls(rows, type_)
    return pa.repeat(
        pa.scalar(getattr(value, "bytes", value) if pa.types.is_fixed_size_binary(type_) else value, type_), rows
    )


def _conversion(source: pa.DataType, names: Mappings, target: IcebergType) -> Convert | None:
    """The conversion of one column, or None if its values can be used as is."""
    match target:
        case StructType():
            return _struct_conversion(source, names, target)
        case ListType():
            return _list_conversion(source, names, target)
        case MapType():
            return _map_conversion(source, names, target)
    wanted = arrow_type(target)
    if source.equals(wanted):
        return None
    if pa.types.is_null(wanted):
        return lambda array: pa.nulls(len(array))
    return lambda array: _cast(array, wanted)


def _struct_conversion(source: pa.DataType, names: Mappings, target: StructType) -> Convert | None:
    inner = Projection.of(pa.schema(children(source)), names, target.fields, {})
    wanted = arrow_type(target)
    in_place = [index for index, _, _ in inner.columns] == list(range(source.num_fields))
    if in_place and source.equals(wanted) and not any(convert for _, convert, _ in inner.columns):
        return None

    def convert(array: pa.Array) -> pa.Array:
        children = [
            repeat_value(value, field.type, len(array))
            if index is None
            else (convert_child(array.field(index)) if convert_child else array.field(index))
            for (index, convert_child, value), field in zip(inner.columns, inner.schema, strict=True)
        ]
        mask = array.is_null() if array.null_count else _no_mask(len(array))
        return pa.StructArray.from_arrays(children, fields=list(inner.schema), mask=mask)

    return convert


def _list_conversion(source: pa.DataType, names: Mappings, target: ListType) -> Convert | None:
    element = _conversion(source.value_type, _child_names(names, "element"), target.element_type)
    wanted = arrow_type(target)
    if element is None and source.equals(wanted):
        return None

    def convert(array: pa.Array) -> pa.Array:
        array = _without_offset(array)
        values = element(array.values) if element else array.values
        return pa.ListArray.from_arrays(
            array.offsets.cast(pa.int32()), values, type=wanted, mask=array.is_null() if array.null_count else None
        )

    return convert


def _map_conversion(source: pa.DataType, names: Mappings, target: MapType) -> Convert | None:
    wanted = arrow_type(target)
    if pa.types.is_map(source):
        key_type, item_type = source.key_type, source.item_type
    else:  # as read from Avro: a list of (key, value) structs
        key_type, item_type = source.value_type.field(0).type, source.value_type.field(1).type
    key = _conversion(key_type, _child_names(names, "key"), target.key_type)
    item = _conversion(item_type, _child_names(names, "value"), target.value_type)
    if key is None and item is None and source.equals(wanted):
        return None

    def convert(array: pa.Array) -> pa.Array:
        array = _without_offset(array)
        pairs = (array.keys, array.items) if pa.types.is_map(array.type) else (array.values.field(0), array.values.field(1))
        keys, items = (change(values) if change else values for change, values in zip((key, item), pairs, strict=True))
        return pa.MapArray.from_arrays(
            array.offsets.cast(pa.int32()), keys, items, type=wanted, mask=array.is_null() if array.null_count else None
        )

    return convert


def _child_names(names: Mappings, name: str) -> Mappings:
    mapped = next((m for m in names or () if name in m.names), None)
    return mapped.fields if mapped is not None else None


def _without_offset(array: pa.Array) -> pa.Array:
    """Arrow refuses a null mask with sliced offsets; a copy starts at offset zero."""
    return array if array.offset == 0 else array.take(pa.array(np.arange(len(array))))


def _cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
        if array.type.equals(wanted):
            return array
    if pa.types.is_decimal(wanted) and (pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type)):
        return _decimal_from_bytes(array, wanted)
    # INT96 and nanosecond timestamps are truncated to microseconds, as in Iceberg Java.
    return pc.cast(array, wanted, safe=not pa.types.is_timestamp(wanted))


def _decimal_from_bytes(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Avro's decimals are big-endian two's complement bytes; Arrow's are 16 little-endian ones."""
    array = array.cast(pa.binary())
    length = max(pc.max(pc.binary_length(array)).as_py() or 1, 1)
    sign = pc.if_else(pc.greater_equal(pc.binary_slice(array, 0, 1), b"\x80"), b"\xff", b"\x00")
    missing = pc.subtract(length, pc.binary_length(array))
    padded = pc.binary_join_element_wise(pc.binary_repeat(sign, missing), array, b"")
    filled = pc.fill_null(padded, bytes(length)).cast(pa.binary(length))
    raw = np.frombuffer(filled.buffers()[1], dtype=np.uint8)[: len(array) * length].reshape(len(array), length)
    wide = np.repeat((raw[:, :1] >> 7) * np.uint8(255), 16, axis=1)
    wide[:, 16 - min(length, 16) :] = raw[:, -16:]
    data = pa.py_buffer(np.ascontiguousarray(wide[:, ::-1]).tobytes())
    decimals = pa.Array.from_buffers(wanted, len(array), [None, data])
    return pc.if_else(array.is_valid(), decimals, pa.scalar(None, wanted))
