"""Tables made and changed from Spark: by frames' schemas, and by statements of the Iceberg catalog on the base store."""

from __future__ import annotations

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
