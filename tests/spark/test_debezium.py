"""Events as Debezium's connector for PostgreSQL writes them, turned into changes and written to keyed tables."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pyarctic
import pyarctic.spark as arctic_spark
from pyarctic.errors import ArcticError, UsageError
from tests.oracle.compare import share_catalog
from tests.oracle.session import Oracle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = [pytest.mark.jvm, pytest.mark.filterwarnings("ignore::pyarctic.tables.TableAdvice")]

Row = Mapping[str, Any]
LONGEST = 2**63 - 1
WITHHELD = "__debezium_unavailable_value"
SOURCE = {
    "version": "3.0.0.Final",
    "connector": "postgresql",
    "name": "shop",
    "ts_ms": 1767225600000,
    "snapshot": "false",
    "db": "shop",
    "sequence": '["34498256","34498504"]',
    "schema": "public",
    "table": "orders",
    "txId": 771,
    "lsn": 34498504,
    "xmin": None,
}


def event(op: str, before: Row | None = None, after: Row | None = None, kinds: Sequence[Row] | None = None) -> str:
    """With `kinds`, the types of the columns, the event comes with its schema."""
    payload = {
        "before": before,
        "after": after,
        "source": SOURCE,
        "transaction": None,
        "op": op,
        "ts_ms": 1767225600123,
        "ts_us": 1767225600123456,
        "ts_ns": 1767225600123456000,
    }
    if kinds is None:
        return json.dumps(payload)
    images = [
        {"type": "struct", "fields": [*kinds], "optional": True, "name": "shop.public.orders.Value", "field": image}
        for image in ("before", "after")
    ]
    fields = [*images, {"type": "string", "optional": False, "field": "op"}]
    schema = {"type": "struct", "fields": fields, "optional": False, "name": "shop.public.orders.Envelope", "version": 2}
    return json.dumps({"schema": schema, "payload": payload})


def frame(oracle: Oracle, events: Sequence[str | None]) -> DataFrame:
    """As Spark's Kafka source gives them."""
    rows = [(None if text is None else text.encode(), 100 + number) for number, text in enumerate(events)]
    return oracle.spark.createDataFrame(rows, "value binary, offset long")


def changes(oracle: Oracle, table: Any, *events: str | None, **options: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = arctic_spark.from_debezium(frame(oracle, events), table, **options).toArrow().to_pylist()
    return rows


def struct(columns: str) -> Any:
    from pyspark.sql.types import StructType

    return StructType.fromDDL(columns)


def in_bytes(number: int) -> str:
    """As Java's BigInteger does it."""
    return base64.b64encode(number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)).decode()


@pytest.fixture
def in_new_york(oracle: Oracle) -> Iterator[None]:
    """Where the clock shows one hour twice."""
    oracle.spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield
    oracle.spark.conf.set("spark.sql.session.timeZone", "UTC")


# --- values

COLUMNS = (
    "id long, flag boolean, small short, ratio double, price decimal(10,2), huge decimal(38,9), free decimal(12,4), "
    "day date, at timestamp, wall timestamp_ntz, coarse timestamp_ntz, code string, data binary, uid binary, doc string, "
    "counts array<int>, days array<date>, parsed struct<x: long, y: array<decimal(4,1)>>, labels map<string, string>, "
    "`odd name` string"
)
WALL = datetime(2025, 11, 2, 1, 30, 0, 123456)  # noqa: DTZ001  # without a zone; in New York it comes twice
MICROS = 1762047000123456
HUGE = Decimal("12345678901234567890123456789.123456789")
EXPECTED = {
    "id": LONGEST,
    "flag": True,
    "small": -7,
    "ratio": 0.1,
    "price": Decimal("-1234.50"),
    "huge": HUGE,
    "free": Decimal("12.5000"),
    "day": date(1969, 12, 31),
    "at": datetime(2025, 11, 2, 5, 30, 0, 123456, UTC),
    "wall": WALL,
    "coarse": WALL.replace(microsecond=123000),
    "code": "größer",
    "data": b"\x00\xff",
    "uid": bytes.fromhex("f81d4fae7dec11d0a76500a0c91e6bf6"),
    "doc": '{"b": [1, 2.50], "a": null}',
    "counts": [1, None, 3],
    "days": [date(2025, 11, 2)],
    "parsed": {"x": 9007199254740993, "y": [Decimal("0.5")]},
    "labels": [("k", "v"), ("n", None)],
    "odd name": "",
}
WRITTEN = {
    "id": LONGEST,
    "flag": True,
    "small": -7,
    "ratio": 0.1,
    "price": "-1234.50",
    "huge": str(HUGE),
    "free": "12.5",
    "day": -1,
    "at": "2025-11-02T05:30:00.123456Z",
    "wall": MICROS,
    "coarse": MICROS // 1000,
    "code": "größer",
    "data": "AP8=",
    "uid": "f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
    "doc": '{"b": [1, 2.50], "a": null}',
    "counts": [1, None, 3],
    "days": [20394],
    "parsed": '{"x": 9007199254740993, "y": [0.5]}',
    "labels": {"k": "v", "n": None},
    "odd name": "",
    "left out": 1,
}
"""With decimal.handling.mode=string and without schemas."""


def kind(name: str, type_: str, semantic: str | None = None, **parameters: str) -> Row:
    told = {"type": type_, "optional": True, "field": name}
    return told | ({"name": semantic, "version": 1, "parameters": parameters} if semantic else {})


KINDS = [
    kind("id", "int64"),
    kind("price", "bytes", "org.apache.kafka.connect.data.Decimal", scale="2", **{"connect.decimal.precision": "10"}),
    kind("huge", "bytes", "org.apache.kafka.connect.data.Decimal", scale="9", **{"connect.decimal.precision": "38"}),
    kind("free", "struct", "io.debezium.data.VariableScaleDecimal"),
    kind("day", "int32", "io.debezium.time.Date"),
    kind("at", "string", "io.debezium.time.ZonedTimestamp"),
    kind("wall", "int64", "io.debezium.time.MicroTimestamp"),
    kind("coarse", "int64", "io.debezium.time.Timestamp"),
]
PRECISE = {
    "price": in_bytes(-123450),
    "huge": in_bytes(int(str(HUGE).replace(".", ""))),
    "free": {"scale": 1, "value": in_bytes(125)},
}
"""With decimal.handling.mode=precise, the default."""


def test_values_without_schema(oracle: Oracle, in_new_york: None) -> None:
    [row] = changes(oracle, struct(COLUMNS), event("c", after=WRITTEN), timestamps={"coarse": "millis"})
    assert row.pop("_change_action") == "INSERT"
    assert row == EXPECTED | {"_order": 100}


def test_values_with_schema(oracle: Oracle, in_new_york: None) -> None:
    [row] = changes(oracle, struct(COLUMNS), event("r", after=WRITTEN | PRECISE, kinds=KINDS), timestamps="nanos")
    assert row.pop("_change_action") == "INSERT"
    assert row == EXPECTED | {"_order": 100}


def test_other_spellings(oracle: Oracle, in_new_york: None) -> None:
    """Numbers with all digits, ISO texts, nulls, and the ends of what two's complement says."""
    columns = struct("id long, price decimal(38,2), day date, at timestamp, wall timestamp_ntz")
    exact = '{"op": "c", "after": {"id": 1, "price": 123456789012345678901234567890123456.78, "day": "2025-11-02Z"}}'
    connect = [
        kind("price", "bytes", "org.apache.kafka.connect.data.Decimal", scale="2"),
        kind("at", "int64", "org.apache.kafka.connect.data.Timestamp"),
        kind("wall", "int64", "io.debezium.time.NanoTimestamp"),
    ]
    numbers = [0, -1, 127, 128, -128, -129, 2**63, -(2**63), 2**64 - 1, -(2**64), 10**38 - 1, -(10**38) + 1]
    rows = changes(
        oracle,
        columns,
        exact,
        event("c", after={"id": 2, "at": "2025-11-02T01:30:00", "wall": "2025-11-02T01:30:00.5Z"}),
        event("c", after={"id": 3, "at": MICROS // 1000, "wall": MICROS * 1000 + 999, "price": 0.5}, kinds=connect),
        event("c", after={"id": 4, "at": "2025-11-02T01:30:00+01:00", "price": None, "day": None}),
        *[event("c", after={"id": 5, "price": in_bytes(number)}, kinds=connect) for number in numbers],
    )
    assert rows[0]["price"] == Decimal("123456789012345678901234567890123456.78")
    assert rows[0]["day"] == date(2025, 11, 2)
    assert rows[0]["at"] is rows[0]["wall"] is rows[3]["price"] is rows[3]["day"] is None
    assert rows[1]["at"] == datetime(2025, 11, 2, 1, 30, tzinfo=UTC)
    assert rows[1]["wall"] == WALL.replace(microsecond=500000)
    assert rows[2]["at"] == datetime(2025, 11, 2, 1, 30, 0, 123000, UTC)
    assert rows[2]["wall"] == WALL
    assert rows[2]["price"] == Decimal("0.50")
    assert rows[3]["at"] == datetime(2025, 11, 2, 0, 30, tzinfo=UTC)
    assert [row["price"] for row in rows[4:]] == [Decimal(f"{number}E-2") for number in numbers]


DECIMAL_4 = kind("p", "bytes", "org.apache.kafka.connect.data.Decimal", scale="4")


def test_points_elsewhere(oracle: Oracle) -> None:
    numbers = [10**37 - 100, -(10**37) + 100, 0]
    rows = changes(
        oracle,
        struct("p decimal(38,2)"),
        *[event("c", after={"p": in_bytes(number)}, kinds=[DECIMAL_4]) for number in numbers],
        event("c", after={"p": {"scale": -3, "value": in_bytes(-7)}}),
    )
    assert [row["p"] for row in rows] == [*(Decimal(f"{number}E-4") for number in numbers), Decimal(-7000)]


@pytest.mark.parametrize(
    ("columns", "after", "kinds", "says"),
    [
        ("n int", {"n": 2**31}, None, "the value of n does not fit int: 2147483648"),
        ("n long", {"n": 1.5}, None, "the value of n does not fit bigint: 1.5"),
        ("b boolean", {"b": "maybe"}, None, "the value of b does not fit boolean: maybe"),
        ("p decimal(6,2)", {"p": "1.005"}, None, "the value of p does not fit decimal(6,2): 1.005"),
        ("p decimal(6,2)", {"p": 1e-7}, None, "the value of p does not fit decimal(6,2): 1.0E-7"),
        ("p decimal(6,2)", {"p": "12345.00"}, None, "the value of p does not fit decimal(6,2): 12345.00"),
        # Of bytes without a schema nobody knows where the point is.
        ("p decimal(6,2)", {"p": in_bytes(1250)}, None, "the value of p does not fit decimal(6,2): BOI="),
        ("p decimal(38,2)", {"p": in_bytes(10**37 + 1)}, [DECIMAL_4], "the value of p does not fit decimal(38,2): B4XuENXa"),
        ("d date", {"d": 1762047000000}, None, "the value of d does not fit date: 1762047000000"),
        ("d date", {"d": 86400000}, [kind("d", "int64", "io.debezium.time.Timestamp")], "the value of d does not fit date"),
        ("t timestamp", {"t": "01:30:00"}, None, "the value of t does not fit timestamp: 01:30:00"),
        (
            "t timestamp",
            {"t": 5},
            [kind("t", "int64", "io.debezium.time.MicroTime")],
            "the value of t does not fit timestamp",
        ),
        ("b binary", {"b": "not base64!"}, None, "the value of b does not fit binary: not base64!"),
        ("a array<int>", {"a": ["x"]}, None, "the value of a does not fit int: x"),
        ("s string", {"s": WITHHELD}, None, "the event lacks the value of s"),
        ("b binary", {"b": base64.b64encode(WITHHELD.encode()).decode()}, None, "the event lacks the value of b"),
        ("a array<string>", {"a": [WITHHELD]}, None, "the event lacks the value of a"),
        ("a array<int>", {"a": [*WITHHELD.encode()]}, None, "the event lacks the value of a"),
    ],
)
def test_values_that_do_not_fit(oracle: Oracle, columns: str, after: Row, kinds: Sequence[Row] | None, says: str) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as refused:
        changes(oracle, struct(columns), event("c", after=after, kinds=kinds))
    assert says in str(refused.value)


def test_old_casts_lose_nothing_either(oracle: Oracle) -> None:
    """With ANSI off Spark's own casts give null for what does not fit."""
    from pyspark.errors import PySparkException

    oracle.spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        with pytest.raises(PySparkException, match="the value of n does not fit bigint: many"):
            changes(oracle, struct("n long"), event("c", after={"n": "many"}))
    finally:
        oracle.spark.conf.unset("spark.sql.ansi.enabled")


# --- events

SCHEMA = pa.schema(
    [pa.field("id", pa.int64()), pa.field("city", pa.string()), pa.field("amount", pa.int64(), nullable=False)]
)


def order(number: int, city: str | None = "Oslo", amount: int | None = 1) -> Row:
    return {"id": number, "city": city, "amount": amount}


@pytest.fixture
def table(oracle: Oracle) -> str:
    share_catalog(oracle)
    name = f"{oracle.name}.{oracle.namespace()}.orders"
    pyarctic.create_table(name, SCHEMA, ["id"])
    return name


@pytest.fixture
def by_city(oracle: Oracle) -> str:
    """Partitioned by a column outside of the key."""
    share_catalog(oracle)
    name = f"{oracle.name}.{oracle.namespace()}.orders"
    pyarctic.create_table(name, SCHEMA, ["id"], ["city"])
    return name


def test_what_events_become(oracle: Oracle, table: str) -> None:
    events = [
        event("r", after=order(1)),
        event("c", after=order(2, amount=2), kinds=[kind("id", "int64")]),
        event("u", before=order(1), after=order(1, amount=5)),
        # The default replica identity: no row before an update, and little more than the key before a delete.
        event("u", before=None, after=order(2, amount=6)),
        event("u", before={"id": 2}, after=order(2, city="Rome", amount=7)),
        event("d", before=order(1, None, 0)),
        None,
        # Another key: Debezium tells it as a delete and an insert, others in one event.
        event("u", before=order(2, amount=7), after=order(3, amount=7)),
    ]
    found = changes(oracle, table, *events)
    assert [(row["_order"], row["_change_action"], row["id"], row["city"], row["amount"]) for row in found] == [
        (100, "INSERT", 1, "Oslo", 1),
        (101, "INSERT", 2, "Oslo", 2),
        (102, "UPDATE_BEFORE", 1, "Oslo", 1),
        (102, "UPDATE_AFTER", 1, "Oslo", 5),
        (103, "UPDATE_BEFORE", 2, None, 6),
        (103, "UPDATE_AFTER", 2, "Oslo", 6),
        (104, "UPDATE_BEFORE", 2, None, 7),
        (104, "UPDATE_AFTER", 2, "Rome", 7),
        (105, "DELETE", 1, None, 0),
        (107, "UPDATE_BEFORE", 2, "Oslo", 7),
        (107, "UPDATE_AFTER", 3, "Oslo", 7),
    ]
    arctic_spark.write(arctic_spark.from_debezium(frame(oracle, events), table), table, "cdc", ["_order"])
    assert pyarctic.table(table).scan().to_arrow().to_pylist() == [order(3, amount=7)]


def test_a_schema_alone_has_no_key(oracle: Oracle) -> None:
    found = changes(oracle, struct("id long, city string"), event("u", after=order(1)))
    assert [(row["_change_action"], row["id"], row["city"]) for row in found] == [
        ("UPDATE_BEFORE", 1, "Oslo"),
        ("UPDATE_AFTER", 1, "Oslo"),
    ]


def test_order(oracle: Oracle, table: str) -> None:
    texts = [(event("u", after=order(1, amount=number)), -number) for number in range(1, 30)]
    rows = oracle.spark.createDataFrame(texts, "text string, back long")
    later = arctic_spark.from_debezium(rows, table, column="text", order="-back")
    arctic_spark.write(later, table, "cdc", ["_order"])
    assert pyarctic.table(table).scan().to_arrow().to_pylist() == [order(1, amount=29)]
    assert changes(oracle, table, texts[0][0], order="offset * 2")[0]["_order"] == 200
    timed = arctic_spark.from_debezium(rows, table, column="text")
    assert {row["_order"] for row in timed.collect()} == {1767225600123}
    with pytest.raises(UsageError, match="key id = 1 comes several times, and equal _order"):
        arctic_spark.write(timed, table, "cdc", ["_order"])


def test_rows_move_between_partitions(oracle: Oracle, by_city: str) -> None:
    events = [
        event("c", after=order(1, "Oslo")),
        event("c", after=order(2, None)),
        event("u", before=order(1, "Oslo"), after=order(1, "Rome")),
        event("u", before=order(1, "Rome"), after=order(1, "Bonn")),
        event("d", before=order(2, None)),
    ]
    for part in (events[:3], events[3:]):
        written = arctic_spark.from_debezium(frame(oracle, part), by_city)
        arctic_spark.write(written, by_city, "cdc", ["_order"])
    assert pyarctic.table(by_city).scan().to_arrow().to_pylist() == [order(1, "Bonn")]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no event at all", "not a Debezium event that changes a row: no event at all"),
        ("", "not a Debezium event that changes a row: "),
        ('{"op": "c", "after": {"id": 1', "not a Debezium event that changes a row"),
        ("[1, 2]", "not a Debezium event that changes a row"),
        # Of the connector's other topics, and flattened by a transformation.
        ('{"op": "m", "message": {"prefix": "p", "content": ""}}', "not a Debezium event that changes a row"),
        ('{"ts_ms": 1767225600123}', "not a Debezium event that changes a row"),
        ('{"id": 1, "city": "Oslo", "amount": 1, "__deleted": "false"}', "not a Debezium event that changes a row"),
        (event("t"), "the source table was truncated"),
        (event("c"), "the row after the change does not contain the key"),
        (event("c", after={"city": "Oslo"}), "the row after the change does not contain the key"),
        ('{"op": "u", "after": "row"}', "the row after the change does not contain the key"),
        (event("u", before=order(1)), "the row after the change does not contain the key"),
        (event("d"), "the deleted row does not contain the key. The source must send full rows"),
        (event("d", before={"id": None, "city": "Oslo"}), "the deleted row does not contain the key"),
    ],
)
def test_refused(oracle: Oracle, table: str, text: str, says: str) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as refused:
        changes(oracle, table, event("c", after=order(7)), text)
    assert says in str(refused.value)


def test_nothing_is_written_of_a_refused_batch(oracle: Oracle, table: str) -> None:
    written = arctic_spark.from_debezium(frame(oracle, [event("c", after=order(7)), event("t")]), table)
    with pytest.raises(ArcticError, match="the source table was truncated"):
        arctic_spark.write(written, table, "cdc", ["_order"])
    assert pyarctic.table(table).scan().count() == 0


@pytest.mark.parametrize(
    "text", [event("u", after=order(1)), event("d", before={"id": 1}), event("u", before={"id": 1}, after=order(1))]
)
def test_partitions_need_the_row_before(oracle: Oracle, by_city: str, text: str) -> None:
    """Without it the row would stay where it is, beside the new one."""
    from pyspark.errors import PySparkException

    with pytest.raises(
        PySparkException, match=r"does not contain city, so its partition is unknown\. .* REPLICA IDENTITY FULL"
    ):
        changes(oracle, by_city, text)


def test_wrong_arguments(oracle: Oracle, table: str) -> None:
    events = frame(oracle, [])
    with pytest.raises(UsageError, match="lack the column 'valeu'"):
        arctic_spark.from_debezium(events, table, column="valeu")
    with pytest.raises(UsageError, match="unknown timestamp unit: 'seconds'"):
        arctic_spark.from_debezium(events, table, timestamps="seconds")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="there is no column 'at'"):
        arctic_spark.from_debezium(events, table, timestamps={"at": "millis"})
