"""A handle that writes again and again."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.catalog import Catalog

from pyarctic.iceberg.manifest import reader
from tests.support.keyed_tables import made, opened, read, rows


@pytest.mark.parametrize("looks", [False, True])
def test_the_cost_of_a_write_does_not_grow(lake: Catalog, looks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handle whose files were listed once used to read all manifests since then, for every write."""
    table = made()
    table.write(rows(_1="a"))
    if looks:
        assert table.scan().count() == 1
    manifests_read: list[int] = []
    read_container = reader._read_container

    def count(*arguments: Any) -> Any:
        manifests_read[-1] += 1
        return read_container(*arguments)

    monkeypatch.setattr(reader, "_read_container", count)
    for number in range(2, 12):
        manifests_read.append(0)
        table.write(rows(**{f"_{number}": "a"}), "upsert")
    assert max(manifests_read) <= 2
    monkeypatch.undo()
    assert table.scan().count() == opened().scan().count() == 11
    assert set(read()) == set(range(1, 12))
