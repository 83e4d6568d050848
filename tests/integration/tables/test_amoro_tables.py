"""Keyed tables made by Apache Amoro (tests/data/mixed-iceberg), read as their maker reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table as IcebergTable

from pyarctic.tables import ScanStore
from pyarctic.tables.format.change_columns import CHANGE_COLUMNS
from pyarctic.tables.format.key_hash import key_hashes
from pyarctic.tables.format.store_properties import CHANGE_BUCKETS, DEFAULT_BUCKETS, kind_of, store_of
from pyarctic.tables.format.tree import Node
from tests.support.amoro import NAMES, AmoroTable, texts, unpacked


@pytest.fixture(scope="module", params=NAMES)
def amoro(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AmoroTable:
    return unpacked(request.param, tmp_path_factory.mktemp("amoro"))


def test_it_is_recognised(amoro: AmoroTable) -> None:
    assert kind_of(amoro.base.properties) == "keyed"
    assert store_of(amoro.change.properties) == "change"
    assert list(amoro.table.primary_key) == amoro.expected["primary_key"]
    separator = "@change" if "ams_" in amoro.expected["table"] else "_change_"
    assert amoro.table.change_store.name.endswith(f".{amoro.expected['table']}{separator}")


@pytest.mark.parametrize("store", ["merged", "base", "change"])
def test_rows(amoro: AmoroTable, store: ScanStore) -> None:
    scan, rows = amoro.table.scan(store=store), amoro.expected[store]
    assert texts(scan.to_arrow().to_pylist()) == texts(rows)
    assert scan.schema.names == list(rows[0])
    assert scan.count() == len(rows) == amoro.expected["counts"][store]


def test_rows_that_are_spilled(amoro: AmoroTable) -> None:
    scan = amoro.table.scan(memory_bytes=64)
    assert texts(scan.to_arrow().to_pylist()) == texts(amoro.expected["merged"])


@pytest.mark.parametrize(("where", "column", "value"), [("ok = true", "ok", True), ("name is null", "name", None)])
def test_rows_by_condition(amoro: AmoroTable, where: str, column: str, value: object) -> None:
    wanted = [row for row in amoro.expected["merged"] if row[column] is value]
    scan = amoro.table.scan(where=where)
    assert texts(scan.to_arrow().to_pylist()) == texts(wanted)
    assert scan.count() == len(wanted)


def test_every_key_is_in_the_node_of_its_file(amoro: AmoroTable) -> None:
    keys = [amoro.base.schema().find_field(name) for name in amoro.expected["primary_key"]]
    seen = set()
    for store in (amoro.base, amoro.change):
        for path, kind, rows in _data_files(amoro, store):
            node = Node.of_id(int(path.name.split("-")[0]))
            hashes = key_hashes([rows[field.name].combine_chunks() for field in keys], [field.field_type for field in keys])
            assert node.holds(hashes).all(), path.name
            seen.add(kind)
            assert (CHANGE_BUCKETS in store.properties) or node.mask == DEFAULT_BUCKETS - 1
    assert seen == {"B", "I", "ED"}


def test_what_was_merged(amoro: AmoroTable) -> None:
    merged = amoro.table.merged_sequences()
    last = max(snapshot.sequence_number or 0 for snapshot in amoro.change.snapshots())
    match amoro.expected["stage"]:
        case "change":
            assert set(merged.values()) == {1}  # the overwrite of the beginning is the first transaction
        case "full":
            assert max(merged.values()) == last
            assert amoro.table.summary()["change_store"]["unmerged_files"] == 0
        case "minor":
            assert 1 < max(merged.values()) < last
            assert amoro.table.summary()["change_store"]["unmerged_files"] > 0
    folders = {path.parent.name for path, _, _ in _data_files(amoro, amoro.base)}
    assert set(merged) == ({""} if folders == {"data"} else folders)


def test_changes_replayed_over_the_load_give_the_merged_rows(amoro: AmoroTable) -> None:
    keys = amoro.expected["primary_key"]

    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in keys)

    (load, *_) = amoro.base.snapshots()
    loaded = amoro.table.scan(store="base", snapshot_id=load.snapshot_id).to_arrow().to_pylist()
    state = {key(row): row for row in loaded}
    assert len(state) == len(loaded) == 12
    changes = amoro.table.changes()
    for row in changes.to_arrow().to_pylist():
        told = {name: row.pop(name) for name in CHANGE_COLUMNS}
        if told["_change_action"] in ("DELETE", "UPDATE_BEFORE"):
            state.pop(key(row), None)
        else:
            assert key(row) not in state
            state[key(row)] = row
    assert texts(state.values()) == texts(amoro.expected["merged"])
    assert changes.count() == amoro.expected["counts"]["change"]


def test_changes_come_in_order(amoro: AmoroTable) -> None:
    rows = amoro.table.changes().to_arrow().select(list(CHANGE_COLUMNS)).to_pylist()
    places = [(row["_transaction_id"], row["_file_offset"]) for row in rows]
    assert places == sorted(places)
    actions = [row["_change_action"] for row in rows]
    assert actions.count("UPDATE_BEFORE") == actions.count("UPDATE_AFTER") > 0


def _data_files(amoro: AmoroTable, store: IcebergTable) -> Iterator[tuple[Path, str, pa.Table]]:
    """Every data file that a snapshot still knows, by PyIceberg and PyArrow."""
    paths = {file["file_path"] for file in store.inspect.all_data_files().to_pylist()}
    for path in sorted(map(amoro.io.path, paths)):
        told = re.fullmatch(r"\d+-(\w+)-\d+-\d{5}-\d+-\d+-\d{5}\.parquet", path.name)
        assert told, path.name
        yield path, told[1], pq.read_table(path)
