"""Files with rows for a table: Parquet, CSV and JSON lines, read in batches, with the types of the table.

Text is parsed as the command line writes it: timestamps without an offset are UTC, binary values are base64, and an empty
field of a CSV file is null unless it is quoted.
"""

from __future__ import annotations

import base64
import binascii
import csv
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, UUIDType

from pyarctic.errors import NotFound, Unavailable, UsageError
from pyarctic.iceberg.read import arrow_schema
from pyarctic.tables.write.row_sources import BATCH_ROWS
from pyarctic.tables.write.text_errors import (
    BadText,
    check_separator,
    explain_csv_error,
    explain_json_error,
    first_bad_value,
)

_BLOCK_BYTES = 8 << 20
"""Text is read in blocks of this size; a line of JSON must fit into one."""
_SUFFIXES = {".parquet": "parquet", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
_COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")
_HINTS = {
    "parquet": "Nothing was written. Is it another kind of file?",
    "csv": "Nothing was written. The first line names the columns; commas separate values.",
    "jsonl": "Nothing was written. One JSON object per line, its fields named as the table's columns.",
}
_HAS_OFFSET = r"(?:[Zz]|[+-]\d\d(?::?\d\d)?)$"
Parser = Callable[[pa.Array], pa.Array]
_IS_DAY = r"^\d{4}-\d\d-\d\d$"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """A file of rows, or a stream."""

    name: str
    format: str
    stream: BinaryIO | None = None
    """Read instead of the file; not closed."""

    def batches(self, schema: Schema) -> Iterator[pa.RecordBatch]:
        """The rows; values of text files are parsed by the types of the table. Columns are not checked."""
        with _translate_errors(self):
            if self.format == "parquet":
                with pq.ParquetFile(self.name, page_checksum_verification=True) as file:
                    yield from _at_least_one(file.iter_batches(batch_size=BATCH_ROWS), file.schema_arrow)
                return
            source = self.stream if self.stream is not None else pa.input_stream(self.name)
            try:
                yield from _read_text(source, self, schema)
            finally:
                if self.stream is None:
                    source.close()

    def locate_csv_error(self, schema: Schema, cause: pa.ArrowInvalid, header: Sequence[str]) -> str:
        """What is wrong in a CSV file. Arrow tells the line only if it reads without threads, so a file is read again."""
        types = {field.name: str(field.field_type) for field in schema.fields}
        if self.stream is None:
            try:
                with (
                    pa.input_stream(self.name) as source,
                    _open_csv(source, _text_types(schema)[0], use_threads=False) as reader,
                ):
                    for _ in reader:
                        pass
            except pa.ArrowInvalid as located:
                cause = located
        return explain_csv_error(str(cause).splitlines()[0], header, types)


def open_input_file(name: str, input_format: str | None = None, stream: BinaryIO | None = None) -> InputFile:
    """A file by its name. Its format is `input_format`, or follows from the ending of the name."""
    path = Path(name)
    stem = Path(path.stem) if path.suffix.lower() in _COMPRESSED else path
    if stream is None and path.is_dir():
        raise UsageError(f"{name} is a folder", hint="Name files, for example with a pattern of your shell.", file=name)
    format_ = input_format or ("" if stream is not None else _SUFFIXES.get(stem.suffix.lower(), ""))
    if format_ not in _SUFFIXES.values():
        raise UsageError(
            f"{name}: what kind of file is it?",
            hint='Its name does not tell the format. Give [[input_format="csv"]]; or parquet, or jsonl (JSON lines).',
            file=name,
        )
    if format_ == "parquet" and stream is not None:
        raise UsageError(f"{name}: Parquet is not read from a stream", hint="Name a file, or give csv or jsonl.", file=name)
    if stream is None and not path.is_file():
        raise NotFound(f"{name}: no such file", hint="Name a file on this machine.", file=name)
    return InputFile(name=name, format=format_, stream=stream)


def infer_schema(name: str) -> pa.Schema:
    """The schema of a Parquet file, for a new table. Nanoseconds become microseconds, the finest that tables of format
    version 2 have."""
    if Path(name).suffix.lower() in _SUFFIXES and _SUFFIXES[Path(name).suffix.lower()] != "parquet":
        raise UsageError(
            f"{name}: columns are taken from Parquet files only",
            hint='Other files do not tell types. Name the columns: --column "id long" --column "city string".',
            file=name,
        )
    file = open_input_file(name, "parquet")
    with _translate_errors(file):
        schema = pq.read_schema(file.name)
    fields = [
        field.with_type(pa.timestamp("us", field.type.tz))
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns"
        else field
        for field in schema
    ]
    return pa.schema(fields)


@contextmanager
def _translate_errors(file: InputFile) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as cause:
        raise NotFound(f"{file.name}: no such file", hint="Name a file on this machine.", file=file.name) from cause
    except PermissionError as cause:
        raise Unavailable(
            f"{file.name}: no permission to read it", hint="Check the permissions of the file.", file=file.name
        ) from cause
    except (pa.ArrowException, OSError, ValueError) as cause:
        raise UsageError(
            f"{file.name} cannot be read as {file.format}: {next(iter(str(cause).splitlines()), 'it is damaged')}",
            hint=_HINTS[file.format],
            file=file.name,
        ) from cause


def _text_types(schema: Schema) -> tuple[dict[str, pa.DataType], dict[str, Parser]]:
    """The types with which columns are read from text, and the parsers of those that are parsed afterwards."""
    wanted = arrow_schema(schema.fields)
    parsers = {field.name: parser for field in schema.fields if (parser := _parser(wanted.field(field.name).type, field))}
    return {field.name: pa.string() if field.name in parsers else field.type for field in wanted}, parsers


def _open_csv(source: Any, types: dict[str, pa.DataType], *, use_threads: bool = True) -> Any:
    return pa.csv.open_csv(
        source,
        read_options=pa.csv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=use_threads),
        parse_options=pa.csv.ParseOptions(newlines_in_values=True),
        convert_options=pa.csv.ConvertOptions(
            column_types=types, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
    )


def _read_text(source: Any, file: InputFile, schema: Schema) -> Iterator[pa.RecordBatch]:
    types, parsers = _text_types(schema)
    header: list[str] = _csv_header(file) if file.format == "csv" else []
    rows_before = 0
    try:
        reader = _open_csv(source, types) if file.format == "csv" else _open_json(source, types)
        if reader is None:
            return
        with reader:
            if file.format == "csv":
                header = reader.schema.names
                check_separator(header, list(types), file.name)
            for batch in _at_least_one(reader, reader.schema):
                yield _parse_batch(batch, parsers, schema, rows_before + (2 if file.format == "csv" else 1))
                rows_before += batch.num_rows
    except pa.ArrowInvalid as cause:
        first_line = str(cause).splitlines()[0]
        reason = file.locate_csv_error(schema, cause, header) if file.format == "csv" else explain_json_error(first_line)
        raise BadText(reason) from cause


def _open_json(source: Any, types: dict[str, pa.DataType]) -> Any:
    """A reader; None if there are no lines, so no rows."""
    try:
        return pa.json.open_json(
            source,
            read_options=pa.json.ReadOptions(block_size=_BLOCK_BYTES),
            parse_options=pa.json.ParseOptions(explicit_schema=pa.schema(types)),
        )
    except pa.ArrowInvalid as error:
        if "Empty JSON" in str(error):
            return None
        raise


def _csv_header(file: InputFile) -> list[str]:
    """The names of the columns, for errors in the first block; none if they cannot be told."""
    if file.stream is not None:
        return []
    with pa.input_stream(file.name) as source:
        first_line = source.read(1 << 16).decode("utf-8", "replace").partition("\n")[0]
    return next(csv.reader([first_line]), [])


def _at_least_one(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches, or an empty one, so that columns are checked even if there are no rows."""
    is_empty = True
    for batch in batches:
        is_empty = False
        yield batch
    if is_empty:
        yield pa.RecordBatch.from_pylist([], schema=schema)


def _parse_batch(batch: pa.RecordBatch, parsers: dict[str, Parser], schema: Schema, first_line: int) -> pa.RecordBatch:
    for index, name in enumerate(batch.schema.names):
        if name in parsers and pa.types.is_string(batch.schema.field(index).type):
            try:
                column = parsers[name](batch.column(index))
            except (pa.ArrowException, ValueError) as cause:
                bad = first_bad_value(batch.column(index), parsers[name])
                if bad is None:
                    raise BadText(f"column {name!r}: {str(cause).splitlines()[0]}") from cause
                line, type_ = first_line + bad[0], schema.find_field(name).field_type
                raise BadText(f"line {line}, column {name!r}: {bad[1]!r} is not of type {type_}") from cause
            batch = batch.set_column(index, batch.schema.field(index).with_type(column.type), column)
    return batch


def _parser(wanted: pa.DataType, field: NestedField) -> Parser | None:
    """A parser for types that Arrow's readers cannot parse, or parse differently."""
    if pa.types.is_timestamp(wanted):
        return lambda texts: _parse_timestamps(texts, wanted)
    if pa.types.is_date(wanted):
        return lambda texts: texts.cast(wanted)
    if pa.types.is_time(wanted):
        return lambda texts: pc.binary_join_element_wise("1970-01-01", texts, "T").cast(pa.timestamp("us")).cast(wanted)
    if isinstance(field.field_type, UUIDType):
        return lambda texts: _parse_each(texts, wanted, lambda text: uuid.UUID(text).bytes)
    if pa.types.is_binary(wanted) or pa.types.is_large_binary(wanted) or pa.types.is_fixed_size_binary(wanted):
        return lambda texts: _parse_each(texts, wanted, _decode_base64)
    return None


def _parse_timestamps(texts: pa.Array, wanted: pa.TimestampType) -> pa.Array:
    if wanted.tz is not None:
        is_day = pc.match_substring_regex(texts, _IS_DAY)
        texts = pc.if_else(is_day, pc.binary_join_element_wise(texts, "00:00", "T"), texts)
        has_offset = pc.match_substring_regex(texts, _HAS_OFFSET)
        texts = pc.if_else(has_offset, texts, pc.binary_join_element_wise(texts, "Z", ""))
    return texts.cast(wanted)


def _parse_each(texts: pa.Array, wanted: pa.DataType, parse: Callable[[str], bytes]) -> pa.Array:
    return pa.array([None if text is None else parse(text) for text in texts.to_pylist()], wanted)


def _decode_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as cause:
        raise ValueError(f"{text[:40]!r} is not base64") from cause
