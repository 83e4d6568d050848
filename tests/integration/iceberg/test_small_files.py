"""Small files that are read together have the rows that they have one by one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pyarctic.iceberg.delete import EqualityDeletes
from pyarctic.iceberg.read import filter_rows, group_small_files, joined_live_batches, live_rows
from pyarctic.iceberg.read import joined_batches as joining
from pyarctic.iceberg.read.data_files import FileBatch, OpenFile
from pyarctic.iceberg.read.live_rows import FILE, LAST_UPDATED, POSITION, ROW_ID, TableReader
from pyarctic.iceberg.read.table_scan import Scan
from tests.integration.iceberg.conftest import Lake, rows

METADATA = ["_file", "_pos", "_row_id", "_last_updated_sequence_number"]
FIELDS = (FILE, POSITION, ROW_ID, LAST_UPDATED)


def make(lake: Lake, version: int) -> None:
    """Two partitions, all kinds of deletes, null keys, several row groups, and a schema that changes in between."""
    table = lake.make(version=version, partition=[("part", "identity")])
    for number in range(12):
        part = "pq"[number // 3 % 2]
        if number == 5:
            table.set_fields([*table.fields, {"id": 4, "name": "later", "required": False, "type": "long"}])
        group = 2 if number % 4 == 0 else None
        data = table.data(rows(*range(number, number + 5), None, part=part), (part,), row_group_size=group)
        added = [data]
        if number % 3 == 1:
            added.append(table.equality_deletes([{"id": number}, {"id": None if number == 7 else 99}], (part,)))
        if number % 4 == 2:
            dead = {data.path: [1, 5]}
            named = [(data.path, position) for position in dead[data.path]]
            added += table.vectors(dead, [data]) if version > 2 else [table.position_deletes(named, data)]
        table.commit(*added)
    table.partition_by()
    table.commit(table.equality_deletes([{"id": 8, "name": "n"}]))


def reader_of(lake: Lake) -> tuple[Scan, TableReader]:
    scan = lake.open().scan()
    assert isinstance(scan, Scan)
    return scan, scan._open()[1]


def one_by_one(lake: Lake, fields: Any) -> list[dict[str, Any]]:
    found = []
    for file in reader_of(lake)[1].files():
        for batch, live in file.live_batches(fields):
            part = file.project(batch, fields)
            found += (part if live is None else filter_rows(part, live)).to_pylist()
    return found


def together(lake: Lake, fields: Any) -> tuple[list[dict[str, Any]], list[int]]:
    found, sizes = [], []
    for files in group_small_files(reader_of(lake)[1].files()):
        sizes.append(len(files))
        for batch, part, live in joined_live_batches(files, fields):
            assert part.num_rows == batch.heights.sum()
            found += (part if live is None else filter_rows(part, live)).to_pylist()
    return found, sizes


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("most_rows", [7, 1 << 14])
def test_rows_and_lineage(lake: Lake, version: int, most_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    make(lake, version)
    monkeypatch.setattr(joining, "_JOINED_ROWS", most_rows)
    scan, _ = reader_of(lake)
    fields = (*scan.wanted, *FIELDS)
    found, sizes = together(lake, fields)
    assert sizes == [6, 6]
    expected = one_by_one(lake, fields)
    assert found == expected
    assert 20 < len(found) < 60
    shown = lake.open().scan([*scan.schema.names, *METADATA]).to_arrow().to_pylist()
    assert found == [dict(zip([field.name for field in fields], row.values(), strict=True)) for row in shown]


def test_deletes_beyond_memory(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    make(lake, 2)
    fields = reader_of(lake)[0].wanted
    expected = one_by_one(lake, fields)
    monkeypatch.setattr(EqualityDeletes, "fit_in_memory", lambda *_: False)
    assert together(lake, fields)[0] == expected


def test_large_files_are_read_alone(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.make()
    for number in range(6):
        table.commit(table.data(rows(*range(5 if number == 3 else 1))))
    monkeypatch.setattr(live_rows, "_SMALL_FILE_ROWS", 4)
    assert [len(group) for group in group_small_files(reader_of(lake)[1].files())] == [3, 1, 2]
    monkeypatch.setattr(live_rows, "_SMALL_FILE_BYTES", 1)
    assert [len(group) for group in group_small_files(reader_of(lake)[1].files())] == [1] * 6


def test_joined_batches_have_one_schema() -> None:
    batches = [FileBatch(file=opened(schema), position=5, batch=batch(schema)) for schema in (INTS, INTS, OTHERS)]
    joined = list(joining.join_batches(enumerate(batches)))
    assert [(each.owners, each.heights.tolist(), each.positions.tolist()) for each in joined] == [
        ([0, 1], [2, 2], [5, 5]),
        ([2], [2], [5]),
    ]
    assert joined[0].joined.batch.num_rows == 4
    assert joined[0].of_rows(joined[0].positions).tolist() == [5] * 4


INTS = pa.schema([pa.field("a", pa.int64(), metadata={"PARQUET:field_id": "1"})])
OTHERS = pa.schema([pa.field("a", pa.int64(), metadata={"PARQUET:field_id": "2"})])


def batch(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"a": 1}, {"a": 2}], schema=schema)


def opened(schema: pa.Schema) -> OpenFile:
    return OpenFile(path="x", schema=schema, names=None)
