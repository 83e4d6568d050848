"""One table that PyArctic and Iceberg Java write in turns, and a plain model of what must be in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import polars as pl
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from pyarctic.iceberg.catalog.pyiceberg_patches import apply_patches
from pyarctic.iceberg.manifest.file_list import IS_DATA, IS_VECTOR
from tests.oracle.session import Oracle
from tests.support import changes

Row = tuple[int, int | None, str]
"""id, which is unique; p; v, which every update changes."""
Rows = dict[int, Row]
Layout = Literal["whole", "identity", "hashed"]

COLUMNS = ("id", "p", "v")
SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "p", IntegerType()), NestedField(3, "v", StringType()))
MERGE_ON_READ = {f"write.{statement}.mode": "merge-on-read" for statement in ("delete", "update", "merge")}
_HASHED = PartitionSpec(
    PartitionField(1, 1000, BucketTransform(2), "id_bucket"), PartitionField(3, 1001, TruncateTransform(1), "v_trunc")
)


@dataclass(frozen=True)
class SharedTable:
    """The table, and for each branch the rows it must have and, in version 3, the lineage seen last."""

    oracle: Oracle
    catalog: Catalog
    catalog_name: str
    """As Spark calls it."""
    name: str
    rows: dict[str, Rows] = field(default_factory=lambda: {"main": {}})
    lineage: dict[str, dict[int, tuple[int, int, str]]] = field(default_factory=dict)

    @property
    def sql_name(self) -> str:
        return f"{self.catalog_name}.{self.name}"

    def load(self) -> Table:
        return self.catalog.load_table(self.name)

    def sql(self, text: str) -> list[dict[str, Any]]:
        """Run a statement in Spark; `{t}` stands for the table."""
        answer: list[dict[str, Any]] = self.oracle.sql(text.format(t=self.sql_name)).toArrow().to_pylist()
        return answer

    def call(self, procedure: str, **arguments: str) -> list[dict[str, Any]]:
        """Call one of Iceberg's procedures on the table; the arguments are SQL."""
        given = "".join(f", {name} => {value}" for name, value in arguments.items())
        return self.sql(f"call {self.catalog_name}.system.{procedure}(table => '{self.name}'{given})")

    def create(self, layout: Layout, version: int, *, by_java: bool, properties: Mapping[str, str]) -> None:
        """`whole` has no partitions, `identity` gets them later, `hashed` has buckets of ids and first letters."""
        told = {"format-version": str(version), **properties}
        if by_java:
            by = "partitioned by (bucket(2, id), truncate(1, v))" if layout == "hashed" else ""
            text = ", ".join(f"'{key}' = '{value}'" for key, value in told.items())
            self.sql(f"create table {{t}} (id bigint, p int, v string) using iceberg {by} tblproperties ({text})")
            return
        apply_patches()
        # Java writes gzip unless told otherwise, and then fails on a level that is none of gzip's.
        told |= {"write.parquet.compression-codec": "zstd"}
        spec = _HASHED if layout == "hashed" else PartitionSpec()
        self.catalog.create_table(self.name, SCHEMA, partition_spec=spec, properties=told)

    def partition(self, *, by_java: bool) -> None:
        """Partition new data by p. What is there stays unpartitioned, and deletes of that spec reach every partition."""
        if by_java:
            self.sql("alter table {t} add partition field p")
            return
        with self.load().update_spec() as update:
            update.add_field("p", IdentityTransform(), "p")

    def check(self, *branches: str) -> None:
        """Java and PyArctic see the rows of the model, on these branches or all, and untouched rows kept their lineage."""
        table = self.load()
        for branch in branches or self.rows:
            rows = self.rows[branch]
            lineage = changes.LINEAGE if table.format_version > 2 and has_row_ids(table, branch) else []
            java, ours = self._java_rows(branch, lineage), self._our_rows(table, branch, lineage)
            _assert_same(f"Java's rows of {branch}", java, ours, "PyArctic's")
            _assert_same(f"rows of {branch}", (row[:3] for row in ours), rows.values(), "the model's")
            if lineage:
                self._check_lineage(branch, {row[0]: row for row in ours})

    def _java_rows(self, branch: str, lineage: list[str]) -> list[tuple[Any, ...]]:
        travel = "" if branch == "main" else f" version as of '{branch}'"
        return _tuples(self.oracle.sql(f"select {', '.join([*COLUMNS, *lineage])} from {self.sql_name}{travel}").toArrow())

    def _our_rows(self, table: Table, branch: str, lineage: list[str]) -> list[tuple[Any, ...]]:
        return _tuples(changes.rows(table, [*COLUMNS, *lineage], branch=branch))

    def _check_lineage(self, branch: str, rows: Mapping[int, tuple[Any, ...]]) -> None:
        """Ids of rows are there, distinct, and stay; the number of the last update moves with the update alone."""
        ids = [row[3] for row in rows.values()]
        assert None not in ids, f"rows without an id on {branch}: {[row for row in rows.values() if row[3] is None][:3]}"
        assert len(set(ids)) == len(ids), f"rows share an id on {branch}"
        seen = self.lineage.get(branch, {})
        for key, row in rows.items():
            row_id, updated, value = seen.get(key, (row[3], row[4], row[2]))
            assert row[3] == row_id, f"row {key} had the id {row_id}, now {row[3]}"
            assert (row[4] == updated) == (row[2] == value), f"row {row}: was updated by {updated}, was {value!r}"
        self.lineage[branch] = {key: (row[3], row[4], row[2]) for key, row in rows.items()}

    def fork(self, branch: str) -> None:
        """Note that a branch was made of main."""
        self.rows[branch] = dict(self.rows["main"])
        self.lineage[branch] = dict(self.lineage.get("main", {}))

    def check_summary(self, branch: str = "main") -> None:
        """The totals in the summary of the branch's head are the true ones."""
        table = self.load()
        snapshot = table.metadata.snapshot_by_name(branch)
        assert snapshot is not None
        assert snapshot.summary is not None
        told = snapshot.summary.additional_properties
        true = true_totals(changes.files(table, branch))
        assert {name: told.get(name) for name in true} == true


def has_row_ids(table: Table, branch: str = "main") -> bool:
    """False for a snapshot made before the table was upgraded to version 3."""
    snapshot = table.metadata.snapshot_by_name(branch)
    return snapshot is not None and snapshot.first_row_id is not None


def true_totals(files: pl.DataFrame) -> dict[str, str]:
    """What a snapshot's summary must say of these live files."""
    rows = pl.col("record_count")
    size = pl.when(IS_VECTOR).then("content_size_bytes").otherwise("file_size_bytes")
    counted = files.select(
        IS_DATA.sum().alias("total-data-files"),
        (~IS_DATA).sum().alias("total-delete-files"),
        rows.filter(IS_DATA).sum().alias("total-records"),
        size.sum().alias("total-files-size"),
        rows.filter(pl.col("content") == 1).sum().alias("total-position-deletes"),
        rows.filter(pl.col("content") == 2).sum().alias("total-equality-deletes"),
    )
    return {name: str(value) for name, value in counted.row(0, named=True).items()}


def arrow(rows: Iterable[Row]) -> pa.Table:
    """Rows as the table has them."""
    return pa.Table.from_pylist([dict(zip(COLUMNS, row, strict=True)) for row in rows], schema=SCHEMA.as_arrow())


def _tuples(rows: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in rows.to_pylist()]


def _assert_same(what: str, some: Iterable[Any], others: Iterable[Any], whose: str) -> None:
    mine, theirs = Counter(map(repr, some)), Counter(map(repr, others))
    assert mine == theirs, f"{what} are not {whose}: {list(mine - theirs)[:5]} instead of {list(theirs - mine)[:5]}"
