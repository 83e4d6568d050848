"""Keyed tables on the command line: made, written, read, looked at, changed and dropped."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

import pyarctic
from pyarctic.tables.keyed_table import KeyedTable
from tests.integration.cli.test_cli_optimize import Keyboard
from tests.support.cli_library import Arctic, Ran
from tests.support.cli_orders import new_catalog

NAME = "demo.shop.orders"
COLUMNS = ("--column", "id long required", "--column", "city string", "--column", "amount decimal(10, 2)")
KEYED = ("table", "create", NAME, *COLUMNS, "--key", "id")
ROWS = "id,city,amount\n1,Oslo,10.50\n2,Rome,20\n3,,\n"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[SqlCatalog]:
    catalog = new_catalog(tmp_path)
    yield catalog
    catalog.close()


def done(ran: Ran) -> Ran:
    assert ran.code == 0, ran.err
    return ran


@pytest.fixture
def orders(arctic: Arctic, lake: SqlCatalog, tmp_path: Path) -> Arctic:
    """A keyed table with three rows, of which one was updated and one deleted."""
    done(arctic(*KEYED))
    (tmp_path / "rows.csv").write_text(ROWS, encoding="utf-8")
    (tmp_path / "new.jsonl").write_text('{"id": 1, "city": "Oslo", "amount": "11.00"}\n', encoding="utf-8")
    pq.write_table(pa.table({"id": [2]}), tmp_path / "gone.parquet")
    done(arctic("table", "write", NAME, "rows.csv"))
    done(arctic("table", "write", NAME, "new.jsonl", "--mode", "upsert"))
    done(arctic("table", "write", NAME, "gone.parquet", "--mode", "delete"))
    return arctic


def rows_of(arctic: Arctic, *words: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in done(arctic("table", "scan", NAME, "--json", *words)).json]


MERGED = [(1, "Oslo", "11.00"), (3, None, None)]


def test_created(arctic: Arctic, lake: SqlCatalog) -> None:
    made = done(arctic(*KEYED, "--partition-by", "bucket(4, id)", "--property", "owner=anna=b", "--json")).json
    assert (made["name"], made["kind"], made["primary_key"]) == (NAME, "keyed", ["id"])
    assert made["partition_spec"] == ["bucket(4, id)"]
    assert made["properties"]["owner"] == "anna=b"
    assert [(c["name"], c["type"], c["required"]) for c in made["schema"]] == [
        ("id", "long", True),
        ("city", "string", False),
        ("amount", "decimal(10, 2)", False),
    ]
    assert made["change_store"]["name"] == f"{NAME}_change_"
    assert lake.table_exists("shop.orders_change_")
    assert arctic("table", "ls", "--json").json == [{"name": NAME}]
    assert arctic(*KEYED).code == 4


def test_created_as_an_iceberg_table(arctic: Arctic, lake: SqlCatalog) -> None:
    native = ("table", "create", NAME, *COLUMNS, "--table-format", "iceberg", "--format-version")
    made = done(arctic(*native, "3", "--json")).json
    assert (made["kind"], made["format_version"], made["primary_key"]) == ("native", 3, [])
    for words, code, fault in (
        ([*native, "4"], 2, "format version 4"),
        ([*native, "3", "--key", "id"], 2, "primary key"),
        ([*native, "3"], 4, f"table {NAME} exists already"),
        ([*native, "1", "--if-not-exists"], 4, "its format version is 3"),
        ([*KEYED, "--if-not-exists"], 4, "it is native, not keyed"),
        (["table", "create", NAME, *COLUMNS, "--table-format", "delta"], 2, "delta"),
    ):
        ran = arctic(*words)
        assert (ran.code, ran.out) == (code, "")
        assert fault in ran.err
    again = done(arctic(*native, "3", "--if-not-exists", "--json"))
    assert again.json["uuid"] == made["uuid"]
    assert "exists already: nothing was changed" in again.err


def test_created_if_it_does_not_exist(arctic: Arctic, lake: SqlCatalog) -> None:
    first = done(arctic(*KEYED, "--if-not-exists", "--json"))
    second = done(arctic(*KEYED, "--if-not-exists", "--json"))
    assert first.json["uuid"] == second.json["uuid"]
    assert ("nothing was changed" in first.err, "nothing was changed" in second.err) == (False, True)
    ran = arctic("table", "create", NAME, *COLUMNS, "--key", "city", "--if-not-exists")
    assert ran.code == 4
    assert "its primary key is id" in ran.err
    assert "orders_change_" not in arctic(*KEYED).err


def test_a_file_may_lack_optional_columns(arctic: Arctic, lake: SqlCatalog, tmp_path: Path) -> None:
    done(arctic(*KEYED))
    (tmp_path / "short.csv").write_text("id,city\n1,Oslo\n", encoding="utf-8")
    done(arctic("table", "write", NAME, "short.csv", "--mode", "upsert"))
    assert rows_of(arctic) == [(1, "Oslo", None)]
    (tmp_path / "bare.csv").write_text("city\nOslo\n", encoding="utf-8")
    ran = arctic("table", "write", NAME, "bare.csv")
    assert ran.code == 2
    assert "missing id" in ran.err


def test_a_step_is_written_once(arctic: Arctic, lake: SqlCatalog, tmp_path: Path) -> None:
    done(arctic(*KEYED))
    (tmp_path / "rows.csv").write_text(ROWS, encoding="utf-8")
    words = ("table", "write", NAME, "rows.csv", "--mode", "insert", "--json", "--once")
    first = done(arctic(*words, "my-job:42"))
    assert (first.json["done_before"], first.json["rows"]) == (False, 3)
    again = done(arctic(*words, "my-job:42"))
    assert (again.json["done_before"], again.json["rows"], again.json["snapshot_id"]) == (True, 0, None)
    assert "step 42 of job my-job was written before" in again.err
    assert done(arctic(*words, "my-job:43")).json["snapshot_id"] is not None
    for text in ("my-job", "my-job:", ":4", "my-job:-1", "my job:1", "my-job:x"):
        ran = arctic(*words, text)
        assert (ran.code, ran.out) == (2, "")
        assert "my-job" in ran.err


def test_created_without_a_key(arctic: Arctic, lake: SqlCatalog) -> None:
    ran = done(arctic("table", "create", "demo.new.events", *COLUMNS))
    assert "unkeyed" in ran.out
    assert "Change store" not in ran.out
    assert not lake.table_exists("new.events_change_")


def test_created_like_a_file(arctic: Arctic, lake: SqlCatalog, tmp_path: Path) -> None:
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("at", pa.timestamp("ns")), ("tags", pa.list_(pa.string()))]
    )
    pq.write_table(schema.empty_table(), tmp_path / "a.parquet")
    made = done(arctic("table", "create", NAME, "--like", "a.parquet", "--key", "id", "--json")).json
    assert [column["type"] for column in made["schema"]] == ["long", "timestamp", "list<string>"]


def test_advice_is_a_note(arctic: Arctic, lake: SqlCatalog) -> None:
    ran = done(
        arctic(*KEYED, "--partition-by", "city", "--property", "self-optimizing.target-sise=1MB", "--force", "--json")
    )
    assert "a key is unique within its partition" in ran.err
    assert ran.json["name"] == NAME
    assert arctic("table", "create", "demo.shop.b", *COLUMNS, "--key", "id", "--partition-by", "city", "-q").err == ""


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ([], 2, "needs columns"),
        ([*COLUMNS, "--like", "a.parquet"], 2, "needs columns"),
        (["--like", "gone.parquet"], 1, "no such file"),
        (["--column", "id"], 2, "'id' is not a column"),
        (["--column", "id lang"], 2, "unknown type: 'lang'"),
        (["--column", "id long", "--column", "id int"], 2, "twice"),
        ([*COLUMNS, "--key", "nope"], 2, "'nope' is not in the schema"),
        ([*COLUMNS, "--partition-by", "week(id)"], 2, "unknown partition transform"),
        ([*COLUMNS, "--property", "owner"], 2, "not of the form key=value"),
        ([*COLUMNS, "--property", "a=1", "--property", "a=2"], 2, "given twice"),
        ([*COLUMNS, "--property", "self-optimizing.target-size=x"], 2, "is not valid"),
        ([*COLUMNS, "--key", "id", "--property", "change.file-index.hash-bucket=3"], 2, "is 3"),
    ],
)
def test_tables_that_cannot_be_made(arctic: Arctic, lake: SqlCatalog, words: list[str], code: int, told: str) -> None:
    ran = arctic("table", "create", NAME, *words)
    assert (ran.code, ran.out) == (code, "")
    assert told in ran.err
    assert "hint: " in ran.err
    assert not lake.list_tables("shop")


def test_written_and_read(orders: Arctic) -> None:
    assert rows_of(orders) == MERGED
    assert orders("table", "scan", NAME, "--count").out == "2\n"
    assert rows_of(orders, "--store", "base") == []
    assert len(rows_of(orders, "--store", "change")) == 6
    assert orders("table", "scan", NAME, "--store", "other").code == 2
    first = orders("table", "snapshots", NAME, "--store", "change", "--json").json[-1]["snapshot_id"]
    assert len(rows_of(orders, "--snapshot", first)) == 3


def test_what_a_write_tells(orders: Arctic, tmp_path: Path) -> None:
    told = done(orders("table", "write", NAME, "rows.csv", "rows.csv", "--mode", "upsert", "--json")).json
    snapshot = orders("table", "snapshots", NAME, "--store", "change", "--json").json[0]["snapshot_id"]
    assert told == {
        "table": NAME,
        "mode": "upsert",
        "rows": 6,
        "files": 2,
        "store": "change",
        "snapshot_id": snapshot,
        "done_before": False,
    }
    (tmp_path / "none.jsonl").write_text("", encoding="utf-8")
    nothing = done(orders("table", "write", NAME, "none.jsonl", "--json"))
    assert (nothing.json["snapshot_id"], nothing.json["rows"]) == (None, 0)
    assert "nothing was changed" in nothing.err


def test_overwritten(orders: Arctic, tmp_path: Path) -> None:
    (tmp_path / "all.csv").write_text("id,city,amount\n7,Rome,1\n", encoding="utf-8")
    told = done(orders("table", "write", NAME, "all.csv", "--mode", "overwrite", "--json")).json
    assert told["store"] == "base"
    assert told["snapshot_id"] == orders("table", "snapshots", NAME, "--json").json[0]["snapshot_id"]
    assert rows_of(orders) == rows_of(orders, "--store", "base") == [(7, "Rome", "1.00")]
    shown = orders("table", "show", NAME)
    assert "Up to sequence" in shown.out
    files = orders("table", "files", NAME, "--json").json
    assert [(file["kind"], file["transaction_id"]) for file in files] == [("B", 4)]


def test_partitions_overwritten(arctic: Arctic, lake: SqlCatalog, tmp_path: Path) -> None:
    done(arctic(*KEYED, "--partition-by", "city"))
    (tmp_path / "rows.csv").write_text(ROWS, encoding="utf-8")
    (tmp_path / "oslo.csv").write_text("id,city,amount\n7,Oslo,1\n", encoding="utf-8")
    done(arctic("table", "write", NAME, "rows.csv", "--mode", "overwrite"))
    done(arctic("table", "write", NAME, "oslo.csv", "--mode", "overwrite", "--replace", "partitions"))
    assert sorted(str(row[0]) for row in rows_of(arctic)) == ["2", "3", "7"]
    refused = arctic("table", "write", NAME, "oslo.csv", "--mode", "overwrite", "--where", "city = 'Rome'")
    assert (refused.code, "which the condition does not select" in refused.err) == (2, True)
    (tmp_path / "moved.csv").write_text("id,city,amount\n7,Rome,1\n", encoding="utf-8")
    done(arctic("table", "write", NAME, "moved.csv", "--mode", "upsert", "--across-partitions"))
    assert [row[1] for row in rows_of(arctic, "--where", "id = 7")] == ["Rome"]


def test_standard_input(orders: Arctic, monkeypatch: pytest.MonkeyPatch) -> None:
    def typed(text: str) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    typed('{"id": 9, "city": "Bonn"}\n')
    done(orders("table", "write", NAME, "-", "--input-format", "jsonl"))
    assert (9, "Bonn", None) in rows_of(orders)
    typed("id,city,amount\n")
    assert "nothing was changed" in done(orders("table", "write", NAME, "-", "--input-format", "csv")).err
    for words in (["-"], ["-", "-", "--input-format", "csv"], ["-", "--input-format", "parquet"]):
        assert orders("table", "write", NAME, *words).code == 2


def test_changes_go_from_table_to_table(orders: Arctic, tmp_path: Path) -> None:
    changes = done(orders("table", "changes", NAME, "--json")).json
    assert [(row["_change_action"], row["_transaction_id"], row["_file_offset"], row["id"]) for row in changes] == [
        ("INSERT", 1, 1, 1),
        ("INSERT", 1, 2, 2),
        ("INSERT", 1, 3, 3),
        ("DELETE", 2, 1, 1),
        ("INSERT", 2, 2, 1),
        ("DELETE", 3, 1, 2),
    ]
    people = orders("table", "changes", NAME, "--limit", "2")
    assert people.out.startswith("_change_action")
    assert people.err == "the first 2 changes; --limit 0 shows all\n"
    first = orders("table", "snapshots", NAME, "--store", "change", "--json").json[-1]["snapshot_id"]
    assert len(orders("table", "changes", NAME, "--since", first, "--json").json) == 3
    assert orders("table", "changes", NAME, "--since", "1").code == 1
    assert len(orders("table", "changes", NAME, "--until", first, "--json").json) == 3
    chosen = ("--where", "_change_action = 'DELETE' and id = 2", "--columns", "id,_change_action")
    assert orders("table", "changes", NAME, *chosen, "--json").json == [{"_change_action": "DELETE", "id": 2}]
    last = orders("table", "snapshots", NAME, "--store", "change", "--json").json[0]["snapshot_id"]
    wrong = orders("table", "changes", NAME, "--since", last, "--until", first)
    assert (wrong.code, wrong.out) == (2, "")
    assert "is later than" in wrong.err
    (tmp_path / "cdc.csv").write_text(orders("table", "changes", NAME, "--format", "csv").out, encoding="utf-8")
    done(orders("table", "create", "demo.shop.copy", *COLUMNS, "--key", "id"))
    assert done(orders("table", "write", "demo.shop.copy", "cdc.csv", "--mode", "cdc", "--json")).json["rows"] == 6
    assert [tuple(row.values()) for row in orders("table", "scan", "demo.shop.copy", "--json").json] == MERGED


def test_what_lies_where(orders: Arctic) -> None:
    files = done(orders("table", "files", NAME, "--store", "change", "--json")).json
    assert sorted((file["kind"], file["node_id"], file["transaction_id"]) for file in files) == [
        ("ED", 4, 2),
        ("ED", 5, 3),
        ("I", 4, 1),
        ("I", 4, 2),
        ("I", 5, 1),
        ("I", 6, 1),
    ]
    people = orders("table", "files", NAME, "--store", "change")
    assert {"Kind", "Node", "Transaction"} <= set(people.out.split())
    assert "orders_change_/" in people.err
    assert "data/4-I-0-" in people.out
    assert "file://" not in people.out
    assert orders("table", "files", NAME, "--json").json == []
    assert orders("table", "files", NAME, "--store", "change", "--content", "position-deletes", "--json").json == []
    assert len(orders("table", "snapshots", NAME, "--store", "change", "--json").json) == 3
    assert orders("table", "snapshots", NAME, "--json").json == []
    shown = orders("table", "show", NAME)
    for line in ("Primary key", "Change store", "4 with 4 records", "2 with 2 records", "6 with 6 records"):
        assert line in shown.out
    assert orders("table", "show", NAME, "--json").json["change_store"]["unmerged_files"] == 6


def test_other_tables_have_no_changes(arctic: Arctic, lake: SqlCatalog, tmp_path: Path) -> None:
    done(arctic("table", "create", NAME, *COLUMNS))
    (tmp_path / "rows.csv").write_text(ROWS, encoding="utf-8")
    assert done(arctic("table", "write", NAME, "rows.csv", "--json")).json["store"] == "base"
    assert len(rows_of(arctic)) == 3
    for words in (
        ["changes", NAME],
        ["scan", NAME, "--store", "change"],
        ["files", NAME, "--store", "change"],
        ["snapshots", NAME, "--store", "change"],
        ["write", NAME, "rows.csv", "--mode", "upsert"],
    ):
        ran = arctic("table", *words)
        assert (ran.code, ran.out) == (2, "")
        assert "primary key" in ran.err
    assert "kind" not in arctic("table", "files", NAME, "--json").json[0]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["nope.csv"], 1, "nope.csv: no such file"),
        (["odd.txt"], 2, "what kind of file is it?"),
        (["bad.csv"], 2, "columns do not fit the table: unknown town"),
        (["bad.jsonl"], 2, "cannot be read as jsonl"),
        (["bad.parquet"], 2, "cannot be read as parquet"),
        (["type.csv"], 2, "cannot be read as csv"),
        (["null.csv"], 2, "required"),
        (["rows.csv", "--mode", "merge"], 2, "merge"),
        (["rows.csv", "--mode", "cdc"], 2, "_change_action"),
        (["rows.csv", "--replace", "partitions"], 2, "replaces nothing"),
        (["rows.csv", "--across-partitions"], 2, "across_partitions"),
        (["rows.csv", "bad.csv"], 2, "unknown town"),
    ],
)
def test_rows_that_cannot_be_written(orders: Arctic, tmp_path: Path, words: list[str], code: int, told: str) -> None:
    (tmp_path / "odd.txt").write_text(ROWS, encoding="utf-8")
    (tmp_path / "bad.csv").write_text("id,town,amount\n4,Oslo,1\n", encoding="utf-8")
    (tmp_path / "bad.jsonl").write_text('[{"id": 4}]\n', encoding="utf-8")
    (tmp_path / "bad.parquet").write_text(ROWS, encoding="utf-8")
    (tmp_path / "type.csv").write_text("id,city,amount\nfour,Oslo,1\n", encoding="utf-8")
    (tmp_path / "null.csv").write_text("id,city,amount\n,Oslo,1\n", encoding="utf-8")
    ran = orders("table", "write", NAME, *words)
    assert (ran.code, ran.out) == (code, "")
    assert told in ran.err
    assert rows_of(orders) == MERGED
    assert len(orders("table", "snapshots", NAME, "--store", "change", "--json").json) == 3


def test_properties(orders: Arctic, lake: SqlCatalog) -> None:
    ran = done(orders("table", "set", NAME, "owner=anna", "self-optimizing.target-sise=1MB", "--force", "--json"))
    assert ran.json["properties"][0] == {"key": "owner", "before": None, "after": "anna"}
    assert "Did you mean self-optimizing.target-size?" in orders("table", "set", NAME, "self-optimizing.target-sise=1MB").err
    for store in ("orders", "orders_change_"):
        assert lake.load_table(f"shop.{store}").properties["owner"] == "anna"
    people = done(orders("table", "unset", NAME, "owner", "nope"))
    assert people.out.split() == ["Key", "Before", "After", *people.out.split()[3:4], "owner", "anna", "nope"]
    assert "owner" not in lake.load_table("shop.orders_change_").properties
    assert "nothing was changed" in orders("table", "unset", NAME, "nope").err
    for words in (["owner"], ["=x"], ["table-format=x"], ["self-optimizing.target-size=x"]):
        assert orders("table", "set", NAME, *words).code == 2
    assert orders("table", "unset", NAME, "mixed-format.primary-key-fields").code == 2


def test_evolved(orders: Arctic) -> None:
    add = ("--add", "note string", "--add", '"two words" int')
    change = ("--rename", "amount=total", "--widen", "amount=decimal(12, 2)", "--describe", "amount=with tax = 25 %")
    schema = done(orders("table", "evolve", NAME, *add, *change, "--drop", "city", "--json")).json["schema"]
    assert [(column["name"], column["type"], column["doc"]) for column in schema] == [
        ("id", "long", None),
        ("total", "decimal(12, 2)", "with tax = 25 %"),
        ("note", "string", None),
        ("two words", "int", None),
    ]
    assert rows_of(orders) == [(1, "11.00", None, None), (3, None, None, None)]
    assert "with tax" in done(orders("table", "evolve", NAME, "--drop", "note")).out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "nothing is to be changed"),
        (["--add", "x"], "is not a column"),
        (["--add", "x lang"], "unknown type"),
        (["--add", "x long required"], "cannot be required"),
        (["--add", "x long", "--add", "x int"], "twice"),
        (["--drop", "id"], "key column"),
        (["--drop", "nope"], "nope"),
        (["--rename", "amount"], "not of the form"),
        (["--widen", "city=long"], "city"),
    ],
)
def test_columns_that_cannot_be_changed(orders: Arctic, words: list[str], told: str) -> None:
    ran = orders("table", "evolve", NAME, *words)
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err


def test_a_drop_is_looked_at_first(orders: Arctic, lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = done(orders("table", "drop", NAME, "--dry-run", "--json"))
    assert planned.json | {"bytes": 0} == {
        "table": NAME,
        "kind": "keyed",
        "stores": [NAME, f"{NAME}_change_"],
        "files": 6,
        "bytes": 0,
        "purge": False,
        "dropped": False,
    }
    assert "dry run" in planned.err
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\n"))
    refused = orders("table", "drop", NAME)
    assert (refused.code, refused.out) == (2, "")
    assert "6 files" in refused.err
    assert "Add --yes" in refused.err
    assert json.loads(orders("table", "drop", NAME, "--json").err)["code"] == "usage"
    assert lake.table_exists("shop.orders")


@pytest.mark.parametrize(("typed", "code"), [("yes\n", 0), ("no\n", 1), ("\n", 1), ("", 130)])
def test_a_drop_is_confirmed(
    orders: Arctic, lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch, typed: str, code: int
) -> None:
    monkeypatch.setattr("sys.stdin", Keyboard(typed))
    ran = orders("table", "drop", NAME)
    assert ran.code == code, ran.err
    assert "the keyed table demo.shop.orders will be dropped, its 6 files of" in ran.err
    assert [lake.table_exists(f"shop.{store}") for store in ("orders", "orders_change_")] == [code != 0] * 2


def test_dropped(orders: Arctic, tmp_path: Path) -> None:
    files = list((tmp_path / "warehouse").rglob("*.parquet"))
    assert done(orders("table", "drop", NAME, "--purge", "--yes", "--json")).json["dropped"]
    assert files
    assert not list((tmp_path / "warehouse").rglob("*.parquet"))
    assert orders("table", "drop", NAME, "--yes").code == 1


def test_a_damaged_table_can_be_dropped(orders: Arctic, lake: SqlCatalog) -> None:
    lake.drop_table("shop.orders_change_")
    assert orders("table", "show", NAME).code == 1
    ran = done(orders("table", "drop", NAME, "--yes"))
    assert "damaged" in ran.err
    assert not lake.table_exists("shop.orders")


@pytest.mark.parametrize("command", ["explain", "optimize", "rollback"])
def test_a_change_store_is_not_optimized_by_itself(orders: Arctic, command: str) -> None:
    name = f"{NAME}_change_"
    ran = orders("table", command, name)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error[unsupported]: {name}: ")
    assert "hint: Nothing was changed. Optimize the table itself" in ran.err
    assert rows_of(orders) == MERGED


def test_the_tree_is_explained(orders: Arctic) -> None:
    told = done(orders("table", "explain", NAME, "--kind", "minor", "--json")).json
    nodes = {row["node"]: (row["insert_files"], row["delete_files"], row["root"], row["targets"]) for row in told["tree"]}
    assert sum(inserts for inserts, *_ in nodes.values()) == 4
    assert sum(deletes for _, deletes, *_ in nodes.values()) == 2
    assert {(root, tuple(targets)) for *_, root, targets in nodes.values()} == {(1, (1,))}
    assert [(task["node"], task["change_files"], task["data_files"]) for task in told["tasks"]] == [(1, 6, 0)]
    page = done(orders("table", "explain", NAME, "--kind", "minor")).out
    assert "Tree" in page
    assert "6 files merged into the base store" in page
    assert rows_of(orders, "--store", "base") == []


def test_changes_are_merged_and_taken_back(orders: Arctic) -> None:
    assert done(orders("table", "optimize", NAME)).out.count("nothing to do") == 1
    ran = done(orders("table", "optimize", NAME, "--kind", "minor"))
    assert "6 files with 6 rows" in ran.out
    assert sorted(rows_of(orders, "--store", "base")) == sorted(rows_of(orders)) == MERGED
    shown = done(orders("table", "show", NAME, "--json")).json
    assert shown["change_store"]["unmerged_files"] == 0
    assert shown["merged_sequences"] == {"": 3}
    refused = orders("table", "rollback", NAME)
    assert (refused.code, "there was nothing in Base before it" in refused.err) == (4, True)
    done(orders("table", "write", NAME, "gone.parquet", "--mode", "delete"))
    done(orders("table", "optimize", NAME, "--kind", "full"))
    done(orders("table", "rollback", NAME, "--yes"))
    assert done(orders("table", "show", NAME, "--json")).json["merged_sequences"] == {"": 3}
    assert sorted(rows_of(orders)) == MERGED


def test_a_merge_in_json(orders: Arctic) -> None:
    told = done(orders("table", "optimize", NAME, "--kind", "full", "--json")).json
    assert (told["before"]["change_files"], told["after"]["change_files"]) == (6, 0)
    assert (told["removed"]["change_files"], told["removed"]["change_rows"]) == (6, 6)
    assert told["added"]["rows"] == 2
    assert (told["health_before"]["score"], told["health_after"]["score"]) == (100.0, 100.0), "a few files cost nothing"
    assert told["health_before"]["deductions"] == []


def test_changes_that_wait_for_a_transaction_are_shown(orders: Arctic) -> None:
    done(orders("table", "optimize", NAME, "--kind", "minor"))
    table = pyarctic.table(NAME)
    assert isinstance(table, KeyedTable)
    abandoned = table._begin()
    done(orders("table", "write", NAME, "new.jsonl", "--mode", "upsert"))
    ran = done(orders("table", "optimize", NAME, "--kind", "minor"))
    assert "nothing possible now" in ran.out
    assert f"wait for transaction {abandoned}, which was begun and is neither committed nor ended" in ran.err
    ran = done(orders("table", "optimize", NAME, "--kind", "minor", "--json"))
    assert ran.json["waiting_changes"]["transaction"] == abandoned
    ran = done(orders("table", "explain", NAME, "--kind", "minor"))
    assert "nothing can be done" in ran.out
    assert f"transaction {abandoned}" in ran.out
    assert done(orders("table", "explain", NAME, "--json")).json["waiting_changes"]["transaction"] == abandoned
