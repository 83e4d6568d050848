"""How Parquet files are written: the table's `write.parquet.*` properties, with the defaults of Iceberg."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import OutputStream

from pyarctic.errors import UsageError
from pyarctic.iceberg.write.properties import parse_integer, positive_property

_DATA, _DELETES = "write.parquet.", "write.delete.parquet."
_CODECS = {"uncompressed": "none", "zstd": "zstd", "gzip": "gzip", "snappy": "snappy", "lz4": "lz4", "brotli": "brotli"}
_LEVELED = ("zstd", "gzip", "brotli")
_PAGE_VERSIONS = {"v1": "1.0", "v2": "2.0"}
_NUMBERS = ("row-group-size-bytes", "row-group-limit", "page-size-bytes", "page-row-limit", "dict-size-bytes")
_HONOURED = (*_NUMBERS, "compression-codec", "compression-level", "page-version", "bloom-filter-max-bytes")
_BLOOM_ENABLED, _BLOOM_FPP, _BLOOM_NDV, _STATS_ENABLED = _OF_COLUMNS = (
    "bloom-filter-enabled.column.",
    "bloom-filter-fpp.column.",
    "bloom-filter-ndv.column.",
    "stats-enabled.column.",
)
_IGNORED = {
    "row-group-check-min-record-count": "the size of a row group is known without checks",
    "row-group-check-max-record-count": "the size of a row group is known without checks",
    "shred-variants": "variants are only copied",
    "variant-inference-buffer-size": "variants are only copied",
}
DICTIONARY_BYTES = 2 << 20
"""Iceberg's limit for the dictionary of a column in a row group."""
_BLOOM_FPP_DEFAULT = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Dictionaries:
    """The columns that are dictionary-encoded, by their paths, and the limit for the size of a dictionary."""

    columns: tuple[str, ...]
    limit_bytes: int = DICTIONARY_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetSettings:
    """Parquet settings from the table's properties."""

    codec: str
    level: int | None
    row_group_bytes: int
    row_group_rows: int
    page_bytes: int
    page_rows: int
    page_version: str
    dictionary_bytes: int | None
    """The limit that the table has for dictionaries; None: the writer decides."""
    target_bytes: int
    bloom_max_bytes: int
    of_columns: Mapping[str, str] = field(default_factory=dict)
    """Properties of single columns, without prefix."""

    @classmethod
    def of(cls, properties: Mapping[str, str], *, deletes: bool = False) -> Self:
        """The settings of a table for data files, or for files of deletes. Those have properties of their own, and else the
        ones of data files."""
        prefixes = (_DATA, _DELETES) if deletes else (_DATA,)
        given = {
            name.removeprefix(prefix): (name, value)
            for prefix in prefixes
            for name, value in properties.items()
            if name.startswith(prefix)
        }

        def number(name: str, default: int) -> int:
            key, _ = given.get(name, (f"{_DATA}{name}", ""))
            return positive_property(properties, key, default)

        codec = _parse_choice(given, "compression-codec", _CODECS, "zstd")
        return cls(
            codec=codec,
            level=parse_integer(*given["compression-level"]) if "compression-level" in given and codec in _LEVELED else None,
            row_group_bytes=number("row-group-size-bytes", 128 << 20),
            row_group_rows=number("row-group-limit", 1 << 20),
            page_bytes=number("page-size-bytes", 1 << 20),
            page_rows=number("page-row-limit", 20_000),
            page_version=_parse_choice(given, "page-version", _PAGE_VERSIONS, "v1"),
            dictionary_bytes=number("dict-size-bytes", 0) if "dict-size-bytes" in given else None,
            target_bytes=positive_property(properties, "write.target-file-size-bytes", 512 << 20),
            bloom_max_bytes=number("bloom-filter-max-bytes", 1 << 20),
            of_columns={}
            if deletes
            else {name: value for name, (_, value) in given.items() if name.startswith(_OF_COLUMNS)},
        )

    def writer(
        self,
        stream: OutputStream | pa.NativeFile,
        schema: pa.Schema,
        metadata: list[pq.FileMetaData],
        dictionaries: Dictionaries | None = None,
        bloom_filters: Collection[int] = (),
        rows: int = 1 << 20,
    ) -> pq.ParquetWriter:
        """A Parquet writer. `dictionaries`: None means all columns. `bloom_filters`: ids of fields that have one beside
        those that the table's properties name. `rows`: how many a row group has."""
        columns = {column.name: column for column in leaf_columns(schema)}
        # Arrow's schema is not stored: readers in Python would see types that the table does not have.
        return pq.ParquetWriter(
            stream,
            schema,
            compression=self.codec,
            compression_level=self.level,
            data_page_size=self.page_bytes,
            data_page_version=self.page_version,
            max_rows_per_page=self.page_rows,
            dictionary_pagesize_limit=self.dictionary_bytes
            or (dictionaries.limit_bytes if dictionaries else DICTIONARY_BYTES),
            use_dictionary=True if dictionaries is None else list(dictionaries.columns),
            write_statistics=self._with_statistics(columns),
            bloom_filter_options=self._bloom_options(columns, bloom_filters, rows) or None,
            store_decimal_as_integer=True,
            store_schema=False,
            write_page_index=True,
            write_page_checksum=True,
            metadata_collector=metadata,
        )

    def _with_statistics(self, columns: Mapping[str, LeafColumn]) -> bool | list[str]:
        paths = [
            column.path for name, column in columns.items() if self.of_columns.get(_STATS_ENABLED + name, "true") != "false"
        ]
        return True if len(paths) == len(columns) else paths

    def _bloom_options(
        self, columns: Mapping[str, LeafColumn], bloom_filters: Collection[int], rows: int
    ) -> dict[str, dict[str, Any]]:
        options = {}
        for name, column in columns.items():
            enabled = self.of_columns.get(_BLOOM_ENABLED + name)
            is_wanted = enabled == "true" or (enabled is None and column.field_id in bloom_filters)
            if is_wanted and not pa.types.is_boolean(column.type):
                options[column.path] = self._bloom_filter(name, rows)
        return options

    def _bloom_filter(self, column: str, rows: int) -> dict[str, Any]:
        """The options of a bloom filter, which is made for all rows of a row group to be distinct, within its limit. Arrow
        makes it smaller if they are not."""
        fpp = _parse_probability(self.of_columns, _BLOOM_FPP + column)
        values = positive_property(self.of_columns, _BLOOM_NDV + column, max(rows, 1))
        bits_per_value = -8 / math.log(1 - fpp ** (1 / 8))
        # Arrow rounds the size up to a power of two.
        max_bits = 8 << (self.bloom_max_bytes.bit_length() - 1)
        return {"ndv": max(min(values, int(max_bits / bits_per_value)), 1), "fpp": fpp}


def ignored_properties(properties: Mapping[str, str], schema: pa.Schema) -> Iterator[tuple[str, str]]:
    """Properties of Parquet files that have no effect, and why. `schema` is that of data files."""
    columns = {column.name: column for column in leaf_columns(schema)}
    for property_name in sorted(properties):
        prefix = next((prefix for prefix in (_DATA, _DELETES) if property_name.startswith(prefix)), None)
        if prefix is None:
            continue
        name = property_name.removeprefix(prefix)
        of_column = next((kind for kind in _OF_COLUMNS if name.startswith(kind)), None)
        if of_column is not None:
            column = columns.get(name.removeprefix(of_column))
            if prefix == _DELETES:
                yield property_name, "files of deletes have no settings of columns"
            elif column is None:
                yield property_name, "there is no such column with values"
            elif of_column == _BLOOM_ENABLED and pa.types.is_boolean(column.type):
                yield property_name, "a boolean column has no bloom filter"
        elif name not in _HONOURED:
            yield property_name, _IGNORED.get(name, "it is not known")


@dataclass(frozen=True, slots=True)
class LeafColumn:
    """A column of values: its name in the table, its path in Parquet files, its type and the id of its field."""

    name: str
    path: str
    type: pa.DataType
    field_id: int | None


def leaf_columns(schema: pa.Schema) -> list[LeafColumn]:
    """The columns of values of a file, in order."""
    return [column for arrow_field in schema for column in _leaves(arrow_field, arrow_field.name, arrow_field.name)]


def _leaves(arrow_field: pa.Field, name: str, path: str) -> Iterator[LeafColumn]:
    type_ = arrow_field.type
    if pa.types.is_struct(type_):
        for child in type_:
            yield from _leaves(child, f"{name}.{child.name}", f"{path}.{child.name}")
    elif pa.types.is_list(type_) or pa.types.is_large_list(type_):
        yield from _leaves(type_.value_field, f"{name}.element", f"{path}.list.element")
    elif pa.types.is_map(type_):
        yield from _leaves(type_.key_field, f"{name}.key", f"{path}.key_value.key")
        yield from _leaves(type_.item_field, f"{name}.value", f"{path}.key_value.value")
    else:
        field_id = (arrow_field.metadata or {}).get(b"PARQUET:field_id")
        yield LeafColumn(name, path, type_, None if field_id is None else int(field_id))


def _parse_choice(given: Mapping[str, tuple[str, str]], name: str, choices: Mapping[str, str], default: str) -> str:
    property_name, value = given.get(name, (name, default))
    if value.lower() not in choices:
        raise UsageError(
            f"table property {property_name} = {value!r} is not possible", hint=f"One of: {', '.join(choices)}."
        )
    return choices[value.lower()]


def _parse_probability(properties: Mapping[str, str], key: str) -> float:
    text = properties.get(key)
    if text is None:
        return _BLOOM_FPP_DEFAULT
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise UsageError(
            f"table property {_DATA}{key} = {text!r} is not a probability", hint="A number between 0 and 1, such as 0.01."
        )
    return value
