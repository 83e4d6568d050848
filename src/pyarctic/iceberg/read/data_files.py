"""Reading data and delete files of any format as Arrow batches that know their true row positions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import orc
from pyiceberg.io import FileIO
from pyiceberg.table.name_mapping import NameMapping, create_mapping_from_schema
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from pyarctic.errors import Damaged, Unavailable, Unsupported
from pyarctic.iceberg.manifest.avro import flatten, parse_container, read_columns
from pyarctic.iceberg.read.projection import Mappings, fields_by_id, names_for
from pyarctic.iceberg.storage import open_input, read_bytes

TARGET_BATCH_BYTES = 32 << 20
MOST_BATCH_ROWS = 256 << 10
PROBE_ROWS = 64
SMALL_DICTIONARY_BYTES = 64 << 10


class Pace:
    """How many rows to read at a time, so that memory does not follow the file's size. What rows weigh is only known once
    they are decoded (a dictionary makes long values small on disk): a few rows are tried first, and the heaviest rows
    seen so far set the pace for the files that follow."""

    def __init__(self) -> None:
        self.row_bytes: float | None = None

    def saw(self, batch: pa.RecordBatch) -> None:
        self.row_bytes = max(self.row_bytes or 1.0, batch.nbytes / max(batch.num_rows, 1))

    def rows(self) -> int:
        return max(min(MOST_BATCH_ROWS, int(TARGET_BATCH_BYTES / (self.row_bytes or 1.0))), 1)


MakeFilter = Callable[["OpenFile"], pc.Expression | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFile:
    """A file's schema, and how to name its fields when they carry no ids."""

    path: str
    schema: pa.Schema
    names: Mappings

    def columns(self, field_ids: set[int]) -> list[str]:
        """The columns of these (top-level) fields that the file has; at least one, because rows must be counted."""
        found = fields_by_id(self.schema, self.names)
        return [at.field.name for field_id, at in found.items() if field_id in field_ids] or self.schema.names[:1]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBatch:
    """Some consecutive rows of a file; `position` is the true position of the first one."""

    file: OpenFile
    position: int
    batch: pa.RecordBatch


def read_file_batches(
    io: FileIO,
    path: str,
    file_format: str,
    mapping: NameMapping | None,
    field_ids: set[int],
    make_filter: MakeFilter = lambda _: None,
    pace: Pace | None = None,
    *,
    dictionaries: bool = False,
    row_groups: Collection[int] | None = None,
) -> Iterator[FileBatch]:
    """The rows of a file in order, with the columns of the given fields. Row groups that the filter rules out are not
    read; positions count them nevertheless. With `dictionaries` repetitive texts of Parquet files stay encoded; of Parquet
    files only the `row_groups` with these numbers may be asked for."""
    with translate_damage(path):
        match file_format:
            case "PARQUET":
                yield from _read_parquet(io, path, mapping, field_ids, make_filter, pace or Pace(), dictionaries, row_groups)
            case "ORC":
                yield from _read_orc(io, path, mapping, field_ids)
            case "AVRO":
                yield from _read_avro(io, path, field_ids)
            case _:
                raise Unsupported(
                    f"file format {file_format} is not known: {path}",
                    hint="Parquet, ORC and Avro files can be read.",
                    file=path,
                )


def _read_parquet(
    io: FileIO,
    path: str,
    mapping: NameMapping | None,
    field_ids: set[int],
    make_filter: MakeFilter,
    pace: Pace,
    dictionaries: bool,
    row_groups: Collection[int] | None,
) -> Iterator[FileBatch]:
    with open_input(io, path) as stream:
        # Reading ahead saves round trips to remote storage; one row group at a time, it holds no more than that.
        remote = not path.startswith(("file:", "/"))
        source = pq.ParquetFile(stream, pre_buffer=remote, coerce_int96_timestamp_unit="us")
        metadata = source.metadata
        if dictionaries and (repetitive := _repetitive_texts(source)):
            source = pq.ParquetFile(
                stream,
                metadata=metadata,
                pre_buffer=remote,
                coerce_int96_timestamp_unit="us",
                read_dictionary=repetitive,
            )
        file = OpenFile(path=path, schema=source.schema_arrow, names=names_for(source.schema_arrow, mapping))
        columns = _leaves(file.columns(field_ids), source)
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        starts = list(accumulate((group.num_rows for group in groups), initial=0))
        keep = sorted(row_groups) if row_groups is not None else list(range(len(groups)))
        if (condition := make_filter(file)) is not None:
            import pyarrow.dataset as ds  # brings pandas with it, and few readings have a condition

            fragment = ds.ParquetFileFormat(coerce_int96_timestamp_unit="us").make_fragment(stream)
            ruled_in = {group.id for group in fragment.subset(condition, schema=file.schema).row_groups}
            keep = [index for index in keep if index in ruled_in]
        for index in keep:
            position = starts[index]
            if pace.row_bytes is None and groups[index].num_rows:
                pace.saw(next(source.iter_batches(PROBE_ROWS, row_groups=[index], columns=columns, use_threads=False)))
            rows = pace.rows()
            for batch in source.iter_batches(rows, row_groups=[index], columns=columns, use_threads=False):
                pace.saw(batch)
                yield FileBatch(file=file, position=position, batch=batch)
                position += batch.num_rows


def _repetitive_texts(source: pq.ParquetFile) -> list[str]:
    """Top-level texts that all row groups hold as small dictionaries, by their path."""
    metadata = source.metadata
    if not metadata.num_row_groups:
        return []
    texts = [
        index
        for index in range(len(source.schema))
        if source.schema.column(index).logical_type.type == "STRING" and "." not in source.schema.column(index).path
    ]
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return [
        source.schema.column(index).path
        for index in texts
        if all(pays_as_dictionary(group.column(index)) for group in groups)
    ]


def pays_as_dictionary(chunk: pq.ColumnChunkMetaData) -> bool:
    """Whether a column chunk is made of a small dictionary and references to it: two bytes a value at most."""
    if not chunk.has_dictionary_page or chunk.dictionary_page_offset is None:
        return False
    dictionary_bytes = chunk.data_page_offset - chunk.dictionary_page_offset
    weight = chunk.total_uncompressed_size
    return bool(dictionary_bytes <= SMALL_DICTIONARY_BYTES and weight <= 2 * chunk.num_values + SMALL_DICTIONARY_BYTES)


def _leaves(columns: list[str], source: pq.ParquetFile) -> list[str]:
    # ParquetFile takes dotted paths: naming a top-level column is only safe when its name holds no dot.
    if not any("." in name for name in columns):
        return columns
    wanted = {index for index, name in enumerate(source.schema_arrow.names) if name in columns}
    paths = [source.schema.column(index).path for index in range(len(source.schema))]
    return [path for path in paths if any(_within(path, source.schema_arrow.names[index]) for index in wanted)]


def _within(path: str, column: str) -> bool:
    return path == column or path.startswith(column + ".")


def _read_orc(io: FileIO, path: str, mapping: NameMapping | None, field_ids: set[int]) -> Iterator[FileBatch]:
    with open_input(io, path) as stream:
        source = orc.ORCFile(stream)
        file = OpenFile(path=path, schema=source.schema, names=names_for(source.schema, mapping))
        columns = file.columns(field_ids)
        position = 0
        for stripe in range(source.nstripes):
            batch = source.read_stripe(stripe, columns=columns)
            yield FileBatch(file=file, position=position, batch=batch)
            position += batch.num_rows


def _read_avro(io: FileIO, path: str, field_ids: set[int]) -> Iterator[FileBatch]:
    container = parse_container(read_bytes(io, path), path)
    fields = flatten(container, inline=())
    frame = read_columns(container, fields, [field.path[0] for field in fields])
    table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    # Avro's ids stand in its own schema; turned into a name mapping they take the way of files without ids.
    try:
        mapping = create_mapping_from_schema(AvroSchemaConversion().avro_to_iceberg(container.schema))
    except (ValueError, TypeError, KeyError) as cause:
        raise Unsupported(
            f"Avro schema of {path} is not understood: {cause}",
            hint="Have another engine rewrite the file as Parquet.",
            file=path,
        ) from cause
    file = OpenFile(path=path, schema=table.schema, names=mapping.root)
    columns = file.columns(field_ids)
    position = 0
    for batch in table.to_batches(max_chunksize=MOST_BATCH_ROWS):
        yield FileBatch(file=file, position=position, batch=batch.select(columns))
        position += batch.num_rows


@contextmanager
def translate_damage(path: str) -> Iterator[None]:
    """Tell what goes wrong while a file's bytes are decoded in our own words."""
    try:
        yield
    except (pa.ArrowMemoryError, pa.ArrowCancelled):
        raise
    except (pa.ArrowException, OSError, EOFError) as cause:
        text = next(iter(str(cause).replace(path, "it").splitlines()), type(cause).__name__)
        if "ncrypt" in text:
            raise Unsupported(
                f"file is encrypted: {path}", hint="PyArctic does not read encrypted tables yet.", file=path
            ) from cause
        if isinstance(cause, OSError) and (cause.errno is not None or "AWS Error" in text):
            raise Unavailable(
                f"reading {path} failed: {text}", hint="Check the storage and try again.", file=path
            ) from cause
        if isinstance(cause, pa.ArrowNotImplementedError | pa.ArrowTypeError) or "out of bounds" in text:
            raise Unsupported(
                f"file holds something that cannot be read: {path} ({text})",
                hint="Select other columns, or have another engine rewrite the file.",
                file=path,
            ) from cause
        raise Damaged(
            f"file cannot be read: {path} ({text})",
            hint="The file was cut off, overwritten or is of another format than the manifest says.",
            file=path,
        ) from cause
