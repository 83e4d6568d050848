"""`readStream.format("arctic")`: all changes of a table, from where one wants, over restarts and whatever happens to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

import pyarctic
import pyarctic.spark as arctic_spark
from pyarctic import config
from pyarctic.iceberg.commit import Change
from pyarctic.tables import KeyedTable
from tests.faults.test_optimize_faults import wait_until
from tests.oracle.session import Oracle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.jvm

NAME = "demo.shop.orders"
SCHEMA = pa.schema({"id": pa.int64(), "part": pa.string(), "text": pa.string()})
Told = tuple[str, int, str]
"""Action, id and text."""


@pytest.fixture
def spark(oracle: Oracle, tmp_path: Path) -> Iterator[SparkSession]:
    """A session that knows the catalog `demo`."""
    config.reset()
    warehouse = (tmp_path / "warehouse").as_uri()
    catalog = pyarctic.catalog("demo", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=warehouse)
    arctic_spark.register(oracle.spark)
    yield oracle.spark
    catalog.close()
    config.reset()


@pytest.fixture
def table(spark: SparkSession) -> KeyedTable:
    made = pyarctic.create_table(NAME, SCHEMA, ["id", "part"], ["part"])
    assert isinstance(made, KeyedTable)
    return made


def rows(part: str, **texts: str) -> pa.Table:
    """`rows("x", _1="a")`"""
    found = [{"id": int(name[1:]), "part": part, "text": text} for name, text in texts.items()]
    return pa.Table.from_pylist(found, schema=SCHEMA)


def order_of(row: dict[str, Any]) -> tuple[int, int, bool]:
    return row["_transaction_id"], row["_file_offset"], row["_change_action"] in ("INSERT", "UPDATE_AFTER")


class Lost(Exception):
    """A batch that is not finished."""


@dataclass
class Reader:
    """A query that is started, looked at and ended, again and again, with one checkpoint."""

    spark: SparkSession
    checkpoint: str
    options: dict[str, str]
    name: str = NAME
    got: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    batches: dict[int, list[Told]] = field(default_factory=dict)
    fails_at: int | None = None

    @classmethod
    def of(cls, spark: SparkSession, folder: Path, origin: str, **options: str) -> Reader:
        told = {name.replace("_", "-"): value for name, value in options.items()}
        return cls(spark, (folder / f"checkpoint-{origin}").as_uri(), {"from": origin, **told})

    def take(self, batch: DataFrame, number: int) -> None:
        if number == self.fails_at:
            raise Lost
        found = sorted(batch.toArrow().to_pylist(), key=lambda row: (*order_of(row), row["id"], row["part"]))
        told = [(row["_change_action"], row["id"], row["text"]) for row in found]
        # A batch comes again if Spark was ended before it had noted its end.
        assert self.batches.setdefault(number, told) == told
        self.got[number] = found

    @contextlib.contextmanager
    def running(self) -> Iterator[StreamingQuery]:
        frame = self.spark.readStream.format("arctic").options(**self.options).load(self.name)
        query = frame.writeStream.foreachBatch(self.take).option("checkpointLocation", self.checkpoint).start()
        try:
            yield query
        finally:
            query.stop()

    def lose_batch(self) -> None:
        """Read a batch, and fail before it is done."""
        self.fails_at = max(self.batches) + 1
        with pytest.raises(StreamingQueryException, match="Lost"):
            self.fail()
        self.fails_at = None

    def fail(self) -> None:
        # Who asks a query that has failed already to process all there is waits for ever in Spark 4.1.
        with self.running() as query:
            query.awaitTermination(60)

    def read(self) -> list[list[Told]]:
        """What there is to read, batch by batch."""
        before = set(self.batches)
        with self.running() as query:
            query.processAllAvailable()
        return [told for number, told in sorted(self.batches.items()) if number not in before and told]


def remove_read_changes(table: KeyedTable) -> None:
    """As somebody does who has merged them."""
    store = table.refresh().change_store
    store.commit(Change(start=store.view.snapshot_id, remove=store.file_list.frame()))


def flat(batches: list[list[Told]]) -> list[Told]:
    return [told for batch in batches for told in batch]


def test_from_the_earliest_on(spark: SparkSession, table: KeyedTable, tmp_path: Path) -> None:
    table.write(rows("x", _1="hidden", _2="hidden"))
    table.write(rows("y", _11="a", _12="b"))
    # Merged up to here in one partition, and not at all in the other.
    table.write(rows("x", _1="base", _3="base"), "overwrite", where="part = 'x'")
    table.write(rows("x", _3="c"), "upsert")
    reader = Reader.of(spark, tmp_path, "earliest")
    with reader.running() as query:
        query.processAllAvailable()
        # In the order in which they count: the overwrite was begun after the inserts.
        inserted = [("INSERT", 11, "a"), ("INSERT", 12, "b"), ("INSERT", 1, "base"), ("INSERT", 3, "base")]
        updated = [("DELETE", 3, "c"), ("INSERT", 3, "c")]
        assert flat([*reader.batches.values()]) == inserted + updated
        table.write(rows("y", _12="b"), "delete")
        table.write(rows("y", _13="d"))
        query.processAllAvailable()
    assert [told[1:] for told in flat([*reader.batches.values()])[6:]] == [(12, "b"), (13, "d")]
    # What came so far makes up the table.
    left: dict[int, str] = {}
    came = [row for batch in reader.got.values() for row in batch]
    for row in sorted(came, key=order_of):
        left.pop(row["id"], None)
        if order_of(row)[-1]:
            left[row["id"]] = row["text"]
    merged = table.refresh().scan().to_arrow().to_pylist()
    assert left == {row["id"]: row["text"] for row in merged}
    assert {row["part"] for row in came} == {"x", "y"}

    # Merged meanwhile, and gone from the changes: it was read already, and Base does not come again.
    table.write(rows("x", _1="merged", _11="merged"), "overwrite")
    remove_read_changes(table)
    table.write(rows("x", _20="e"))
    assert flat(reader.read()) == [("INSERT", 20, "e")]

    # A batch that was planned and lost comes again as it was planned.
    table.write(rows("x", _21="f"))
    reader.lose_batch()
    table.write(rows("x", _22="g"))
    assert reader.read() == [[("INSERT", 21, "f")], [("INSERT", 22, "g")]]

    # Planned, lost, and then gone.
    table.write(rows("x", _23="h"))
    reader.lose_batch()
    remove_read_changes(table)
    with pytest.raises(StreamingQueryException, match=r"1 changed rows after .* are gone.*fail-on-gaps=false"):
        reader.fail()
    reader.options["fail-on-gaps"] = "false"
    table.write(rows("x", _24="i"))
    assert flat(reader.read()) == [("INSERT", 24, "i")]


def test_limits_hold_over_restarts(spark: SparkSession, table: KeyedTable, tmp_path: Path) -> None:
    for part in ("x", "y", "z"):
        table.write(rows(part, _1=part, _2=part), "overwrite", where=f"part = '{part}'")
    for number in range(10, 16):
        table.write(rows("x", **{f"_{number}": "new", f"_{number + 90}": "new"}))
    reader = Reader.of(spark, tmp_path, "earliest", max_rows_per_batch="4")
    # One batch at a time: whoever is started anew has to know where the last one ended.
    for _ in range(2):
        count = len(reader.batches)
        with reader.running():
            wait_until(lambda count=count: len(reader.batches) > count)  # type: ignore[misc]
    table.write(rows("x", _16="last"), "upsert")
    reader.read()
    # Nothing is left to do: the first batch after a restart knows where the query was, too.
    for number in range(30, 35):
        table.write(rows("x", **{f"_{number}": "x", f"_{number + 90}": "x"}))
    assert [*map(len, reader.read())] == [4, 4, 2]
    assert all(1 <= len(batch) <= 4 for batch in reader.batches.values())
    told = flat([*reader.batches.values()])
    assert sorted(told[:6]) == [("INSERT", key, part) for key in (1, 2) for part in "xyz"]
    assert told[6:] == [
        *(("INSERT", key, "new") for number in range(10, 16) for key in (number, number + 90)),
        ("DELETE", 16, "last"),
        ("INSERT", 16, "last"),
        *(("INSERT", key, "x") for number in range(30, 35) for key in (number, number + 90)),
    ]
    # By files: a commit is not divided, however many it has.
    begin = str(table.snapshots(store="change")["snapshot_id"][-5])
    single = Reader.of(spark, tmp_path, begin, max_files_per_batch="1")
    assert single.read() == [[("INSERT", n, "x"), ("INSERT", n + 90, "x")] for n in range(31, 35)]


def test_from_the_latest_and_from_a_snapshot(spark: SparkSession, table: KeyedTable, tmp_path: Path) -> None:
    table.write(rows("x", _1="a"))
    first = table.write(rows("x", _2="b"))
    table.write(rows("x", _3="c"))
    latest, since = Reader.of(spark, tmp_path, "latest"), Reader.of(spark, tmp_path, str(first))
    assert latest.read() == []
    table.write(rows("x", _4="d"))
    assert flat(latest.read()) == [("INSERT", 4, "d")]
    table.write(rows("x", _5="e"))
    assert flat(latest.read()) == [("INSERT", 5, "e")]
    assert flat(since.read()) == [("INSERT", 3, "c"), ("INSERT", 4, "d"), ("INSERT", 5, "e")]
    some = spark.readStream.format("arctic").options(**{"from": "latest", "columns": "text, _change_action"}).load(NAME)
    assert some.columns == ["text", "_change_action"]


def test_what_cannot_be_streamed(spark: SparkSession, table: KeyedTable, tmp_path: Path) -> None:
    pyarctic.create_table("demo.shop.plain", SCHEMA)
    cases: list[tuple[str, dict[str, str], str]] = [
        ("demo.shop.plain", {"from": "latest"}, "without a primary key has no changes"),
        (NAME, {}, r"the start of the stream is not given.*earliest"),
        (NAME, {"from": "latest", "max-rows": "3"}, r"unknown option: max-rows.*max-rows-per-batch"),
        (NAME, {"from": "latest", "max-rows-per-batch": "few"}, "max-rows-per-batch is a number, not 'few'"),
        (NAME, {"from": "soon"}, "cannot begin at 'soon'"),
    ]
    for number, (name, options, message) in enumerate(cases):
        reader = Reader(spark, (tmp_path / f"checkpoint-{number}").as_uri(), options, name)
        with pytest.raises((AnalysisException, StreamingQueryException), match=f"(?s){message}"):
            reader.fail()
