"""What the data paths of Spark refuse: an error that names table and column, and nothing of it is left behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pyarctic
import pyarctic.spark as arctic_spark
from pyarctic.errors import ArcticError, NotFound, Unsupported, UsageError
from tests.oracle.compare import share_catalog
from tests.oracle.session import Oracle
from tests.support.integrity import leftovers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = [pytest.mark.jvm, pytest.mark.filterwarnings("ignore::pyarctic.tables.TableAdvice")]

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("number", pa.int32())])
COLUMNS = "id long, region string, number int"
GOOD = [(5, "a", 1), (6, "b", 2)]


@dataclass
class Lab:
    """A keyed table with rows in both stores, and one without a key."""

    oracle: Oracle
    namespace: str

    @property
    def keyed(self) -> str:
        return f"{self.oracle.name}.{self.namespace}.t"

    @property
    def plain(self) -> str:
        return f"{self.oracle.name}.{self.namespace}.p"

    def frame(self, rows: list[Any], columns: str = COLUMNS) -> DataFrame:
        return self.oracle.spark.createDataFrame(rows, columns)

    def state(self) -> dict[str, Any]:
        """Everything that a reader can see, and every file that nothing needs."""
        found: dict[str, Any] = {}
        for identifier in self.oracle.catalog.list_tables(self.namespace):
            table = self.oracle.catalog.load_table(identifier)
            data = [s for s in table.metadata.snapshots if s.summary and s.summary.get("added-data-files")]
            found[identifier[-1]] = [s.snapshot_id for s in data], table.metadata.current_schema_id, leftovers(table)
        return found | {"rows": pyarctic.table(self.keyed).scan().to_arrow().sort_by("id").to_pylist()}

    @contextmanager
    def refuses(self, error: type[ArcticError], *words: str, hint: str = "") -> Iterator[None]:
        before = self.state()
        with pytest.raises(error) as refused:
            yield
        told = str(refused.value)
        assert [word for word in words if word not in told] == [], told
        assert hint in (refused.value.hint or "")
        assert self.state() == before


@pytest.fixture(scope="module")
def lab(oracle: Oracle) -> Lab:
    share_catalog(oracle)
    made = Lab(oracle=oracle, namespace=oracle.namespace())
    table = pyarctic.create_table(made.keyed, SCHEMA, ["id"], ["region"])
    table.write(pa.table([[1, 2], ["a", "b"], [1, 2]], schema=SCHEMA), "overwrite")
    table.write(pa.table([[2, 3], ["b", "c"], [3, 4]], schema=SCHEMA), "upsert")
    pyarctic.create_table(made.plain, SCHEMA, partition_by=["region"]).write(pa.table([[1], ["a"], [1]], schema=SCHEMA))
    return made


@pytest.fixture(autouse=True)
def catalogs(oracle: Oracle) -> None:
    share_catalog(oracle)


# --- known before anything is written


@pytest.mark.parametrize(
    ("options", "words", "hint"),
    [
        ({"mode": "merge"}, ["unknown mode: 'merge'"], "upsert"),
        ({"mode": "cdc"}, ["_change_action"], "UPDATE_BEFORE"),
        ({"mode": "upsert", "order_by": ["at"]}, ["order_by", "at"], "Existing columns: id, region, number"),
        ({"mode": "upsert", "order_by": "number"}, ["order_by", "'number'"], "['number']"),
        ({"mode": "insert", "across_partitions": True}, ["across_partitions"], ""),
        ({"mode": "upsert", "where": "id = 1"}, ["replaces nothing"], "overwrite"),
        ({"mode": "upsert", "replace": "partitions"}, ["replaces nothing"], "overwrite"),
        ({"mode": "overwrite", "replace": "rows"}, ["rows"], ""),
        ({"mode": "overwrite", "where": "nothing = 1"}, ["nothing"], ""),
        ({"mode": "overwrite", "where": "number = 1"}, ["a part of partition"], ""),
    ],
    ids=lambda value: " ".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_wrong_options(lab: Lab, options: dict[str, Any], words: list[str], hint: str) -> None:
    with lab.refuses(UsageError, lab.keyed, *words, hint=hint):
        arctic_spark.write(lab.frame(GOOD), lab.keyed, **options)


def test_wrong_columns(lab: Lab) -> None:
    good = lab.frame(GOOD)
    for frame, word in (
        (good.drop("id"), "missing id"),
        (good.drop("region"), "lack the partition column region"),
        (good.withColumnRenamed("number", "nmber"), "unknown nmber"),
        (good.withColumnRenamed("id", "ID"), "unknown ID"),
        (good.selectExpr("*", "1 as extra"), "unknown extra"),
        (good.selectExpr("*", "1 as id"), "twice id"),
        (good.selectExpr("id", "region", "array(number) as number"), "'number'"),
        (good.selectExpr("named_struct('x', id) as id", "region", "number"), "'id'"),
        (good.selectExpr("string(id) as id", "region", "number"), "'id'"),
    ):
        for mode in ("insert", "upsert", "overwrite"):
            with lab.refuses(UsageError, lab.keyed, word):
                arctic_spark.write(frame, lab.keyed, mode)
    with lab.refuses(UsageError, "region", hint="across_partitions"):
        arctic_spark.write(good.drop("region"), lab.keyed, "delete")
    with lab.refuses(UsageError, "_change_action", hint="cdc"):
        arctic_spark.write(good.selectExpr("*", "'INSERT' as _change_action"), lab.keyed, "upsert")
    with lab.refuses(UsageError, "_change_action"):
        arctic_spark.write(good.selectExpr("*", "1 as _change_action"), lab.keyed, "cdc")


def test_tables_without_a_key(lab: Lab) -> None:
    for mode in ("upsert", "delete", "cdc"):
        with lab.refuses(UsageError, lab.plain, "primary key"):
            arctic_spark.write(lab.frame(GOOD), lab.plain, mode)
    with lab.refuses(UsageError, lab.plain, "order_by"):
        arctic_spark.write(lab.frame(GOOD), lab.plain, order_by=["number"])
    with lab.refuses(UsageError, lab.plain, "'number'"):
        arctic_spark.write(lab.frame([(1, "a", 1 << 40)], "id long, region string, number long"), lab.plain)
    with lab.refuses(UsageError, "change store"):
        arctic_spark.write(lab.frame(GOOD), f"{lab.keyed}_change_")


def test_tables_that_are_not_there(lab: Lab) -> None:
    nowhere = f"{lab.oracle.name}.{lab.namespace}.nowhere"
    spark = lab.oracle.spark
    for call in (
        lambda: arctic_spark.write(lab.frame(GOOD), nowhere),
        lambda: arctic_spark.read(spark, nowhere),
        lambda: arctic_spark.view(spark, nowhere),
        lambda: arctic_spark.write_stream(stream(lab, lab.oracle.spark), nowhere, checkpoint="file:///nowhere"),
    ):
        with lab.refuses(NotFound, nowhere):
            call()
    for name in ("t", "nothing.n.t"):
        with lab.refuses(ArcticError, name.split(".")[0]):
            arctic_spark.read(spark, name)
    with lab.refuses(UsageError, "store"):
        arctic_spark.read(spark, lab.keyed, store="both")  # type: ignore[arg-type]
    with lab.refuses(UsageError, "store"):
        arctic_spark.read(spark, lab.plain, store="change")
    with lab.refuses(NotFound, "17"):
        arctic_spark.read(spark, lab.keyed, snapshot_id=17)


# --- known when rows are seen


@pytest.mark.parametrize("mode", ["insert", "upsert", "delete", "overwrite", "across"])
def test_rows_that_do_not_fit(lab: Lab, mode: str) -> None:
    options: dict[str, Any] = {"mode": "upsert", "across_partitions": True} if mode == "across" else {"mode": mode}
    # Many good rows come to the same writers first.
    many = [(1000 + n, "a", n) for n in range(50)]
    for rows, word in (
        ([*many, (None, "a", 1)], "'id'"),
        ([*many, (5, "a", 1), (5, "a", 2)], "key id = 5 comes several times"),
        ([*many, (7, "x", 1 << 40)], "'number'"),
    ):
        frame = lab.frame(rows, "id long, region string, number long").repartition(2)
        with lab.refuses(UsageError, lab.keyed, word):
            arctic_spark.write(frame, lab.keyed, **options)


def test_orders_that_do_not_decide(lab: Lab) -> None:
    many = [(1000 + n, "a", n, n) for n in range(50)]
    columns = f"{COLUMNS}, at long"
    for rows, word in (
        ([*many, (5, "a", 1, 7), (5, "a", 2, 7)], "key id = 5 comes several times, and equal at"),
        ([*many, (5, "a", 1, None), (6, "a", 2, 7)], "column 'at' orders the rows and is null"),
    ):
        for mode in ("upsert", "overwrite"):
            with lab.refuses(UsageError, lab.keyed, word):
                arctic_spark.write(lab.frame(rows, columns).repartition(3), lab.keyed, mode, ["at"])
    with lab.refuses(ArcticError, lab.keyed, "at"):  # maps have no order
        arctic_spark.write(lab.frame(GOOD).selectExpr("*", "map(1, id) as at"), lab.keyed, "upsert", ["at"])


def test_structs_have_an_order(lab: Lab) -> None:
    """Such as the file and the position in it that a database's log tells."""
    name = f"{lab.oracle.name}.{lab.oracle.namespace()}.s"
    table = pyarctic.create_table(name, SCHEMA, ["id"])
    rows = [(1, "a", n) for n in (30, 10, 20)] + [(2, "b", n) for n in (7, 9, 8)]
    frame = lab.frame(rows).selectExpr("*", "named_struct('file', if(number > 15, 'z', 'y'), 'at', number % 15) as at")
    arctic_spark.write(frame.repartition(3), name, "upsert", ["at"])
    assert sorted(table.refresh().scan(["id", "number"]).to_arrow().to_pylist(), key=str) == [
        {"id": 1, "number": 20},
        {"id": 2, "number": 9},
    ]


def test_actions_that_are_not_known(lab: Lab) -> None:
    columns = f"{COLUMNS}, _change_action string"
    for action in ("UPSERT", "insert", "", None):
        rows = [(1000 + n, "a", n, "INSERT") for n in range(20)]
        with lab.refuses(UsageError, lab.keyed, f"the action {action!r}", hint="UPDATE_BEFORE"):
            arctic_spark.write(lab.frame([*rows, (5, "a", 1, action)], columns), lab.keyed, "cdc")
    rows = [(5, "a", 1, "UPDATE_BEFORE"), (5, "a", 2, "UPDATE_AFTER"), (5, "a", 3, "UPDATE_AFTER")]
    with lab.refuses(UsageError, lab.keyed, "key id = 5 comes several times"):
        arctic_spark.write(lab.frame(rows, columns), lab.keyed, "cdc")


def test_rows_outside_of_what_is_replaced(lab: Lab) -> None:
    with lab.refuses(UsageError, "region"):
        arctic_spark.write(lab.frame(GOOD), lab.keyed, "overwrite", where="region = 'a'")
    with lab.refuses(UsageError, "region"):
        arctic_spark.write(lab.frame(GOOD), lab.plain, "overwrite", where="region = 'a'")


def test_frames_that_fail(lab: Lab) -> None:
    """Spark's own errors are told by the line that matters, and nothing is committed."""
    frame = lab.frame(GOOD).selectExpr("id", "region", "int(if(id = 6, raise_error('not this row'), number)) as number")
    before = lab.state()
    with pytest.raises(ArcticError, match="not this row") as refused:
        arctic_spark.write(frame, lab.keyed, "upsert")
    assert lab.keyed in str(refused.value)
    assert len(str(refused.value)) < 700
    after = lab.state()
    assert after["rows"] == before["rows"]
    assert after["t_change_"][0] == before["t_change_"][0]


def test_types_that_mean_something_else(lab: Lab) -> None:
    """Rows are compared and sorted by Spark, and written as the table has them: both must agree on what is equal."""
    name = f"{lab.oracle.name}.{lab.oracle.namespace()}.typed"
    schema = pa.schema(
        [("id", pa.string()), ("at", pa.timestamp("us")), ("on", pa.timestamp("us", "UTC")), ("n", pa.int64())]
    )
    pyarctic.create_table(name, schema, ["id"])
    good = "'a' id, timestamp_ntz'2026-01-01 12:00:00' at, timestamp'2026-01-01 12:00:00' on, 1L n"
    for wrong, column, kind in (
        (good.replace("timestamp_ntz", "timestamp"), "at", "timestamp_ntz"),
        (good.replace("timestamp'", "timestamp_ntz'"), "on", "timestamp"),
        (good.replace("'a' id", "'a' collate UTF8_LCASE id"), "id", "string"),
        (good.replace("1L n", "'9' n"), "n", "bigint"),
    ):
        frame = lab.oracle.spark.sql(f"select {wrong}")
        with pytest.raises(UsageError, match=f"column '{column}' is .* which does not fit {kind}") as refused:
            arctic_spark.write(frame, name, "upsert", ["n"])
        assert "cast" in (refused.value.hint or "")
    assert arctic_spark.write(lab.oracle.spark.sql(f"select {good.replace('1L', '1')}"), name, "upsert", ["n"]) is not None


def test_a_key_that_comes_twice_and_moves(lab: Lab) -> None:
    """With a look at all partitions the later row decides where a key is: it must be known which is later."""
    name = f"{lab.oracle.name}.{lab.oracle.namespace()}.moving"
    with pytest.warns(UserWarning, match="region"):
        pyarctic.create_table(name, SCHEMA, ["id"], ["region"])
    twice = lab.frame([(1, "a", 1), (1, "b", 2)])
    with pytest.raises(UsageError, match="key id = 1 comes several times"):
        arctic_spark.write(twice, name, "upsert", across_partitions=True)
    arctic_spark.write(twice, name, "upsert", ["number"], across_partitions=True)
    assert pyarctic.table(name).scan().to_arrow().to_pylist() == [{"id": 1, "region": "b", "number": 2}]


# --- streams


def stream(lab: Lab, spark: Any, folder: Path | None = None) -> Any:
    where = folder or Path(__file__).parent
    return spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", "1").parquet(str(where))


def put(folder: Path, name: str, rows: list[tuple[int, str, int]]) -> None:
    folder.mkdir(exist_ok=True)
    table = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)
    pq.write_table(table, folder / f".{name}")
    (folder / f".{name}").rename(folder / name)


def test_streams_that_cannot_start(lab: Lab, tmp_path: Path) -> None:
    put(tmp_path / "in", "1.parquet", [(9, "a", 1)])
    rows, checkpoint = stream(lab, lab.oracle.spark, tmp_path / "in"), (tmp_path / "checkpoint").as_uri()
    with lab.refuses(UsageError, lab.keyed, "requires a checkpoint", hint="file:///"):
        arctic_spark.write_stream(rows, lab.keyed, "upsert")
    with lab.refuses(UsageError, lab.keyed, "not a stream", hint="write"):
        arctic_spark.write_stream(lab.frame(GOOD), lab.keyed, "upsert", checkpoint=checkpoint)
    with lab.refuses(UsageError, lab.keyed, "is a stream", hint="write_stream"):
        arctic_spark.write(rows, lab.keyed, "upsert")
    for mode in ("overwrite", "merge"):
        with lab.refuses(UsageError, lab.keyed, f"unknown stream mode: '{mode}'", hint="upsert"):
            arctic_spark.write_stream(rows, lab.keyed, mode, checkpoint=checkpoint)  # type: ignore[arg-type]
    with lab.refuses(UsageError, lab.plain, "primary key"):
        arctic_spark.write_stream(rows, lab.plain, "upsert", checkpoint=checkpoint)
    with lab.refuses(UsageError, lab.keyed, "missing id"):
        arctic_spark.write_stream(rows.drop("id"), lab.keyed, "upsert", checkpoint=checkpoint)
    with lab.refuses(UsageError, lab.keyed, "order_by", "at"):
        arctic_spark.write_stream(rows, lab.keyed, "upsert", ["at"], checkpoint)
    with lab.refuses(UsageError, lab.keyed, "trigger", "'soon'", hint="available-now"):
        arctic_spark.write_stream(rows, lab.keyed, "upsert", checkpoint=checkpoint, trigger="soon")
    assert not (tmp_path / "checkpoint").exists()


def test_rows_of_a_stream_that_do_not_fit(lab: Lab, tmp_path: Path) -> None:
    """The batch before stays; the query ends and says why; mended, it goes on with the same checkpoint."""
    from pyspark.errors import StreamingQueryException

    name = f"{lab.oracle.name}.{lab.oracle.namespace()}.s"
    table = pyarctic.create_table(name, SCHEMA, ["id"])
    source, checkpoint = tmp_path / "in", (tmp_path / "checkpoint").as_uri()
    put(source, "1.parquet", [(1, "a", 1)])
    rows = stream(lab, lab.oracle.spark, source)

    def run(order: list[str]) -> None:
        arctic_spark.write_stream(rows, name, "upsert", order, checkpoint, trigger="available-now").awaitTermination(100)

    run([])
    put(source, "2.parquet", [(2, "a", 1), (2, "a", 2), (3, "c", 1)])
    with pytest.raises(StreamingQueryException, match="key id = 2 comes several times") as refused:
        run([])
    assert name in str(refused.value)
    assert table.refresh().scan().to_arrow().to_pylist() == [{"id": 1, "region": "a", "number": 1}]
    for store in (name, f"{name}_change_"):
        assert leftovers(lab.oracle.catalog.load_table(store.partition(".")[2])) == []
    run(["number"])
    assert sorted(table.refresh().scan(["id", "number"]).to_arrow().to_pylist(), key=str) == [
        {"id": 1, "number": 1},
        {"id": 2, "number": 2},
        {"id": 3, "number": 1},
    ]


@pytest.mark.parametrize("made_anew", [False, True])
def test_a_table_dropped_under_a_stream(lab: Lab, tmp_path: Path, made_anew: bool) -> None:
    from pyspark.errors import StreamingQueryException

    name = f"{lab.oracle.name}.{lab.oracle.namespace()}.s"
    pyarctic.create_table(name, SCHEMA, ["id"])
    source, checkpoint = tmp_path / "in", (tmp_path / "checkpoint").as_uri()
    put(source, "1.parquet", [(1, "a", 1)])
    rows = stream(lab, lab.oracle.spark, source)
    query = arctic_spark.write_stream(rows, name, "upsert", checkpoint=checkpoint, trigger="0 seconds")
    try:
        query.processAllAvailable()
        assert pyarctic.table(name).scan().count() == 1
        pyarctic.drop_table(name, purge=True)
        if made_anew:
            pyarctic.create_table(name, SCHEMA, ["id"])
        put(source, "2.parquet", [(2, "a", 1)])
        with pytest.raises(StreamingQueryException, match="was for another table" if made_anew else name) as raised:
            query.awaitTermination(100)
        assert name in str(raised.value)
        assert not query.isActive
    finally:
        query.stop()
    if made_anew:
        again = arctic_spark.write_stream(rows, name, "upsert", checkpoint=checkpoint, trigger="available-now")
        with pytest.raises(StreamingQueryException, match="was for another table"):  # it would begin in the middle
            again.awaitTermination(100)
        assert pyarctic.table(name).scan().count() == 0
        for store in (name, f"{name}_change_"):
            loaded = lab.oracle.catalog.load_table(store.partition(".")[2])
            assert loaded.metadata.snapshots == []
            assert leftovers(loaded) == []
    else:
        with pytest.raises(NotFound):
            pyarctic.table(name)


# --- tables made for frames


def test_tables_that_cannot_be_made(lab: Lab) -> None:
    good = lab.frame(GOOD).schema
    new = f"{lab.oracle.name}.{lab.namespace}.new"
    spark = lab.oracle.spark
    for schema, keys, by, error, word in (
        (SCHEMA.names, [], [], UsageError, "not a Spark schema"),
        (good, ["nothing"], [], UsageError, "nothing"),
        (good, ["id"], ["nothing"], UsageError, "nothing"),
        (good, ["id"], ["bucket(region)"], UsageError, "bucket"),
        (spark.sql("select 1.5D as id").schema, ["id"], [], ArcticError, "id"),
        (spark.sql("select array(1) as id").schema, ["id"], [], ArcticError, "id"),
        (spark.sql("select 1 as id, interval '1' day as later").schema, ["id"], [], ArcticError, "later"),
        (spark.sql("select 1 as id, null as nothing").schema, ["id"], [], ArcticError, "nothing"),
    ):
        with lab.refuses(error, word):
            arctic_spark.create_table(new, schema, keys, by)
    with lab.refuses(ArcticError, lab.keyed):
        arctic_spark.create_table(lab.keyed, good, ["id"])
    assert new.rpartition(".")[2] not in [table[-1] for table in lab.oracle.catalog.list_tables(lab.namespace)]


def test_registering_twice_is_fine(lab: Lab) -> None:
    for _ in range(2):
        arctic_spark.register(lab.oracle.spark)
    for name in (lab.plain, lab.keyed):
        assert lab.oracle.sql(f"select * from arctic_explain('{name}')").count() > 0
    with pytest.raises(Exception, match="this is the change store of a keyed table"):
        lab.oracle.sql(f"select * from arctic_explain('{lab.keyed}_change_')").collect()


def test_a_time_column_is_named(lab: Lab) -> None:
    schema = pa.schema([("id", pa.int64()), ("clock", pa.time64("us"))])
    name = f"{lab.oracle.name}.{lab.namespace}.clocks"
    pyarctic.create_table(name, schema, ["id"])
    with lab.refuses(Unsupported, name, "'clock'", hint="(columns), without it: id."):
        arctic_spark.read(lab.oracle.spark, name)
