"""The stores of keyed tables that PyArctic wrote, read by Iceberg Java as the ordinary tables they are."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import pyarctic
from pyarctic.tables import Table
from tests.oracle.compare import share_catalog
from tests.oracle.session import Oracle

pytestmark = [pytest.mark.jvm, pytest.mark.filterwarnings("ignore::pyarctic.tables.TableAdvice")]

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("v", pa.string())])


def rows(*values: tuple[int, str | None, str], actions: list[str] | None = None) -> pa.Table:
    table = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in values], schema=SCHEMA)
    return table if actions is None else table.append_column("_change_action", [actions])


def told(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=str)


def merged(table: Table) -> list[tuple[Any, ...]]:
    return told(table.refresh().scan().to_arrow())


def test_java_reads_both_stores_and_adds_to_them(oracle: Oracle) -> None:
    share_catalog(oracle)
    name = f"{oracle.namespace()}.t"
    table = pyarctic.create_table(f"{oracle.name}.{name}", SCHEMA, primary_key=["id"], partition_by=["region"])
    load = [(1, "a b", "one"), (2, None, "two"), (3, "a b", "three")]
    table.write(rows((1, "a b", "early"), *load, (3, "x", "elsewhere"), (1, "a b", "late")), mode="overwrite")
    base = sorted([(1, "a b", "late"), *load[1:], (3, "x", "elsewhere")], key=str)
    assert told(oracle.rows(name)) == base == merged(table)
    assert oracle.rows(f"{name}.delete_files", "count(*)").to_pylist() == [{"count(1)": 1}]

    table.write(rows((4, "x", "four")))
    table.write(rows((4, "x", "5")), mode="upsert")
    update = [(2, None, "two"), (2, None, "2")]
    table.write(rows(*update, actions=["UPDATE_BEFORE", "UPDATE_AFTER"]), mode="cdc")
    table.write(rows((3, "x", "gone")), mode="delete")
    changes = [(4, "x", "four"), (4, "x", "5"), (4, "x", "5"), *update, (3, "x", "gone")]
    assert told(oracle.rows(f"{name}_change_")) == sorted(changes, key=str)
    assert told(oracle.rows(name)) == base
    expected = [(1, "a b", "late"), (2, None, "2"), (3, "a b", "three"), (4, "x", "5")]
    assert merged(table) == sorted(expected, key=str)

    # What Java puts into the stores has names of its own: base rows older than any change, and inserts of its commit.
    oracle.sql(f"insert into {name} values (7, 'x', 'java'), (8, 'x', 'java')")
    oracle.sql(f"insert into {name}_change_ values (4, 'x', 'java'), (9, 'x', 'java')")
    table.refresh().write(rows((7, "x", "ours")), mode="upsert")
    expected[3:] = [(4, "x", "java"), (7, "x", "ours"), (8, "x", "java"), (9, "x", "java")]
    assert merged(table) == sorted(expected, key=str)

    table.write(rows((1, "x", "last")), mode="overwrite", replace="partitions")
    table.evolve(add={"w": "int"}, rename={"v": "value"})
    assert oracle.rows(name).schema.names == oracle.rows(f"{name}_change_").schema.names == ["id", "region", "value", "w"]
    assert told(oracle.rows(name)) == sorted([*((*row, None) for row in base[:-1]), (1, "x", "last", None)], key=str)


def test_one_row_per_key_whatever_java_does_to_base(oracle: Oracle) -> None:
    """Keys appended twice, and updates and deletes in both modes of Spark, when no changes are pending."""
    share_catalog(oracle)
    for mode in ("copy-on-write", "merge-on-read"):
        name = f"{oracle.namespace()}.t"
        properties = {f"write.{statement}.mode": mode for statement in ("update", "delete", "merge")}
        properties["base.file-index.hash-bucket"] = "1"
        table = pyarctic.create_table(f"{oracle.name}.{name}", SCHEMA, primary_key=["id"], properties=properties)
        table.write(rows(*((key, "x", "load") for key in range(6))), mode="overwrite")
        oracle.sql(f"insert into {name} values (1, 'x', 'java'), (9, 'x', 'java')")
        oracle.sql(f"update {name} set v = 'updated' where id = 2")
        oracle.sql(f"delete from {name} where id = 3")
        oracle.sql(f"insert into {name} values (9, 'x', 'again')")
        expected = [(0, "load"), (1, "java"), (2, "updated"), (4, "load"), (5, "load"), (9, "again")]
        expected_rows = [(key, "x", value) for key, value in expected]
        assert merged(table) == expected_rows
        pyarctic.optimize(f"{oracle.name}.{name}")
        oracle.sql(f"refresh table {name}")
        assert merged(table) == told(oracle.rows(name)) == expected_rows


VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), [None, "", "null", "a b", "ü/:~*+%=&'\"\\#?", "中文😀", "._-"]),
    "flag": (pa.bool_(), [None, True, False]),
    "number": (pa.int32(), [None, -5, 0]),
    "price": (pa.decimal128(12, 8), [None, Decimal("-1.50000000"), Decimal("0.00000001"), Decimal("0E-8")]),
    "day": (pa.date32(), [None, date(1969, 12, 31), date(2024, 2, 29)]),
    "clock": (pa.time64("us"), [None, time(0), time(1, 2), time(1, 2, 3), time(1, 2, 3, 4000), time(1, 2, 3, 4)]),
    "moment": (
        pa.timestamp("us"),
        [None, *(datetime(*parts) for parts in ((2024, 2, 29), (1960, 1, 1, 1, 2, 3), (2024, 1, 1, 0, 0, 0, 500)))],  # noqa: DTZ001
    ),
    "instant": (
        pa.timestamp("us", "UTC"),
        [None, *(datetime(*parts) for parts in ((2024, 2, 29, 13), (1969, 12, 31, 23, 59, 59, 120000)))],  # noqa: DTZ001
    ),
    "bytes": (pa.binary(), [None, b"", b"\xff\xee", b"\0"]),
}
MADE = [
    "bucket(4, number)",
    "truncate(2, text)",
    "truncate(1, bytes)",
    "year(day)",
    "month(day)",
    "day(moment)",
    "hour(instant)",
]


def test_partition_paths_are_those_of_java(oracle: Oracle) -> None:
    share_catalog(oracle)
    name = f"{oracle.namespace()}.t"
    schema = pa.schema([("id", pa.int32()), *((column, type_) for column, (type_, _) in VALUES.items())])
    # Day and month of one column cannot be partition fields beside the column itself.
    spec = [*(column for column in VALUES if column not in ("day", "moment", "instant")), *MADE[:2], *MADE[5:]]
    for number, fields in enumerate([spec, ["day", "moment", "instant"], [MADE[2]], [MADE[3]], [MADE[4]]]):
        one = f"{name}{number}"
        table = pyarctic.create_table(f"{oracle.name}.{one}", schema, primary_key=["id"], partition_by=fields)
        count = max(len(values) for _, values in VALUES.values())
        columns = [pa.array([values[at % len(values)] for at in range(count)], type_) for type_, values in VALUES.values()]
        data = pa.table([pa.array(range(count), pa.int32()), *columns], schema=schema)
        table.write(data, mode="overwrite")
        java_table = oracle.java_table(one)
        spec_of_java, location = java_table.spec(), f"{java_table.location()}/data/"
        tasks = java_table.newScan().planFiles().iterator()
        places = {}
        while tasks.hasNext():
            file = tasks.next().file()
            folder = str(file.location()).removeprefix(location).rpartition("/")[0]
            places[folder] = spec_of_java.partitionToPath(file.partition())
        assert len(places) > 1
        assert places == {folder: folder for folder in places}
        assert set(table.merged_sequences()) == set(places.values())  # type: ignore[attr-defined]
        assert table.scan().count() == count
