"""The rules of deletes in whole scans, one small table each; the random ones are in test_scan_model.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.integration.iceberg.conftest import Lake, rows
from tests.models.spec import SpecFile


def ids(lake: Lake, **options: str) -> list[int]:
    scan = lake.open().scan(["id"], **options)  # type: ignore[arg-type]
    found = sorted(scan.to_arrow().column("id").to_pylist())
    assert scan.count() == len(found)
    return found


def test_deletes_of_the_same_commit(lake: Lake) -> None:
    """By position they hit, by value they do not."""
    table = lake.make()
    data = table.data(rows(1, 2, 3))
    table.commit(data, table.position_deletes([(data.path, 0)], data), table.equality_deletes([{"id": 2}]))
    assert ids(lake) == [2, 3]
    table.commit(table.equality_deletes([{"id": 3}]))
    assert ids(lake) == [2]


def test_vector_replaces_position_deletes_of_before_the_upgrade(lake: Lake) -> None:
    table = lake.make(version=2)
    data, other = table.data(rows(1, 2, 3)), table.data(rows(11, 12, 13))
    table.commit(data, other)
    table.commit(table.position_deletes([(data.path, 0), (other.path, 0)], data))
    assert ids(lake) == [2, 3, 12, 13]
    table.upgrade(3)
    [vector] = table.vectors({data.path: [1]}, [data])
    table.commit(vector)
    assert ids(lake) == [1, 3, 12, 13]  # the row at position 0 is back: the vector does not repeat it
    [newer] = table.vectors({data.path: [0, 1]}, [data])
    table.commit(newer, removed=[vector])
    assert ids(lake) == [3, 12, 13]


def test_partitioned_and_global_equality_deletes(lake: Lake) -> None:
    table = lake.make(partition=[("part", "identity")])
    table.commit(*(table.data(rows(1, 2, 3, part=part), (part,)) for part in ("p", "q", None)))
    table.commit(table.equality_deletes([{"id": 1}], ("p",)), table.equality_deletes([{"id": 2}], (None,)))
    assert ids(lake) == [1, 1, 2, 2, 3, 3, 3]
    table.partition_by()
    table.commit(table.equality_deletes([{"id": 3}]))
    assert ids(lake) == [1, 1, 2, 2]


def test_null_keys(lake: Lake) -> None:
    table = lake.make()
    table.commit(table.data([*rows(1, name=None), *rows(2, name="a"), *rows(None, name=None)]))
    table.commit(table.equality_deletes([{"id": None, "name": None}]))
    assert lake.open().scan(["id"]).to_arrow().column("id").to_pylist() == [1, 2]
    table.commit(table.equality_deletes([{"name": None}]))
    assert ids(lake) == [2]


def test_rewritten_file_keeps_its_age(lake: Lake) -> None:
    """A delete between the old file and its rewriting must hit the rewritten rows too."""
    table = lake.make()
    old = table.data(rows(1, 2, 3))
    table.commit(old)
    table.commit(table.equality_deletes([{"id": 2}]))
    rewritten = table.data(rows(1, 2, 3))
    table.commit(replace(rewritten, sequence=1), removed=[old], operation="replace")
    assert ids(lake) == [1, 3]
    table.commit(replace(table.data(rows(2)), sequence=2))
    assert ids(lake) == [1, 2, 3]


def test_key_column_that_came_late_or_is_gone(lake: Lake) -> None:
    table = lake.make()
    table.commit(table.data(rows(1, 2)))
    table.commit(table.equality_deletes([{"name": "n", "id": 1}]))
    table.set_fields([field for field in table.fields if field["name"] != "name"])
    assert ids(lake) == [2]  # the dropped column is still compared
    table.set_fields([*table.fields, {"id": 9, "name": "late", "required": False, "type": "string"}])
    table.commit(table.data([{"id": 3, "late": "x"}, {"id": 4, "late": None}]))
    table.commit(table.equality_deletes([{"late": None}]))
    assert ids(lake) == [3]  # the file without the column has nulls there


@pytest.mark.parametrize("version", [1, 2, 3])
def test_identity_column_that_the_file_lacks(lake: Lake, version: int) -> None:
    table = lake.make(version=version, partition=[("part", "identity"), ("id", "identity")])
    table.commit(table.data(rows(7, part="p"), ("p", 7), without=("part", "id")))
    assert lake.open().scan().to_arrow().to_pylist() == [{"id": 7, "name": "n", "part": "p"}]
    assert ids(lake, where="part = 'p' and id = 7") == [7]
    assert ids(lake, where="part = 'x' or id > 7") == []
    if version > 1:
        table.commit(table.equality_deletes([{"id": 7}], ("p", 7)))
        assert ids(lake) == []


def test_lineage(lake: Lake) -> None:
    table = lake.make(version=3)
    files: list[SpecFile] = [table.data(rows(1, 2, 3)), table.data(rows(4, 5))]
    table.commit(*files)
    table.commit(*table.vectors({files[0].path: [1]}, files[:1]))
    columns = ["id", "_row_id", "_last_updated_sequence_number", "_pos", "_file"]
    found = lake.open().scan(columns).to_arrow()
    expected = [(1, 0, 1, 0, 0), (3, 2, 1, 2, 0), (4, 3, 1, 0, 1), (5, 4, 1, 1, 1)]
    assert [tuple(row.values()) for row in found.to_pylist()] == [(*row[:4], files[row[4]].path) for row in expected]


def test_lineage_of_older_formats_is_null(lake: Lake) -> None:
    table = lake.make(version=2)
    table.commit(table.data(rows(1)))
    found = lake.open().scan(["_row_id", "_last_updated_sequence_number"]).to_arrow().to_pylist()
    assert found == [{"_row_id": None, "_last_updated_sequence_number": None}]


def test_count_reads_no_data_file_without_need(lake: Lake) -> None:
    table = lake.make(version=3)
    data = table.data(rows(1, 2, 3))
    table.commit(data, *table.vectors({data.path: [0]}, [data]))
    (table.folder / data.path.removeprefix(table.folder.as_uri() + "/")).unlink()
    assert lake.open().scan().count() == 2
