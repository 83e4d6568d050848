"""Streams into tables, exactly once: whatever dies and whenever, every batch is in the table by one commit."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pyarctic
import pyarctic.spark as arctic_spark
from pyarctic import config
from pyarctic.errors import Rejected
from pyarctic.spark.streaming import StreamTarget
from pyarctic.spark.writing import WriteOptions
from pyarctic.tables import KeyedTable
from tests.oracle.session import Oracle
from tests.spark import scripted_storage
from tests.spark.streamlab import LOCAL, NAME, SCHEMA, Row, StreamLab, operation_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.jvm

COLUMNS = "id long, part string, value long, n long"
BATCHES = 5


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[StreamLab]:
    config.reset()
    yield StreamLab.made(tmp_path)
    config.reset()


def file_rows(number: int) -> list[Row]:
    """Some keys of their own, and some that every file has, several times and not in order."""
    own = [{"id": 1000 * number + i, "part": "ab"[i % 2], "value": i, "n": 0} for i in range(40)]
    shared = [{"id": i, "part": "a", "value": 100 * number + n, "n": n} for n in (2, 5, 1, 3) for i in range(-10, 0)]
    return own + shared


def run(lab: StreamLab, spark: Any) -> None:
    """The stream in this process, until there are no more files."""
    rows = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).json(lab.source.as_uri())
    query = arctic_spark.write_stream(rows, NAME, "upsert", ["n"], lab.checkpoint.as_uri(), trigger="available-now")
    query.awaitTermination()


def once_each(query: str, batches: int) -> Counter[tuple[str, str]]:
    return Counter({(query, str(batch)): 1 for batch in range(batches)})


def test_drivers_die_before_and_after_the_commit(lab: StreamLab, oracle: Oracle) -> None:
    for number in range(BATCHES):
        lab.add_file(file_rows(number))

    # Batch 1 is in the table and Spark does not know it when the machine is lost.
    lab.order("after-1")
    with lab.stream(LOCAL) as job:
        lab.taken("after-1")
        job.lose_machine()
    query = lab.query_id()
    assert lab.commits() == once_each(query, 2)
    assert lab.left_operations() == set()

    # Files of batch 2 are being written when it is lost again. Batch 1 was seen to be done: nothing of it was written.
    lab.order(scripted_storage.HANG_WRITE)
    with lab.stream(LOCAL) as job:
        lost = operation_of(lab.taken(scripted_storage.HANG_WRITE)["file"])
        job.lose_machine()
    assert lab.commits() == once_each(query, 2)
    assert lab.left_operations() == {lost}

    # Batch 2 again. After batch 3 only Python dies: the JVM may still be there when the next driver starts.
    lab.order("after-3")
    with lab.stream(LOCAL) as job:
        lab.taken("after-3")
        job.kill_driver()
        assert lab.commits() == once_each(query, 4)
        assert lab.left_operations() == {lost}
        # The snapshot that tells of batch 3 is expired; the table's property is not.
        expire_all_but_the_last(lab)
        run(lab, oracle.spark)
    assert lab.commits() == Counter({(query, "4"): 1})
    assert lab.query_id() == query
    assert lab.rows() == lab.expected() | {(-99, "a"): 0}
    assert lost not in lab.committed_operations()

    # Nothing is new, nothing is done.
    before = lab.table.refresh().change_store.view.snapshot_id
    run(lab, oracle.spark)
    assert lab.table.refresh().change_store.view.snapshot_id == before

    # Another checkpoint at the same place is another query: its batches have the same numbers and are not those.
    shutil.rmtree(lab.checkpoint)
    run(lab, oracle.spark)
    assert lab.query_id() != query
    assert lab.commits() == once_each(lab.query_id(), BATCHES) + Counter({(query, "4"): 1})
    assert lab.rows() == lab.expected() | {(-99, "a"): 0}


def expire_all_but_the_last(lab: StreamLab) -> None:
    """Somebody else writes a row, then all older snapshots of the changes are expired."""
    lab.table.refresh().write(pa.Table.from_pylist([{"id": -99, "part": "a", "value": 0}], schema=SCHEMA), "upsert")
    store = lab.table.change_store
    old = [snapshot.snapshot_id for snapshot in store.view.metadata.snapshots][:-1]
    loaded = pyarctic.catalog("demo").load_table(tuple(store.name.split(".")[1:]))
    loaded.maintenance.expire_snapshots().by_ids(old).commit()


def test_the_last_of_many_updates_wins_over_all_partitions(lab: StreamLab, oracle: Oracle) -> None:
    spark, updates = oracle.spark, 50
    order = [n * 37 % updates for n in range(updates)]
    # Of one key, and of a second one whose rows are in the other order.
    rows = [{"id": 1, "part": "a", "value": 10 * n, "n": n} for n in order]
    rows += [{"id": 2, "part": "b", "value": -n, "n": n} for n in reversed(order)]
    for number in range(8):
        lab.add_file(rows[number::8])
    spark.conf.set("spark.sql.files.minPartitionNum", "8")
    try:
        frame = spark.read.schema(COLUMNS).json(lab.source.as_uri())
        assert frame.rdd.getNumPartitions() == 8
        stream = spark.readStream.schema(COLUMNS).json(lab.source.as_uri())
        query = arctic_spark.write_stream(
            stream, NAME, "upsert", ["n"], lab.checkpoint.as_uri(), trigger="available-now", query_name="updates"
        )
        query.awaitTermination()
        assert lab.commits() == once_each(lab.query_id(), 1)
        assert lab.rows() == {(1, "a"): 10 * (updates - 1), (2, "b"): -(updates - 1)}
        assert lab.table.changes().count() == 4 * updates, "every change is kept"

        backwards = frame.selectExpr("id", "part", "value + 1 as value", "-n as n")
        assert backwards.rdd.getNumPartitions() == 8
        assert arctic_spark.write(backwards, NAME, "upsert", ["n"]) is not None
        assert lab.rows() == {(1, "a"): 1, (2, "b"): 1}
    finally:
        spark.conf.unset("spark.sql.files.minPartitionNum")


def test_two_drivers_run_one_batch(lab: StreamLab, oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    target = StreamTarget(
        name=NAME,
        table_uuid=lab.table.uuid,
        options=WriteOptions.of("upsert", ["n"], across_partitions=False),
        checkpoint=lab.checkpoint.as_uri(),
        catalogs={},
    )

    def write(batch: int, value: int) -> None:
        rows: DataFrame = oracle.spark.createDataFrame([(1, "a", value, 0)], COLUMNS)
        target.write(rows, batch, {"query": "q"})

    write(7, 1)
    write(7, 2)
    with pytest.raises(Rejected, match="batch 6 comes after batch 7"):
        write(6, 3)  # a driver that is a batch behind, or a checkpoint that was set back
    assert lab.commits() == Counter({("q", "7"): 1})
    # A driver that looked before the other one committed: it writes files, and the commit finds out.
    steps = iter([None, 7])
    with monkeypatch.context() as patched:
        patched.setattr(KeyedTable, "last_step", lambda *_: next(steps))
        write(7, 4)
    assert lab.commits() == Counter({("q", "7"): 1})
    assert lab.rows() == {(1, "a"): 1}
    assert lab.left_operations() == set(), "it took its files away"
    write(8, 5)
    assert lab.commits() == Counter({("q", "7"): 1, ("q", "8"): 1})
    assert lab.rows() == {(1, "a"): 5}
