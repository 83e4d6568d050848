"""Delete files: positions per data file, keys that died and when, all within a memory budget."""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField, StringType, StructType

from pyarctic.errors import Damaged, Unsupported
from pyarctic.iceberg.delete import delete_files as deletefiles
from pyarctic.iceberg.delete.delete_files import (
    KeyColumns,
    LruCache,
    PositionDeletes,
    check_not_encrypted,
    read_position_deletes,
)
from pyarctic.iceberg.delete.matching import FileDeletes
from pyarctic.iceberg.read.data_files import FileBatch, OpenFile
from tests.integration.iceberg.conftest import Lake, rows

SCHEMA = Schema(NestedField(1, "a", IntegerType()), NestedField(2, "b", StringType()))


# -- keys ------------------------------------------------------------------------------------------------------------


def test_keys_are_looked_up_in_the_newest_schema_that_has_them() -> None:
    older = Schema(NestedField(1, "old", IntegerType()), NestedField(9, "dropped", StringType()))
    keys = KeyColumns.of([9, 1], [SCHEMA, older], "x")
    assert keys.ids == (1, 9)
    assert keys.top_level_ids == {1, 9}
    with pytest.raises(Damaged, match="column id 77") as caught:
        KeyColumns.of([1, 77], [SCHEMA, older], "deletes.parquet")
    assert caught.value.facts["file"] == "deletes.parquet"


def test_key_inside_a_struct() -> None:
    inner = StructType(NestedField(3, "x", IntegerType()), NestedField(4, "y", StringType()))
    schema = Schema(NestedField(1, "a", IntegerType()), NestedField(2, "s", StructType(NestedField(5, "t", inner))))
    keys = KeyColumns.of([4, 1], [schema], "x")

    def field(name: str, type_: pa.DataType, field_id: int) -> pa.Field:
        return pa.field(name, type_, metadata={"PARQUET:field_id": str(field_id)})

    t = pa.struct([field("x", pa.int32(), 3), field("y", pa.string(), 4)])
    source = pa.schema([field("a", pa.int32(), 1), field("s", pa.struct([field("t", t, 5)]), 2)])
    content: list[dict[str, Any]] = [
        {"a": 1, "s": {"t": {"x": 1, "y": "k"}}},
        {"a": 2, "s": {"t": None}},
        {"a": 3, "s": None},
        {"a": 4, "s": {"t": {"x": 1, "y": None}}},
    ]
    batch = pa.RecordBatch.from_pylist(content, schema=source)
    piece = FileBatch(file=OpenFile(path="x", schema=source, names=None), position=0, batch=batch)
    assert keys.frame(piece, {}).rows() == [(1, "k"), (2, None), (3, None), (4, None)]


# -- through the scan ------------------------------------------------------------------------------------------------

NAN, MINUS_NAN = math.nan, -math.nan


@pytest.mark.parametrize("type_", ["double", "float"])
@pytest.mark.parametrize(
    ("key", "left"),
    [
        (NAN, [0.0, -0.0, 1.5, None]),
        (MINUS_NAN, [0.0, -0.0, 1.5, None]),
        (0.0, [-0.0, 1.5, NAN, None]),
        (-0.0, [0.0, 1.5, NAN, None]),
        (1.5, [0.0, -0.0, NAN, None]),
        (None, [0.0, -0.0, 1.5, NAN]),
    ],
)
def test_floats_are_equal_by_their_bits(lake: Lake, type_: str, key: float | None, left: list[float | None]) -> None:
    table = lake.make(columns=[("f", type_)])
    table.commit(table.data([{"f": value} for value in (0.0, -0.0, 1.5, NAN, None)]))
    table.commit(table.equality_deletes([{"f": key}]))
    found = lake.open().scan().to_arrow().column("f").to_pylist()
    assert sorted(map(repr, found)) == sorted(map(repr, left))


def test_tiny_memory_gives_the_same_rows(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.make(partition=[("part", "identity")])
    files = []
    for number in range(6):
        part = "p" if number % 2 else "q"
        files.append(table.data(rows(*range(20), name=f"n{number % 3}", part=part), (part,), row_group_size=7))
        table.commit(files[-1])
        table.commit(
            table.equality_deletes([{"id": number}, {"id": number + 10}], (part,)),
            table.equality_deletes([{"name": "n1", "id": number * 3}], (part,)),
            table.position_deletes([(files[-1].path, 19), (files[-1].path, number)], files[-1]),
        )
    table.partition_by()
    table.commit(table.equality_deletes([{"name": "n2"}]))
    columns = ["id", "name", "part", "_pos", "_file"]
    plenty = lake.open().scan(columns).to_arrow()
    assert 0 < plenty.num_rows < 100
    read: list[int] = []
    original = deletefiles.read_equality_deletes

    def counted(io: FileIO, keys: KeyColumns, files: pl.DataFrame) -> Iterator[Any]:
        read.append(files.height)
        return original(io, keys, files)

    monkeypatch.setattr(deletefiles, "read_equality_deletes", counted)
    lake.open().scan(columns).to_arrow()
    together = list(read)
    read.clear()
    monkeypatch.setattr(
        import_module("pyarctic.iceberg.read.table_scan"), "DELETE_MEMORY_BYTES", 1
    )  # not the function `scan`
    scarce = lake.open().scan(columns)
    assert scarce.to_arrow() == plenty
    assert max(together) > 1  # files were indexed together
    assert set(read) == {1}  # and now one by one
    assert len(read) > len(together)
    assert scarce.count() == plenty.num_rows
    where = "id > 3 and name = 'n0'"
    assert lake.open().scan(columns, where=where).count() == sum(
        row["id"] > 3 and row["name"] == "n0" for row in plenty.to_pylist()
    )


def test_held_things_are_dropped_when_they_outgrow_the_budget() -> None:
    held: LruCache[str, str] = LruCache(10)
    asked: list[str] = []

    def get(key: str, size: int = 4) -> str:
        def read() -> tuple[str, int]:
            asked.append(key)
            return key.upper(), size

        return held.get(key, read)

    assert [get("a"), get("b"), get("a"), get("b")] == ["A", "B", "A", "B"]
    assert asked == ["a", "b"]
    get("a")
    get("c")  # 12 bytes: b was asked for least recently
    get("a")
    assert asked == ["a", "b", "c"]
    get("b")
    assert asked == ["a", "b", "c", "b"]
    assert get("huge", 100) == "HUGE"  # kept alone, even beyond the budget
    get("huge")
    assert asked[4:] == ["huge"]
    get("a")
    assert asked[5:] == ["a"]


# -- positions -------------------------------------------------------------------------------------------------------


def test_position_deletes_in_any_order(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            pa.field("pos", pa.int64(), metadata={"PARQUET:field_id": "2147483545"}),
            pa.field("row", pa.string()),
            pa.field("file_path", pa.large_string(), metadata={"PARQUET:field_id": "2147483546"}),
        ]
    )
    content = {"pos": [9, 2, 5, 2, 2**33], "row": list("abcde"), "file_path": ["x", "y", "x", "y", "x"]}
    path = tmp_path / "d.parquet"
    pq.write_table(pa.table(content, schema=schema), path, row_group_size=2)
    found = read_position_deletes(PyArrowFileIO(), path.as_uri(), "PARQUET")
    assert {name: positions.tolist() for name, positions in found.items()} == {"x": [5, 9, 2**33], "y": [2]}


def position_file(folder: Path, content: list[tuple[str, int]], *, rows_per_group: int = 1000, encoded: bool = True) -> str:
    schema = pa.schema(
        [
            pa.field("file_path", pa.string(), metadata={"PARQUET:field_id": "2147483546"}),
            pa.field("pos", pa.int64(), metadata={"PARQUET:field_id": "2147483545"}),
        ]
    )
    columns = [list(column) for column in zip(*content, strict=True)] or [[], []]
    path = folder / "d.parquet"
    pq.write_table(pa.table(columns, schema=schema), path, row_group_size=rows_per_group, use_dictionary=encoded)
    return path.as_uri()


@given(
    content=st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 9)), max_size=30),
    wanted=st.none() | st.sets(st.sampled_from("abcxy")),
    in_order=st.booleans(),
    encoded=st.booleans(),
)
def test_only_wanted_positions(
    tmp_path_factory: pytest.TempPathFactory,
    content: list[tuple[str, int]],
    wanted: set[str] | None,
    in_order: bool,
    encoded: bool,
) -> None:
    content = sorted(content) if in_order else content
    path = position_file(tmp_path_factory.mktemp("d"), content, rows_per_group=7, encoded=encoded)
    found = read_position_deletes(PyArrowFileIO(), path, "PARQUET", wanted)
    expected = {
        name: sorted({position for other, position in content if other == name})
        for name in {name for name, _ in content}
        if wanted is None or name in wanted
    }
    assert {name: positions.tolist() for name, positions in found.items()} == expected


def test_positions_that_are_not_wanted_are_not_held(tmp_path: Path) -> None:
    names = [f"s3://lake/data/{number:04}.parquet" for number in range(1000)]
    path = position_file(tmp_path, [(name, position) for name in names for position in range(100)])
    deletes = FileDeletes(
        vector=None,
        positions=pl.DataFrame(
            {"file_path": path, "file_format": "PARQUET", "file_size_bytes": None, "key_metadata_bytes": [None]}
        ),
        equality=pl.DataFrame(),
    )
    wanted = PositionDeletes(PyArrowFileIO(), 1 << 20, names[10:12])
    assert wanted.of(names[11], deletes).tolist() == list(range(100))
    assert wanted._cache._cached_bytes < 2000
    with pytest.raises(ValueError, match="were not wanted"):
        wanted.of(names[12], deletes)
    assert PositionDeletes(PyArrowFileIO(), 1 << 20).of(names[12], deletes).tolist() == list(range(100))


def test_empty_position_delete_file(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("file_path", pa.string(), metadata={"PARQUET:field_id": "2147483546"}),
                        pa.field("pos", pa.int64(), metadata={"PARQUET:field_id": "2147483545"})])  # fmt: skip
    path = tmp_path / "d.parquet"
    pq.write_table(pa.table([[], []], schema=schema), path)
    assert read_position_deletes(PyArrowFileIO(), path.as_uri(), "PARQUET") == {}


def test_encrypted() -> None:
    check_not_encrypted("x", None)
    for size in (0, 10):
        with pytest.raises(Unsupported, match="encrypted: x"):
            check_not_encrypted("x", size)
