"""Every catalog that tests can ask for: it starts, it stores, and of two commits on one state it refuses the second."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from pyiceberg.catalog.glue import GlueCatalog
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


def test_pyarctic_optimizes_them(any_catalog: FreshCatalog) -> None:
    table = new_table(any_catalog)
    for number in range(3):
        table.append(rows(number, number + 10))
    pyarctic.catalog(any_catalog.name, **any_catalog.properties)
    report = pyarctic.optimize(f"{any_catalog.name}.{any_catalog.namespace}.t", "full", verify=True)
    assert (report.engine, report.failures, report.tasks_committed) == ("local", (), 1)
    again = any_catalog.client().load_table(f"{any_catalog.namespace}.t")
    assert len(again.inspect.data_files()) == 1
    assert sorted(again.scan().to_arrow()["id"].to_pylist()) == [0, 1, 2, 10, 11, 12]


def test_a_stale_commit_is_refused(any_catalog: FreshCatalog) -> None:
    table = new_table(any_catalog)
    stale = any_catalog.client().load_table(f"{any_catalog.namespace}.t")
    table.append(rows(1))
    requirement = AssertRefSnapshotId(ref="main")
    with pytest.raises(CommitFailedException):
        stale.catalog.commit_table(stale, (requirement,), (SetPropertiesUpdate(updates={"a": "b"}),))
    assert "a" not in table.refresh().properties


def test_of_racing_commits_none_is_lost(any_catalog: FreshCatalog) -> None:
    new_table(any_catalog)
    start = threading.Barrier(4)

    def append(number: int) -> bool:
        table = any_catalog.client().load_table(f"{any_catalog.namespace}.t")
        start.wait()
        try:
            table.append(rows(number))
        except CommitFailedException:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        landed = list(pool.map(append, range(4)))
    assert any(landed)
    read = any_catalog.catalog.load_table(f"{any_catalog.namespace}.t").scan().to_arrow()
    assert sorted(read["id"].to_pylist()) == [number for number in range(4) if landed[number]]


@pytest.mark.parametrize("any_catalog", kinds("glue"), indirect=True)
def test_glue_refuses_updates_of_an_old_version(any_catalog: FreshCatalog) -> None:
    assert isinstance(any_catalog.catalog, GlueCatalog)
    new_table(any_catalog).append(rows(1))
    glue = any_catalog.catalog.glue
    change = {"DatabaseName": any_catalog.namespace, "TableInput": {"Name": "t"}}
    with pytest.raises(glue.exceptions.ConcurrentModificationException):
        glue.update_table(**change, VersionId="1")
    glue.update_table(**change, VersionId="2")
    glue.update_table(**change)


def test_namespaces_are_fresh(any_catalog: FreshCatalog) -> None:
    assert any_catalog.catalog.list_tables(any_catalog.namespace) == []


@pytest.mark.parametrize("any_catalog", kinds("sqlite"), indirect=True)
def test_some_kinds_only(any_catalog: FreshCatalog) -> None:
    assert any_catalog.kind == "sqlite"
