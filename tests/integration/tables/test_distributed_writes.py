"""Rows of many writers: who gets which, and which orders mean something."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic.errors import UsageError
from pyarctic.tables import KeyedTable, WriteMode
from pyarctic.tables.write.distributed import IS_OLD, WriterAssignment, WriterResult
from pyarctic.tables.write.prepared import PreparedWrite

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("region", pa.string()), ("v", pa.int64())])
Row = dict[str, Any]


@pytest.fixture
def table(lake: Catalog) -> KeyedTable:
    made = pyarctic.create_table("lake.db.t", SCHEMA, primary_key=["id"], properties={"change.file-index.hash-bucket": "4"})
    assert isinstance(made, KeyedTable)
    return made


@pytest.fixture
def by_region(lake: Catalog) -> KeyedTable:
    with pytest.warns(UserWarning, match="partition"):
        made = pyarctic.create_table("lake.db.p", SCHEMA, primary_key=["id"], partition_by=["region"])
    assert isinstance(made, KeyedTable)
    return made


def cut(rows: Sequence[Row], size: int = 1000, **extra: pa.DataType) -> Iterator[pa.RecordBatch]:
    fields = {field.name: field.type for field in SCHEMA} | extra
    known = [name for name in fields if rows and name in rows[0]]
    schema = pa.schema([(name, fields[name]) for name in known])
    for at in range(0, len(rows), size):
        yield pa.RecordBatch.from_pylist(list(rows[at : at + size]), schema=schema)


def committed(write: PreparedWrite, parts: Sequence[Iterator[pa.RecordBatch]], order: Sequence[str] = ()) -> int | None:
    """Every part by a writer of its own, as if on another machine."""
    sent = pickle.loads(pickle.dumps(write.file_writer(order)))
    answers = [sent.write(part, task, task) for task, part in enumerate(parts)]
    told = [WriterResult.from_json(json.loads(json.dumps(answer.to_json()))) for answer in answers]
    return write.commit(write.files_of(told))


def merged(table: KeyedTable) -> dict[tuple[int, str | None], int]:
    rows = pyarctic.table(table.name).scan().to_arrow().to_pylist()
    assert len({(row["id"], row["region"]) for row in rows}) == len(rows)
    return {(row["id"], row["region"]): row["v"] for row in rows}


def test_rows_of_a_key_have_one_writer_and_a_writer_has_whole_nodes(table: KeyedTable) -> None:
    ids = np.random.default_rng(1).integers(-(10**12), 10**12, 5000)
    few, many = (WriterAssignment.of(table.change_store.view, slots) for slots in (1, 9))
    assert (few.writers, many.writers) == (4, 16)
    numbers = [d.numbers([pa.array(ids)]).to_numpy() for d in (few, many)]
    assert (numbers[1] & 3 == numbers[0]).all()  # more writers share a node, none has parts of two
    assert (pickle.loads(pickle.dumps(many)).numbers([pa.array(ids)]).to_numpy() == numbers[1]).all()
    assert len(np.unique(numbers[1])) == 16


def test_rows_that_do_not_fit_go_to_some_writer_which_says_what_is_wrong(table: KeyedTable) -> None:
    distribution = WriterAssignment.of(table.change_store.view, 4)
    assert distribution.numbers([pa.array(["x", "1"])]).to_pylist() == [0, 0]
    assert distribution.numbers([pa.array([1, None])]).to_pylist() == [0, 0]
    writer = table.prepare_write("upsert").file_writer()
    with pytest.raises(UsageError, match="'id'"):
        writer.write(iter([pa.record_batch({"id": ["x"], "region": ["a"], "v": [1]})]), 0, 0)


def test_partitions_without_a_key_come_together(lake: Catalog) -> None:
    plain = pyarctic.create_table("lake.db.u", SCHEMA, partition_by=["region"])
    distribution = WriterAssignment.of(plain.view, 4)
    assert distribution.columns == ("region",)
    numbers = distribution.numbers([pa.array(["a", "b", "a", None, "b", None])]).to_pylist()
    assert numbers[0] == numbers[2] != numbers[1] == numbers[4] != numbers[3] == numbers[5]


@pytest.mark.parametrize("mode", ["insert", "upsert", "delete", "cdc", "overwrite"])
def test_a_key_that_comes_twice_needs_an_order(table: KeyedTable, mode: WriteMode) -> None:
    write = table.prepare_write(mode)
    rows = [{"id": key, "region": "a", "v": key, "_change_action": "INSERT"} for key in (1, 2, 2, 3)]
    if mode != "cdc":
        rows = [{name: row[name] for name in ("id", "region", "v")} for row in rows]
    for size in (1, 2, 3, 4):
        with pytest.raises(UsageError, match="key id = 2 comes several times") as refusal:
            write.file_writer().write(cut(rows, size, _change_action=pa.string()), 0, 0)
        assert "order_by" in (refusal.value.hint or "")
    assert table.files(store="change").is_empty()


def test_the_order_decides_and_its_columns_are_not_written(table: KeyedTable) -> None:
    rows = [{"id": 7, "region": "a", "v": v, "seq": v} for v in range(50)] + [{"id": 8, "region": "a", "v": 1, "seq": 0}]
    for size in (1, 7, 100):
        committed(table.prepare_write("upsert"), [cut(rows, size, seq=pa.int64())], ["seq"])
        assert merged(table) == {(7, "a"): 49, (8, "a"): 1}


def test_an_order_that_does_not_decide(table: KeyedTable) -> None:
    writer = table.prepare_write("upsert").file_writer(["seq"])
    tied = [{"id": 7, "region": "a", "v": v, "seq": 5} for v in (1, 2)]
    with pytest.raises(UsageError, match="equal seq"):
        writer.write(cut(tied, seq=pa.int64()), 0, 0)
    with pytest.raises(UsageError, match="'seq' orders the rows and is null"):
        writer.write(cut([{"id": 7, "region": "a", "v": 1, "seq": None}], seq=pa.int64()), 0, 0)


def test_the_images_of_one_update_may_be_equal_in_order(table: KeyedTable) -> None:
    def event(action: str, v: int) -> Row:
        return {"id": 1, "region": "a", "v": v, "_change_action": action, "seq": 5}

    def answered(*rows: Row) -> WriterResult:
        writer = table.prepare_write("cdc").file_writer(["seq"])
        return writer.write(cut(rows, 1, _change_action=pa.string(), seq=pa.int64()), 0, 0)

    assert answered(event("UPDATE_BEFORE", 1), event("UPDATE_AFTER", 2)).files
    for rows in (
        [event("DELETE", 1), event("INSERT", 2)],
        [event("UPDATE_BEFORE", 1), event("UPDATE_AFTER", 2), event("UPDATE_AFTER", 3)],
        [event("UPDATE_BEFORE", 1), event("UPDATE_BEFORE", 2)],
    ):
        with pytest.raises(UsageError, match="comes several times"):
            answered(*rows)


def test_a_key_in_two_partitions_is_two_rows(by_region: KeyedTable) -> None:
    rows = [{"id": 1, "region": region, "v": v} for v, region in enumerate(("a", "b"))]
    committed(by_region.prepare_write("upsert"), [cut(rows)])
    assert merged(by_region) == {(1, "a"): 0, (1, "b"): 1}
    with pytest.raises(UsageError, match="comes several times"):
        by_region.prepare_write("upsert").file_writer().write(cut([*rows, rows[0]]), 0, 0)


def test_old_rows_tell_where_keys_are(by_region: KeyedTable) -> None:
    by_region.write(pa.Table.from_batches(cut([{"id": 1, "region": "a", "v": 0}, {"id": 2, "region": "a", "v": 0}])))
    write = by_region.prepare_write("upsert", across_partitions=True)
    writer = write.file_writer((), write.moved_columns)
    rows = [
        {"id": 1, "region": "a", "v": None, IS_OLD: True},
        {"id": 1, "region": "b", "v": 5, IS_OLD: False},
        {"id": 3, "region": "b", "v": 6, IS_OLD: False},
    ]
    for size in (1, 3):
        answer = writer.write(cut(rows, size, **{IS_OLD: pa.bool_()}), 0, size)
        kinds = sorted(file["path"].rsplit("/", 1)[1].split("-")[1] for file in answer.files)
        assert kinds.count("ED") >= 2, kinds  # in the old partition, and before the inserts
    write.commit(write.files_of([answer]))
    assert merged(by_region) == {(1, "b"): 5, (2, "a"): 0, (3, "b"): 6}


@settings(max_examples=25)
@given(data=st.data())
def test_many_writers_make_the_same_table_as_one(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("many")
    pyarctic.catalog("many", type="sql", uri=f"sqlite:///{folder}/c.db", warehouse=folder.as_uri())
    table = pyarctic.create_table("many.db.t", SCHEMA, primary_key=["id"])
    assert isinstance(table, KeyedTable)
    expected: dict[int, int] = {}
    for number in range(data.draw(st.integers(1, 3))):
        mode = data.draw(st.sampled_from(["insert", "upsert", "delete"]))
        ids = data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=30))
        rows: list[Row] = [{"id": key, "region": "r", "v": 100 * number + at, "seq": at} for at, key in enumerate(ids)]
        distribution = WriterAssignment.of(table.change_store.view, data.draw(st.integers(1, 20)))
        owners = distribution.numbers([pa.array(ids)]).to_pylist()
        parts = [
            cut(
                sorted((r for r, o in zip(rows, owners, strict=True) if o == owner), key=lambda r: (r["id"], r["seq"])),
                3,
                seq=pa.int64(),
            )
            for owner in sorted(set(owners))
        ]
        committed(table.prepare_write(mode), parts, ["seq"])  # type: ignore[arg-type]
        for row in rows:
            expected.pop(row["id"], None)
            if mode != "delete":
                expected[row["id"]] = row["v"]
        found = pyarctic.table("many.db.t").scan().to_arrow()
        assert dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True)) == expected
        assert found.num_rows == len(expected)
