"""A table for trying out healing: random writers, and a plain model of the rows that must be in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from random import Random
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, Transform, TruncateTransform
from pyiceberg.types import (
    DoubleType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
)

import pyarctic
from pyarctic.iceberg.catalog.pyiceberg_patches import apply_patches
from pyarctic.iceberg.commit import Change, Committed, ManifestRewrite, commit
from pyarctic.iceberg.delete import match_deletes
from pyarctic.iceberg.manifest import PartitionDecoder
from pyarctic.iceberg.manifest.file_list import IS_DATA
from pyarctic.iceberg.read.live_rows import LAST_UPDATED, ROW_ID
from pyarctic.iceberg.transforms import partition_values
from pyarctic.iceberg.write import NewFile, write_equality_deletes
from pyarctic.iceberg.write.parquet import DataFileWriter
from pyarctic.tables import Table as Handle
from tests.support import changes

Row = dict[int, Any]
"""Values by field id: a renamed column is the same, a dropped one is gone for good."""
KEYS: tuple[tuple[str, ...], ...] = (("id",), ("k",), ("s",), ("k", "s"), ("id", "k"))
SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "k", IntegerType()),
    NestedField(3, "s", StringType()),
    NestedField(4, "t", TimestampType()),
    NestedField(5, "f", DoubleType()),
    NestedField(6, "n", StructType(NestedField(8, "a", IntegerType()), NestedField(9, "b", StringType()))),
    NestedField(7, "pad", StringType()),
)
ID, K, S, T, F, N, PAD, A, B = 1, 2, 3, 4, 5, 6, 7, 8, 9
SPECS: dict[str, list[tuple[int, Transform[Any, Any], str]]] = {
    "whole": [],
    "identity": [(K, IdentityTransform(), "k_part")],
    "text": [(S, IdentityTransform(), "s_part")],
    "bucket": [(ID, BucketTransform(3), "id_bucket")],
    "day": [(T, DayTransform(), "t_day")],
    "both": [(S, TruncateTransform(1), "s_trunc"), (ID, BucketTransform(2), "id_bucket2")],
}
SORTS: dict[str, SortOrder] = {
    "none": SortOrder(order_id=0),
    "k": SortOrder(SortField(K, IdentityTransform(), SortDirection.DESC, NullOrder.NULLS_LAST), order_id=1),
    "s, f": SortOrder(
        SortField(S, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_FIRST),
        SortField(F, IdentityTransform(), SortDirection.DESC, NullOrder.NULLS_FIRST),
        order_id=1,
    ),
    "bucket, t": SortOrder(
        SortField(ID, BucketTransform(5), SortDirection.ASC, NullOrder.NULLS_FIRST),
        SortField(T, DayTransform(), SortDirection.DESC, NullOrder.NULLS_LAST),
        order_id=1,
    ),
}
_EPOCH = datetime(2024, 2, 27)  # noqa: DTZ001  # the column has no zone


@dataclass
class OptimizedTable:
    """The table and its model. Every method that writes commits at once, and tells the model."""

    catalog: Catalog
    name: str
    random: Random
    rows: dict[int, Row] = field(default_factory=dict)
    lineage: dict[int, tuple[int, int]] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    replaced: set[str] = field(default_factory=set)
    """Data files that writers other than the healing run replaced or dropped."""
    moved_deletes: bool = False
    """Whether deletes left or equality deletes came since the last look."""
    _handle: Handle | None = None
    """Knows the manifests that were read already."""
    _ids: Any = field(default_factory=lambda: count(1))
    _late: Any = field(default_factory=lambda: count(1))

    def create(self, version: int, spec: str, sort: str, properties: dict[str, str]) -> None:
        apply_patches()
        fields = [
            PartitionField(source, 1000 + at, transform, name) for at, (source, transform, name) in enumerate(SPECS[spec])
        ]
        self.catalog.create_table(
            self.name,
            SCHEMA,
            partition_spec=PartitionSpec(*fields),
            sort_order=SORTS[sort],
            properties={"format-version": str(version), **properties},
        )
        self.log.append(f"v{version}, {spec}, sorted by {sort}, {properties}")

    def load(self) -> Table:
        return self.catalog.load_table(self.name)

    def handle(self) -> Handle:
        """The table as it is now."""
        self._handle = self._handle.refresh() if self._handle else pyarctic.table(f"{self.catalog.name}.{self.name}")
        return self._handle

    def _scan(self, columns: list[str], where: str | None = None) -> pa.Table:
        return self.handle().scan(columns, where).to_arrow()

    # -- writers -------------------------------------------------------------------------------------------------

    def append(self, most: int = 60) -> None:
        self._append(self.random.randint(1, most))

    def append_many(self) -> None:
        self._append(self.random.randint(300, 1500))

    def _append(self, number: int) -> None:
        table = self.load()
        rows = self._fresh(table, number)
        self._commit(table, Change(start=changes.head(table), add=tuple(self._written(table, rows))))
        self.rows |= {row[ID]: row for row in rows}
        self.log.append(f"append of {number}")

    def upsert(self) -> None:
        """As streaming engines do: new versions of rows, and equality deletes of the old ones, in one commit."""
        table = self.load()
        if table.format_version < 2 or not self.rows:
            return
        chosen = self.random.sample(sorted(self.rows), min(len(self.rows), self.random.randint(1, 6)))
        dead = self._read().filter(pl.col("id").is_in(chosen))
        fresh = self._fresh(table, len(chosen))
        rows = [row | {ID: key} for row, key in zip(fresh, chosen, strict=True)]
        deletes = self._equality(table, dead, ("id",), everywhere=False)
        add = (*self._written(table, rows), *deletes)
        self._commit(table, Change(start=changes.head(table), add=add))
        self.moved_deletes = True
        for key in chosen:
            self.lineage.pop(key, None)
        self.rows |= {row[ID]: row for row in rows}
        self.log.append(f"upsert of {chosen}")

    def equality_delete(self) -> None:
        """In the partitions where some rows are, or everywhere if a spec of the table has no partitions."""
        table = self.load()
        if table.format_version < 2 or not self.rows:
            return
        columns = self.random.choice(KEYS)
        everywhere = self.random.random() < 0.4 and bool(PartitionDecoder(table.metadata).unpartitioned_specs())
        listed = self._read()
        some = listed.filter(pl.col("id").is_in(self.random.sample(sorted(self.rows), min(len(self.rows), 3))))
        if columns != ("id",) and self.random.random() < 0.7:
            some = some.head(1)
        add = self._equality(table, some, columns, everywhere=everywhere)
        self._commit(table, Change(start=changes.head(table), add=tuple(add)))
        self.moved_deletes = True
        specs = PartitionDecoder(table.metadata).unpartitioned_specs()
        reaching_all = some if everywhere else some.filter(pl.col("spec_id").is_in(specs))
        by_place = listed.join(some, on=[*columns, "spec_id", "partition"], how="semi", nulls_equal=True)
        everywhere_else = listed.join(reaching_all, on=columns, how="semi", nulls_equal=True)
        dead = pl.concat([by_place, everywhere_else])["id"].unique().to_list()
        self._kill(dead)
        self.log.append(f"equality delete by {columns}{' everywhere' if everywhere else ''}: {len(dead)} rows")

    def position_delete(self) -> None:
        table = self.load()
        if table.format_version < 2 or not self.rows:
            return
        share = self.random.choice([3, 10, max(len(self.rows) // 4, 1)])
        chosen = self.random.sample(sorted(self.rows), min(len(self.rows), share))
        read = self._scan(["id", *changes.ORIGIN])
        dead = read.filter(pc.is_in(read["id"], pa.array(chosen, pa.int64())))
        change = changes.position_delete_of(table, dead)
        assert change is not None
        self._commit(table, change)
        self._kill(chosen)
        self.log.append(f"position delete of {len(chosen)}")

    def overwrite(self) -> None:
        """Copy-on-write of one file: every other row dies."""
        self._replace(keep=lambda at: at % 2 == 1, name="overwrite")

    def remove_file(self) -> None:
        self._replace(keep=lambda _: False, name="removal")

    def _replace(self, keep: Callable[[int], bool], name: str) -> None:
        table = self.load()
        read = self._read()
        if read.is_empty():
            return
        path = self.random.choice(sorted(read["_file"].unique()))
        inside = read.filter(pl.col("_file") == path)["id"].to_list()
        kept = [key for at, key in enumerate(sorted(inside)) if keep(at)]
        columns = [*(f.name for f in table.schema().fields), *(changes.LINEAGE if table.format_version > 2 else [])]
        moving = self._scan(columns)
        moving = moving.filter(pc.is_in(moving["id"], pa.array(kept, pa.int64())))
        files = self.handle().file_list.frame().filter(pl.col("file_path") == path)
        add = tuple(self._files_of(table, moving)) if kept else ()
        self._commit(table, Change(start=changes.head(table), add=add, remove=files))
        self.replaced.add(path)
        self._kill(set(inside) - set(kept))
        self.log.append(f"{name} of a file with {len(inside)} rows")

    def remove_unused_deletes(self) -> None:
        table = self.load()
        specs = PartitionDecoder(table.metadata).unpartitioned_specs()
        unused = match_deletes(self.handle().file_list.frame(), specs).unused()
        if unused.is_empty():
            return
        self._commit(table, Change(start=changes.head(table), remove=unused, rewrites=True))
        self.moved_deletes = True
        self.log.append(f"removal of {unused.height} unused deletes")

    def rewrite_manifests(self) -> None:
        table = self.load()
        if table.metadata.current_snapshot() is not None:
            self._commit(table, ManifestRewrite())
            self.log.append("rewrite of manifests")

    # -- evolution -----------------------------------------------------------------------------------------------

    def upgrade(self) -> None:
        table = self.load()
        if table.format_version == 1:
            with table.transaction() as transaction:
                transaction.upgrade_table_version(2)
            self.log.append("upgrade to version 2")

    def change_schema(self) -> None:
        table = self.load()
        schema = table.schema()
        late = [f for f in schema.fields if f.field_id > B]
        choice = self.random.choice(["add", "add", "rename", "nested", "promote", "drop"])
        with table.update_schema() as update:
            match choice:
                case "drop" if late:
                    gone = self.random.choice(late)
                    update.delete_column(gone.name)
                    for row in self.rows.values():
                        row.pop(gone.field_id, None)
                case "rename" if late:
                    update.rename_column(self.random.choice(late).name, f"renamed{next(self._late)}")
                case "nested":
                    nested = schema.find_field(N).field_type
                    assert isinstance(nested, StructType)
                    if len(nested.fields) < 4 and self.random.random() < 0.6:
                        update.add_column(("n", f"late{next(self._late)}"), StringType())
                    else:
                        update.rename_column(("n", self.random.choice(nested.fields).name), f"renamed{next(self._late)}")
                case "promote" if isinstance(schema.find_type(K), IntegerType):
                    update.update_column("k", LongType())
                case _:
                    update.add_column(f"late{next(self._late)}", self.random.choice([IntegerType(), StringType()]))
        self.log.append(f"schema: {choice}")

    def change_spec(self) -> None:
        table = self.load()
        wanted = self.random.choice(sorted(SPECS))
        names = {name for _, _, name in SPECS[wanted]}
        current = {f.name for f in table.spec().fields if str(f.transform) != "void"}
        if names == current:
            return
        with table.update_spec() as update:
            for name in current - names:
                update.remove_field(name)
            for source, transform, name in SPECS[wanted]:
                if name not in current:
                    update.add_field(str(table.schema().find_column_name(source)), transform, name)
        self.log.append(f"spec: {wanted}")

    # -- files ---------------------------------------------------------------------------------------------------

    def _fresh(self, table: Table, number: int) -> list[Row]:
        random = self.random
        nested = table.schema().find_type(N)
        assert isinstance(nested, StructType)
        width = random.choice([0, 5, 40])
        letters = random.choice(["ab", "abcdefgh"])
        late = [f for f in table.schema().fields if f.field_id > B]
        rows = []
        for _ in range(number):
            row: Row = {
                ID: next(self._ids),
                K: random.choice([0, 1, 2, None]),
                S: random.choice([f"{random.choice(letters)}{random.randint(0, 3)}", "", None]),
                T: random.choice([None, _EPOCH + timedelta(hours=random.randint(0, 72))]),
                F: random.choice([None, float("nan"), 0.0, -0.0, float("inf"), random.random()]),
                N: random.choice([None, {f.field_id: _value(random, f.field_type) for f in nested.fields}]),
                PAD: "".join(random.choices("0123456789abcdef", k=width)),
            }
            rows.append(row | {f.field_id: _value(random, f.field_type) for f in late})
        return rows

    def _written(self, table: Table, rows: list[Row]) -> Iterable[NewFile]:
        return self._files_of(table, arrow(table.schema(), rows))

    def _files_of(self, table: Table, data: pa.Table) -> list[NewFile]:
        """One or more data files for each partition."""
        batch = data.combine_chunks().to_batches()[0]
        codes, tuples = partition_values(table.spec(), table.schema(), batch)
        lineage = [f for f in (ROW_ID, LAST_UPDATED) if f.name in data.schema.names]
        written: list[NewFile] = []
        for number, partition in enumerate(tuples):
            with DataFileWriter(changes.target(table, partition), extra_fields=lineage) as writer:
                writer.write(batch.filter(pa.array(codes == number)))
            written += writer.files
        return written

    def _equality(
        self, table: Table, some: pl.DataFrame, columns: tuple[str, ...], *, everywhere: bool
    ) -> Iterable[NewFile]:
        decoder = PartitionDecoder(table.metadata)
        fields = [table.schema().find_field(name) for name in columns]
        if everywhere:
            place = changes.target(
                table,
                (None,) * len(_fields_of(table, min(decoder.unpartitioned_specs()))),
                min(decoder.unpartitioned_specs()),
            )
            return [write_equality_deletes(place, some.select(columns).unique().to_arrow(), fields)]
        written = []
        for (spec_id, key), group in some.group_by("spec_id", "partition", maintain_order=True):
            place = changes.target(table, decoder.values(int(str(spec_id)), str(key)), int(str(spec_id)))
            written.append(write_equality_deletes(place, group.select(columns).unique().to_arrow(), fields))
        return written

    def _read(self) -> pl.DataFrame:
        """Living rows: their key columns, file, spec and partition."""
        read = pl.DataFrame(pl.from_arrow(self._scan(["id", "k", "s", "_file"])))
        listed = self.handle().file_list.frame().filter(IS_DATA).select("file_path", "spec_id", "partition")
        return read.join(listed, left_on="_file", right_on="file_path").sort("id")

    def _kill(self, ids: Iterable[int]) -> None:
        for key in ids:
            self.rows.pop(key)
            self.lineage.pop(key, None)

    def _commit(self, table: Table, change: Change | ManifestRewrite) -> None:
        outcome = commit(table, change)
        assert isinstance(outcome, Committed), outcome
        for path in outcome.unused_files:
            table.io.delete(path)

    # -- what must hold ------------------------------------------------------------------------------------------

    def check(self) -> None:
        """The rows are those of the model, also when a condition selects them, and their lineage stays."""
        table = self.load()
        names = [f.name for f in table.schema().fields]
        has_ids = table.format_version > 2 and changes.head(table) is not None
        read = self._scan([*names, *(changes.LINEAGE if has_ids else [])]).to_pylist()
        found = {row["id"]: row for row in read}
        assert len(found) == len(read), f"rows are doubled: {len(read)} rows with {len(found)} ids"
        gone, alien = set(self.rows) - set(found), set(found) - set(self.rows)
        assert not gone, f"{len(gone)} rows were lost, such as {min(gone)}"
        assert not alien, f"{len(alien)} rows came back to life, such as {min(alien)}"
        for key, row in self.rows.items():
            expected = named(table.schema(), row)
            there = {name: found[key][name] for name in names}
            assert repr(there) == repr(expected), f"row {key} is {there}, not {expected}"
        if has_ids:
            self._check_lineage({key: (row[changes.LINEAGE[0]], row[changes.LINEAGE[1]]) for key, row in found.items()})
        for where, holds in (("k = 1", lambda row: row[K] == 1), ("s is null", lambda row: row[S] is None)):
            selected = self._scan(["id"], where)["id"].to_pylist()
            assert sorted(selected) == sorted(key for key, row in self.rows.items() if holds(row)), where

    def _check_lineage(self, found: dict[int, tuple[int, int]]) -> None:
        ids = [row_id for row_id, _ in found.values()]
        assert None not in ids
        assert len(set(ids)) == len(ids), "rows share an id"
        changed = {key: (known, found[key]) for key, known in self.lineage.items() if found[key] != known}
        assert not changed, f"lineage of {len(changed)} rows changed, such as {next(iter(changed.items()))}"
        self.lineage = found


def _fields_of(table: Table, spec_id: int) -> tuple[PartitionField, ...]:
    return tuple(table.metadata.specs()[spec_id].fields)


def _value(random: Random, type_: IcebergType) -> Any:
    return random.choice([None, 1, 2]) if isinstance(type_, IntegerType | LongType) else random.choice([None, "", "xyz"])


def named(schema: Schema, row: Row) -> dict[str, Any]:
    """A row of the model with the names of today."""
    values: dict[str, Any] = {}
    for column in schema.fields:
        value = row.get(column.field_id)
        if isinstance(column.field_type, StructType) and value is not None:
            value = {inner.name: value.get(inner.field_id) for inner in column.field_type.fields}
        values[column.name] = value
    return values


def arrow(schema: Schema, rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist([named(schema, row) for row in rows], schema=schema.as_arrow())
