"""Manifests of the change store are merged: nothing that anybody reads is another one then."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic.errors import Unavailable
from pyarctic.iceberg.commit import ManifestRewrite
from pyarctic.iceberg.commit.request import RequestBuilder
from pyarctic.iceberg.manifest.file_list import ManifestReader
from pyarctic.tables import KeyedTable, Table
from pyarctic.tables.read.change_stream import ChangeStream, ReadLimits
from tests.support.keyed_tables import made, opened, read, rows

MIN_COUNT = "commit.manifest.min-count-to-merge"


@pytest.fixture
def table(lake: Catalog) -> KeyedTable:
    """Six commits to the change store; the first three are merged."""
    del lake
    created = made()
    created.set({"self-optimizing.minor.trigger.file-count": "1"})
    for number in range(6):
        created.write(rows(**{f"_{number}": f"{number}", "_9": f"{number}"}), "upsert")
        if number == 2:
            created.write(rows(_1=""), "delete")
            assert pyarctic.optimize("lake.db.t").changed
    return opened()


def manifests(store: Table) -> list[Any]:
    return ManifestReader(store.view.io).manifests(store.view.metadata.current_snapshot())


def change_snapshots(table: KeyedTable) -> list[int]:
    return list(table.change_store.snapshots()["snapshot_id"])


def everything(snapshots: list[int]) -> dict[str, Any]:
    """All that can be read of the changes, and of rows at these snapshots of the change store."""
    table = opened()
    return {
        "changes": table.changes().to_arrow().to_pylist(),
        "since": {each: table.changes(since=each).to_arrow().to_pylist() for each in snapshots},
        "rows": read(),
        "then": {each: table.scan(snapshot_id=each).to_arrow().sort_by("id").to_pylist() for each in snapshots},
        "pending": table.summary()["change_store"]["unmerged_records"],
        "merged": table.merged_sequences(),
        "check": pyarctic.check("lake.db.t", rows=True).to_dict()["findings"],
    }


def test_both_stores(table: KeyedTable) -> None:
    planned = table.rewrite_manifests(dry_run=True)
    assert planned.change_store is not None
    assert (planned.change_store.rewritten, planned.change_store.manifests_after) == (7, None)
    snapshots = change_snapshots(table)
    before, files = everything(snapshots), table.files(store="change")
    done = table.rewrite_manifests()
    assert done.change_store is not None
    assert done.to_dict()["change_store"] == {
        "table": table.change_store.name,
        "snapshot_id": str(done.change_store.snapshot_id),
        "rewritten": 7,
        "manifests_before": 7,
        "manifests_after": 1,
    }
    table = opened()
    # With the sequence numbers and snapshots of their commits, which the order of changes depends on.
    now = table.files(store="change")
    assert_frame_equal(now.drop("manifest_path"), files.drop("manifest_path"), check_row_order=False)
    assert table.change_store.snapshots()["operation"].to_list()[-1] == "replace"
    assert everything(snapshots) == before
    assert table.changes(since=done.change_store.snapshot_id).to_arrow().num_rows == 0
    table.write(rows(_20="new"))
    assert [row["id"] for row in opened().changes(since=done.change_store.snapshot_id).to_arrow().to_pylist()] == [20]
    assert read() == before["rows"] | {20: "new"}


@pytest.mark.parametrize("origin", ["earliest", "latest", "snapshot"])
@pytest.mark.parametrize("limit", [None, 2])
def test_a_stream_goes_on(table: KeyedTable, origin: str, limit: int | None) -> None:
    limits = ReadLimits(rows=limit)
    snapshots = change_snapshots(table)
    start = ChangeStream(table, limits=limits).beginning(str(snapshots[1]) if origin == "snapshot" else origin)

    def step(at: Any) -> tuple[Any, list[dict[str, Any]]]:
        stream = ChangeStream(opened(), limits=limits)
        end = stream.following(at)
        return end, rows_between(at, end)

    def rows_between(at: Any, end: Any) -> list[dict[str, Any]]:
        parts = ChangeStream(opened(), limits=limits).splits(at, end)
        return [row for reader, split in parts for batch in reader.batches(split) for row in batch.to_pylist()]

    def follow(at: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while True:
            end, some = step(at)
            if end == at:
                return found
            found, at = found + some, end

    expected = follow(start)
    middle, first_rows = step(start)
    opened().rewrite_manifests()
    assert rows_between(start, middle) == first_rows  # a batch that Spark reads again
    assert first_rows + follow(middle) == expected == follow(start)
    opened().write(rows(_20="new"))
    assert [row["id"] for row in follow(start)] == [*(row["id"] for row in expected), 20]


def test_a_stream_reads_new_manifests_only(table: KeyedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = ChangeStream(table)
    at = stream.following(stream.beginning("earliest"))
    table.write(rows(_20="new"))
    asked: list[int] = []
    files_of = ManifestReader.files_of

    def count(self: ManifestReader, some: Any) -> pl.DataFrame:
        chosen = list(some)
        asked.append(len(chosen))
        return files_of(self, chosen)

    monkeypatch.setattr(ManifestReader, "files_of", count)
    stream = ChangeStream(opened())
    end = stream.following(at)
    assert (asked, end.sequence > at.sequence) == ([1], True)
    assert len(stream.splits(at, end)) == 1
    assert asked == [1]


def test_optimizing_merges_many(table: KeyedTable) -> None:
    snapshots = change_snapshots(table)
    before = everything(snapshots)
    report = pyarctic.optimize("lake.db.t")
    assert report.changed
    assert report.change_manifests_merged == 0  # too few
    table.refresh().change_store.set({MIN_COUNT: "7"})
    assert pyarctic.optimize("lake.db.t", dry_run=True).change_manifests_merged == 0
    report = pyarctic.optimize("lake.db.t")
    assert (report.changed, report.change_manifests_merged, report.to_dict()["change_manifests_merged"]) == (False, 7, 7)
    assert "7 manifests of the change store were merged" in str(report)
    table = opened()
    assert len(manifests(table.change_store)) == 1
    after = everything(snapshots)
    assert after.pop("merged") != before.pop("merged")
    assert (before.pop("pending"), after.pop("pending")) == (12, 0)
    assert after == before
    assert pyarctic.optimize("lake.db.t").change_manifests_merged == 0


def test_optimizing_leaves_them_alone_if_told_so(table: KeyedTable) -> None:
    table.change_store.set({MIN_COUNT: "2", "commit.manifest-merge.enabled": "false"})
    assert pyarctic.optimize("lake.db.t").change_manifests_merged == 0
    assert len(manifests(opened().change_store)) == 7


def test_writers_meanwhile(table: KeyedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer commits between the choice of manifests and their commit; a load has begun before, and ends afterwards."""
    table.change_store.set({MIN_COUNT: "2"})
    build, writes = RequestBuilder.build, iter(range(20, 23))

    def write_first(self: RequestBuilder, change: Any, state: Any) -> Any:
        request = build(self, change, state)
        if isinstance(change, ManifestRewrite) and (number := next(writes, None)):
            opened().write(rows(**{f"_{number}": "meanwhile"}))
        return request

    monkeypatch.setattr(RequestBuilder, "build", write_first)
    before, changes = read(), table.changes().count()

    def load() -> Any:
        yield rows(_30="load").to_batches()[0]
        assert pyarctic.optimize("lake.db.t").change_manifests_merged == 7
        assert read() == before | dict.fromkeys(range(20, 23), "meanwhile")

    table.refresh().write(load(), "overwrite")
    monkeypatch.undo()
    expected = {30: "load"} | dict.fromkeys(range(20, 23), "meanwhile")
    assert read() == expected
    pyarctic.optimize("lake.db.t")
    assert read() == expected
    assert opened().changes().count() == changes + 3


def test_a_failure_is_left_to_another_time(table: KeyedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    table.change_store.set({MIN_COUNT: "2"})
    before = read()

    def fail(*_: Any) -> None:
        raise Unavailable("no space", hint="Wait.")

    monkeypatch.setattr(RequestBuilder, "_rewrite_manifests", fail)
    report = pyarctic.optimize("lake.db.t")
    assert (report.changed, report.change_manifests_merged) == (True, 0)
    monkeypatch.undo()
    assert read() == before
    assert pyarctic.optimize("lake.db.t").change_manifests_merged == 7
    assert read() == before
