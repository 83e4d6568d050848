"""Delete files: positions per data file, keys that died and when, all within a memory budget."""

from __future__ import annotations

import math
from importlib import import_module
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField, StringType, StructType

from pyarctic.errors import Damaged, Unsupported
from pyarctic.iceberg import deletefiles
from pyarctic.iceberg.datafiles import OpenFile, Piece
from pyarctic.iceberg.deletefiles import EqualityIndex, Held, KeyColumns, read_position_deletes, refuse_encrypted
from tests.unit.iceberg.conftest import Lake, rows

SCHEMA = Schema(NestedField(1, "a", IntegerType()), NestedField(2, "b", StringType()))
KEYS = KeyColumns.of([2, 1], [SCHEMA], "x")
TYPES = {"key_0": pl.Int32, "key_1": pl.String}
ROWS = st.tuples(st.none() | st.integers(0, 3), st.none() | st.sampled_from(["", "a", "b"]))


# -- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("colliding", [False, True])
@given(
    deleted=st.lists(st.tuples(ROWS, st.integers(1, 5)), max_size=12),
    asked=st.lists(ROWS, max_size=12),
    at=st.integers(0, 5),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_index_equals_a_loop(
    monkeypatch: pytest.MonkeyPatch,
    colliding: bool,
    deleted: list[tuple[tuple[Any, Any], int]],
    asked: list[tuple[Any, Any]],
    at: int,
) -> None:
    if colliding:
        monkeypatch.setattr(deletefiles, "hash_rows", lambda frame: pl.zeros(frame.height, pl.UInt64, eager=True))
    columns = [(*key, sequence) for key, sequence in deleted]
    index = EqualityIndex(KEYS, pl.DataFrame(columns, schema={**TYPES, "sequence": pl.Int64}, orient="row"))
    dead = index.dead(pl.DataFrame(asked, schema=TYPES, orient="row"), at)
    assert dead.tolist() == [any(key == row and sequence > at for key, sequence in deleted) for row in asked]


def test_collision_with_a_row_that_is_not_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One deleted key, and every row has its hash."""
    monkeypatch.setattr(deletefiles, "hash_rows", lambda frame: pl.zeros(frame.height, pl.UInt64, eager=True))
    index = EqualityIndex(KEYS, pl.DataFrame([(1, "a", 5)], schema={**TYPES, "sequence": pl.Int64}, orient="row"))
    asked = pl.DataFrame([(2, "a"), (1, "a"), (1, None), (None, None)], schema=TYPES, orient="row")
    assert index.dead(asked, 4).tolist() == [False, True, False, False]


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
    piece = Piece(file=OpenFile(path="x", schema=source, names=None), position=0, batch=batch)
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
    original = EqualityIndex.read.__func__  # type: ignore[attr-defined]

    def counted(cls: Any, io: Any, keys: Any, files: pl.DataFrame) -> EqualityIndex:
        read.append(files.height)
        made: EqualityIndex = original(cls, io, keys, files)
        return made

    monkeypatch.setattr(EqualityIndex, "read", classmethod(counted))
    lake.open().scan(columns).to_arrow()
    together = list(read)
    read.clear()
    monkeypatch.setattr(import_module("pyarctic.iceberg.scan"), "DELETE_MEMORY_BYTES", 1)  # not the function `scan`
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
    held: Held[str, str] = Held(10)
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


def test_empty_position_delete_file(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("file_path", pa.string(), metadata={"PARQUET:field_id": "2147483546"}),
                        pa.field("pos", pa.int64(), metadata={"PARQUET:field_id": "2147483545"})])  # fmt: skip
    path = tmp_path / "d.parquet"
    pq.write_table(pa.table([[], []], schema=schema), path)
    assert read_position_deletes(PyArrowFileIO(), path.as_uri(), "PARQUET") == {}


def test_encrypted() -> None:
    refuse_encrypted("x", None)
    for size in (0, 10):
        with pytest.raises(Unsupported, match="encrypted: x"):
            refuse_encrypted("x", size)
