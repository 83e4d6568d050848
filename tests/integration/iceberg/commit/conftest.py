"""Small tables in a SQLite catalog: an id, a value, and a text to partition by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from pyarctic.iceberg.catalog.pyiceberg_patches import apply_patches
from tests.support import changes

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "p", StringType(), required=False),
    NestedField(3, "v", StringType(), required=False),
)
BY_P = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"))
QUICK = {"commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "5"}


@dataclass(frozen=True)
class Lab:
    """Tables by need, and what is in them."""

    catalog: SqlCatalog
    folder: Path
    numbers: Iterator[int]

    def table(
        self, version: int = 2, *, partitioned: bool = False, properties: Mapping[str, str] = MappingProxyType({})
    ) -> Table:
        return self.catalog.create_table(
            f"db.t{next(self.numbers)}",
            schema=SCHEMA,
            partition_spec=BY_P if partitioned else UNPARTITIONED_PARTITION_SPEC,
            properties={"format-version": str(version), **QUICK, **properties},
        )

    def filled(
        self,
        version: int = 2,
        *,
        partitioned: bool = False,
        batches: int = 3,
        properties: Mapping[str, str] = MappingProxyType({}),
    ) -> Table:
        """A table of some commits with ten rows each: ids 0 to 9, 10 to 19 …"""
        table = self.table(version, partitioned=partitioned, properties=properties)
        for batch in range(batches):
            data = some_rows(range(batch * 10, batch * 10 + 10))
            table = changes.apply(table, lambda current, data=data: changes.append(current, data))  # type: ignore[misc]
        return table

    def metadata_files(self) -> set[str]:
        """Everything in the metadata folders."""
        return {str(path) for path in self.folder.rglob("metadata/*") if path.is_file()}


def some_rows(ids: Iterable[int]) -> pa.Table:
    known = list(ids)
    return pa.table(
        {
            "id": pa.array(known, pa.int64()),
            "p": pa.array(["ab"[i % 2] for i in known], pa.string()),
            "v": pa.array([f"v{i}" for i in known], pa.string()),
        }
    )


def ids(table: Table, branch: str = "main") -> list[int]:
    current = table.catalog.load_table(table.name())
    found: list[int] = changes.rows(current, ["id"], branch=branch)["id"].to_pylist()
    return sorted(found)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    apply_patches()
    catalog = SqlCatalog("lab", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("db")
    yield Lab(catalog, tmp_path, count(1))
    catalog.close()
