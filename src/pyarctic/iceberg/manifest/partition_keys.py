"""Partition keys of a file list, decoded: typed values, readable paths, constants of identity-partitioned columns."""

from __future__ import annotations

import json
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any
from urllib.parse import quote
from uuid import UUID

import polars as pl
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform, VoidTransform
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
    LongType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

INTEGER_TYPES = (
    IntegerType,
    LongType,
    DateType,
    TimeType,
    TimestampType,
    TimestamptzType,
    TimestampNanoType,
    TimestamptzNanoType,
)
"""Types whose values are stored as integers."""

PARTITION_KEY = ["spec_id", "partition"]
"""Columns of a file list that identify a partition."""

LOST_VALUE = False
"""In a partition key: the value is not known any more (see FILE_SCHEMA)."""

EXACT_DECIMALS = Context(prec=38)
"""The default decimal context would round large numbers to 28 digits."""


def find_lost_values(files: pl.DataFrame) -> list[tuple[int, str, set[int]]]:
    """The partitions of files that have lost values: spec, key, and the positions of the values in the key."""
    suspects = files.select(PARTITION_KEY).unique().filter(pl.col("partition").str.contains("false", literal=True))
    found = [
        (spec_id, key, {position for position, value in enumerate(json.loads(key)) if value is LOST_VALUE})
        for spec_id, key in suspects.iter_rows()
    ]
    return [partition for partition in found if partition[2]]


class PartitionDecoder:
    """Decodes the `partition` column of a table's file list, for all partition specs the table has had.

    PartitionDecoder(metadata).path(row["spec_id"], row["partition"])  # "day=2024-01-01/bucket=3"
    """

    def __init__(self, metadata: TableMetadata) -> None:
        self._specs = metadata.specs()
        newest_first = sorted(metadata.schemas, key=lambda s: (s.schema_id == metadata.current_schema_id, s.schema_id))
        self._schemas: list[Schema] = newest_first[::-1]
        self._decode = lru_cache(maxsize=10_000)(self._decode_uncached)

    def unpartitioned_specs(self) -> list[int]:
        """Specs without (live) partition fields: their equality deletes are global. A field dropped in format version 1
        stays in the spec with the void transform."""
        return [
            spec_id
            for spec_id, spec in self._specs.items()
            if all(isinstance(field.transform, VoidTransform) for field in spec.fields)
        ]

    def unwritable_specs(self) -> list[int]:
        """Specs that no file can be added to: the type of a field is not known any more."""
        return [
            spec_id for spec_id, spec in self._specs.items() if any(self.result_type(field) is None for field in spec.fields)
        ]

    def lost_partitions(self, files: pl.DataFrame) -> pl.DataFrame:
        """The partitions of files that rows cannot be written to again, as PARTITION_KEY: a value or its type is not known
        any more."""
        keys = files.select(PARTITION_KEY).unique()
        lost = [(spec_id, key) for spec_id, key, _ in find_lost_values(keys)]
        of_unwritable_specs = keys.filter(pl.col("spec_id").is_in(self.unwritable_specs()))
        return pl.concat([pl.DataFrame(lost, keys.schema, orient="row"), of_unwritable_specs]).unique()

    def values(self, spec_id: int, key: str) -> tuple[Any, ...]:
        """The partition tuple in Iceberg's internal representation (days, microseconds …)."""
        return self._decode(spec_id, key)

    @staticmethod
    def key_of(values: tuple[Any, ...]) -> str:
        """Encode a partition tuple as a key that `values` decodes."""
        return json.dumps([None if value is None else _to_text(value) for value in values])

    def path(self, spec_id: int, key: str) -> str:
        """The partition as a readable path: `day=2024-01-01/bucket=3`; empty if unpartitioned."""
        return self.path_of(spec_id, self.values(spec_id, key))

    def path_of(self, spec_id: int, values: tuple[Any, ...]) -> str:
        """The same for a partition tuple."""
        parts = []
        for field, value in zip(self._specs[spec_id].fields, values, strict=True):
            text = "null" if value is None else quote(_to_human_text(field, self._source_type(field), value), safe=" :")
            parts.append(f"{quote(field.name, safe='')}={text}")
        return "/".join(parts)

    def constants(self, spec_id: int, key: str) -> dict[int, Any]:
        """Values of identity-partitioned columns by field id: files of the partition need not contain these columns."""
        return {
            field.source_id: value
            for field, value in zip(self._specs[spec_id].fields, self.values(spec_id, key), strict=True)
            if isinstance(field.transform, IdentityTransform)
        }

    def _decode_uncached(self, spec_id: int, key: str) -> tuple[Any, ...]:
        fields = self._specs[spec_id].fields
        return tuple(_from_text(text, self.result_type(field)) for field, text in zip(fields, json.loads(key), strict=True))

    def _source_type(self, field: PartitionField) -> IcebergType | None:
        for schema in self._schemas:
            try:
                return schema.find_type(field.source_id)
            except ValueError:
                continue
        return None  # the column was dropped, and no remaining schema has it

    def result_type(self, field: PartitionField) -> IcebergType | None:
        """The type of a partition field's values; None if its column was dropped and no remaining schema has it."""
        source = self._source_type(field)
        return None if source is None else field.transform.result_type(source)


def _to_human_text(field: PartitionField, source: IcebergType | None, value: Any) -> str:
    if source is None:
        return str(value)
    if isinstance(value, bytes) and isinstance(source, UUIDType):
        return str(UUID(bytes=value))
    return str(field.transform.to_human_string(source, value))


def _to_text(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case bytes():
            return value.hex()
        case UUID():
            return value.bytes.hex()
        case Decimal():
            unscaled = int(value.scaleb(-int(value.as_tuple().exponent), EXACT_DECIMALS))
            return unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True).hex()
    return str(value)


def _from_text(text: str | bool | None, type_: IcebergType | None) -> Any:
    if text is None or text is LOST_VALUE:
        return None
    text = str(text)
    if type_ is None or isinstance(type_, StringType):
        return text
    if isinstance(type_, INTEGER_TYPES):
        return int(text)
    if isinstance(type_, BooleanType):
        return text == "true"
    if isinstance(type_, FloatType | DoubleType):
        return float(text)
    if isinstance(type_, DecimalType):
        unscaled = int.from_bytes(bytes.fromhex(text), "big", signed=True)
        return Decimal(unscaled).scaleb(-type_.scale, EXACT_DECIMALS)
    if isinstance(type_, BinaryType | FixedType | UUIDType):
        return bytes.fromhex(text)
    return text


def partition_key(frame: pl.DataFrame, columns: list[str]) -> pl.Expr:
    """The partition key of manifest entries, from the columns of their partition tuple in spec order; names of decimal
    columns start with "decimal"."""
    if not columns:
        return pl.lit("[]").alias("partition")
    texts: list[pl.Expr | None] = []
    for name in columns:
        value = pl.col(name)
        if frame.schema[name] == pl.Null:  # the writer no longer knew the type
            texts.append(None)
        elif frame.schema[name] == pl.Binary:
            text = value.bin.encode("hex")
            texts.append(_trim_sign_bytes(text) if name.startswith("decimal") else text)
        else:
            # A promoted column has the narrow type in old manifests and must give the same text.
            texts.append((value.cast(pl.Float64) if frame.schema[name] == pl.Float32 else value).cast(pl.String))
    # Encoded as an object by Polars, kept as an array: field names may change, positions may not.
    quoted = [
        pl.lit("false") if text is None else pl.when(text.is_null()).then(pl.lit("null")).otherwise(_quote_json(text))
        for text in texts
    ]
    return pl.concat_str(pl.lit("["), pl.concat_str(quoted, separator=","), pl.lit("]")).alias("partition")


def _quote_json(text: pl.Expr) -> pl.Expr:
    encoded = pl.struct(text.alias("v")).struct.json_encode()  # {"v":"…"}
    return encoded.str.slice(5).str.strip_suffix("}")


def _trim_sign_bytes(number: pl.Expr) -> pl.Expr:
    """Two's complement in hexadecimal without redundant sign bytes, whose number depends on the decimal's precision."""
    return number.str.replace("^(?:00)+([0-7])", "$1").str.replace("^(?:ff)+([89a-f])", "$1")
