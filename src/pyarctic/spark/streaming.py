"""Write streams to tables, exactly once: every batch is one commit, and the table records the last batch of each query.

Spark may run a batch again, after a crash or a lost response. The table property `arctic.stream.<query id>` is set by the
same commit that makes the rows of the batch visible, and a commit for a batch that is recorded there is rejected.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyarctic import config
from pyarctic.errors import Rejected, UsageError, about
from pyarctic.iceberg.commit import NumberedStep
from pyarctic.spark.shipping import is_remote, ship
from pyarctic.spark.sql_functions import declare_catalogs
from pyarctic.spark.writing import WriteOptions, check_frame, write_frame
from pyarctic.tables import Table, WriteMode, open_table
from pyarctic.tables.write import CommitNote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

DEFAULT_TRIGGER = "5 seconds"
AVAILABLE_NOW = "available-now"
_MODES = ("insert", "upsert", "delete", "cdc")
_QUERY, _BATCH = "arctic.stream.query-id", "arctic.stream.batch-id"


def write_stream(
    df: DataFrame,
    name: str,
    mode: WriteMode = "insert",
    order_by: Sequence[str] = (),
    checkpoint: str | None = None,
    *,
    trigger: str = DEFAULT_TRIGGER,
    across_partitions: bool = False,
    query_name: str | None = None,
) -> StreamingQuery:
    """Start a query that writes a stream to a table, each batch in one commit, exactly once.

        query = write_stream(changes, "demo.shop.orders", "upsert", ["op_ts"], checkpoint="file:///data/checkpoints/orders")

    Args:
        df: a streaming DataFrame.
        name: the table, `catalog.database.table`.
        mode: "insert", "upsert", "delete" or "cdc", as in `Table.write`.
        order_by: as in `write`; it orders the rows of a key within a batch.
        checkpoint: the folder where Spark keeps the progress of the stream; a query that is restarted with it continues
            where it stopped.
        trigger: how often to look for new rows, or "available-now" to write the available rows and end.
        across_partitions: as in `write`.
        query_name: the name of the query in Spark's user interface.
    """
    checkpoint = _check_stream(df, name, mode, checkpoint)
    with about(table=name):
        options = WriteOptions.of(mode, order_by, across_partitions)
    table = open_table(name)
    check_frame(df, table, options)
    catalogs: Mapping[str, Mapping[str, str]] = {}
    if is_remote(df.sparkSession):  # batches run in a process on the server
        ship(df.sparkSession)
        catalogs = config.known_catalogs()
    target = StreamTarget(name=name, table_uuid=table.uuid, options=options, checkpoint=checkpoint, catalogs=catalogs)
    writer = df.writeStream.foreachBatch(target.function()).option("checkpointLocation", checkpoint)
    if query_name:
        writer = writer.queryName(query_name)
    return _set_trigger(writer, trigger, name).start()


def _check_stream(df: DataFrame, name: str, mode: str, checkpoint: str | None) -> str:
    """Check the arguments of `write_stream`; returns the checkpoint."""
    if not checkpoint:
        raise UsageError(
            "a stream requires a checkpoint",
            hint="Use a folder for this stream only: checkpoint='file:///data/checkpoints/orders'.",
            table=name,
        )
    if not df.isStreaming:
        raise UsageError("the frame is not a stream", hint="Use write instead.", table=name)
    if mode not in _MODES:
        raise UsageError(f"unknown stream mode: {mode!r}", hint=f"One of: {', '.join(_MODES)}.", table=name)
    return checkpoint


def _set_trigger(writer: DataStreamWriter, trigger: str, name: str) -> DataStreamWriter:
    from pyspark.errors import IllegalArgumentException

    try:
        return writer.trigger(availableNow=True) if trigger == AVAILABLE_NOW else writer.trigger(processingTime=trigger)
    except IllegalArgumentException as cause:
        raise UsageError(
            f"invalid trigger: {trigger!r}", hint=f'Use an interval like "5 seconds", or "{AVAILABLE_NOW}".', table=name
        ) from cause


@dataclass(frozen=True, kw_only=True)
class StreamTarget:
    """The target of a streaming query. It can be pickled for a Spark Connect server, which runs the batches."""

    name: str
    table_uuid: str
    options: WriteOptions
    checkpoint: str
    catalogs: Mapping[str, Mapping[str, str]] = field(repr=False)

    def function(self) -> Callable[[DataFrame, int], None]:
        """The function for `foreachBatch`."""
        state: dict[str, Any] = {}

        def write_batch(batch: DataFrame, batch_id: int) -> None:
            self.write(batch, batch_id, state)

        return write_batch

    def write(self, batch: DataFrame, batch_id: int, state: dict[str, Any]) -> None:
        """Write a batch unless it was written before. `state` is kept from batch to batch."""
        if "query" not in state:
            declare_catalogs(self.catalogs)
            self._check_checkpoint(batch.sparkSession)
            state["query"] = _query_id(batch.sparkSession, self.checkpoint)
        once = NumberedStep(property=f"arctic.stream.{state['query']}", number=batch_id)
        table = self._open_table()
        if self._is_done(table, once):
            return
        note = CommitNote(summary={_QUERY: state["query"], _BATCH: str(batch_id)}, once=once)
        try:
            write_frame(batch, table, self.options, note)
        except Rejected as refusal:
            # Perhaps by another driver that was believed to be dead.
            if refusal.facts.get("reason") != "done-already" or not self._is_done(self._open_table(), once):
                raise

    def _is_done(self, table: Table, once: NumberedStep) -> bool:
        """Whether the table has this batch. Spark repeats only its last batch, so an older one is an error."""
        last = table.last_step(once.property)
        if last is not None and last > once.number:
            raise Rejected(
                f"batch {once.number} comes after batch {last}, which the table already has",
                hint="The checkpoint was reset, or another driver runs the same query. Use the latest state of the "
                "checkpoint, or a new one.",
                table=self.name,
            )
        return last == once.number

    def _open_table(self) -> Table:
        with about(table=self.name):
            table = open_table(self.name)
            if table.uuid != self.table_uuid:
                raise _table_replaced()
            return table

    def _check_checkpoint(self, spark: SparkSession) -> None:
        """Record the table in the checkpoint, which belongs to one table only, or check that it is the same."""
        path = f"{self.checkpoint.rstrip('/')}/arctic-table"
        try:
            uuids = [row["value"] for row in spark.read.text(path).collect()]
        except Exception as error:
            if "PATH_NOT_FOUND" not in str(error):
                raise
            uuids = []
        if not uuids:
            spark.createDataFrame([(self.table_uuid,)], "value string").coalesce(1).write.mode("overwrite").text(path)
        elif uuids != [self.table_uuid]:
            with about(table=self.name):
                raise _table_replaced()


def _table_replaced() -> Rejected:
    return Rejected(
        "the stream was for another table that had this name before",
        hint="The table was dropped and created again. Restart the stream with a new checkpoint.",
    )


def _query_id(spark: SparkSession, checkpoint: str) -> str:
    """The id that Spark gave the query when it created the checkpoint; a new checkpoint in the same folder has another."""
    lines = spark.read.text(f"{checkpoint.rstrip('/')}/metadata").collect()
    return str(json.loads(lines[0]["value"])["id"])
