"""Work that others must not spoil, and rounds that must not call for the next: cases that random histories hit seldom."""

from __future__ import annotations

from random import Random

import polars as pl
import pytest
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic.iceberg.commit import Change
from pyarctic.iceberg.manifest.file_list import IS_DATA
from pyarctic.optimizing import KindChoice
from pyarctic.optimizing.api import Options, plan_table
from tests.models.optimized_table import OptimizedTable
from tests.support import changes
from tests.support.optimizing import optimize


def made(lake: Catalog, spec: str, version: int = 2) -> OptimizedTable:
    table = OptimizedTable(lake, "db.t", Random(1))
    table.create(version, spec, "none", {"self-optimizing.writers-first": "false", "commit.retry.min-wait-ms": "1"})
    for _ in range(3):
        table._append(40)
    return table


@pytest.mark.parametrize("version", [2, 3])
def test_dangling_deletes_that_others_remove_meanwhile(lake: Catalog, version: int) -> None:
    """Only delete files that nobody needs went away: the merge is as good as before."""
    table = made(lake, "whole", version)
    table.equality_delete()
    optimize(pyarctic.table("lake.db.t"), "full")  # one file, no deletes
    loaded = table.load()
    (dangling,) = table._equality(
        loaded, pl.DataFrame({"id": [10**9], "spec_id": [0], "partition": ["[]"]}), ("id",), everywhere=False
    )
    table._commit(loaded, Change(start=changes.head(loaded), add=(dangling,)))
    table._append(10)
    rewritten = changes.rewrite(table.load(), changes.files(table.load()).filter(IS_DATA))
    table._commit(table.load(), rewritten)  # the equality delete hits nothing any more
    table._append(10)
    table._append(10)
    planned = plan_table(pyarctic.table("lake.db.t"), Options(kind="full"))
    assert planned is not None
    assert planned.dangling_deletes.height == 1
    report = optimize(pyarctic.table("lake.db.t"), "full", meanwhile=table.remove_unused_deletes)
    table.check()
    assert report.tasks_committed == 1
    assert report.tasks_dropped == 0


@pytest.mark.parametrize("kind", ["minor", "major", "full"])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_old_partitions_that_become_one(lake: Catalog, kind: KindChoice, version: int) -> None:
    """Rows of many old partitions come to one place, and are put together there in the same run."""
    table = made(lake, "identity", version)
    with table.load().update_spec() as update:
        update.remove_field("k_part")
    table._append(40)
    optimize(pyarctic.table("lake.db.t"), kind)
    table.check()
    again = plan_table(pyarctic.table("lake.db.t"), Options(kind=kind))
    assert again is not None
    assert not again.tasks


@pytest.mark.parametrize("version", [2, 3])
def test_rows_that_others_rewrite_beside_ours(lake: Catalog, version: int) -> None:
    """An equality delete is applied by our merge; meanwhile somebody rewrites another file that it hits, keeping its age."""
    table = made(lake, "bucket", version)
    table.equality_delete()
    table.equality_delete()

    def others() -> None:
        listed = changes.files(table.load()).filter(IS_DATA).sort("file_path")
        chosen = listed.filter(pl.col("partition") == listed["partition"][0])
        table._commit(table.load(), changes.rewrite(table.load(), chosen))
        table.replaced |= set(chosen["file_path"])

    report = optimize(pyarctic.table("lake.db.t"), "full", meanwhile=others)
    table.check()
    assert report.tasks_planned == 3
    assert report.tasks_dropped == 1, "two partitions were left alone"
