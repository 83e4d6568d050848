"""What files have beside their rows, page indexes and bloom filters, is still there after optimizing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic.optimizing.plan import native as plan
from tests.models.spec import SpecTable
from tests.support.integrity import local
from tests.support.optimizing import optimize

COLUMNS = (("id", "long"), ("name", "string"))
BLOOM_NAME = {"bloom_filter_options": {"name": {"ndv": 100, "fpp": 0.01}}}


def make_table(lake: Catalog, folder: Path, properties: dict[str, str], way: str = "merge", **parquet: Any) -> None:
    quiet = {"self-optimizing.writers-first": "false"}
    table = SpecTable(lake, "db.t", folder / "t", COLUMNS, properties=quiet | properties)
    table.parquet = {"compression": "zstd", "store_schema": False, "write_page_index": True} | parquet
    files = [table.data([{"id": n, "name": f"n{n}"} for n in range(at, at + 100)]) for at in (0, 100, 200)]
    table.commit(*files)
    if way == "copy with deletes":
        table.commit(table.position_deletes([(files[1].path, 7)], files[1]), operation="delete")
    if way.startswith("sort"):
        fields = [{"transform": "identity", "source-id": 1, "direction": "desc", "null-order": "nulls-last"}]
        table.metadata |= {"sort-orders": [{"order-id": 1, "fields": fields}], "default-sort-order-id": 1}
        table.register()


def features() -> dict[str, tuple[bool, bool]]:
    """Whether each column has a page index and a bloom filter in all row groups of all files."""
    found: dict[str, list[tuple[bool, bool]]] = {}
    for path in pyarctic.table("lake.db.t").files()["file_path"]:
        metadata = pq.read_metadata(local(path))
        for group in range(metadata.num_row_groups):
            for index in range(metadata.num_columns):
                chunk = metadata.row_group(group).column(index)
                has_index = bool(chunk.has_column_index and chunk.has_offset_index)
                found.setdefault(chunk.path_in_schema, []).append((has_index, chunk.bloom_filter_offset is not None))
    return {name: (all(i for i, _ in each), all(b for _, b in each)) for name, each in found.items()}


@pytest.mark.parametrize("way", ["merge", "copy", "copy with deletes", "sort", "sort by key ranges"])
def test_features_of_the_inputs_are_kept(lake: Catalog, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way.startswith("copy"):
        monkeypatch.setattr(plan, "COPY_LEAST_ROWS", dict.fromkeys(("minor", "major", "full"), 1))
    make_table(lake, tmp_path, {}, way, **BLOOM_NAME)
    report = optimize(pyarctic.table("lake.db.t"), "full", divides=way == "sort by key ranges")
    assert report.changed
    assert features() == {"id": (True, False), "name": (True, True)}


@pytest.mark.parametrize("kind", ["minor", "full"])
def test_bloom_filters_that_the_table_asks_for(lake: Catalog, tmp_path: Path, kind: Any) -> None:
    make_table(lake, tmp_path, {"write.parquet.bloom-filter-enabled.column.id": "true"})
    assert optimize(pyarctic.table("lake.db.t"), kind).changed
    assert features() == {"id": (True, True), "name": (True, False)}


def test_explain_names_properties_without_effect(lake: Catalog, tmp_path: Path) -> None:
    make_table(lake, tmp_path, {"write.parquet.row-group-check-min-record-count": "100"})
    notes = " ".join(pyarctic.explain("lake.db.t").notes)
    assert "write.parquet.row-group-check-min-record-count has no effect: " in notes
