"""What keyed tables refuse, with an error that names the thing and says what to do; and nothing of it is left behind."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType

import pyarctic
from pyarctic import config
from pyarctic.errors import ArcticError, Conflict, Damaged, NotFound, Rejected, Unsupported, UsageError
from pyarctic.iceberg.commit import Change
from pyarctic.tables import WriteMode
from pyarctic.tables.create import TableAdvice
from pyarctic.tables.format.change_columns import FILE_OFFSET
from pyarctic.tables.format.store_properties import BASE_BUCKETS, CHANGE_BUCKETS
from pyarctic.tables.keyed_table import KeyedTable
from pyarctic.tables.table import Table
from pyarctic.tables.write.fanout import Fanout

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("number", pa.int32())])
DECIMALS = pa.schema([("id", pa.decimal128(10, 2)), ("day", pa.date32()), ("is_new", pa.bool_())])


@dataclass
class Lake:
    """A catalog of tables in a folder."""

    catalog: Catalog
    folder: Path

    def create(self, name: str = "t", schema: pa.Schema = SCHEMA, **options: Any) -> KeyedTable:
        arguments = {"primary_key": ["id"], "partition_by": ["region"] if "region" in schema.names else []} | options
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TableAdvice)
            table = pyarctic.create_table(f"lake.n.{name}", schema, **arguments)
        assert isinstance(table, KeyedTable)
        return table

    def open(self, name: str = "t") -> KeyedTable:
        table = pyarctic.table(f"lake.n.{name}")
        assert isinstance(table, KeyedTable)
        return table

    def files(self) -> set[Path]:
        return {path for path in self.folder.rglob("*") if path.is_file() and path.suffix != ".db"}

    def tables(self) -> set[str]:
        known = self.catalog.list_namespaces()
        return {".".join(name) for namespace in known for name in self.catalog.list_tables(namespace)}

    @contextmanager
    def refuses(self, error: type[ArcticError], *words: str, hint: str | None = None) -> Iterator[None]:
        """Expect an error that has these words, and that the lake is what it was."""
        before = self.files(), self.tables(), self._snapshots()
        with pytest.raises(error) as refused:
            yield
        for word in words:
            assert word in str(refused.value)
        if hint is not None:
            assert hint in (refused.value.hint or "")
        assert (self.files(), self.tables(), self._snapshots()) == before

    def _snapshots(self) -> dict[str, tuple[int, ...]]:
        return {
            name: (*(s.snapshot_id for s in metadata.snapshots), metadata.current_schema_id)
            for name in sorted(self.tables())
            for metadata in [self.catalog.load_table(name).metadata]
        }


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    yield Lake(pyarctic.catalog("lake", type="sql", uri=uri, warehouse=tmp_path.as_uri()), tmp_path)
    config.reset()


@pytest.fixture
def table(lake: Lake) -> KeyedTable:
    """A table with rows in both stores."""
    table = lake.create()
    table.write(rows(1, 2, 3), "overwrite")
    table.write(rows(3, 4, region="b"))
    return table


def rows(*ids: int | None, region: str | None = "a", **others: Any) -> pa.Table:
    told: Mapping[str, Any] = {"id": list(ids), "region": [region] * len(ids), "number": [1] * len(ids)}
    columns = {name: others.get(name, values) for name, values in told.items()}
    types = {field.name: field.type for field in SCHEMA}
    return pa.table({name: v if isinstance(v, pa.Array) else pa.array(v, types[name]) for name, v in columns.items()})


MODES: list[WriteMode] = ["insert", "upsert", "delete", "overwrite"]


@pytest.mark.parametrize(
    ("data", "word", "hint"),
    [
        (rows(5).drop_columns("id"), "missing id", "The table has: id, region, number"),
        (rows(5, None, 6), "'id'", "Fill"),
        (rows(5).rename_columns(["id", "region", "nmber"]), "unknown nmber", "'number'"),
        (rows(5).append_column("extra", pa.array([1])), "unknown extra", "The table has"),
        (rows(5, number=pa.array(["x"])), "'number' is string", "Cast it"),
        (rows(5, number=pa.array([1 << 40])), "'number' is int64", "Cast it"),
        (rows(5, id=pa.array([5.5])), "'id' is double", "Cast it"),
        (pa.table([*rows(5).columns, pa.array([1])], names=["id", "region", "number", "id"]), "twice id", None),
    ],
    ids=["no key", "null key", "misspelt", "unknown", "wrong type", "too large", "no integer", "twice"],
)
def test_rows_that_do_not_fit(lake: Lake, table: KeyedTable, data: pa.Table, word: str, hint: str | None) -> None:
    for mode in MODES:
        with lake.refuses(UsageError, word, "lake.n.t", hint=hint):
            table.write(data, mode)
    for mode in ("upsert", "delete"):
        with lake.refuses(UsageError, word, "lake.n.t", hint=hint):
            table.write(data, mode, across_partitions=True)
    with lake.refuses(UsageError, word, "lake.n.t", hint=hint):
        table.write(data.append_column("_change_action", pa.array(["INSERT"] * data.num_rows)), "cdc")


@pytest.mark.parametrize("mode", ["insert", "upsert", "delete"])
def test_a_bad_batch_after_good_ones_leaves_nothing(lake: Lake, table: KeyedTable, mode: WriteMode) -> None:
    with lake.refuses(UsageError, "'id'"):
        table.write([rows(7, 8), rows(9), rows(None)], mode)


def test_a_bad_batch_of_a_load_leaves_no_files(lake: Lake, table: KeyedTable) -> None:
    """A load has begun a transaction by then: an empty commit, which nobody sees."""
    before, current = lake.files(), table.view.snapshot_id
    content = sorted(map(str, table.scan().to_arrow().to_pylist()))
    with pytest.raises(UsageError, match="'id'"):
        table.write([rows(7, 8), rows(9), rows(None)], "overwrite")
    assert not [path for path in lake.files() - before if path.suffix == ".parquet"]
    assert lake.open().view.snapshot_id == current
    assert sorted(map(str, lake.open().scan().to_arrow().to_pylist())) == content


@pytest.mark.parametrize("data", ["rows", [1], 7, None, object()])
def test_data_that_is_no_data(lake: Lake, table: KeyedTable, data: Any) -> None:
    for mode in MODES:
        with lake.refuses(UsageError, "cannot write rows", hint="pyarrow"):
            table.write(data, mode)


def test_changes_need_an_action(lake: Lake, table: KeyedTable) -> None:
    with lake.refuses(UsageError, "_change_action", hint="UPDATE_BEFORE"):
        table.write(rows(5), "cdc")
    for action in ("MERGE", "insert", None):
        with lake.refuses(UsageError, f"action {action}" if action is None else repr(action), hint="INSERT"):
            table.write(rows(5).append_column("_change_action", pa.array([action], pa.string())), "cdc")
    with lake.refuses(UsageError, "_change_action"):
        table.write(rows(5).append_column("_change_action", pa.array([1])), "cdc")
    with lake.refuses(UsageError, "_change_action", hint="cdc"):
        table.write(rows(5).append_column("_change_action", pa.array(["INSERT"])), "upsert")


def test_required_columns_of_deleted_rows(lake: Lake) -> None:
    table = lake.create("must", pa.schema([*SCHEMA, pa.field("must", pa.string(), nullable=False)]))
    with lake.refuses(UsageError, "missing must"):
        table.write(rows(1).drop_columns("number"), "delete")


@pytest.mark.parametrize(
    ("column", "values", "word"),
    [
        ("id", pa.array([Decimal("1.234")], pa.decimal128(10, 3)), "decimal128(10, 3)"),
        ("id", pa.array([Decimal("123456789.00")], pa.decimal128(20, 2)), "precision"),
        ("id", pa.array([1.005]), "lost"),
        ("id", pa.array(["1.234"]), "string"),
        ("day", pa.array([datetime(2022, 7, 3, 11, tzinfo=UTC)], pa.timestamp("us", "UTC")), "lost"),
        ("is_new", pa.array([3]), "lost"),
    ],
)
def test_values_that_would_be_rounded(lake: Lake, column: str, values: pa.Array, word: str) -> None:
    table = lake.create("d", DECIMALS)
    good = {"id": pa.array([Decimal("1.23")]), "day": pa.array([None], pa.date32()), "is_new": pa.array([True])}
    for mode in MODES:
        with lake.refuses(UsageError, f"{column!r}", word, hint="Cast it"):
            table.write(pa.table(good | {column: values}), mode)


def test_values_that_fit_are_cast(lake: Lake) -> None:
    table = lake.create("d", DECIMALS)
    day = pa.array([datetime(2022, 7, 3, tzinfo=UTC), None], pa.timestamp("us", "UTC"))
    table.write(pa.table({"id": pa.array([3699008.26, -0.1]), "day": day, "is_new": pa.array([1, 0])}))
    assert {row["id"] for row in table.scan().to_arrow().to_pylist()} == {Decimal("3699008.26"), Decimal("-0.10")}


@pytest.mark.parametrize("type_", [pa.float32(), pa.float64(), pa.list_(pa.int64()), pa.struct([("a", pa.int64())])])
def test_keys_of_no_such_type(lake: Lake, type_: pa.DataType) -> None:
    with lake.refuses(Unsupported, "'id'", "lake.n.x", hint="long"):
        lake.create("x", pa.schema([("id", type_), ("region", pa.string())]))


@pytest.mark.parametrize(
    ("options", "error", "word"),
    [
        ({"primary_key": ["nope"]}, UsageError, "'nope'"),
        ({"primary_key": ["id", "id"]}, UsageError, "twice"),
        ({"primary_key": "id"}, UsageError, "'id'"),
        ({"partition_by": "region"}, UsageError, "'region'"),
        ({"partition_by": ["nope"]}, UsageError, "'nope'"),
        ({"partition_by": ["day(number)"]}, UsageError, "'number'"),
        ({"partition_by": ["bucket(region)"]}, UsageError, "bucket(region)"),
        ({"partition_by": ["region", "region"]}, UsageError, "one name"),
        ({"properties": {CHANGE_BUCKETS: "3"}}, UsageError, CHANGE_BUCKETS),
        ({"properties": {BASE_BUCKETS: "0"}}, UsageError, BASE_BUCKETS),
        ({"properties": {BASE_BUCKETS: "many"}}, UsageError, BASE_BUCKETS),
        ({"properties": {"mixed-format.primary-key-fields": "id"}}, UsageError, "mixed-format.primary-key-fields"),
        ({"properties": {"table-format": "ICEBERG"}}, UsageError, "table-format"),
        ({"schema": pa.schema([])}, UsageError, "no columns"),
        ({"schema": pa.schema([*SCHEMA, ("_file_offset", pa.int64())])}, UsageError, "_file_offset"),
        ({"schema": {"id": "long"}}, UsageError, "dict"),
    ],
)
def test_tables_that_cannot_be_made(lake: Lake, options: dict[str, Any], error: type[ArcticError], word: str) -> None:
    lake.catalog.create_namespace("n")
    told = {"schema": SCHEMA, "primary_key": ["id"], "partition_by": ["region"]} | options
    with lake.refuses(error, word, "lake.n.x"), warnings.catch_warnings():
        warnings.simplefilter("ignore", TableAdvice)
        pyarctic.create_table("lake.n.x", **told)


@pytest.mark.parametrize(
    ("properties", "word"),
    [
        ({CHANGE_BUCKETS: "6"}, CHANGE_BUCKETS),
        ({BASE_BUCKETS: "-4"}, BASE_BUCKETS),
        ({"mixed-format.table-store": "change"}, "mixed-format.table-store"),
        ({"mixed-format.change.identifier": "n.other"}, "mixed-format.change.identifier"),
        ({"watermark.table": "1"}, "watermark.table"),
    ],
)
def test_properties_that_cannot_be_set(lake: Lake, table: KeyedTable, properties: dict[str, str], word: str) -> None:
    with lake.refuses(UsageError, word, "lake.n.t"):
        table.set(properties)
    if word not in (CHANGE_BUCKETS, BASE_BUCKETS):
        with lake.refuses(UsageError, word, "lake.n.t"):
            table.unset(word)
    assert properties.items().isdisjoint(lake.open().properties.items())


def test_properties_are_those_of_both_stores(table: KeyedTable, lake: Lake) -> None:
    other = lake.open()
    other.write(rows(9))
    table.set({CHANGE_BUCKETS: 8, "mine": "yes"})  # type: ignore[dict-item]  # numbers are understood
    for store in (lake.open(), lake.open().change_store):
        assert store.properties[CHANGE_BUCKETS] == "8"
        assert store.properties["mine"] == "yes"
    other.unset("mine")
    assert "mine" not in lake.open().properties
    assert "mine" not in lake.open().change_store.properties


@pytest.mark.parametrize(
    ("evolution", "word"),
    [
        ({"drop": ["id"]}, "'id'"),
        ({"rename": {"id": "key"}}, "'id'"),
        ({"widen": {"id": "decimal(20, 0)"}}, "'id'"),
        ({"optional": ["id"]}, "'id'"),
        ({"drop": ["region"]}, "region"),
        ({"drop": ["nope"]}, "nope"),
        ({"rename": {"number": "region"}}, "region"),
        ({"rename": {"number": "_file_offset"}}, "_file_offset"),
        ({"add": {"_change_action": "string"}}, "_change_action"),
        ({"add": {"x": "text"}}, "'text'"),
        ({"widen": {"number": "string"}}, "number"),
        ({}, "nothing"),
    ],
)
def test_evolutions_that_cannot_be(lake: Lake, table: KeyedTable, evolution: dict[str, Any], word: str) -> None:
    with lake.refuses(UsageError, word, "lake.n.t"):
        table.evolve(**evolution)


@pytest.mark.parametrize(
    ("data", "options", "word"),
    [
        (rows(9), {"where": "region = 'a' and number = 1"}, "part of partition 'region=a'"),
        (rows(9), {"where": "number < 5"}, "part of partition"),
        (rows(9, region="b"), {"where": "region = 'b' or id = 1"}, "part of partition 'region=a'"),
        (rows(9), {"where": "region = 'b'"}, "partition 'region=a', which the condition does not select"),
        (rows(9, region=None), {"where": "region != 'b'"}, "does not select"),
        (rows(9), {"where": "region = "}, "region ="),
        (rows(9), {"where": "nope = 1"}, "nope"),
        (rows(9), {"replace": "rows"}, "'rows'"),
        (rows(9), {"replace": "partitions", "where": "region = 'a'"}, "not both"),
        (rows(9), {"across_partitions": True}, "across_partitions"),
    ],
)
def test_overwrites_that_cannot_be(
    lake: Lake, table: KeyedTable, data: pa.Table, options: dict[str, Any], word: str
) -> None:
    with lake.refuses(UsageError, word, "lake.n.t"):
        table.write(data, "overwrite", **options)


def test_conditions_are_for_partitioned_tables(lake: Lake) -> None:
    table = lake.create("whole", partition_by=[])
    table.write(rows(1))
    with lake.refuses(UsageError, "not partitioned"):
        table.write(rows(9), "overwrite", where="id = 9")


def test_a_later_batch_outside_of_the_condition_leaves_no_files(lake: Lake, table: KeyedTable) -> None:
    before = lake.files()
    with pytest.raises(UsageError, match="does not select"):
        table.write([rows(9), rows(10, region="b")], "overwrite", where="region = 'a'")
    assert not [path for path in lake.files() - before if path.suffix == ".parquet"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"mode": "merge"}, "'merge'"),
        ({"mode": "insert", "where": "region = 'a'"}, "insert"),
        ({"mode": "upsert", "replace": "partitions"}, "upsert"),
        ({"mode": "insert", "across_partitions": True}, "across_partitions"),
        ({"mode": "cdc", "across_partitions": True}, "across_partitions"),
    ],
)
def test_ways_to_write_that_there_are_not(lake: Lake, table: KeyedTable, arguments: dict[str, Any], word: str) -> None:
    with lake.refuses(UsageError, word, "lake.n.t"):
        table.write(rows(9), **arguments)


def test_changes_are_not_written_past_the_table(lake: Lake, table: KeyedTable) -> None:
    store = pyarctic.table("lake.n.t_change_")
    with lake.refuses(UsageError, "change store"):
        store.write(rows(9))
    with lake.refuses(UsageError, "change store"):
        pyarctic.drop_table("lake.n.t_change_")


@pytest.mark.parametrize(
    ("arguments", "error", "word"),
    [
        ({"store": "both"}, UsageError, "'both'"),
        ({"columns": ["nope"]}, UsageError, "nope"),
        ({"where": "nope = 1"}, UsageError, "nope"),
        ({"ref": "main"}, UsageError, "branches"),
        ({"snapshot_id": 5}, NotFound, "5"),
    ],
)
def test_reads_that_cannot_be(table: KeyedTable, arguments: dict[str, Any], error: type[ArcticError], word: str) -> None:
    with pytest.raises(error, match=word):
        table.scan(**arguments)


def test_tables_are_made_once(lake: Lake, table: KeyedTable) -> None:
    with lake.refuses(Rejected, "lake.n.t", hint="another name"):
        lake.create()
    lake.create("other")
    with lake.refuses(Rejected, "exists already"):
        lake.create("other_change_", primary_key=[])


def test_two_writers_of_one_key_in_one_transaction(lake: Lake, table: KeyedTable) -> None:
    """Nobody knows which of the rows came last, until it is written once more."""
    store = table.change_store
    transaction = table._begin()
    for number in (1, 2):
        with Fanout(store.view, mask=3, transaction_id=transaction, extra_fields=(FILE_OFFSET,)) as out:
            batch = rows(50, 51 + number).cast(SCHEMA).to_batches()[0]
            out.write(batch, out.locate(batch), {"I": pa.array([1, 2])})
        store.commit(Change(start=None, add=tuple(out.files)))
    for memory in (16, 1 << 20):
        with pytest.raises(Damaged, match="50") as refused:
            table.refresh().scan(memory_bytes=memory).to_arrow()
        assert "upsert" in (refused.value.hint or "")
        with pytest.raises(Damaged, match="50"):
            table.scan(memory_bytes=memory).count()
    assert table.scan(where="region = 'b'").count() == 2
    table.write(rows(50), "upsert")
    assert sorted(table.scan(["id"], where="id >= 50").to_arrow()["id"].to_pylist()) == [50, 52, 53]


def failing(call: Callable[..., Any], after: int, error: Exception) -> Callable[..., Any]:
    """A call that goes through some times, and then fails."""
    left = [None] * after

    def called(*arguments: Any, **named: Any) -> Any:
        if not left:
            raise error
        left.pop()
        return call(*arguments, **named)

    return called


def test_a_table_that_is_half_made_is_not_there(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.catalog.create_namespace("n")
    calls = failing(SqlCatalog.create_table, 1, OSError("disk full"))
    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "create_table", calls)
        before = lake.files(), lake.tables()
        with pytest.raises((ArcticError, OSError), match="disk full"):
            lake.create()
        assert (lake.files(), lake.tables()) == before
    lake.create().write(rows(1))


def test_a_change_store_in_the_way(lake: Lake) -> None:
    lake.catalog.create_namespace("n")
    lake.catalog.create_table("n.t_change_", SCHEMA)
    with lake.refuses(Rejected, "n.t_change_", hint="Drop it"):
        lake.create()


def test_a_change_store_that_is_gone(lake: Lake, table: KeyedTable) -> None:
    lake.catalog.drop_table("n.t_change_")
    with pytest.raises(Damaged, match="change store n"):
        lake.open()


def test_an_evolution_that_got_half_way(lake: Lake, table: KeyedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base store has the new schema, the change store catches up by the next write."""
    catalog = table._loaded.catalog
    with monkeypatch.context() as patched:
        patched.setattr(catalog, "commit_table", failing(catalog.commit_table, 1, OSError("gone")))
        with pytest.raises((ArcticError, OSError)):
            table.evolve(add={"note": "string"}, drop=["number"])
    opened = lake.open()
    assert opened.schema.column_names == ["id", "region", "note"]
    assert opened.change_store.schema.column_names == ["id", "region", "number"]
    assert opened.scan().count() == 5
    opened.write(pa.table({"id": [1], "region": ["a"], "note": ["new"]}), "upsert")
    assert lake.open().change_store.schema.as_struct() == lake.open().schema.as_struct()
    assert lake.open().scan(["note"], where="id = 1 and region = 'a'").to_arrow()["note"].to_pylist() == ["new"]
    assert table.refresh().scan().count() == 5


def test_who_missed_an_evolution_can_go_on(lake: Lake, table: KeyedTable) -> None:
    """Its handle sees the new schema by its own commit, first of the change store only."""
    with_note = [rows(number).append_column("note", pa.array(["x"])) for number in (21, 22)]
    lake.open().evolve(add={"note": "string"})
    table.write(rows(20))
    table.write(with_note[0])
    lake.open().evolve(drop=["note"])
    table.write(with_note[1])
    table.write(rows(23))
    found = table.scan(where="id >= 20").to_arrow()
    assert sorted(found["id"].to_pylist()) == [20, 21, 22, 23]
    assert found.column_names == SCHEMA.names


def test_stores_that_have_nothing_in_common(lake: Lake, table: KeyedTable) -> None:
    with lake.catalog.load_table("n.t_change_").update_schema() as update:
        update.add_column("other", LongType())
    opened = lake.open()
    with lake.refuses(Damaged, "schemas of base and change store", hint="change store"):
        opened.write(rows(9))


@pytest.mark.parametrize("store", ["n.t", "n.t_change_", "both"])
@pytest.mark.parametrize("change", ["add", "remove"])
def test_partitioned_anew_by_somebody(lake: Lake, table: KeyedTable, store: str, change: str) -> None:
    for name in ["n.t", "n.t_change_"] if store == "both" else [store]:
        with lake.catalog.load_table(name).update_spec() as update:
            if change == "add":
                update.add_field("number", IdentityTransform(), "number_part")
            else:
                update.remove_field("region")
    opened = lake.open()
    for mode in (*MODES, "cdc"):
        data = rows(9) if mode != "cdc" else rows(9).append_column("_change_action", pa.array(["INSERT"]))
        with lake.refuses(Unsupported, "partition spec", "lake.n.t", hint="Change it back"):
            opened.write(data, mode)
    with lake.refuses(Unsupported, "partition spec", "lake.n.t", hint="Change it back"):
        opened.scan()
    assert opened.scan(store="base").count() == 3
    for name in ["n.t", "n.t_change_"] if store == "both" else [store]:
        with lake.catalog.load_table(name).update_spec() as update:
            if change == "add":
                update.remove_field("number_part")
            else:
                update.add_field("region", IdentityTransform(), "region")
    assert lake.open().scan().count() == 5
    lake.open().write(rows(9))


def test_files_of_another_spec(lake: Lake, table: KeyedTable) -> None:
    """Somebody changed the spec, wrote, and changed it back."""
    with lake.catalog.load_table("n.t_change_").update_spec() as update:
        update.add_field("number", IdentityTransform(), "number_part")
    store = pyarctic.table("lake.n.t_change_")
    with Fanout(store.view, mask=0, extra_fields=(FILE_OFFSET,)) as out:
        batch = rows(60).cast(SCHEMA).to_batches()[0]
        out.write(batch, out.locate(batch), {"I": pa.array([1])})
    store.commit(Change(start=None, add=tuple(out.files)))
    with lake.catalog.load_table("n.t_change_").update_spec() as update:
        update.remove_field("number_part")
    with pytest.raises(Unsupported, match="another partition spec"):
        lake.open().scan().to_arrow()


@pytest.mark.parametrize("mode", ["insert", "overwrite"])
def test_a_commit_that_is_refused_leaves_no_files(
    lake: Lake, table: KeyedTable, mode: WriteMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.set({"commit.retry.num-retries": "1", "commit.retry.min-wait-ms": "1"})
    catalog, before = table._loaded.catalog, lake.files()
    lost = failing(catalog.commit_table, int(mode == "overwrite"), CommitFailedException("somebody was faster"))
    with monkeypatch.context() as patched:
        patched.setattr(catalog, "commit_table", lost)
        with pytest.raises(Conflict):
            table.write(rows(9), mode)
    assert not [path for path in lake.files() - before if path.suffix in (".parquet", ".puffin")]
    assert isinstance(pyarctic.table("lake.n.t"), Table)
    assert lake.open().scan().count() == 5


@pytest.mark.parametrize("store", ["merged", "both"])
def test_files_and_snapshots_are_of_one_store(table: KeyedTable, store: Any) -> None:
    for ask in (table.files, table.snapshots):
        with pytest.raises(UsageError, match=f"no single store: '{store}'"):
            ask(store=store)
