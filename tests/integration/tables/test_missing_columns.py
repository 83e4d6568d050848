"""Rows without a column that the table has: optional columns are filled, required ones and unknown ones are named."""

from __future__ import annotations

import json
import pickle
import warnings
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField, StringType

import pyarctic
from pyarctic.errors import UsageError
from pyarctic.tables import Table, WriteMode
from pyarctic.tables.evolve import Evolution, evolve
from pyarctic.tables.write import WriterResult
from tests.support.metadata_files import edited

pytestmark = pytest.mark.usefixtures("lake")

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
MODES = [("unkeyed", "insert"), ("unkeyed", "overwrite")] + [("keyed", m) for m in ("insert", "upsert", "cdc", "overwrite")]


def made(kind: str, schema: pa.Schema = SCHEMA, **options: Any) -> Table:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pyarctic.create_table("lake.db.t", schema, ["id"] if kind == "keyed" else [], **options)


def rows(mode: WriteMode, **columns: list[Any]) -> pa.Table:
    if mode == "cdc":
        columns["_change_action"] = ["INSERT"] * len(columns["id"])
    return pa.table(columns)


def content(table: Table) -> list[dict[str, Any]]:
    return sorted(table.refresh().scan().to_arrow().to_pylist(), key=lambda row: row["id"])


@pytest.mark.parametrize(("kind", "mode"), MODES)
def test_a_writer_goes_on_when_a_column_is_added(kind: str, mode: WriteMode) -> None:
    """Its handle learns of the new column by its own commit."""
    table = made(kind)
    table.write(rows(mode, id=[1], text=["a"]), mode)
    pyarctic.table("lake.db.t").evolve(add={"note": "string"})
    for number in (2, 3):
        table.write(rows(mode, id=[number], text=["b"]), mode)
    table.write(rows(mode, id=[4], text=["c"], note=["new"]), mode)
    expected = [{"id": 1, "text": "a", "note": None}] + [{"id": n, "text": "b", "note": None} for n in (2, 3)]
    expected.append({"id": 4, "text": "c", "note": "new"})
    assert content(table) == (expected[-1:] if mode == "overwrite" else expected)


def test_an_upsert_without_an_optional_column_writes_null() -> None:
    table = made("keyed")
    table.write(rows("upsert", id=[1], text=["a"]), "upsert")
    table.write(rows("upsert", id=[1]), "upsert")
    assert content(table) == [{"id": 1, "text": None}]


@pytest.mark.parametrize(("kind", "mode"), [*MODES, ("keyed", "delete")])
def test_required_and_unknown_columns_are_named(kind: str, mode: WriteMode) -> None:
    table = made(kind)
    with pytest.raises(UsageError, match="missing id"):
        table.write(rows(mode, id=[1], text=["a"]).drop_columns("id"), mode)
    with pytest.raises(UsageError, match="unknown txt"):
        table.write(rows(mode, id=[1], txt=["a"]), mode)
    assert content(table) == []


@pytest.mark.parametrize("mode", ["insert", "upsert", "cdc", "delete", "overwrite"])
def test_partition_columns_of_a_keyed_table_are_not_filled(mode: WriteMode) -> None:
    """A row without its partition would go to, or be deleted from, a partition that nobody meant."""
    schema = pa.schema([("id", pa.int64()), ("city", pa.string())])
    table = made("keyed", schema, partition_by=["city"])
    with pytest.raises(UsageError, match="lack the partition column city"):
        table.write(rows(mode, id=[1]), mode)


def test_partition_columns_of_other_tables_are_filled() -> None:
    table = made("unkeyed", pa.schema([("id", pa.int64()), ("city", pa.string())]), partition_by=["city"])
    table.write(rows("insert", id=[1]))
    assert content(table) == [{"id": 1, "city": None}]


def test_defaults_of_a_version_3_table_are_written(lake: Catalog) -> None:
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "part", StringType(), required=True),
        NestedField(3, "day", DateType()),
    )
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
    lake.create_namespace("db")
    loaded = lake.create_table("db.v3", schema, partition_spec=spec, properties={"format-version": "3"})

    def with_defaults(metadata: dict[str, Any]) -> dict[str, Any]:
        [_, part, day] = metadata["schemas"][0]["fields"]
        part |= {"initial-default": "old", "write-default": "new"}
        day["write-default"] = "2026-01-02"
        return metadata

    edited(loaded, with_defaults)
    table = pyarctic.table("lake.db.v3")
    table.write(pa.table({"id": [1]}))
    [row] = table.scan().to_arrow().to_pylist()
    assert (row["id"], row["part"], str(row["day"])) == (1, "new", "2026-01-02")
    table.write(pa.table({"id": [2], "part": ["p"], "day": pa.nulls(1)}), "overwrite")
    assert table.scan().to_arrow().to_pylist() == [{"id": 2, "part": "p", "day": None}], "null was given"


def test_fields_of_structs() -> None:
    struct = pa.struct([("x", pa.int64()), ("deep", pa.list_(pa.struct([("y", pa.string())])))])
    table = made("unkeyed", pa.schema([("id", pa.int64()), ("s", struct)]))
    table.write(pa.table({"id": [1], "s": [{"x": 1}]}))
    assert content(table) == [{"id": 1, "s": {"x": 1, "deep": None}}]
    with pytest.raises(UsageError, match=r"unknown s\.z, s\.deep\.element\.q"):
        table.write(pa.table({"id": [1], "s": [{"x": 1, "z": 2, "deep": [{"q": "lost?"}]}]}))


@pytest.mark.parametrize(("kind", "mode"), MODES)
def test_a_write_that_was_prepared_before_columns_changed_is_committed(kind: str, mode: WriteMode) -> None:
    table = made(kind)
    write = table.prepare_write(mode)
    sent = pickle.loads(pickle.dumps(write.file_writer()))
    result = sent.write(iter(rows(mode, id=[1], text=["a"]).to_batches()), 0, 0)
    pyarctic.table("lake.db.t").evolve(add={"note": "string"}, rename={"text": "title"})
    results = [WriterResult.from_json(json.loads(json.dumps(result.to_json())))]
    assert write.commit(write.files_of(results)) is not None
    assert content(table) == [{"id": 1, "title": "a", "note": None}]


def test_schemas_change_while_others_write(lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits of others to either store do not stop the change of the schema."""
    table = made("keyed", properties={"commit.retry.min-wait-ms": "1"})
    commit_table: Any = type(lake).commit_table
    writers = [pyarctic.table("lake.db.t") for _ in range(6)]

    def lose(catalog: Any, *request: Any) -> Any:
        if not writers:
            return commit_table(catalog, *request)
        writer = writers.pop()
        with monkeypatch.context() as undone:
            undone.setattr(type(lake), "commit_table", commit_table)
            writer.write(rows("upsert", id=[len(writers)], text=["a"]), "upsert")
            with catalog.load_table(request[0].name()).transaction() as others:
                others.set_properties(turn=str(len(writers)))
        raise CommitFailedException("another commit came first")

    monkeypatch.setattr(type(lake), "commit_table", lose)
    table.evolve(add={"note": "string"})
    assert writers == []
    assert [row["id"] for row in content(table)] == [*range(6)]
    writers += [pyarctic.table("lake.db.t") for _ in range(6)]
    evolve(lake.load_table("db.t"), Evolution(add={"more": "string"}))
    writers += [pyarctic.table("lake.db.t") for _ in range(6)]
    pyarctic.table("lake.db.t").write(rows("upsert", id=[7], text=["b"]), "upsert")
    assert writers == []
    assert pyarctic.table("lake.db.t_change_").schema.find_field("more").field_type == StringType()
