"""Conditions mean the same everywhere: to Spark's own reader, to PyArctic on executors, and to Arrow.

`CONDITIONS=500 pytest tests/spark/test_pipeline_conditions.py` tries more of them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import reduce
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pyarctic
import pyarctic.spark as arctic_spark
from pyarctic.errors import ArcticError, UsageError
from pyarctic.spark.source import SourceOptions
from pyarctic.tables import Table
from tests.oracle.compare import share_catalog
from tests.oracle.session import Oracle
from tests.support.pipelines import assert_read_alike, files_read_by_spark, frame_rows, read_plan_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = [pytest.mark.jvm, pytest.mark.filterwarnings("ignore::pyarctic.tables.TableAdvice")]

CONDITIONS = int(os.environ.get("CONDITIONS", "60"))
AT_A_TIME = 15
NAN, INF = float("nan"), float("inf")
TEXTS = ["", "a", "A", "ab", "a'b", 'a"b', "a\\b", "a\\", "%", "a%", "_", "ü", "😀", "中", "\n", "null", "a`b", "--", "a b"]
MOMENTS = [datetime(2024, 3, 10, 2, 30), datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(1900, 1, 1)]  # noqa: DTZ001
POOLS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i": (pa.int32(), [0, 1, -1, 7, (1 << 31) - 1, -(1 << 31)]),
    "l": (pa.int64(), [0, 1, -1, 1 << 40, (1 << 63) - 1, -(1 << 63)]),
    "f": (pa.float32(), [0.0, -0.0, 1.5, 0.25, NAN, INF, -INF, -3.0]),
    "d": (pa.float64(), [0.0, -0.0, 0.1, 1e300, NAN, INF, -INF, -3.0]),
    "dec": (pa.decimal128(9, 2), [Decimal(text) for text in ("0.00", "0.01", "-0.01", "9999999.99", "1.50")]),
    "big": (pa.decimal128(38, 10), [Decimal(text) for text in ("0E-10", "1234567890123456789012345678.0123456789", "-1.5")]),
    "day": (pa.date32(), [date(2024, 2, 29), date(1969, 12, 31), date(1500, 1, 1), date(9999, 12, 31)]),
    "at": (pa.timestamp("us", "UTC"), [moment.replace(tzinfo=UTC) for moment in MOMENTS]),
    "local": (pa.timestamp("us"), MOMENTS),
    "s": (pa.string(), TEXTS),
    "part": (pa.string(), ["p", "q", "r"]),
    "flag": (pa.bool_(), [True, False]),
    "n.x": (pa.int32(), [0, 1, 2]),
    "n.s": (pa.string(), TEXTS[:6]),
    "z.f": (pa.float64(), [0.5, NAN, 1.5]),
}
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        *((name, type_) for name, (type_, _) in POOLS.items() if "." not in name),
        ("n", pa.struct([("x", pa.int32()), ("s", pa.string())])),
        ("z", pa.struct([("f", pa.float64())])),
    ]
)


PLAIN_COLUMNS = [name for name in SCHEMA.names if name != "z"]


def row(random: Random, number: int) -> dict[str, Any]:
    told = {name: random.choice([None, *values, *values]) for name, (_, values) in POOLS.items()}
    nested = {name[2:]: told.pop(name) for name in [*told] if name.startswith("n.")}
    return {"id": number, "z": {"f": told.pop("z.f")}, **told, "n": random.choice([None, nested, nested, nested])}


def mixed_table(oracle: Oracle, name: str) -> Table:
    """A keyed table of which some files are plain and others have changes, with small row groups."""
    random = Random(7)
    properties = {"write.parquet.row-group-limit": "4", "base.file-index.hash-bucket": "2"}
    made = pyarctic.create_table(f"{oracle.name}.{name}", SCHEMA, ["id"], ["part"], properties)
    rows = [row(random, number) for number in range(120)]
    made.write(pa.Table.from_pylist(rows, schema=SCHEMA), "overwrite")
    changed = [row(random, number) | {"part": "q"} for number in range(0, 150, 5)]
    made.write(pa.Table.from_pylist(changed, schema=SCHEMA), "upsert")
    made.write(pa.Table.from_pylist([rows[3] | {"part": "q"}], schema=SCHEMA), "delete")
    return made


class Conditions:
    """Random ones, as text."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.renamed: dict[str, str] = {}

    def any(self, depth: int = 2) -> str:
        random = self._random
        match random.choice(["leaf", "leaf", "and", "or", "not"]) if depth else "leaf":
            case "and":
                return f"({self.any(depth - 1)}) and ({self.any(depth - 1)})"
            case "or":
                return f"({self.any(depth - 1)}) or ({self.any(depth - 1)})"
            case "not":
                return f"not ({self.any(depth - 1)})"
        return self._leaf()

    def _leaf(self) -> str:
        random = self._random
        name = random.choice([*POOLS])
        type_, values = POOLS[name]
        column = self.renamed.get(name, name)
        signs = ["=", "!=", "<", "<=", ">", ">=", "in", "not in", "is null", "is not null"]
        if pa.types.is_floating(type_):
            signs += ["is nan", "is not nan"]
        if pa.types.is_string(type_):
            signs += ["like", "not like"]
        if pa.types.is_boolean(type_):
            signs = ["=", "!=", "is null", "is not null"]
        sign = random.choice(signs)
        told = [value for value in values if can_be_told(value)]
        if sign.startswith("is"):
            return f"{column} {sign}"
        if sign in ("in", "not in"):
            return f"{column} {sign} ({', '.join(self._text(random.choice(told)) for _ in range(random.randint(1, 3)))})"
        if sign in ("like", "not like"):
            beginning = random.choice(["a", "ü", "😀", "a'", "-", "n"])
            return f"{column} {sign} {self._text(beginning + '%')}"
        return f"{column} {sign} {self._text(self._near(random.choice(told)))}"

    def _near(self, value: Any) -> Any:
        if self._random.random() < 0.6:
            return value
        if isinstance(value, bool | str):
            return value
        if isinstance(value, date):
            step = timedelta(days=self._random.choice([0, 1]) if value.year < 9000 else 0)
            return value + step
        if isinstance(value, Decimal):
            return value + Decimal("0.01") if value < 1000 else value
        return value + 1 if abs(value) < 1 << 30 else value

    @staticmethod
    def _text(value: Any) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, datetime):
            return f"'{value.isoformat()}'"
        if isinstance(value, str | date):
            return "'" + str(value).replace("'", "''") + "'"
        return format(value, "f") if isinstance(value, Decimal | float) else str(value)


def can_be_told(value: Any) -> bool:
    """Conditions in text know neither NaN, nor infinity, nor exponents, no more digits than a float has, and no text with a
    backslash at its end."""
    if isinstance(value, str):
        return not value.endswith("\\")
    return not isinstance(value, float | Decimal) or abs(float(value)) < 1 << 30


def counted(frames: Sequence[DataFrame]) -> list[list[int]]:
    """The ids of many frames, by one job."""
    from pyspark.sql import functions as F  # noqa: N812

    marked = [frame.select(F.lit(number).alias("number"), "id") for number, frame in enumerate(frames)]
    found: list[list[int]] = [[] for _ in frames]
    for told in reduce(lambda some, more: some.unionAll(more), marked).collect():
        found[told["number"]].append(told["id"])
    return [sorted(ids) for ids in found]


@pytest.fixture
def table(oracle: Oracle) -> str:
    share_catalog(oracle)
    return f"{oracle.namespace()}.t"


def test_random_conditions(oracle: Oracle, table: str) -> None:
    made = mixed_table(oracle, table)
    read_plan = read_plan_of(oracle, table, columns=["id"])
    assert read_plan.plain_files
    assert read_plan.splits
    conditions = Conditions(Random(1))
    oracle.spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        for done in range(0, CONDITIONS, AT_A_TIME):
            if done * 2 >= CONDITIONS and not conditions.renamed:
                made.evolve(rename={"i": "other", "l": "i"})
                conditions.renamed = {"i": "other", "l": "i"}
            wheres = [conditions.any() for _ in range(AT_A_TIME)]
            expected = [sorted(made.scan(["id"], where).to_arrow()["id"].to_pylist()) for where in wheres]
            frames = [arctic_spark.read(oracle.spark, made.name, ["id"], where) for where in wheres]
            for where, wanted, found in zip(wheres, expected, counted(frames), strict=True):
                assert found == wanted, where
            assert any(expected)
    finally:
        oracle.spark.conf.set("spark.sql.session.timeZone", "UTC")


SPARK_CONDITIONS = [
    "i = 7",
    "i in (0, 1, 2147483647)",
    "l > 1099511627775",
    "l = -9223372036854775808",
    "f > 1.0",  # NaN is greater than all numbers here
    "f = double('NaN')",
    "d <= 0.1",
    "d in (0.1D, double('NaN'))",
    "d != 0.1D",
    "dec >= 0.01",
    "dec = 1.5",
    "big = 1234567890123456789012345678.0123456789",
    "big < -1",
    "day = date'1500-01-01'",
    "day > date'2024-02-28'",
    "at = timestamp'2024-03-10 02:30:00Z'",
    "at < timestamp'1969-12-31 23:59:59.999999Z'",
    "local >= timestamp_ntz'1969-12-31 23:59:59.999999'",
    "local = timestamp_ntz'1900-01-01 00:00:00'",
    "s = 'a\\'b'",
    "s = 'a\\\\'",
    "s like 'a%'",
    "startswith(s, 'ü')",
    "endswith(s, 'b')",
    "contains(s, '%')",
    "s in ('中', '😀', 'none')",
    "part = 'q' and id < 50",
    "part is null",
    "part is not null and flag",
    "not flag",
    "flag = false or i is null",
    "n.x = 1",
    "n.s like 'a%'",
    "n is null",
    "i <=> null",
    "i <=> 7",
    "length(s) = 1 and i > 0",
    "i > l",
    "s is null and s = 'a'",
]


def test_conditions_of_spark_lose_no_row(oracle: Oracle, table: str) -> None:
    """Whatever Spark pushes down to its own reader, the answer is the one of all rows in memory."""
    made = mixed_table(oracle, table)
    # Nothing is pushed down to rows that PyArctic reads, so files alone will do.
    frame = arctic_spark.read(oracle.spark, made.name, PLAIN_COLUMNS, store="base")
    assert files_read_by_spark(frame)
    assert not read_plan_of(oracle, table, columns=PLAIN_COLUMNS, store="base").splits
    everything = frame.localCheckpoint()
    expected = counted([everything.where(where) for where in SPARK_CONDITIONS])
    for where, wanted, found in zip(
        SPARK_CONDITIONS, expected, counted([frame.where(where) for where in SPARK_CONDITIONS]), strict=True
    ):
        assert found == wanted, where
    assert sum(map(bool, expected)) > len(expected) - 6
    frame = arctic_spark.read(oracle.spark, made.name, ["id", "z"], store="base")
    everything, wheres = frame.localCheckpoint(), ["z.f > 1.0D", "z.f != 0.5D", "z.f = double('NaN')"]
    assert counted([frame.where(w) for w in wheres]) == counted([everything.where(w) for w in wheres])


def test_a_frame_of_the_format_can_be_asked_many_times(oracle: Oracle, table: str) -> None:
    """Spark 4.1 keeps what a source planned for one condition, and would use it for others."""
    made = mixed_table(oracle, table)
    arctic_spark.register(oracle.spark)
    everything = arctic_spark.read(oracle.spark, made.name).localCheckpoint()
    source = oracle.spark.read.format("arctic").load(made.name)
    assert source.where("part = 'q'").count() == everything.where("part = 'q'").count()
    assert source.dtypes == everything.dtypes
    assert frame_rows(source) == frame_rows(everything)
    wheres = ["i = 7", "s like 'a%'", "at = timestamp'2024-03-10 02:30:00Z'"]
    assert counted([source.where(w) for w in wheres]) == counted([everything.where(w) for w in wheres])
    joined = source.where("part = 'p'").select("id").join(source.where("part = 'q'").select("id"), "id", "full")
    assert joined.count() == everything.where("part in ('p', 'q')").select("id").distinct().count()


def test_conditions_that_are_not_understood(oracle: Oracle, table: str) -> None:
    made = mixed_table(oracle, table)
    for where in ("nothing = 1", "i ==== 1", "i = 'text'", "length(s) = 1"):
        with pytest.raises(UsageError, match="condition is not understood") as refusal:
            arctic_spark.read(oracle.spark, made.name, where=where)
        assert refusal.value.facts["table"] == made.name
    with pytest.raises(UsageError, match="nothing"):
        arctic_spark.read(oracle.spark, made.name, columns=["nothing"])


# --- the format "arctic"


@pytest.fixture
def small(oracle: Oracle, table: str) -> Table:
    schema = pa.schema([("id", pa.int64()), ("v", pa.string()), ("w", pa.int32())])
    made = pyarctic.create_table(f"{oracle.name}.{table}", schema, ["id"])
    made.write(pa.table([[1, 2, 3], ["a", "b", "c"], [1, 2, 3]], schema=schema), "overwrite")
    made.write(pa.table([[1, 4], ["A", "D"], [1, 4]], schema=schema), "upsert")
    made.write(pa.table([[2], ["-"], [0]], schema=schema), "delete")
    arctic_spark.register(oracle.spark)
    return made


def values(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def test_options_of_the_format(oracle: Oracle, small: Table) -> None:
    def load(**options: str) -> DataFrame:
        named = {name.replace("_", "-"): value for name, value in options.items()}
        return oracle.spark.read.format("arctic").options(**named).load(small.name)

    assert values(load()) == [(1, "A", 1), (3, "c", 3), (4, "D", 4)]
    assert values(load(columns="w, id")) == [(1, 1), (3, 3), (4, 4)]
    assert load(columns="w, id").columns == ["w", "id"]
    assert values(load(where="id > 1 and v = 'c'")) == [(3, "c", 3)]
    assert values(load(store="base")) == [(1, "a", 1), (2, "b", 2), (3, "c", 3)]
    assert load(store="change").count() == 5
    upserted = small.snapshots(store="change")["snapshot_id"][-2]
    assert values(load(snapshot_id=str(upserted)).select("id")) == [(1,), (2,), (3,), (4,)]
    moment = datetime.now(UTC).isoformat()
    small.write(pa.table([[9], ["late"], pa.array([9], pa.int32())], names=["id", "v", "w"]), "upsert")
    assert load(as_of_timestamp=moment).count() == 3
    assert load().count() == 4
    assert values(load().where("w = 9").select("v")) == [("late",)]
    # The schema may be said: it chooses columns.
    chosen = oracle.spark.read.format("arctic").schema("v string, id long").load(small.name)
    assert values(chosen.where("id = 4")) == [("D", 4)]
    oracle.sql(f"create or replace temporary view odd using arctic options (path '{small.name}', where 'id < 2')")
    assert values(oracle.sql("select id from odd")) == [(1,)]
    assert arctic_spark.view(oracle.spark, small.name, "seen", where="id > 3", columns=["id"]) == "seen"
    assert values(oracle.sql("select id from seen")) == [(4,), (9,)]
    assert arctic_spark.view(oracle.spark, small.name) == "t"
    assert values(oracle.sql("select sum(w) from t")) == [(17,)]


def test_wrong_options_of_the_format(oracle: Oracle, small: Table) -> None:
    from pyspark.errors import PySparkException

    def asked(**options: str) -> None:
        named = {"path": small.name, **{name.replace("_", "-"): value for name, value in options.items()}}
        source = SourceOptions({}, {name: value for name, value in named.items() if value})
        source.reader(source.schema())

    for option, word in (
        ({"colums": "id"}, "unknown option: colums"),
        ({"snapshot_id": "yesterday"}, "snapshot-id is a number"),
        ({"snapshot_id": "1"}, "snapshot"),
        ({"store": "both"}, "unknown store: 'both'"),
        ({"where": "nothing = 1"}, "condition is not understood"),
        ({"columns": "nothing"}, "nothing"),
        ({"as_of_timestamp": "yesterday"}, "option as-of-timestamp is not a timestamp"),
        ({"path": ""}, "no table is given"),
        ({"path": f"{oracle.name}.nowhere.t"}, "nowhere"),
        ({"path": "t"}, "catalog.database.table"),
    ):
        with pytest.raises(ArcticError) as refusal:
            asked(**option)
        assert word in f"{refusal.value} {refusal.value.hint}"
    # Spark tells of them, too; and nothing is written this way.
    with pytest.raises(PySparkException, match="unknown option: colums"):
        oracle.spark.read.format("arctic").option("colums", "id").load(small.name).collect()
    before = small.refresh().snapshots()["snapshot_id"].to_list()
    with pytest.raises(PySparkException, match="does not write"):
        arctic_spark.read(oracle.spark, small.name).write.format("arctic").mode("append").save(small.name)
    assert small.refresh().snapshots()["snapshot_id"].to_list() == before


@pytest.mark.parametrize("keys", [[], ["id"]])
def test_empty_tables(oracle: Oracle, table: str, keys: list[str]) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.string())])
    made = pyarctic.create_table(f"{oracle.name}.{table}", schema, keys)
    for _ in range(2):
        frame = assert_read_alike(oracle, table)
        assert frame.dtypes == [("id", "bigint"), ("v", "string")]
        assert not files_read_by_spark(frame)
        made.write(pa.table([[1], ["x"]], schema=schema), "overwrite")
        made.write(schema.empty_table(), "overwrite")
    arctic_spark.register(oracle.spark)
    assert oracle.spark.read.format("arctic").load(made.name).where("id > 3").collect() == []
