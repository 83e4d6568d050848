"""Reading delete files: which positions of a data file, and which keys, are deleted.

Position deletes become sorted position arrays per data file. Equality deletes become one index (`key_index.py`) per set of
key columns.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, StructType

from pyarctic.errors import Damaged, Unsupported
from pyarctic.iceberg.delete.deletion_vectors import Positions, read_vector
from pyarctic.iceberg.delete.key_index import EqualityIndex, Integers, is_exact_code
from pyarctic.iceberg.delete.matching import FileDeletes
from pyarctic.iceberg.manifest.reader import FILE_PATH_ID
from pyarctic.iceberg.read.data_files import BatchSizer, FileBatch, OpenFile, read_file_batches
from pyarctic.iceberg.read.joined_batches import join_batches
from pyarctic.iceberg.read.projection import Projection, arrow_schema, children, fields_by_id

POSITION_ID = 2147483545
_POSITION_FIELDS = (NestedField(FILE_PATH_ID, "file_path", StringType()), NestedField(POSITION_ID, "pos", LongType()))
NO_POSITIONS: Positions = np.empty(0, np.int64)
_INVALID_FILE_HINT = "Its writer violated the specification. Roll back to the snapshot before its commit."
Key = TypeVar("Key")
Value = TypeVar("Value")


def check_not_encrypted(path: str, key_metadata_bytes: int | None) -> None:
    """Refuse encrypted files, which have key metadata."""
    if key_metadata_bytes is not None:
        raise Unsupported(f"file is encrypted: {path}", hint="PyArctic does not read encrypted tables yet.", file=path)


class LruCache(Generic[Key, Value]):
    """Keeps what was read from files; the least recently used values are evicted beyond the memory budget."""

    def __init__(self, memory_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._cached_bytes = 0

    def get(self, key: Key, load: Callable[[], tuple[Value, int]]) -> Value:
        """The cached value of `key`; if there is none, `load` returns it with its size in bytes."""
        if key not in self._entries:
            value, size = load()
            self._entries[key] = (value, size)
            self._cached_bytes += size
            while self._cached_bytes > self.memory_bytes and len(self._entries) > 1:
                _, (_, evicted_bytes) = self._entries.popitem(last=False)
                self._cached_bytes -= evicted_bytes
        self._entries.move_to_end(key)
        return self._entries[key][0]


class PositionDeletes:
    """Deleted positions per data file. A partition-scoped delete file is needed for every data file of its partition, so
    decoded files are cached, without the positions of data files that are not in `wanted`."""

    def __init__(self, io: FileIO, memory_bytes: int, wanted: Collection[str] | None = None) -> None:
        """`wanted`: paths of the data files whose positions will be needed, if they are known."""
        self._io = io
        self._wanted = None if wanted is None else frozenset(wanted)
        self._cache: LruCache[str, dict[str, Positions]] = LruCache(memory_bytes)

    def of(self, data_file: str, deletes: FileDeletes) -> Positions:
        """The deleted positions of `data_file`, ascending, by its deletion vector or its position delete files."""
        if (vector := deletes.vector) is not None:
            check_not_encrypted(vector["file_path"], vector["key_metadata_bytes"])
            return read_vector(
                self._io,
                vector["file_path"],
                vector["content_offset"],
                vector["content_size_bytes"],
                vector["record_count"],
                vector["file_size_bytes"],
            )
        if self._wanted is not None and data_file not in self._wanted:
            msg = f"positions of {data_file} were not wanted"
            raise ValueError(msg)
        positions = [self._decode(row).get(data_file, NO_POSITIONS) for row in deletes.positions.iter_rows(named=True)]
        if len(positions) == 1:
            return positions[0]
        return np.unique(np.concatenate(positions)) if positions else NO_POSITIONS

    def _decode(self, row: Mapping[str, Any]) -> dict[str, Positions]:
        def read() -> tuple[dict[str, Positions], int]:
            check_not_encrypted(row["file_path"], row["key_metadata_bytes"])
            decoded = read_position_deletes(
                self._io, row["file_path"], row["file_format"], self._wanted, size=row["file_size_bytes"]
            )
            return decoded, sum(len(path) + positions.nbytes for path, positions in decoded.items())

        return self._cache.get(row["file_path"], read)


def read_position_deletes(
    io: FileIO, path: str, file_format: str, wanted: Collection[str] | None = None, *, size: int | None = None
) -> dict[str, Positions]:
    """Read a position delete file: data file → ascending, distinct positions. The specification orders its rows by path and
    position, which makes this cheap; a file in another order is read correctly too. Positions of data files that are not
    wanted are dropped batch by batch, so that memory does not grow with the size of the file."""
    positions_by_file: dict[str, list[Positions]] = {}
    wanted_paths = None if wanted is None else pa.array(sorted(wanted), pa.string())
    field_ids = {FILE_PATH_ID, POSITION_ID}
    for file_batch in read_file_batches(io, path, file_format, None, field_ids, size=size, dictionaries=True):
        if not field_ids <= fields_by_id(file_batch.file.schema, file_batch.file.names).keys():
            raise Damaged(
                f"position delete file without its columns file_path and pos: {path}",
                hint=_INVALID_FILE_HINT,
                file=path,
            )
        batch = Projection.of(file_batch.batch.schema, file_batch.file.names, _POSITION_FIELDS, {}).apply(file_batch.batch)
        for data_file, positions in _split_by_data_file(batch["file_path"], batch["pos"].to_numpy(), wanted_paths):
            positions_by_file.setdefault(data_file, []).append(positions)
    return {data_file: _sort_distinct(parts) for data_file, parts in positions_by_file.items()}


def _split_by_data_file(paths: pa.Array, positions: Positions, wanted: pa.Array | None) -> Iterator[tuple[str, Positions]]:
    """Positions by data file. Runs of equal paths are compared instead of every path."""
    runs = pc.run_end_encode(paths.indices if pa.types.is_dictionary(paths.type) else paths)
    names = paths.dictionary.take(runs.values) if pa.types.is_dictionary(paths.type) else runs.values
    lengths = np.diff(runs.run_ends.to_numpy(), prepend=0)
    if wanted is not None:
        is_wanted = pc.is_in(names, value_set=wanted)
        kept = is_wanted.to_numpy(zero_copy_only=False)
        positions, names, lengths = positions[np.repeat(kept, lengths)], names.filter(is_wanted), lengths[kept]
    encoded = names.dictionary_encode()
    if len(encoded.dictionary) < len(names):  # not ordered by path
        codes = np.repeat(encoded.indices.to_numpy(), lengths)
        positions, names, lengths = positions[np.argsort(codes, kind="stable")], encoded.dictionary, np.bincount(codes)
    for name, length, end in zip(names.to_pylist(), lengths, np.cumsum(lengths), strict=True):
        yield name, positions[end - length : end]


def _sort_distinct(parts: list[Positions]) -> Positions:
    positions = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return positions if bool((positions[1:] > positions[:-1]).all()) else np.unique(positions)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyColumns:
    """The key columns of equality deletes. Each is a top-level field that contains only the path to one key: structs of a
    single child down to the key itself, named by number, because names change and two schemas may use one name twice."""

    ids: tuple[int, ...]
    fields: tuple[NestedField, ...]
    id_paths: tuple[tuple[int, ...], ...]
    """For each key the field ids from the top-level column down to it."""

    @classmethod
    def of(cls, ids: Sequence[int], schemas: Sequence[Schema], delete_file: str) -> KeyColumns:
        """Look the ids up in the first schema that has them: deletes by a column that was dropped since still apply."""
        if not ids:
            raise Damaged(
                f"equality delete file without equality ids: {delete_file}",
                hint=_INVALID_FILE_HINT,
                file=delete_file,
            )
        fields, id_paths = [], []
        for number, field_id in enumerate(sorted(ids)):
            path = next((path for schema in schemas if (path := _path_to(schema.fields, field_id))), None)
            if path is None:
                raise Damaged(
                    f"equality delete file {delete_file} names column id {field_id}, which no schema of the table has",
                    hint="The delete file was written for another table, or its schema was removed from the metadata.",
                    file=delete_file,
                )
            fields.append(_key_field(str(number), path))
            id_paths.append(tuple(field.field_id for field in path))
        return cls(ids=tuple(sorted(ids)), fields=tuple(fields), id_paths=tuple(id_paths))

    @property
    def top_level_ids(self) -> set[int]:
        """The ids of the top-level columns that contain the keys."""
        return {field.field_id for field in self.fields}

    def frame(self, file_batch: FileBatch, constants: Mapping[int, Any]) -> pl.DataFrame:
        """The key columns of a batch in comparable form, named `key_0`, `key_1` …"""
        projection = Projection.of(file_batch.batch.schema, file_batch.file.names, self.fields, constants)
        return self._frame(projection.apply(file_batch.batch))

    def _frame(self, batch: pa.RecordBatch) -> pl.DataFrame:
        columns = {}
        for number, (array, id_path) in enumerate(zip(batch.columns, self.id_paths, strict=True)):
            leaf = array
            for _ in id_path[1:]:
                leaf = pc.struct_field(leaf, [0])
            columns[f"key_{number}"] = _to_comparable(leaf)
        return pl.DataFrame(pa.table(columns))

    @property
    def memory_bytes(self) -> pl.Expr:
        """Estimated memory of a file's keys while they are indexed, as measured. Exact codes: 30 bytes a key, 10 of which
        stay. Others: about 25 a key and 40 a column, of which a third stays; long values more, hence the file's size."""
        if is_exact_code(self._frame(pa.RecordBatch.from_pylist([], schema=arrow_schema(self.fields))).schema):
            return pl.col("record_count") * 32
        return pl.col("record_count") * (24 + 40 * len(self.ids)) + pl.col("file_size_bytes") * 4

    def check_present_in(self, file: OpenFile) -> None:
        """Check that a delete file has its key columns: a missing one would read as null and delete rows without a value."""
        for id_path in self.id_paths:
            fields, names = list(file.schema), file.names
            for field_id in id_path:
                file_field = fields_by_id(fields, names).get(field_id)
                if file_field is None:
                    raise Damaged(
                        f"equality delete file does not have its key column (id {id_path[-1]}): {file.path}",
                        hint=_INVALID_FILE_HINT,
                        file=file.path,
                    )
                fields, names = children(file_field.field.type), file_field.child_names


def _path_to(fields: Sequence[NestedField], field_id: int) -> tuple[NestedField, ...] | None:
    """The fields from a top-level column down to the field with this id, through structs only."""
    for field in fields:
        if field.field_id == field_id:
            return (field,)
        if isinstance(field.field_type, StructType):
            rest = _path_to(field.field_type.fields, field_id)
            if rest:
                return (field, *rest)
    return None


def _key_field(name: str, path: tuple[NestedField, ...]) -> NestedField:
    # Always optional: an old file may lack a column that became required later.
    field, rest = path[0], path[1:]
    if not rest:
        return field.model_copy(update={"name": name, "required": False})
    inner = StructType(_key_field("0", rest))
    return NestedField(field.field_id, name, inner, required=False)


def _to_comparable(array: pa.Array) -> pa.Array:
    """Floats compare by their bits, as Java's comparator does: NaN equals NaN, and 0.0 differs from -0.0."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_floating(array.type):
        canonical = pc.if_else(pc.is_nan(array), pa.scalar(float("nan"), array.type), array)
        return canonical.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    if pa.types.is_fixed_size_binary(array.type):
        return array.cast(pa.binary())
    return array


def read_equality_deletes(
    io: FileIO, keys: KeyColumns, files: pl.DataFrame
) -> Iterator[tuple[pl.DataFrame, Integers, Integers]]:
    """The deleted keys of equality delete files in batches, the data sequence numbers of the files in each, and how many of
    its keys they have."""
    for batch in join_batches(_equality_delete_batches(io, keys, files)):
        keys.check_present_in(batch.joined.file)
        yield keys.frame(batch.joined, {}), np.array(batch.owners, np.int64), batch.heights


def _equality_delete_batches(io: FileIO, keys: KeyColumns, files: pl.DataFrame) -> Iterator[tuple[int, FileBatch]]:
    columns = ["file_path", "file_format", "file_size_bytes", "key_metadata_bytes", "data_sequence_number"]
    sizer = BatchSizer()
    for path, file_format, size, key_metadata_bytes, sequence in files.select(columns).iter_rows():
        check_not_encrypted(path, key_metadata_bytes)
        for batch in read_file_batches(io, path, file_format, None, keys.top_level_ids, batch_sizer=sizer, size=size):
            yield sequence, batch


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteBatch:
    """Equality delete files with the same key columns that are indexed together."""

    keys: KeyColumns
    files: pl.DataFrame
    memory_bytes: int
    digest: bytes
    """Of the paths of the files, which there may be thousands of."""


class EqualityDeletes:
    """Indexes of equality deletes, within a memory budget. Deletes that exceed it are indexed in several batches."""

    def __init__(self, io: FileIO, schemas: Sequence[Schema], memory_bytes: int) -> None:
        self._io = io
        self._schemas = schemas
        self._cache: LruCache[bytes, EqualityIndex] = LruCache(memory_bytes)

    def batches(self, files: pl.DataFrame) -> list[DeleteBatch]:
        """The delete files by their key columns, in batches within the memory budget."""
        batches = []
        for (ids,), group in files.group_by("equality_ids", maintain_order=True):
            keys = KeyColumns.of(list(ids or ()), self._schemas, group["file_path"][0])
            number = (pl.col("memory_bytes").cum_sum() - 1) // self._cache.memory_bytes
            parts = group.with_columns(memory_bytes=keys.memory_bytes).with_columns(batch=number).partition_by("batch")
            batches += [_delete_batch(keys, part) for part in parts]
        return batches

    def fit_in_memory(self, batches: Sequence[DeleteBatch]) -> bool:
        """Whether the indexes of all batches fit into the memory budget at once."""
        return sum(batch.memory_bytes for batch in batches) <= self._cache.memory_bytes

    def index(self, batch: DeleteBatch) -> EqualityIndex:
        """The index of a batch, built or taken from the cache."""

        def build() -> tuple[EqualityIndex, int]:
            index = EqualityIndex(read_equality_deletes(self._io, batch.keys, batch.files))
            return index, index.nbytes

        return self._cache.get(batch.digest, build)


def _delete_batch(keys: KeyColumns, files: pl.DataFrame) -> DeleteBatch:
    digest = hashlib.sha256("\0".join(files["file_path"]).encode()).digest()
    return DeleteBatch(keys=keys, files=files, memory_bytes=int(files["memory_bytes"].sum()), digest=digest)
