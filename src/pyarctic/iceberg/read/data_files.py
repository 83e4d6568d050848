"""Reading data and delete files of any format as Arrow batches with their row positions."""

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
from pyiceberg.io import FileIO, InputStream
from pyiceberg.table.name_mapping import NameMapping, create_mapping_from_schema
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from pyarctic.errors import Damaged, Unavailable, Unsupported
from pyarctic.iceberg.manifest.avro import flatten, parse_container, read_columns
from pyarctic.iceberg.read.projection import Mappings, fields_by_id, names_for
from pyarctic.iceberg.storage import is_local, open_input, read_bytes

TARGET_BATCH_BYTES = 32 << 20
MAX_BATCH_ROWS = 256 << 10
PROBE_ROWS = 64
MAX_DICTIONARY_BYTES = 64 << 10


class BatchSizer:
    """Decides how many rows to read at a time, so that memory does not grow with the size of the file. The size of rows is
    known only once they are decoded (a dictionary makes long values small on disk): a few rows are probed first, and the
    largest rows seen so far set the batch size, also for the files that follow."""

    def __init__(self, target_bytes: int = TARGET_BATCH_BYTES) -> None:
        self.row_bytes: float | None = None
        self._target_bytes = target_bytes

    def observe(self, batch: pa.RecordBatch) -> None:
        """Take the size of the rows of a batch into account."""
        self.row_bytes = max(self.row_bytes or 1.0, batch.nbytes / max(batch.num_rows, 1))

    def rows(self) -> int:
        """The number of rows to read at a time."""
        return max(min(MAX_BATCH_ROWS, int(self._target_bytes / (self.row_bytes or 1.0))), 1)


MakeFilter = Callable[["OpenFile"], pc.Expression | None]
"""The condition on row group statistics of a file, if there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFile:
    """A file's schema, and the name mapping of its fields if they have no ids."""

    path: str
    schema: pa.Schema
    names: Mappings
    bloom_filters: frozenset[str] = frozenset()
    """Names of the top-level columns with a bloom filter; of Parquet files only."""

    @property
    def bloom_filter_ids(self) -> set[int]:
        """The fields with a bloom filter."""
        if not self.bloom_filters:
            return set()
        fields = fields_by_id(self.schema, self.names)
        return {field_id for field_id, file_field in fields.items() if file_field.field.name in self.bloom_filters}

    def columns(self, field_ids: set[int] | None) -> list[str]:
        """The names of these (top-level) fields in the file, or of all; at least one, because rows must be counted."""
        if field_ids is None:
            return list(self.schema.names)
        fields = fields_by_id(self.schema, self.names)
        return [
            file_field.field.name for field_id, file_field in fields.items() if field_id in field_ids
        ] or self.schema.names[:1]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBatch:
    """Consecutive rows of a file; `position` is the position of the first one in the file."""

    file: OpenFile
    position: int
    batch: pa.RecordBatch


def read_file_batches(
    io: FileIO,
    path: str,
    file_format: str,
    mapping: NameMapping | None,
    field_ids: set[int] | None,
    make_filter: MakeFilter = lambda _: None,
    batch_sizer: BatchSizer | None = None,
    *,
    size: int | None = None,
    dictionaries: bool = False,
    row_groups: Collection[int] | None = None,
    buffer_bytes: int | None = None,
) -> Iterator[FileBatch]:
    """The rows of a file in order, with the columns of the given fields, or all columns. With the `size` of the file, if
    that is known, fewer requests are sent to remote storage.

    Row groups that the filter rules out are not read, but counted in positions. Three options are for Parquet files only:
    with `dictionaries` repetitive strings stay dictionary-encoded, `row_groups` restricts reading to these row groups, and
    with `buffer_bytes` columns are read in pieces of this size instead of complete.
    """
    with translate_damage(path):
        match file_format:
            case "PARQUET":
                with open_input(io, path, size) as stream:
                    source = _open_parquet(stream, path, dictionaries=dictionaries, buffer_bytes=buffer_bytes)
                    schema = source.schema_arrow
                    names, bloom_filters = names_for(schema, mapping), _bloom_filters(source.metadata)
                    file = OpenFile(path=path, schema=schema, names=names, bloom_filters=bloom_filters)
                    chosen = _choose_row_groups(source, stream, file, make_filter(file), row_groups)
                    columns = _leaf_columns(file.columns(field_ids), source)
                    yield from _read_row_groups(source, file, columns, chosen, batch_sizer or BatchSizer())
            case "ORC":
                yield from _read_orc(io, path, size, mapping, field_ids)
            case "AVRO":
                yield from _read_avro(io, path, field_ids)
            case _:
                raise Unsupported(
                    f"file format {file_format} is not supported: {path}",
                    hint="Parquet, ORC and Avro files can be read.",
                    file=path,
                )


def _open_parquet(stream: InputStream, path: str, *, dictionaries: bool, buffer_bytes: int | None = None) -> pq.ParquetFile:
    """Open a Parquet file; with `dictionaries` repetitive strings are read dictionary-encoded."""
    # Reading ahead saves round trips to remote storage; row groups are read one at a time, so no more than one is buffered.
    is_remote = not is_local(path) and not isinstance(stream, pa.BufferReader)
    # A flipped bit often decodes to another value, which only the checksum of its page shows.
    options = {"pre_buffer": is_remote, "coerce_int96_timestamp_unit": "us", "page_checksum_verification": True}
    if buffer_bytes is not None:
        options |= {"pre_buffer": False, "buffer_size": buffer_bytes}
    source = pq.ParquetFile(stream, **options)
    if dictionaries and (repetitive := _repetitive_string_columns(source)):
        return pq.ParquetFile(stream, metadata=source.metadata, read_dictionary=repetitive, **options)
    return source


def _bloom_filters(metadata: pq.FileMetaData) -> frozenset[str]:
    if not metadata.num_row_groups:
        return frozenset()
    group = metadata.row_group(0)
    columns = (group.column(index) for index in range(group.num_columns))
    return frozenset(column.path_in_schema for column in columns if column.bloom_filter_offset is not None)


def _choose_row_groups(
    source: pq.ParquetFile,
    stream: InputStream,
    file: OpenFile,
    condition: pc.Expression | None,
    row_groups: Collection[int] | None,
) -> list[int]:
    """The row groups to read, ascending: those requested that the condition does not rule out."""
    requested = sorted(row_groups) if row_groups is not None else list(range(source.metadata.num_row_groups))
    if condition is None:
        return requested
    import pyarrow.dataset as ds  # imports pandas, and few reads have a condition

    fragment = ds.ParquetFileFormat(coerce_int96_timestamp_unit="us").make_fragment(stream)
    may_match = {group.id for group in fragment.subset(condition, schema=file.schema).row_groups}
    return [index for index in requested if index in may_match]


def _read_row_groups(
    source: pq.ParquetFile, file: OpenFile, columns: list[str], row_groups: list[int], batch_sizer: BatchSizer
) -> Iterator[FileBatch]:
    row_counts = [source.metadata.row_group(index).num_rows for index in range(source.metadata.num_row_groups)]
    first_positions = list(accumulate(row_counts, initial=0))
    for index in row_groups:
        position = first_positions[index]
        with _name_damaged_column(source, file.path, index, columns):
            if batch_sizer.row_bytes is None and row_counts[index]:
                probe = source.iter_batches(PROBE_ROWS, row_groups=[index], columns=columns, use_threads=False)
                batch_sizer.observe(next(probe))
            for batch in source.iter_batches(batch_sizer.rows(), row_groups=[index], columns=columns, use_threads=False):
                batch_sizer.observe(batch)
                yield FileBatch(file=file, position=position, batch=batch)
                position += batch.num_rows


@contextmanager
def _name_damaged_column(source: pq.ParquetFile, path: str, row_group: int, columns: list[str]) -> Iterator[None]:
    """Name the column in the error if a page does not match its checksum: Arrow does not."""
    try:
        yield
    except OSError as cause:
        if not _is_checksum_error(cause):
            raise
        leaves = [source.schema.column(index).path for index in range(len(source.schema))]
        read = [leaf for leaf in leaves if any(_is_in_column(leaf, column) for column in columns)]
        damaged = next((leaf for leaf in read if not _can_read(source, row_group, leaf)), columns[0])
        raise damaged_page(path, row_group, damaged) from cause


def _can_read(source: pq.ParquetFile, row_group: int, leaf: str) -> bool:
    try:
        source.read_row_group(row_group, columns=[leaf], use_threads=False)
    except OSError as cause:
        return not _is_checksum_error(cause)
    return True


def _is_checksum_error(cause: OSError) -> bool:
    return "CRC checksum" in str(cause)


def damaged_page(path: str, row_group: int, column: str) -> Damaged:
    """The error for a page that does not match its checksum."""
    return Damaged(
        f"file is corrupt: {path} (row group {row_group}, column {column}: a page does not match its checksum)",
        hint="Its bytes changed after it was written: restore the file from a backup, or delete its rows and write them "
        "again. Other columns and other files can still be read.",
        file=path,
        row_group=row_group,
        column=column,
    )


def _repetitive_string_columns(source: pq.ParquetFile) -> list[str]:
    """Paths of top-level string columns that have a small dictionary in all row groups."""
    metadata = source.metadata
    if not metadata.num_row_groups:
        return []
    strings = [
        index
        for index in range(len(source.schema))
        if source.schema.column(index).logical_type.type == "STRING" and "." not in source.schema.column(index).path
    ]
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return [
        source.schema.column(index).path
        for index in strings
        if all(is_small_dictionary(group.column(index)) for group in groups)
    ]


def is_small_dictionary(chunk: pq.ColumnChunkMetaData) -> bool:
    """Whether a column chunk consists of a small dictionary and references of at most two bytes a value."""
    if not chunk.has_dictionary_page or chunk.dictionary_page_offset is None:
        return False
    dictionary_bytes = chunk.data_page_offset - chunk.dictionary_page_offset
    chunk_bytes = chunk.total_uncompressed_size
    return bool(dictionary_bytes <= MAX_DICTIONARY_BYTES and chunk_bytes <= 2 * chunk.num_values + MAX_DICTIONARY_BYTES)


def _leaf_columns(columns: list[str], source: pq.ParquetFile) -> list[str]:
    # ParquetFile takes dotted paths: naming a top-level column is safe only if its name contains no dot.
    if not any("." in name for name in columns):
        return columns
    wanted = {index for index, name in enumerate(source.schema_arrow.names) if name in columns}
    paths = [source.schema.column(index).path for index in range(len(source.schema))]
    return [path for path in paths if any(_is_in_column(path, source.schema_arrow.names[index]) for index in wanted)]


def _is_in_column(path: str, column: str) -> bool:
    return path == column or path.startswith(column + ".")


def _read_orc(
    io: FileIO, path: str, size: int | None, mapping: NameMapping | None, field_ids: set[int] | None
) -> Iterator[FileBatch]:
    with open_input(io, path, size) as stream:
        source = orc.ORCFile(stream)
        file = OpenFile(path=path, schema=source.schema, names=names_for(source.schema, mapping))
        columns = file.columns(field_ids)
        position = 0
        for stripe in range(source.nstripes):
            batch = source.read_stripe(stripe, columns=columns)
            yield FileBatch(file=file, position=position, batch=batch)
            position += batch.num_rows


def _read_avro(io: FileIO, path: str, field_ids: set[int] | None) -> Iterator[FileBatch]:
    container = parse_container(read_bytes(io, path), path)
    fields = flatten(container, inline=())
    frame = read_columns(container, fields, [field.path[0] for field in fields])
    table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    # Field ids are in the Avro schema; as a name mapping they are handled like files without ids.
    try:
        mapping = create_mapping_from_schema(AvroSchemaConversion().avro_to_iceberg(container.schema))
    except (ValueError, TypeError, KeyError) as cause:
        raise Unsupported(
            f"Avro schema of {path} is not supported: {cause}",
            hint="Have another engine rewrite the file as Parquet.",
            file=path,
        ) from cause
    file = OpenFile(path=path, schema=table.schema, names=mapping.root)
    columns = file.columns(field_ids)
    position = 0
    for batch in table.to_batches(max_chunksize=MAX_BATCH_ROWS):
        yield FileBatch(file=file, position=position, batch=batch.select(columns))
        position += batch.num_rows


@contextmanager
def translate_damage(path: str) -> Iterator[None]:
    """Raise errors of decoding a file as Damaged, Unsupported or Unavailable."""
    try:
        yield
    except (pa.ArrowMemoryError, pa.ArrowCancelled):
        raise
    except (pa.ArrowException, OSError, EOFError) as cause:
        text = next(iter(str(cause).replace(path, "file").splitlines()), type(cause).__name__)
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
                f"file has content that cannot be read: {path} ({text})",
                hint="Select other columns, or have another engine rewrite the file.",
                file=path,
            ) from cause
        raise Damaged(
            f"file cannot be read: {path} ({text})",
            hint="The file was cut off or overwritten, or is not in the format that the manifest says.",
            file=path,
        ) from cause
