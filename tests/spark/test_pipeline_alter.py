"""Tables made and changed from Spark: by frames' schemas, and by statements of the Iceberg catalog on the base store."""

from __future__ import annotations

from pathlib import Path

import pytest

import pyarctic
import pyarctic.spark as arctic_spark
from pyarctic.config.table_properties import MINOR_FILE_COUNT, QUOTA
from pyarctic.errors import UsageError
from pyarctic.tables import KeyedTable
from tests.oracle.compare import share_catalog
from tests.oracle.session import Oracle

pytestmark = pytest.mark.jvm


def test_properties_by_alter_table_are_honoured(oracle: Oracle) -> None:
    share_catalog(oracle)
    name = f"{oracle.name}.alter.orders"
    frame = oracle.spark.sql("select id, cast(id as string) note from range(10)")
    made = arctic_spark.create_table(name, frame.schema, primary_key=["id"])
    assert isinstance(made, KeyedTable)
    assert made.primary_key == ("id",)
    assert arctic_spark.write(frame, name, "overwrite") is not None
    assert QUOTA.of(made.properties) == 0.1
    oracle.sql(f"alter table {name} set tblproperties ('optimize.quota' = '0.2', 'compact.major.file.cnt' = '5')")
    table = pyarctic.table(name)
    assert QUOTA.of(table.properties) == 0.2
    assert MINOR_FILE_COUNT.of(table.properties) == 5
    assert arctic_spark.write(frame.limit(3), name, "upsert") is not None
    assert arctic_spark.read(oracle.spark, name).count() == 10
    with pytest.raises(UsageError, match="quota"):
        table.set({"optimize.quota": "none"})


def test_a_column_that_alter_table_adds_is_known_to_both_stores(oracle: Oracle) -> None:
    share_catalog(oracle)
    name = f"{oracle.name}.alter.grown"
    frame = oracle.spark.sql("select id, 'a' note from range(4)")
    arctic_spark.create_table(name, frame.schema, primary_key=["id"])
    arctic_spark.write(frame, name, "upsert")
    oracle.sql(f"alter table {name} add column amount decimal(10, 2)")
    wider = oracle.spark.sql("select id, 'b' note, cast(1.5 as decimal(10, 2)) amount from range(2)")
    arctic_spark.write(wider, name, "upsert")
    rows = {row["id"]: (row["note"], row["amount"]) for row in arctic_spark.read(oracle.spark, name).collect()}
    assert {key: note for key, (note, _) in rows.items()} == {0: "b", 1: "b", 2: "a", 3: "a"}
    assert [str(rows[key][1]) for key in range(4)] == ["1.50", "1.50", "None", "None"]
    assert [f.name for f in pyarctic.table(name).schema.fields] == ["id", "note", "amount"]


def test_frames_and_streams_go_on_when_a_column_is_added(oracle: Oracle, tmp_path: Path) -> None:
    share_catalog(oracle)
    name = f"{oracle.name}.alter.running"
    frame = oracle.spark.sql("select id, if(id < 9, 'a', null) note from range(2)")
    arctic_spark.create_table(name, frame.schema, primary_key=["id"])
    source = tmp_path / "source"
    source.mkdir()

    def stream(number: int) -> None:
        (source / f"{number}.json").write_text(f'{{"id": {number}, "note": "s"}}\n')
        rows = oracle.spark.readStream.schema("id long, note string").json(source.as_uri())
        checkpoint = (tmp_path / "checkpoint").as_uri()
        query = arctic_spark.write_stream(rows, name, "upsert", ["note"], checkpoint, trigger="available-now")
        query.awaitTermination()

    stream(10)
    pyarctic.table(name).evolve(add={"amount": "long"})
    stream(11)
    for mode in ("insert", "upsert"):
        arctic_spark.write(frame, name, mode)
    arctic_spark.write(oracle.spark.sql("select 1L id, 'INSERT' _change_action"), name, "cdc")
    rows = {row["id"]: (row["note"], row["amount"]) for row in arctic_spark.read(oracle.spark, name).collect()}
    assert rows == {0: ("a", None), 1: (None, None), 10: ("s", None), 11: ("s", None)}
    with pytest.raises(UsageError, match="missing id"):
        arctic_spark.write(frame.drop("id"), name)
    with pytest.raises(UsageError, match="unknown amuont"):
        arctic_spark.write(frame.withColumnRenamed("note", "amuont"), name)


def test_a_frame_may_lack_the_partition_column_of_a_table_without_key(oracle: Oracle) -> None:
    share_catalog(oracle)
    name = f"{oracle.name}.alter.by_day"
    frame = oracle.spark.sql("select id, if(id < 9, date'2026-01-02', null) day, 'a' city from range(3)")
    arctic_spark.create_table(name, frame.schema, partition_by=["city", "month(day)"])
    arctic_spark.write(frame, name)
    arctic_spark.write(frame.drop("day"), name)
    days = sorted(str(row["day"]) for row in arctic_spark.read(oracle.spark, name).collect())
    assert days == ["2026-01-02"] * 3 + ["None"] * 3


def test_a_frame_is_a_step_of_a_job(oracle: Oracle) -> None:
    share_catalog(oracle)
    name = f"{oracle.name}.alter.steps"
    frame = oracle.spark.sql("select id, 'a' note from range(3)")
    arctic_spark.create_table(name, frame.schema, primary_key=["id"], if_not_exists=True)
    assert arctic_spark.write(frame, name, "upsert", once=("job", 1)) is not None
    assert arctic_spark.write(frame.withColumn("id", frame.id + 10), name, "upsert", once=("job", 1)) is None
    assert arctic_spark.write(frame.where("id > 5"), name, "upsert", once=("job", 2)) is not None
    assert pyarctic.table(name).last_once("job") == 2
    assert arctic_spark.read(oracle.spark, name).count() == 3
    with pytest.raises(UsageError, match="from 0 on"):
        arctic_spark.write(frame, name, once=("job", -1))
