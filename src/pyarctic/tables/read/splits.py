"""A read divided for many readers: files that any reader of Parquet reads right, and portions that need PyArctic.

A portion is some bytes and goes anywhere. What all portions of a read have in common is a `SplitReader` object, which can be
pickled: it knows the table without its history, and needs no catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import polars as pl
import pyarrow as pa
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.visitors import extract_field_ids
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import NestedField

from pyarctic.errors import Unsupported, about
from pyarctic.iceberg import frame_from_bytes, frame_to_bytes
from pyarctic.iceberg.delete import DeleteMatches
from pyarctic.iceberg.manifest import FILE_IDENTITY, FILE_SCHEMA, FileList
from pyarctic.iceberg.predicate import ALWAYS_TRUE, bind_condition, is_known, to_spark_sql
from pyarctic.iceberg.read import Scan, TableView, arrow_schema
from pyarctic.iceberg.write.parquet import file_schema
from pyarctic.tables.format.file_names import STORES, Store, parse_change_file_names
from pyarctic.tables.read.change_scan import ChangeScan
from pyarctic.tables.read.key_groups import KeyGroup
from pyarctic.tables.read.merged_scan import MergedScan, StoreState

_STORE, _READ, _WORD = "store", "read", "word"
_UNREADABLE = pa.types.is_time, lambda type_: pa.types.is_timestamp(type_) and type_.unit == "ns", pa.types.is_null


Split = tuple[bytes, ...]
"""Lists of files. Portions may share one: pickled together, it goes along once."""


class SplitReader(Protocol):
    """Reads portions, wherever it is sent."""

    def batches(self, portion: Split) -> Iterator[pa.RecordBatch]: ...


@dataclass(frozen=True, kw_only=True)
class ReadPlan:
    """All rows of a read: those of the plain files that fit the condition, and those of the portions."""

    schema: pa.Schema
    """The wanted columns, as the batches of portions have them."""
    plain: tuple[str, ...]
    """Parquet files whose rows are all alive."""
    plain_schema: pa.Schema
    """The columns to read from them, with their field ids: those wanted, and those of the condition."""
    names_are_stable: bool
    """Whether every column has had its name for ever. If not, a file may know another column under the same name."""
    condition: str | None
    """For the rows of plain files, in SQL."""
    reader: SplitReader
    portions: tuple[Split, ...]


@dataclass(frozen=True, kw_only=True)
class SplitSizes:
    """How large portions are: so that all readers have something to do, within bounds."""

    readers: int
    least_bytes: int = 4 << 20
    most_bytes: int = 128 << 20

    def target(self, total_bytes: int) -> int:
        return min(self.most_bytes, max(self.least_bytes, -(-total_bytes // max(self.readers, 1))))


def plan_splits(scan: Scan | MergedScan | ChangeScan, sizes: SplitSizes, *, allow_plain: bool = True) -> ReadPlan:
    """Divide a prepared read; no row is read. Without `allow_plain` all files are portions."""
    with about(table=scan.table_name):
        _refuse_unreadable(scan.schema)
        match scan:
            case MergedScan():
                return _merged_division(scan, sizes, allow_plain)
            case ChangeScan():
                return _change_division(scan, sizes)
        return _scan_division(scan, sizes, allow_plain)


def _refuse_unreadable(schema: pa.Schema) -> None:
    for field in schema:
        if any(is_of(type_) for type_ in _parts(field.type) for is_of in _UNREADABLE):
            others = [name for name in schema.names if name != field.name]
            raise Unsupported(
                f"column {field.name!r} is {field.type}, which Spark does not know",
                hint=f"Name the columns to read, without it: columns={others}.",
                column=field.name,
            )


def _parts(type_: pa.DataType) -> Iterator[pa.DataType]:
    """A type and those it is made of."""
    yield type_
    for index in range(type_.num_fields):
        yield from _parts(type_.field(index).type)


# --- which files are plain


@dataclass(frozen=True, kw_only=True)
class _Plain:
    """What plain files are read for, and which files are plain."""

    fields: tuple[NestedField, ...]
    condition: str | None
    is_plain: pl.Expr
    names_are_stable: bool

    @classmethod
    def of(
        cls,
        view: TableView,
        listed: FileList,
        data: pl.DataFrame,
        schema: Schema,
        wanted: tuple[NestedField, ...],
        condition: BooleanExpression,
        *,
        allowed: bool,
    ) -> _Plain:
        fields, text = wanted, None
        if condition != ALWAYS_TRUE:
            bound = bind_condition(schema, condition)
            asked = extract_field_ids(bound)
            have = {field.field_id for field in wanted}
            fields += tuple(f for f in schema.fields if f.field_id not in have and asked & set(Schema(f).field_ids))
        own = {field.field_id for field in schema.fields}
        stable = _names_are_stable(view.metadata)
        # Spark's reader matches by field id, but within structs by name, too (seen in 4.1). It does not know defaults.
        possible = (
            allowed
            and all(f.field_id in own and is_known(f.field_type) and (stable or f.field_type.is_primitive) for f in fields)
            and all(f.initial_default is None for f in index_by_id(Schema(*fields)).values())
            and not view.metadata.name_mapping()
        )
        if possible and condition != ALWAYS_TRUE:
            text = to_spark_sql(schema, bound)
        name = pl.col("file_path").str.split("/").list.last()
        is_plain = pl.lit(possible) & (pl.col("file_format") == "PARQUET") & ~name.str.contains("^[._]")
        if possible and data.height and (sources := _identity_sources(view.metadata) & {field.field_id for field in fields}):
            # A file may leave out a column that its partition tells.
            counted = listed.with_metrics(view.io, data, sorted(sources))
            whole = counted.filter(pl.all_horizontal(pl.col(f"values_{field_id}").is_not_null() for field_id in sources))
            is_plain &= pl.col("file_path").is_in(whole["file_path"].implode())
        return cls(fields=fields, condition=text, is_plain=is_plain, names_are_stable=stable)

    def division(self, schema: pa.Schema, plain: Sequence[str], reader: SplitReader, portions: Sequence[Split]) -> ReadPlan:
        return ReadPlan(
            schema=schema,
            plain=tuple(plain),
            plain_schema=file_schema(self.fields),
            names_are_stable=self.names_are_stable,
            condition=self.condition,
            reader=reader,
            portions=tuple(portions),
        )


def _identity_sources(metadata: TableMetadata) -> set[int]:
    fields = (field for spec in metadata.specs().values() for field in spec.fields)
    return {field.source_id for field in fields if isinstance(field.transform, IdentityTransform)}


def _names_are_stable(metadata: TableMetadata) -> bool:
    """As Spark compares names, without their case. Schemas that were removed, as Iceberg Java does when it expires
    snapshots, may have had any names: there are numbers missing then."""
    if {schema.schema_id for schema in metadata.schemas} != set(range(len(metadata.schemas))):
        return False
    names = (schema._lazy_id_to_name.items() for schema in metadata.schemas)
    pairs = {(field_id, name.casefold()) for each in names for field_id, name in each}
    return len({field_id for field_id, _ in pairs}) == len(pairs) == len({name for _, name in pairs})


# --- tables and stores read as they are


@dataclass(frozen=True, kw_only=True)
class _ScanPortions:
    view: TableView
    schema: Schema
    wanted: tuple[NestedField, ...]
    condition: BooleanExpression

    def batches(self, portion: Split) -> Iterator[pa.RecordBatch]:
        files = _listed(self.view, _files_of(portion))
        # The files were chosen already: whatever the bounds in their manifests say of the condition.
        yield from Scan(self.view, None, self.schema, self.wanted, self.condition, files, is_pruned=True).batches()


def _scan_division(scan: Scan, sizes: SplitSizes, allow_plain: bool) -> ReadPlan:
    view, plan = scan.table, scan.plan
    choice = _Plain.of(view, scan.listed, plan.data, scan.table_schema, scan.wanted, scan.condition, allowed=allow_plain)
    is_plain = choice.is_plain & ~plan.has_deletes
    rest = plan.data.filter(~is_plain)
    target = sizes.target(int(rest["file_size_bytes"].sum()))
    portions = [
        (frame_to_bytes(pl.concat([_as_listed(part), _as_listed(plan.hitting(part))])),)
        for part in _by_size(rest.sort("spec_id", "partition", maintain_order=True), target)
    ]
    reader = _ScanPortions(view=view, schema=scan.table_schema, wanted=scan.wanted, condition=scan.condition)
    return choice.division(scan.schema, plan.data.filter(is_plain)["file_path"].to_list(), reader, portions)


# --- both stores of a keyed table, merged


@dataclass(frozen=True, kw_only=True)
class _MergedPortions:
    base: TableView
    change: TableView
    schema: Schema
    columns: tuple[str, ...]
    condition: BooleanExpression
    memory_bytes: int

    def batches(self, portion: Split) -> Iterator[pa.RecordBatch]:
        # A file may be there to be read and for its words.
        files = _files_of(portion)
        files = files.with_columns(pl.col(_READ, _WORD).any().over(FILE_IDENTITY)).unique(FILE_IDENTITY, maintain_order=True)
        states = [
            StoreState(view=view, snapshot=None, files=_listed(view, files.filter(pl.col(_STORE) == store)))
            for store, view in (("base", self.base), ("change", self.change))
        ]
        scan = MergedScan(
            *states, schema=self.schema, columns=self.columns, where=self.condition, memory_bytes=self.memory_bytes
        )
        yield from scan.batches_of(_group(files, scan.numbered))


def _merged_division(scan: MergedScan, sizes: SplitSizes, allow_plain: bool) -> ReadPlan:
    base, change = scan.views
    data, listed = scan.base_matches.data, scan.base_files
    choice = _Plain.of(base, listed, data, scan.table_schema, scan.wanted, scan.condition, allowed=allow_plain)
    plain: list[str] = []
    rest: list[KeyGroup] = []
    for group in scan.groups:
        is_plain = choice.is_plain & ~scan.base_matches.has_deletes & group.words.is_empty()
        plain.extend(group.base.filter(is_plain)["file_path"])
        rest.append(replace(group, base=group.base.filter(~is_plain)))
    target = sizes.target(sum(group.data_bytes for group in rest))
    reader = _MergedPortions(
        base=base,
        change=change,
        schema=scan.table_schema,
        columns=tuple(field.name for field in scan.wanted),
        condition=scan.condition,
        memory_bytes=scan.memory_bytes,
    )
    portions = [portion for group in rest for portion in _group_portions(group, target, scan.base_matches)]
    return choice.division(scan.schema, plain, reader, portions)


_FACTS = {"node_id": pl.Int64, "kind": pl.String, "transaction_id": pl.Int64, "writer": pl.String, "rank": pl.Int64}


def _group_portions(group: KeyGroup, target_bytes: int, matches: DeleteMatches) -> Iterator[Split]:
    """The parts of a group, with the words that all of them need."""
    words = frame_to_bytes(
        pl.concat(
            [
                _told(group.words, "change", _WORD),
                _told(group.base_words, "base", _WORD),
                _deletes(matches.hitting(group.base_words)),
            ]
        )
    )
    for part in group.parts(target_bytes):
        files = [_told(part.base, "base", _READ), _told(part.inserts, "change", _READ), _deletes(matches.hitting(part.base))]
        yield words, frame_to_bytes(pl.concat(files))


def _told(files: pl.DataFrame, store: Store, role: str) -> pl.DataFrame:
    roles = (pl.lit(name == role).alias(name) for name in (_READ, _WORD))
    return files.select(*FILE_SCHEMA, *_FACTS, pl.lit(store).alias(_STORE), *roles)


def _deletes(files: pl.DataFrame) -> pl.DataFrame:
    facts = (pl.lit(None, kind).alias(name) for name, kind in _FACTS.items())
    roles = (pl.lit(value=False).alias(name) for name in (_READ, _WORD))
    return files.select(*FILE_SCHEMA, *facts, pl.lit("base").alias(_STORE), *roles)


def _group(files: pl.DataFrame, numbered: Callable[[Store], pl.DataFrame]) -> KeyGroup:
    facts = files.filter(pl.col("kind").is_not_null()).select("file_path", *_FACTS, _READ, _WORD)
    base, changes = (numbered(store).join(facts, on="file_path", maintain_order="left") for store in STORES)
    inserts = pl.col("kind") != "ED"
    return KeyGroup(
        base=base.filter(_READ),
        inserts=changes.filter(pl.col(_READ) & inserts),
        words=changes.filter(_WORD),
        base_words=base.filter(_WORD),
    )


# --- the change store


@dataclass(frozen=True, kw_only=True)
class _ChangePortions:
    view: TableView
    schema: Schema
    columns: tuple[str, ...]
    condition: BooleanExpression

    def batches(self, portion: Split) -> Iterator[pa.RecordBatch]:
        state = StoreState(view=self.view, snapshot=None, files=_listed(self.view, _files_of(portion)))
        yield from ChangeScan(state, schema=self.schema, columns=self.columns, where=self.condition).batches()


def _change_division(scan: ChangeScan, sizes: SplitSizes) -> ReadPlan:
    files = parse_change_file_names(scan.files)
    target = sizes.target(int(files["file_size_bytes"].sum()))
    reader = _ChangePortions(
        view=scan.view,
        schema=scan.table_schema,
        columns=tuple(field.name for field in scan.wanted),
        condition=scan.condition,
    )
    return ReadPlan(
        schema=scan.schema,
        plain=(),
        plain_schema=arrow_schema(()),
        names_are_stable=True,
        condition=None,
        reader=reader,
        portions=tuple((frame_to_bytes(_as_listed(part)),) for part in _by_size(files, target)),
    )


# --- files


def _files_of(portion: Split) -> pl.DataFrame:
    return pl.concat([frame_from_bytes(data) for data in portion])


def _listed(view: TableView, files: pl.DataFrame) -> FileList:
    return FileList(str(view.metadata.table_uuid), {("", None): files.select(FILE_SCHEMA.names())})


def _as_listed(files: pl.DataFrame) -> pl.DataFrame:
    return files.select(FILE_SCHEMA.names())


def _by_size(files: pl.DataFrame, target_bytes: int) -> list[pl.DataFrame]:
    numbered = files.with_columns(portion=(pl.col("file_size_bytes").cum_sum() - 1) // target_bytes)
    return [part.drop("portion") for part in numbered.partition_by("portion", maintain_order=True)]
