"""Equality deletes into positions and vectors, with enough memory for their keys and without."""

from __future__ import annotations

from functools import partial

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

import pyarctic
from pyarctic.iceberg.commit import Change
from pyarctic.iceberg.write import write_vectors
from pyarctic.optimizing import KindChoice
from tests.support import changes
from tests.support.integrity import leftovers
from tests.support.optimizing import optimize

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))
FILES, ROWS = 3, 2_000


@pytest.mark.parametrize("granularity", ["file", "partition"])
@pytest.mark.parametrize("memory_bytes", [4 << 10, 256 << 20], ids=["little memory", "enough"])
@pytest.mark.parametrize("version", [2, 3])
def test_rows_stay_deleted(lake: Catalog, version: int, memory_bytes: int, granularity: str) -> None:
    """Keys that do not fit into memory are asked portion by portion, before a data file comes up."""
    properties = {
        "format-version": str(version),
        "self-optimizing.target-size": "20000",
        "self-optimizing.fragment-size": "1",
        "write.delete.granularity": granularity,
        # The last delete was made a moment ago.
        "self-optimizing.writers-first.quiet-time": "1ms",
    }
    table = lake.create_table("db.t", SCHEMA, properties=properties)
    for number in range(FILES):
        ids = np.arange(number * ROWS, (number + 1) * ROWS)
        rows = pa.table({"id": ids, "name": [f"n{key % 50}" for key in ids]})
        table = changes.apply(table, partial(changes.append, data=rows))
    for first in (0, 7, 100):
        keys = pa.table({"id": np.arange(first, FILES * ROWS, 300)})
        table = changes.apply(table, partial(changes.equality_delete, keys=keys))
    table = changes.apply(table, partial(changes.equality_delete, keys=pa.table({"name": ["n3", "n4"]})))
    table = changes.apply(table, partial(changes.position_delete, where="id < 10"))
    before = changes.rows(table).sort_by("id")
    report = optimize(pyarctic.table("lake.db.t"), "minor", memory_bytes=memory_bytes, verify=False)
    assert not report.failures
    assert report.removed.data_files == 0, "data files stay as they are"
    assert (report.after.equality_delete_files, report.removed.equality_delete_files) == (0, 4)
    optimized = lake.load_table("db.t")
    assert changes.rows(optimized).sort_by("id").equals(before)
    assert leftovers(optimized) == []
    again = optimize(pyarctic.table("lake.db.t"), "minor", verify=False)
    assert not again.changed


@pytest.mark.parametrize("kind", ["minor", "full"])
def test_rows_that_others_undelete_meanwhile_live(lake: Catalog, kind: KindChoice) -> None:
    """A vector is replaced by one with fewer rows. What was made without them is dropped."""
    properties = {
        "format-version": "3",
        "self-optimizing.fragment-size": "1",
        "self-optimizing.writers-first": "false",
        "commit.retry.min-wait-ms": "1",
    }
    table = lake.create_table("db.t", SCHEMA, properties=properties)
    table = changes.apply(table, partial(changes.append, data=pa.table({"id": np.arange(100), "name": ["n"] * 100})))
    (path,) = changes.files(table)["file_path"]
    table = changes.apply(table, partial(changes.position_delete, where="id in (1, 2)"))
    table = changes.apply(table, partial(changes.equality_delete, keys=pa.table({"id": [7]})))

    def undelete() -> None:
        now = pyarctic.table("lake.db.t")
        vectors = write_vectors(changes.target(now._loaded), {path: np.array([2])})
        gone = changes.files(now._loaded).filter(pl.col("content") == 1)
        now.commit(Change(start=now.view.snapshot_id, add=tuple(vectors), remove=gone))

    report = optimize(pyarctic.table("lake.db.t"), kind, meanwhile=undelete, verify=False)
    assert (report.tasks_dropped, report.tasks_committed) == (1, 0)
    expected = sorted({*range(100)} - {2, 7})
    assert sorted(changes.rows(lake.load_table("db.t"))["id"].to_pylist()) == expected
    optimize(pyarctic.table("lake.db.t"), kind, verify=False)
    assert sorted(changes.rows(lake.load_table("db.t"))["id"].to_pylist()) == expected
