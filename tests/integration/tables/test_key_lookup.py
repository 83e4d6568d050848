"""Reads of single keys: right whatever else is in the table, and only files are opened that may hold the key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch
from uuid import UUID

import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.types import LongType

import pyarctic
from pyarctic.iceberg.read import live_rows
from pyarctic.iceberg.read.data_files import read_file_batches
from pyarctic.tables import ScanStore
from pyarctic.tables.format.file_names import parse_file_names
from pyarctic.tables.format.key_hash import key_hashes
from pyarctic.tables.format.store_properties import BASE_BUCKETS, CHANGE_BUCKETS
from pyarctic.tables.format.tree import Node
from pyarctic.tables.keyed_table import KeyedTable
from pyarctic.tables.read.splits import SplitSizes, plan_splits
from tests.support.keyed_tables import IDS, add_file, many, opened, rows, texts

pytestmark = pytest.mark.usefixtures("lake")
BUCKETS = {BASE_BUCKETS: "4", CHANGE_BUCKETS: "8"}


@contextmanager
def opening() -> Iterator[set[str]]:
    """The data files that are opened."""
    paths: set[str] = set()
    original = read_file_batches

    def spy(io: Any, path: str, *arguments: Any, **options: Any) -> Any:
        paths.add(path)
        return original(io, path, *arguments, **options)

    with patch.object(live_rows, "read_file_batches", spy):
        yield paths


def found(where: str, store: ScanStore = "merged", **options: Any) -> tuple[list[dict[str, Any]], set[str]]:
    """The rows, and the files that were opened for them."""
    with opening() as paths:
        return opened().scan(where=where, store=store, **options).to_arrow().to_pylist(), paths


def nodes_of(hash_: int) -> set[int]:
    """The nodes on the way from the root to a hash."""
    return {Node(mask, hash_ & mask).id for mask in (0, 1, 3, 7)}


def hash_of(key: int) -> int:
    return int(key_hashes([pa.array([key])], [LongType()])[0])


@pytest.fixture
def table() -> KeyedTable:
    """Base in 4 nodes, and ten commits in 8 nodes, each of a range of its own of a thousand keys."""
    created = pyarctic.create_table("lake.db.t", IDS, ["id"], properties=BUCKETS)
    assert isinstance(created, KeyedTable)
    created.write(many(range(10_000), "base"), "overwrite")
    for number in range(10):
        created.write(many(range(1_000 * number, 1_000 * (number + 1), 3), "new"), "upsert")
    return created


def test_a_key_opens_the_files_of_its_node_and_range(table: KeyedTable) -> None:
    everything = opened().files(content="data").height + opened().files(store="change").height
    assert everything == 4 + 10 * 8 * 2
    for key, text in ((4_513, "new"), (4_512, "base"), (77_777, None)):
        found_rows, paths = found(f"id = {key}")
        assert found_rows == ([] if text is None else [{"id": key, "text": texts(range(key, key + 1), text)[key]}])
        # One base file; of the changes the inserts and the deletes of one commit.
        assert len(paths) == (0 if text is None else 3)
        named = parse_file_names(as_frame(paths), "change")
        assert set(named["node_id"]) <= nodes_of(hash_of(key))


def as_frame(paths: set[str]) -> pl.DataFrame:
    schema = {"file_path": pl.String, "data_sequence_number": pl.Int64}
    return pl.DataFrame([(path, 1) for path in sorted(paths)], schema, orient="row")


def test_some_keys_open_the_files_of_each(table: KeyedTable) -> None:
    keys = [3, 5_000, 9_999]
    found_rows, paths = found(f"id in ({', '.join(map(str, keys))}) and text != 'x'")
    assert sorted(row["id"] for row in found_rows) == keys
    assert len(paths) <= 3 * 3 + 2, "the node of one key and the range of another"
    either, _ = found("id = 3 or id = 5000")
    assert sorted(row["id"] for row in either) == keys[:2]


def test_a_range_of_keys_leaves_out_changes(table: KeyedTable) -> None:
    found_rows, paths = found("id >= 2000 and id < 2010")
    assert sorted(row["id"] for row in found_rows) == list(range(2_000, 2_010))
    assert len(paths) <= 4 + 8 * 2, "of all nodes, but of one commit"


def test_nothing_is_opened_for_a_key_that_cannot_exist(table: KeyedTable) -> None:
    assert found("id = 5 and id = 6") == ([], set())
    assert opened().scan(where="id = 5 and id = 6").count() == 0


@pytest.mark.parametrize("store", ["base", "change"])
def test_one_store(table: KeyedTable, store: ScanStore) -> None:
    found_rows, paths = found("id = 4513", store)
    assert [row["id"] for row in found_rows] == [4_513] * (2 if store == "change" else 1)
    assert len(paths) == (2 if store == "change" else 1)
    condition = "id = 4513 and _change_action = 'INSERT' and _file_offset > 0"
    if store == "change":
        assert len(found(condition, store)[0]) == 1


def test_splits_and_plain_files(table: KeyedTable) -> None:
    for store, expected in (("merged", 3), ("base", 1), ("change", 2)):
        plan = plan_splits(opened().scan(where="id = 4513", store=store), SplitSizes(readers=2))  # type: ignore[arg-type]
        with opening() as paths:
            read = [row for split in plan.splits for batch in plan.reader.batches(split) for row in batch.to_pylist()]
        assert len(paths) + len(plan.plain_files) == expected
        assert {row["id"] for row in read} <= {4_513}
        assert bool(read) != bool(plan.plain_files)


def test_a_later_version_counts_although_it_misses_other_conditions(table: KeyedTable) -> None:
    opened().write(rows(_5="last"), "upsert")
    old = texts(range(5, 6), "base")[5]
    assert found(f"id = 5 and text = '{old}'")[0] == []
    assert found("id = 5 and text = 'last'")[0] == [{"id": 5, "text": "last"}]
    opened().write(rows(_5="-"), "delete")
    assert found("id = 5")[0] == []
    assert found(f"id = 5 and text = '{old}'")[0] == []
    assert found("id = 5 and text = 'last'")[0] == []


def test_files_of_other_engines_have_no_node(table: KeyedTable) -> None:
    for name in ("any-name", "0-B-1-00000-0-1-00001", "zzz"):
        add_file(table, many(range(16), name), name)
        for key in range(16):
            (row,), paths = found(f"id = {key}")
            expected = name if key % 3 else "new"
            assert row["text"] == texts(range(16), expected)[key]
            assert any(path.endswith(f"/{name}.parquet") for path in paths)
            assert texts(range(16), name)[key] in {row["text"] for row in found(f"id = {key}", "base")[0]}
        table.refresh()


def test_files_of_the_change_store_without_a_node(table: KeyedTable) -> None:
    changed = many(range(16), "other").append_column("_file_offset", pa.array(range(1, 17)))
    add_file(table.change_store, changed, "any-name")
    for key in range(16):
        assert found(f"id = {key}")[0] == [{"id": key, "text": texts(range(16), "other")[key]}]
        assert len(found(f"id = {key}", "change")[0]) == (1 if key % 3 else 3)


@pytest.mark.parametrize("is_cleaned", [False, True])
def test_a_key_that_another_engine_widened(lake: Catalog, is_cleaned: bool) -> None:
    """Negative numbers have another hash as ints than as longs."""
    narrow = pa.schema([pa.field("id", pa.int32(), nullable=False), ("v", pa.string())])
    table = pyarctic.create_table("lake.db.t", narrow, ["id"], properties=BUCKETS)
    ids = list(range(-16, 16))
    table.write(pa.table([ids, ["base"] * 32], schema=narrow), "overwrite")
    table.write(pa.table([ids[::2], ["new"] * 16], schema=narrow), "upsert")
    stores = ("db.t", "db.t_change_")
    for store in stores[: 2 - is_cleaned]:  # the change store follows when it is written to
        with lake.load_table(store).update_schema() as update:
            update.update_column("id", field_type=LongType())
    for store in ("merged", "base", "change"):
        for key in ids:
            expected = ["base"] if store == "base" else ["new"] if key % 2 == 0 else ["base"] * (store == "merged")
            assert {row["v"] for row in found(f"id = {key}", store)[0]} == set(expected), (store, key)  # type: ignore[arg-type]


def test_keys_of_several_columns_and_other_types() -> None:
    schema = pa.schema([("u", pa.uuid()), ("day", pa.date32()), ("price", pa.decimal128(9, 2)), ("v", pa.int64())])
    created = pyarctic.create_table("lake.db.t", schema, ["u", "day", "price"], properties=BUCKETS)
    keys = [(UUID(int=number << 64), number % 3, number) for number in range(64)]
    storage = pa.array([key[0].bytes for key in keys], pa.binary(16))
    columns = [
        pa.ExtensionArray.from_storage(pa.uuid(), storage),
        pa.array([key[1] for key in keys], pa.date32()),
        pa.array([key[2] for key in keys], pa.decimal128(9, 2)),
        pa.array(range(64)),
    ]
    created.write(pa.table(columns, schema=schema), "overwrite")
    created.write(pa.table(columns, schema=schema).slice(0, 32), "upsert")
    for number, (uuid, _, price) in enumerate(keys):
        day = ("1970-01-01", "1970-01-02", "1970-01-03")[number % 3]
        where = f"u = '{uuid}' and day = '{day}' and price = {price}.0"
        found_rows, paths = found(where)
        assert [row["v"] for row in found_rows] == [number]
        assert len(paths) <= 3
    both = f"u in ('{keys[1][0]}', '{keys[2][0]}') and day in ('1970-01-02', '1970-01-03') and price = 1"
    assert [row["v"] for row in found(both)[0]] == [1]
    assert len(found("day = '1970-01-01'")[0]) == 22, "a part of the key has no hash"
