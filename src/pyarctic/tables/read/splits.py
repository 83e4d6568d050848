"""A read divided for many readers: plain files that any Parquet reader reads correctly, and splits that need PyArctic.

A split is some bytes and can be sent anywhere. What all splits of a read have in common is a `SplitReader`, which can be
pickled: it knows the table without its history, and needs no catalog.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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
from pyarctic.iceberg.delete import PARTITION_KEY, DeleteMatches
from pyarctic.iceberg.manifest import FILE_IDENTITY, FILE_SCHEMA, FileList
from pyarctic.iceberg.predicate import ALWAYS_TRUE, bind_condition, is_supported_by_spark, to_spark_sql
from pyarctic.iceberg.read import Scan, TableView, arrow_schema
from pyarctic.iceberg.write.parquet import file_schema
from pyarctic.tables.format.file_names import STORES, Store, parse_change_file_names
from pyarctic.tables.read.change_scan import ChangeScan
from pyarctic.tables.read.foreign_files import IS_FOREIGN
from pyarctic.tables.read.key_groups import KeyGroup
from pyarctic.tables.read.merged_scan import MergedScan, StoreState

_UNREADABLE = pa.types.is_time, lambda type_: pa.types.is_timestamp(type_) and type_.unit == "ns", pa.types.is_null


Split = tuple[bytes, ...]
"""Lists of files. Splits may share one: pickled together, it is sent once."""


class SplitReader(Protocol):
    """Reads splits, wherever it is sent."""

    def batches(self, split: Split) -> Iterator[pa.RecordBatch]: ...


@dataclass(frozen=True, kw_only=True)
class ReadPlan:
    """All rows of a read: those of the plain files that meet the condition, and those of the splits."""

    schema: pa.Schema
    """The wanted columns, as the batches of splits have them."""
    plain_files: tuple[str, ...]
    """Paths of Parquet files whose rows are all live."""
    plain_schema: pa.Schema
    """The columns to read from them, with their field ids: those wanted, and those of the condition."""
    names_are_stable: bool
    """Whether no column was ever renamed. If not, a file may have another column under the same name."""
    condition: str | None
    """For the rows of plain files, in SQL."""
    reader: SplitReader
    splits: tuple[Split, ...]


@dataclass(frozen=True, kw_only=True)
class SplitSizes:
    """How large splits are: small enough that all readers are busy, within bounds."""

    readers: int
    min_bytes: int = 4 << 20
    max_bytes: int = 128 << 20
    open_bytes: int = 1 << 20
    """What reading a file costs at least, however small it is."""

    def target(self, total_bytes: int) -> int:
        """The size of splits of so many bytes."""
        return min(self.max_bytes, max(self.min_bytes, -(-total_bytes // max(self.readers, 1))))


def plan_splits(scan: Scan | MergedScan | ChangeScan, sizes: SplitSizes, *, allow_plain: bool = True) -> ReadPlan:
    """Divide a prepared read; no row is read. Without `allow_plain` there are no plain files, only splits."""
    with about(table=scan.table_name):
        _refuse_unreadable(scan.schema)
        match scan:
            case MergedScan():
                return _plan_merged_scan(scan, sizes, allow_plain)
            case ChangeScan():
                return _plan_change_scan(scan, sizes)
        return _plan_scan(scan, sizes, allow_plain)


def _refuse_unreadable(schema: pa.Schema) -> None:
    for field in schema:
        if any(is_of(type_) for type_ in _nested_types(field.type) for is_of in _UNREADABLE):
            others = [name for name in schema.names if name != field.name]
            raise Unsupported(
                f"column {field.name!r} is {field.type}, which Spark does not support",
                hint=f"Name the columns to read ([[columns]]), without it: {', '.join(others)}.",
                column=field.name,
            )


def _nested_types(type_: pa.DataType) -> Iterator[pa.DataType]:
    """A type and all types within it."""
    yield type_
    for index in range(type_.num_fields):
        yield from _nested_types(type_.field(index).type)


# --- which files are plain


@dataclass(frozen=True, kw_only=True)
class _PlainRead:
    """How plain files are read, and which files are plain."""

    fields: tuple[NestedField, ...]
    condition: str | None
    is_plain: pl.Expr
    names_are_stable: bool

    def plan(self, schema: pa.Schema, plain: pl.DataFrame, reader: SplitReader, splits: Iterable[Split]) -> ReadPlan:
        return ReadPlan(
            schema=schema,
            plain_files=tuple(plain["file_path"]),
            plain_schema=file_schema(self.fields),
            names_are_stable=self.names_are_stable,
            condition=self.condition,
            reader=reader,
            splits=tuple(splits),
        )


def _plan_plain_read(
    scan: Scan | MergedScan, view: TableView, listed: FileList, data: pl.DataFrame, *, allowed: bool
) -> _PlainRead:
    """`data`: the data files to choose from, `listed`: with their metrics."""
    schema, condition = scan.table_schema, scan.condition
    fields = _fields_to_read(schema, scan.wanted, condition)
    stable = _names_are_stable(view.metadata)
    if not (allowed and _has_plain_fields(view.metadata, schema, fields, names_are_stable=stable)):
        return _PlainRead(fields=fields, condition=None, is_plain=pl.lit(value=False), names_are_stable=stable)
    sql = None if condition == ALWAYS_TRUE else to_spark_sql(schema, bind_condition(schema, condition))
    name = pl.col("file_path").str.split("/").list.last()
    is_plain = (pl.col("file_format") == "PARQUET") & ~name.str.contains("^[._]")  # Spark ignores files named so
    sources = _identity_sources(view.metadata) & {field.field_id for field in fields}
    if data.height and sources:
        # A file may leave out a column whose value is in its partition.
        counts = [pl.col(f"values_{field_id}") for field_id in sources]
        measured = listed.with_metrics(view.io, data, sorted(sources))
        complete = measured.filter(pl.all_horizontal(count.is_not_null() for count in counts))
        is_plain &= pl.col("file_path").is_in(complete["file_path"].implode())
    return _PlainRead(fields=fields, condition=sql, is_plain=is_plain, names_are_stable=stable)


def _fields_to_read(
    schema: Schema, wanted: tuple[NestedField, ...], condition: BooleanExpression
) -> tuple[NestedField, ...]:
    """The wanted columns, and those that the condition needs."""
    if condition == ALWAYS_TRUE:
        return wanted
    needed = extract_field_ids(bind_condition(schema, condition))
    wanted_ids = {field.field_id for field in wanted}
    return wanted + tuple(f for f in schema.fields if f.field_id not in wanted_ids and needed & set(Schema(f).field_ids))


def _has_plain_fields(
    metadata: TableMetadata, schema: Schema, fields: tuple[NestedField, ...], *, names_are_stable: bool
) -> bool:
    """Whether Spark's reader gives these columns as we do. It matches by field id, but within structs by name, too (seen in
    4.1). It does not know defaults."""
    if metadata.name_mapping() or any(f.initial_default is not None for f in index_by_id(Schema(*fields)).values()):
        return False
    column_ids = {field.field_id for field in schema.fields}
    return all(
        f.field_id in column_ids and is_supported_by_spark(f.field_type) and (names_are_stable or f.field_type.is_primitive)
        for f in fields
    )


def _identity_sources(metadata: TableMetadata) -> set[int]:
    fields = (field for spec in metadata.specs().values() for field in spec.fields)
    return {field.source_id for field in fields if isinstance(field.transform, IdentityTransform)}


def _names_are_stable(metadata: TableMetadata) -> bool:
    """Names are compared as Spark does it, without case. Removed schemas (Iceberg Java removes them when it expires
    snapshots) may have had any names: then numbers are missing."""
    if {schema.schema_id for schema in metadata.schemas} != set(range(len(metadata.schemas))):
        return False
    names = (schema._lazy_id_to_name.items() for schema in metadata.schemas)
    pairs = {(field_id, name.casefold()) for each in names for field_id, name in each}
    return len({field_id for field_id, _ in pairs}) == len(pairs) == len({name for _, name in pairs})


# --- tables and stores read as they are


@dataclass(frozen=True, kw_only=True)
class _ScanSplitReader:
    view: TableView
    schema: Schema
    wanted: tuple[NestedField, ...]
    condition: BooleanExpression

    def batches(self, split: Split) -> Iterator[pa.RecordBatch]:
        files = _to_file_list(self.view, _read_files(split))
        # The files were pruned when the splits were planned.
        yield from Scan(self.view, None, self.schema, self.wanted, self.condition, files, is_pruned=True).batches()


def _plan_scan(scan: Scan, sizes: SplitSizes, allow_plain: bool) -> ReadPlan:
    view, plan = scan.table, scan.plan
    plain_read = _plan_plain_read(scan, view, scan.listed, plan.data, allowed=allow_plain)
    is_plain = plain_read.is_plain & ~plan.has_deletes
    rest = plan.data.filter(~is_plain)
    splits = [
        (frame_to_bytes(pl.concat([_select_file_columns(part), _select_file_columns(plan.applying_to(part))])),)
        for part in _split_by_size(rest.sort(PARTITION_KEY, maintain_order=True), sizes)
    ]
    reader = _ScanSplitReader(view=view, schema=scan.table_schema, wanted=scan.wanted, condition=scan.condition)
    return plain_read.plan(scan.schema, plan.data.filter(is_plain), reader, splits)


# --- both stores of a keyed table, merged

_STORE, _GROUP, _IS_READ, _HAS_VERSIONS = "store", "group", "is_read", "has_versions"
"""The store of a file, which of the key groups of a split it belongs to, whether its rows are read, and whether the versions
of its keys are."""
_FACTS = {
    "node_id": pl.Int64,
    "kind": pl.String,
    "transaction_id": pl.Int64,
    "writer": pl.String,
    "rank": pl.Int64,
    "foreign_order": pl.Int64,
    "key_group": pl.Int64,
}
"""What is known of data files when the splits are planned."""


@dataclass(frozen=True, kw_only=True)
class _MergedSplitReader:
    base: TableView
    change: TableView
    schema: Schema
    columns: tuple[str, ...]
    condition: BooleanExpression
    memory_bytes: int

    def batches(self, split: Split) -> Iterator[pa.RecordBatch]:
        files = _read_files(split)
        # A file may be there twice: for its rows and for its versions, or a delete file for several groups.
        roles = pl.col(_IS_READ, _HAS_VERSIONS).any().over(FILE_IDENTITY)
        files = files.with_columns(roles).unique(FILE_IDENTITY, maintain_order=True)
        states = [
            StoreState(view=view, snapshot=None, files=_to_file_list(view, files.filter(pl.col(_STORE) == store)))
            for store, view in (("base", self.base), ("change", self.change))
        ]
        scan = MergedScan(
            *states, schema=self.schema, columns=self.columns, where=self.condition, memory_bytes=self.memory_bytes
        )
        for group in files[_GROUP].drop_nulls().unique(maintain_order=True):
            yield from scan.batches_of(_restore_group(files.filter(pl.col(_GROUP) == group), scan))


def _plan_merged_scan(scan: MergedScan, sizes: SplitSizes, allow_plain: bool) -> ReadPlan:
    base, change = scan.views
    matches = scan.base_matches
    plain_read = _plan_plain_read(scan, base, scan.base_files, matches.data, allowed=allow_plain)
    plain, groups = scan.groups.partition_unchanged(plain_read.is_plain & ~matches.has_deletes)
    target = sizes.target(groups.data_bytes(sizes.open_bytes))
    reader = _MergedSplitReader(
        base=base,
        change=change,
        schema=scan.table_schema,
        columns=tuple(field.name for field in scan.wanted),
        condition=scan.condition,
        memory_bytes=scan.memory_bytes,
    )
    small, large = groups.pack(target, sizes.open_bytes).partition_small(target, sizes.open_bytes)
    splits = [_join_groups(files, matches) for files in small]
    splits += [split for group in large for split in _split_group(group, target, sizes.open_bytes, matches)]
    return plain_read.plan(scan.schema, plain, reader, splits)


def _join_groups(files: pl.DataFrame, matches: DeleteMatches) -> Split:
    """A split of several key groups, which are read one after the other."""
    used = files.filter(pl.col(_IS_READ) | pl.col(_HAS_VERSIONS))
    data = used.select(*FILE_SCHEMA, *_FACTS, _STORE, _GROUP, _IS_READ, _HAS_VERSIONS)
    deletes = _select_delete_files(matches.applying_to(used.filter(pl.col(_STORE) == "base")))
    return (frame_to_bytes(pl.concat([data, deletes])),)


def _split_group(group: KeyGroup, target_bytes: int, open_bytes: int, matches: DeleteMatches) -> Iterator[Split]:
    """The splits of a key group. All of them share the files with versions."""
    competing = pl.concat([group.competing_base, group.foreign])
    versions = frame_to_bytes(
        pl.concat(
            [
                _select_data_files(group.changes, "change", _HAS_VERSIONS),
                _select_data_files(competing, "base", _HAS_VERSIONS),
                _select_delete_files(matches.applying_to(competing)),
            ]
        )
    )
    for part in group.split(target_bytes, open_bytes):
        read = [
            _select_data_files(part.base, "base", _IS_READ),
            _select_data_files(part.inserts, "change", _IS_READ),
            _select_delete_files(matches.applying_to(part.base)),
        ]
        yield versions, frame_to_bytes(pl.concat(read))


def _select_data_files(files: pl.DataFrame, store: Store, role: str) -> pl.DataFrame:
    roles = (pl.lit(name == role).alias(name) for name in (_IS_READ, _HAS_VERSIONS))
    group = pl.lit(0, pl.Int64).alias(_GROUP)
    return files.select(*FILE_SCHEMA, *_FACTS, pl.lit(store).alias(_STORE), group, *roles)


def _select_delete_files(files: pl.DataFrame) -> pl.DataFrame:
    facts = (pl.lit(None, dtype).alias(name) for name, dtype in _FACTS.items())
    roles = (pl.lit(value=False).alias(name) for name in (_IS_READ, _HAS_VERSIONS))
    group = pl.lit(None, pl.Int64).alias(_GROUP)
    return files.select(*FILE_SCHEMA, *facts, pl.lit("base").alias(_STORE), group, *roles)


def _restore_group(files: pl.DataFrame, scan: MergedScan) -> KeyGroup:
    """The key group of a split, with the rows by which `scan` knows its files."""
    facts = files.filter(pl.col("kind").is_not_null()).select("file_path", *_FACTS, _IS_READ, _HAS_VERSIONS)
    base, changes = (scan.data_files(store).join(facts, on="file_path", maintain_order="left") for store in STORES)
    return KeyGroup(
        base=base.filter(_IS_READ),
        inserts=changes.filter(pl.col(_IS_READ) & (pl.col("kind") != "ED")),
        changes=changes.filter(_HAS_VERSIONS),
        competing_base=base.filter(pl.col(_HAS_VERSIONS) & ~IS_FOREIGN),
        foreign=base.filter(pl.col(_HAS_VERSIONS) & IS_FOREIGN),
    )


# --- the change store


@dataclass(frozen=True, kw_only=True)
class _ChangeSplitReader:
    view: TableView
    schema: Schema
    columns: tuple[str, ...]
    condition: BooleanExpression

    def batches(self, split: Split) -> Iterator[pa.RecordBatch]:
        state = StoreState(view=self.view, snapshot=None, files=_to_file_list(self.view, _read_files(split)))
        yield from ChangeScan(state, schema=self.schema, columns=self.columns, where=self.condition).batches()


def _plan_change_scan(scan: ChangeScan, sizes: SplitSizes) -> ReadPlan:
    files = parse_change_file_names(scan.files)
    reader = _ChangeSplitReader(
        view=scan.view,
        schema=scan.table_schema,
        columns=tuple(field.name for field in scan.wanted),
        condition=scan.condition,
    )
    return ReadPlan(
        schema=scan.schema,
        plain_files=(),
        plain_schema=arrow_schema(()),
        names_are_stable=True,
        condition=None,
        reader=reader,
        splits=tuple((frame_to_bytes(_select_file_columns(part)),) for part in _split_by_size(files, sizes)),
    )


# --- files


def _read_files(split: Split) -> pl.DataFrame:
    return pl.concat([frame_from_bytes(data) for data in split])


def _to_file_list(view: TableView, files: pl.DataFrame) -> FileList:
    return FileList.of_frame(str(view.metadata.table_uuid), _select_file_columns(files))


def _select_file_columns(files: pl.DataFrame) -> pl.DataFrame:
    return files.select(FILE_SCHEMA.names())


def _split_by_size(files: pl.DataFrame, sizes: SplitSizes) -> list[pl.DataFrame]:
    weights = files["file_size_bytes"].clip(sizes.open_bytes)
    numbered = files.with_columns(split=(weights.cum_sum() - 1) // sizes.target(int(weights.sum())))
    return [part.drop("split") for part in numbered.partition_by("split", maintain_order=True)]
