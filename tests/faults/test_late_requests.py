"""Requests that the catalog accepts late, renamed tables, and commits of others in the middle of a check.

Files that a snapshot refers to, or may refer to later, stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, ForbiddenError
from pyiceberg.table import CommitTableResponse
from pyiceberg.table import Table as IcebergTable

import pyarctic
from pyarctic.errors import OutcomeUnknown
from pyarctic.iceberg.commit import Change, rollback_targets
from pyarctic.optimizing import Options, optimize_table
from pyarctic.optimizing.commit import committer
from pyarctic.optimizing.commit.committer import Committer
from pyarctic.tables import KeyedTable, Table, remove_outputs
from tests.support import changes
from tests.support.integrity import local, missing
from tests.support.keyed_tables import CITIES, cities, made, opened
from tests.support.optimizing import InProcessEngine

_SCHEMA = pa.schema([("id", pa.int64())])
_QUICK = {"commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "2"}
Commit = Callable[[SqlCatalog, IcebergTable, Any, Any], CommitTableResponse]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives up soon."""
    monkeypatch.setattr(committer, "_MAX_SUBMITS", 2)


def fragmented(name: str = "lake.db.native") -> Table:
    table = pyarctic.create_table(name, _SCHEMA, properties=_QUICK)
    for number in range(3):
        table.write(pa.table([[number]], schema=_SCHEMA))
    return table


def optimize(name: str = "lake.db.native") -> None:
    optimize_table(pyarctic.table(name), InProcessEngine(), Options(kind="full"))


@pytest.mark.parametrize("then", [ForbiddenError("token expired"), CommitFailedException("the lock is held")], ids=str)
def test_a_request_without_answer_may_be_accepted_after_later_ones_were_refused(
    lake: Catalog, hasty: None, monkeypatch: pytest.MonkeyPatch, then: Exception
) -> None:
    fragmented()
    accept: Commit = SqlCatalog.commit_table
    requests: list[tuple[Any, ...]] = []

    def refuse(catalog: SqlCatalog, table: IcebergTable, requirements: Any, updates: Any) -> CommitTableResponse:
        requests.append((catalog, table, requirements, updates))
        raise TimeoutError if len(requests) == 1 else then

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", refuse)
        with pytest.raises(OutcomeUnknown):
            optimize()
    assert len(requests) > 1
    accept(*requests[0])
    table = pyarctic.table("lake.db.native")
    assert missing(table._loaded) == []
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [0, 1, 2]


def test_a_request_without_answer_cannot_be_accepted_in_place_of_a_marked_snapshot(
    lake: Catalog, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The branch has moved on, but a catalog may drop what was committed, in favour of the request that comes late. So a
    snapshot without the mark follows before the files of the request are removed."""
    fragmented()
    accept: Commit = SqlCatalog.commit_table
    requests: list[tuple[Any, ...]] = []

    def lose_first(catalog: SqlCatalog, table: IcebergTable, requirements: Any, updates: Any) -> CommitTableResponse:
        requests.append((catalog, table, requirements, updates))
        if len(requests) > 1:
            return accept(catalog, table, requirements, updates)
        optimize()  # another process does the same
        raise TimeoutError

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", lose_first)
        optimize()
    catalog, _, requirements, updates = requests[0]
    with pytest.raises(CommitFailedException):
        accept(catalog, catalog.load_table("db.native"), requirements, updates)
    table = pyarctic.table("lake.db.native")
    metadata = table.view.metadata
    assert rollback_targets(metadata, metadata.current_snapshot()) == [metadata.current_snapshot()]
    assert missing(table._loaded) == []
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [0, 1, 2]


def test_a_commit_that_landed_before_the_table_was_renamed_keeps_its_files(
    lake: Catalog, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fragmented()
    accept: Commit = SqlCatalog.commit_table
    requests: list[int] = []

    def lose(catalog: SqlCatalog, table: IcebergTable, requirements: Any, updates: Any) -> CommitTableResponse:
        response = accept(catalog, table, requirements, updates)
        requests.append(1)
        if len(requests) > 1:
            return response
        catalog.rename_table("db.native", "db.renamed")
        pyarctic.create_table("lake.db.native", _SCHEMA)
        raise TimeoutError

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", lose)
        optimize()
    table = pyarctic.table("lake.db.renamed")
    assert table.files().height == 1, "it was committed"
    assert missing(table._loaded) == []


def test_files_of_a_table_stay_if_another_one_has_its_name(lake: Catalog) -> None:
    table = fragmented()
    uuid, since = table.view.metadata.table_uuid, table.view.snapshot_id
    [path] = table.files().head(1)["file_path"]
    lake.rename_table("db.native", "db.renamed")
    pyarctic.create_table("lake.db.native", _SCHEMA)
    remove_outputs(pyarctic.table("lake.db.native"), [path], table_uuid=uuid, since=since)
    assert Path(local(path)).exists()


def test_a_snapshot_that_the_commit_does_not_need_may_be_unreadable(lake: Catalog) -> None:
    table = fragmented()
    lake.load_table("db.native").manage_snapshots().create_branch(table.view.snapshot_id or 0, "side").commit()

    def spoil() -> None:
        """Another branch gets a snapshot whose manifest list is lost."""
        loaded = lake.load_table("db.native")
        [file] = changes.write_data(loaded, pa.table([[9]], schema=_SCHEMA))
        pyarctic.table("lake.db.native").commit(Change(start=table.view.snapshot_id, add=(file,), branch="side"))
        refs = lake.load_table("db.native").metadata
        snapshot = refs.snapshot_by_id(refs.refs["side"].snapshot_id)
        assert snapshot is not None
        Path(local(snapshot.manifest_list)).unlink()

    report = optimize_table(
        pyarctic.table("lake.db.native"), InProcessEngine(before_commit=spoil), Options(kind="full", ignore_writers=True)
    )
    assert report.tasks_committed == 1


def test_a_partition_is_not_committed_on_a_state_that_it_was_not_checked_against(
    lake: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one partition is dropped, another process merges the other one."""
    table = made(CITIES, ("city",))
    for number in range(3):
        table.write(cities((number, "a", "x"), (number + 10, "b", "x")), "upsert")
    expected = sorted(map(str, opened().scan().to_arrow().to_pylist()))
    others = iter(["city = 'a'"])

    def merge_elsewhere(where: str) -> None:
        optimize_table(opened(), InProcessEngine(), Options(kind="full", where=where))

    drop = Committer._drop

    def drop_slowly(self: Committer, reasons: Mapping[int, str]) -> None:
        for where in others:
            merge_elsewhere(where)
        drop(self, reasons)

    monkeypatch.setattr(Committer, "_drop", drop_slowly)
    handle = opened()
    assert isinstance(handle, KeyedTable)
    optimize_table(handle, InProcessEngine(before_commit=lambda: merge_elsewhere("city = 'b'")), Options(kind="full"))
    assert next(others, None) is None
    assert sorted(map(str, opened().scan().to_arrow().to_pylist())) == expected
    assert len(opened().scan(store="base").to_arrow()) == len(expected)
