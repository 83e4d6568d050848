"""Every catalog that tests can ask for: it starts, it stores, and of two commits on one state it refuses the second."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import AssertRefSnapshotId, SetPropertiesUpdate
from pyiceberg.types import LongType, NestedField

import pyarctic
from tests.services.catalogs import FreshCatalog, kinds

SCHEMA = Schema(NestedField(1, "id", LongType()))


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def new_table(fresh: FreshCatalog) -> Table:
    return fresh.catalog.create_table(f"{fresh.namespace}.t", SCHEMA, properties={"format-version": "2"})


def test_rows_come_back(any_catalog: FreshCatalog) -> None:
    table = new_table(any_catalog)
    table.append(rows(1, 2))
    table.append(rows(3))
    again = any_catalog.client().load_table(f"{any_catalog.namespace}.t")
    assert again.metadata.format_version == 2
    assert again.metadata.current_snapshot_id == table.metadata.current_snapshot_id
    assert sorted(again.scan().to_arrow()["id"].to_pylist()) == [1, 2, 3]


def test_pyarctic_reads_them(any_catalog: FreshCatalog) -> None:
    new_table(any_catalog).append(rows(1, 2))
    pyarctic.catalog(any_catalog.name, **any_catalog.properties)
    read = pyarctic.table(f"{any_catalog.name}.{any_catalog.namespace}.t").scan().to_arrow()
    assert sorted(read["id"].to_pylist()) == [1, 2]


def test_a_stale_commit_is_refused(any_catalog: FreshCatalog) -> None:
    table = new_table(any_catalog)
    stale = any_catalog.client().load_table(f"{any_catalog.namespace}.t")
    table.append(rows(1))
    requirement = AssertRefSnapshotId(ref="main", snapshot_id=None)
    with pytest.raises(CommitFailedException):
        stale.catalog.commit_table(stale, (requirement,), (SetPropertiesUpdate(updates={"a": "b"}),))
    assert "a" not in table.refresh().properties


def test_namespaces_are_fresh(any_catalog: FreshCatalog) -> None:
    assert any_catalog.catalog.list_tables(any_catalog.namespace) == []


@pytest.mark.parametrize("any_catalog", kinds("sqlite"), indirect=True)
def test_some_kinds_only(any_catalog: FreshCatalog) -> None:
    assert any_catalog.kind == "sqlite"
