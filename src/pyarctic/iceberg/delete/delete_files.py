"""Reading delete files, and asking them about rows: which positions of a file are dead, which keys are.

Position deletes become sorted position arrays per data file. Equality deletes become one index (`keyindex.py`) per set of
key columns.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, StructType

from pyarctic.errors import Damaged, Unsupported
from pyarctic.iceberg.delete.deletion_vectors import Positions, read_vector
from pyarctic.iceberg.delete.key_index import EqualityIndex, is_exact_code
from pyarctic.iceberg.delete.matching import FileDeletes
from pyarctic.iceberg.manifest.reader import FILE_PATH_ID
from pyarctic.iceberg.read.data_files import FileBatch, OpenFile, read_file_batches
from pyarctic.iceberg.read.projection import Projection, arrow_schema, children, fields_by_id

POSITION_ID = 2147483545
_POSITION_FIELDS = (NestedField(FILE_PATH_ID, "file_path", StringType()), NestedField(POSITION_ID, "pos", LongType()))
NO_POSITIONS: Positions = np.empty(0, np.int64)
Mask = npt.NDArray[np.bool_]
Key = TypeVar("Key")
Value = TypeVar("Value")


def check_not_encrypted(path: str, key_metadata_bytes: int | None) -> None:
    if key_metadata_bytes is not None:
        raise Unsupported(f"file is encrypted: {path}", hint="PyArctic does not read encrypted tables yet.", file=path)


class Held(Generic[Key, Value]):
    """Things read from files, kept for the next asker; the least used are dropped beyond the memory budget."""

    def __init__(self, memory_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        self._held: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._held_bytes = 0

    def get(self, key: Key, read: Callable[[], tuple[Value, int]]) -> Value:
        """The thing kept under `key`, or the thing `read` gives, with its size in bytes."""
        if key not in self._held:
            value, size = read()
            self._held[key] = (value, size)
            self._held_bytes += size
            while self._held_bytes > self.memory_bytes and len(self._held) > 1:
                _, (_, dropped) = self._held.popitem(last=False)
                self._held_bytes -= dropped
        self._held.move_to_end(key)
        return self._held[key][0]


class PositionDeletes:
    """Dead positions per data file. A delete file about a whole partition is asked once for every data file of it, so
    decoded ones are held; of data files that are not wanted, nothing is."""

    def __init__(self, io: FileIO, memory_bytes: int, wanted: Collection[str] | None = None) -> None:
        """`wanted`: the data files that will be asked about, if they are known."""
        self._io = io
        self._wanted = None if wanted is None else frozenset(wanted)
        self._held: Held[str, dict[str, Positions]] = Held(memory_bytes)

    def of(self, data_file: str, deletes: FileDeletes) -> Positions:
        """Ascending dead positions of `data_file` by its vector, or by its position delete files."""
        if (vector := deletes.vector) is not None:
            check_not_encrypted(vector["file_path"], vector["key_metadata_bytes"])
            return read_vector(
                self._io,
                vector["file_path"],
                vector["content_offset"],
                vector["content_size_bytes"],
                vector["record_count"],
            )
        if self._wanted is not None and data_file not in self._wanted:
            msg = f"positions of {data_file} were not wanted"
            raise ValueError(msg)
        found = [self._decode(row).get(data_file, NO_POSITIONS) for row in deletes.positions.iter_rows(named=True)]
        if len(found) == 1:
            return found[0]
        return np.unique(np.concatenate(found)) if found else NO_POSITIONS

    def _decode(self, row: Mapping[str, Any]) -> dict[str, Positions]:
        def read() -> tuple[dict[str, Positions], int]:
            check_not_encrypted(row["file_path"], row["key_metadata_bytes"])
            decoded = read_position_deletes(self._io, row["file_path"], row["file_format"], self._wanted)
            return decoded, sum(len(path) + positions.nbytes for path, positions in decoded.items())

        return self._held.get(row["file_path"], read)


def read_position_deletes(
    io: FileIO, path: str, file_format: str, wanted: Collection[str] | None = None
) -> dict[str, Positions]:
    """A position delete file: data file → ascending, distinct positions. Files are ordered by path and position, which
    makes this cheap; one that is not is read just the same. Positions in data files that are not wanted are let go
    piece by piece, so that memory does not follow the file's size."""
    found: dict[str, list[Positions]] = {}
    chosen = None if wanted is None else pa.array(sorted(wanted), pa.string())
    for piece in read_file_batches(io, path, file_format, None, {FILE_PATH_ID, POSITION_ID}, dictionaries=True):
        if not {FILE_PATH_ID, POSITION_ID} <= fields_by_id(piece.file.schema, piece.file.names).keys():
            raise Damaged(
                f"position delete file without its columns file_path and pos: {path}",
                hint="Its writer broke the specification. Roll back to the snapshot before its commit.",
                file=path,
            )
        batch = Projection.of(piece.batch.schema, piece.file.names, _POSITION_FIELDS, {}).apply(piece.batch)
        for name, positions in _by_data_file(batch["file_path"], batch["pos"].to_numpy(), chosen):
            found.setdefault(name, []).append(positions)
    return {name: _ascending(parts) for name, parts in found.items()}


def _by_data_file(paths: pa.Array, positions: Positions, wanted: pa.Array | None) -> Iterator[tuple[str, Positions]]:
    """Positions by the data file they name, without a look at every path: runs of equal ones are looked at."""
    runs = pc.run_end_encode(paths.indices if pa.types.is_dictionary(paths.type) else paths)
    names = paths.dictionary.take(runs.values) if pa.types.is_dictionary(paths.type) else runs.values
    lengths = np.diff(runs.run_ends.to_numpy(), prepend=0)
    if wanted is not None:
        chosen = pc.is_in(names, value_set=wanted)
        kept = chosen.to_numpy(zero_copy_only=False)
        positions, names, lengths = positions[np.repeat(kept, lengths)], names.filter(chosen), lengths[kept]
    encoded = names.dictionary_encode()
    if len(encoded.dictionary) < len(names):  # not in order
        codes = np.repeat(encoded.indices.to_numpy(), lengths)
        positions, names, lengths = positions[np.argsort(codes, kind="stable")], encoded.dictionary, np.bincount(codes)
    for name, length, end in zip(names.to_pylist(), lengths, np.cumsum(lengths), strict=True):
        yield name, positions[end - length : end]


def _ascending(parts: list[Positions]) -> Positions:
    positions = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return positions if bool((positions[1:] > positions[:-1]).all()) else np.unique(positions)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyColumns:
    """The key columns of an equality delete. Each is a field that holds nothing but the way to one key: structs of a single
    child down to the key itself, named by number, because names change and two schemas may use one name twice."""

    ids: tuple[int, ...]
    fields: tuple[NestedField, ...]
    ways: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, ids: Sequence[int], schemas: Sequence[Schema], delete_file: str) -> KeyColumns:
        """Look the ids up in the newest schema that has them: a dropped column still counts."""
        if not ids:
            raise Damaged(
                f"equality delete file without equality ids: {delete_file}",
                hint="Its writer broke the specification. Roll back to the snapshot before its commit.",
                file=delete_file,
            )
        fields, ways = [], []
        for number, field_id in enumerate(sorted(ids)):
            way = next((way for schema in schemas if (way := _way_to(schema.fields, field_id))), None)
            if way is None:
                raise Damaged(
                    f"equality delete file {delete_file} names column id {field_id}, which no schema of the table has",
                    hint="The delete file was written for another table, or its schema was removed from the metadata.",
                    file=delete_file,
                )
            fields.append(_key_field(str(number), way))
            ways.append(tuple(step.field_id for step in way))
        return cls(ids=tuple(sorted(ids)), fields=tuple(fields), ways=tuple(ways))

    @property
    def top_level_ids(self) -> set[int]:
        return {field.field_id for field in self.fields}

    def frame(self, piece: FileBatch, constants: Mapping[int, Any]) -> pl.DataFrame:
        """The key columns of some rows, in comparable form."""
        return self._frame(Projection.of(piece.batch.schema, piece.file.names, self.fields, constants).apply(piece.batch))

    def _frame(self, batch: pa.RecordBatch) -> pl.DataFrame:
        columns = {}
        for number, (array, way) in enumerate(zip(batch.columns, self.ways, strict=True)):
            leaf = array
            for _ in way[1:]:
                leaf = pc.struct_field(leaf, [0])
            columns[f"key_{number}"] = _comparable(leaf)
        return pl.DataFrame(pa.table(columns))

    @property
    def weight(self) -> pl.Expr:
        """Bytes that the keys of a file take while an index is built of them, as measured. Numbers: 30 a key, 10 of which
        stay. Others: about 25 a key and 40 a column, of which a third stays; long values more, hence the file's size."""
        if is_exact_code(self._frame(pa.RecordBatch.from_pylist([], schema=arrow_schema(self.fields))).schema):
            return pl.col("record_count") * 32
        return pl.col("record_count") * (24 + 40 * len(self.ids)) + pl.col("file_size_bytes") * 4

    def require(self, file: OpenFile) -> None:
        """A delete file must hold its keys: a missing one would read as null and delete the rows without a value."""
        for way in self.ways:
            fields, names = list(file.schema), file.names
            for field_id in way:
                at = fields_by_id(fields, names).get(field_id)
                if at is None:
                    raise Damaged(
                        f"equality delete file does not hold its key column (id {way[-1]}): {file.path}",
                        hint="Its writer broke the specification. Roll back to the snapshot before its commit.",
                        file=file.path,
                    )
                fields, names = children(at.field.type), at.below


def _way_to(fields: Sequence[NestedField], field_id: int) -> tuple[NestedField, ...] | None:
    """The fields from a column down to the one with this id. Only structs may lie between."""
    for field in fields:
        if field.field_id == field_id:
            return (field,)
        if isinstance(field.field_type, StructType):
            below = _way_to(field.field_type.fields, field_id)
            if below:
                return (field, *below)
    return None


def _key_field(name: str, way: tuple[NestedField, ...]) -> NestedField:
    # Optional whatever the schema says: an old file may lack a column that was required later.
    here, below = way[0], way[1:]
    if not below:
        return here.model_copy(update={"name": name, "required": False})
    inner = StructType(_key_field("0", below))
    return NestedField(here.field_id, name, inner, required=False)


def _comparable(array: pa.Array) -> pa.Array:
    """Floats compare by their bits, as Java's comparator does: NaN equals NaN, and 0.0 differs from -0.0."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_floating(array.type):
        canonical = pc.if_else(pc.is_nan(array), pa.scalar(float("nan"), array.type), array)
        return canonical.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    if pa.types.is_fixed_size_binary(array.type):
        return array.cast(pa.binary())
    return array


def read_equality_deletes(io: FileIO, keys: KeyColumns, files: pl.DataFrame) -> Iterator[tuple[pl.DataFrame, int]]:
    """The deleted keys of equality delete files, piece by piece, with the sequence number of their file."""
    for row in files.iter_rows(named=True):
        check_not_encrypted(row["file_path"], row["key_metadata_bytes"])
        for piece in read_file_batches(io, row["file_path"], row["file_format"], None, keys.top_level_ids):
            keys.require(piece.file)
            yield keys.frame(piece, {}), row["data_sequence_number"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteBatch:
    """Equality delete files with equal key columns that are indexed together."""

    keys: KeyColumns
    files: pl.DataFrame
    weight_bytes: int


class EqualityDeletes:
    """Indexes of equality deletes, within a memory budget. Deletes that do not fit into it come in several portions."""

    def __init__(self, io: FileIO, schemas: Sequence[Schema], memory_bytes: int) -> None:
        self._io = io
        self._schemas = schemas
        self._held: Held[tuple[str, ...], EqualityIndex] = Held(memory_bytes)

    def portions(self, files: pl.DataFrame) -> list[DeleteBatch]:
        """The delete files by their key columns, in portions within the memory budget."""
        portions = []
        for (ids,), group in files.group_by("equality_ids", maintain_order=True):
            keys = KeyColumns.of(list(ids or ()), self._schemas, group["file_path"][0])
            number = (pl.col("weight").cum_sum() - 1) // self._held.memory_bytes
            parts = group.with_columns(weight=keys.weight).with_columns(portion=number).partition_by("portion")
            portions += [DeleteBatch(keys=keys, files=part, weight_bytes=int(part["weight"].sum())) for part in parts]
        return portions

    def fit_together(self, portions: Sequence[DeleteBatch]) -> bool:
        return sum(portion.weight_bytes for portion in portions) <= self._held.memory_bytes

    def index(self, portion: DeleteBatch) -> EqualityIndex:
        def read() -> tuple[EqualityIndex, int]:
            index = EqualityIndex(read_equality_deletes(self._io, portion.keys, portion.files))
            return index, index.nbytes

        return self._held.get(tuple(portion.files["file_path"].to_list()), read)
