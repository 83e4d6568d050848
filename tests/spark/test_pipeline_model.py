"""Random histories of keyed tables that Spark writes: after every step all readers show one row per key, the last.

`HISTORIES=20 pytest tests/spark/test_pipeline_model.py` tries more of them.
"""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pyarctic
import pyarctic.spark as arctic_spark
from pyarctic.tables import WriteMode
from pyarctic.tables.format.change_columns import CHANGE_ACTION
from pyarctic.tables.keyed_table import KeyedTable
from pyarctic.tables.write.row_sources import to_batches
from tests.models.key_versions import Place, Row, Rows
from tests.models.keyed_table import KeyedModel, tuples
from tests.oracle.compare import share_catalog
from tests.oracle.session import Oracle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.jvm

HISTORIES = int(os.environ.get("HISTORIES", "1"))
STEPS = 4
ORDER = "the order"
"""A column that tables do not have."""
Changes = list[tuple[Row, str]]


class ByWayOfSpark:
    """A handle whose rows go through Spark, in any order, with a column that tells the right one."""

    def __init__(self, spark: SparkSession, table: KeyedTable, random: Random) -> None:
        self._spark, self._table, self._random = spark, table, random

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def write(self, data: Any, mode: WriteMode = "insert", **options: Any) -> int | None:
        batches = [batch for batch in to_batches(data) if batch.num_rows]
        if not batches:
            return self._table.write(data, mode, **options)
        rows = ordered(pa.Table.from_batches(batches), self._random, mode)
        frame = self._spark.createDataFrame(rows).repartition(self._random.randint(1, 3))
        return arctic_spark.write(frame, self._table.name, mode, [ORDER], **options)


def ordered(rows: pa.Table, random: Random, mode: WriteMode) -> pa.Table:
    """Rows in any order, with a column for the right one. Both images of an update may have the same place in it."""
    numbers = [*range(rows.num_rows)]
    if mode == "cdc":
        actions = rows[CHANGE_ACTION.name].to_pylist()
        for number, (action, following) in enumerate(pairwise(actions), start=1):
            if (action, following) == ("UPDATE_BEFORE", "UPDATE_AFTER") and random.random() < 0.5:
                numbers[number] = numbers[number - 1]
    told = rows.append_column(ORDER, pa.array(numbers, pa.int64()))
    plain = [field.with_type(pa.string()) if pa.types.is_dictionary(field.type) else field for field in told.schema]
    shuffled = random.sample(range(rows.num_rows), rows.num_rows)
    return told.cast(pa.schema(plain)).take(pa.array(shuffled, pa.int64()))


class SparkModel(KeyedModel):
    def __init__(self, oracle: Oracle, folder: Path, random: Random, key: str, spec: str) -> None:
        share_catalog(oracle)
        self.spark, self._folder, self._streams = oracle.spark, folder, 0
        super().__init__(f"{oracle.name}.{oracle.namespace()}.t", random, key, spec)

    def handle(self) -> Any:
        return ByWayOfSpark(self.spark, super().handle(), self.random)

    def stream(self) -> None:
        """Some files of changes, each of them a batch."""
        modes: list[WriteMode] = ["upsert", "cdc", "delete", "insert"]
        mode = self.random.choice(modes)
        spoken = [changes for changes in (self._changes(mode) for _ in range(self.random.randint(1, 3))) if changes]
        if not spoken:
            return
        self._streams += 1
        folder = self._folder / f"in {self._streams}"
        folder.mkdir()
        for number, changes in enumerate(spoken):
            actions = [action for _, action in changes] if mode == "cdc" else None
            batches = to_batches(self.data([row for row, _ in changes], actions))
            rows = ordered(pa.Table.from_batches(batches), self.random, mode)
            path = folder / f"{number}.parquet"
            pq.write_table(rows, path)
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
        schema = self.spark.createDataFrame(rows.slice(0, 0)).schema
        frame = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", "1").parquet(str(folder))
        before = self.opened().snapshots(store="change").height
        checkpoint = (self._folder / f"checkpoint {self._streams}").as_uri()
        for _ in range(2):  # the second time there is nothing to do
            query = arctic_spark.write_stream(frame, self.name, mode, [ORDER], checkpoint, trigger="available-now")
            assert query.awaitTermination(120)
            assert query.exception() is None
        written = self.opened().snapshots(store="change")["snapshot_id"].to_list()[before:]
        self.log.append(f"stream of {mode}: {[len(changes) for changes in spoken]} rows: {written}")
        assert len(written) == len(spoken)
        for snapshot_id, changes in zip(written, spoken, strict=True):
            self._committed(snapshot_id, self._spoken(changes))

    def _changes(self, mode: WriteMode) -> Changes:
        if mode == "delete":
            return [(row, "DELETE") for row in self._some()]
        if mode != "cdc":
            return [(row, "UPSERT") for row in self.rows()]
        changes: Changes = []
        for row in self._some():
            after = self.row(tuple(row[name] for name in self.keys))
            if self.random.random() < 0.3:
                changes.append((row, self.random.choice(["INSERT", "DELETE"])))
            else:
                changes += [(row, "UPDATE_BEFORE"), (after, "UPDATE_AFTER")]
        return changes

    def _spoken(self, changes: Changes) -> list[tuple[Place, Row | None]]:
        places = self.places([row for row, _ in changes])
        return [
            (place, None if action in ("DELETE", "UPDATE_BEFORE") else row)
            for place, (row, action) in zip(places, changes, strict=True)
        ]

    # Questions

    def check(self) -> None:
        expected = self.expected()
        if self.in_order is not None:
            assert self.in_order == expected, "the model contradicts itself"
        rows = self.shown(expected.values())
        assert tuples(self.opened().scan().batches()) == rows
        where, fits = self.condition()
        columns = {tag: name for tag, name in self.columns.items() if self.random.random() < 0.6} or self.columns
        chosen = self.shown((row for row in expected.values() if fits(row)), columns)
        if self.random.random() < 0.5:
            assert read(arctic_spark.read(self.spark, self.name)) == rows
            found = arctic_spark.read(self.spark, self.name, [*columns.values()], where)
        else:
            assert arctic_spark.view(self.spark, self.name) == "t"
            assert read(self.spark.sql("select * from t")) == rows
            found = self.spark.sql(f"select {', '.join(columns.values())} from t where {where}")
        assert read(found) == chosen, where

    def check_at_last(self) -> None:
        self.check()
        rows = self.shown(self.expected().values())
        arctic_spark.register(self.spark)
        assert read(self.spark.read.format("arctic").load(self.name)) == rows
        past = self.random.choice(self.commits)
        then = arctic_spark.read(self.spark, self.name, snapshot_id=past.snapshot_id)
        assert read(then) == self.shown(self.expected(past).values(), past.columns), f"as of {past.sequence}"


def read(frame: DataFrame) -> Rows:
    return tuples(frame.toArrow().to_batches())


def play(model: SparkModel) -> None:
    random = model.random
    # Rows come first, in one way or the other; then everything in turns.
    random.choice([model.insert, model.upsert, model.overwrite])()
    steps = [model.upsert, model.delete, model.cdc, model.cdc, model.upsert_across, model.delete_across]
    steps += [model.overwrite, model.evolve, model.change_buckets, model.foreign_change, model.insert]
    turns = random.sample(steps, STEPS - 1)
    turns.insert(random.randrange(STEPS), model.stream)
    for step in turns:
        step()
        model.check()
    model.check_at_last()


@pytest.mark.parametrize(
    ("key", "spec"),
    [
        ("long", "both"),
        ("string", "region"),
        ("composite", "truncate"),
        ("decimal", "key"),
        ("time", "whole"),
    ],
)
@pytest.mark.timeout(60 + 120 * HISTORIES)
def test_what_spark_writes_equals_model(oracle: Oracle, tmp_path: Path, key: str, spec: str) -> None:
    for seed in range(HISTORIES):
        (tmp_path / str(seed)).mkdir()
        model = SparkModel(oracle, tmp_path / str(seed), Random(f"{key} {seed}"), key, spec)
        try:
            play(model)
        except BaseException as failure:
            failure.add_note("\n".join([f"history {seed}", *model.log]))
            raise


def test_many_changes_of_few_keys_in_many_tasks(oracle: Oracle, tmp_path: Path) -> None:
    """More rows than fit into one batch of Arrow, so that the runs of keys go over their ends."""
    share_catalog(oracle)
    name = f"{oracle.name}.{oracle.namespace()}.t"
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    table = pyarctic.create_table(name, schema, ["id"], properties={"change.file-index.hash-bucket": "2"})
    frame = oracle.spark.range(0, 300_000, 1, 4).selectExpr("id % 7 as id", "id as v", "300000 - id as later")
    arctic_spark.write(frame, name, "upsert", ["later"])
    assert sorted(map(tuple, arctic_spark.read(oracle.spark, name).collect())) == [(n, n) for n in range(7)]
    arctic_spark.write(frame.drop("later"), name, "upsert", ["v"])  # by a column that the table has
    expected = [(n, max(v for v in range(299_980, 300_000) if v % 7 == n)) for n in range(7)]
    assert sorted(map(tuple, arctic_spark.read(oracle.spark, name).collect())) == expected
    assert table.refresh().scan().to_arrow().num_rows == 7
    arctic_spark.write(frame, name, "overwrite", ["later"])
    assert sorted(map(tuple, arctic_spark.read(oracle.spark, name).collect())) == [(n, n) for n in range(7)]
