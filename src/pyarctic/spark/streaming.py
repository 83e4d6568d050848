"""Streams into tables, exactly once: every batch is one commit, and the table itself remembers the last one of each query.

Spark may run a batch again, after a crash or a lost answer. The table's property `arctic.stream.<query id>` is set by the
same commit that makes the batch's rows visible, and no commit is taken for a batch that it says is done.
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
from pyarctic.spark.sql_functions import declare
from pyarctic.spark.writing import WriteOptions, check_frame, write_frame
from pyarctic.tables import Table, open_table
from pyarctic.tables.write import CommitNote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DEFAULT_TRIGGER = "5 seconds"
AVAILABLE_NOW = "available-now"
_MODES = ("insert", "upsert", "delete", "cdc")
_QUERY, _BATCH = "arctic.stream.query-id", "arctic.stream.batch-id"


def write_stream(
    df: DataFrame,
    name: str,
    mode: str = "insert",
    order_by: Sequence[str] = (),
    checkpoint: str | None = None,
    *,
    trigger: str = DEFAULT_TRIGGER,
    across_partitions: bool = False,
    query_name: str | None = None,
) -> StreamingQuery:
    """Start a query that writes a stream to a table, each batch by one commit, exactly once.

    `checkpoint` is the folder in which Spark keeps how far the stream is: a query that is started again with it goes on
    where it was. `trigger` is how often to look for new rows, or "available-now" to write what there is and end. `order_by`
    is as in `write`: it orders the rows of a key within a batch."""
    from pyspark.errors import IllegalArgumentException

    if not checkpoint:
        raise UsageError(
            "a stream needs a checkpoint",
            hint="A folder of its own: checkpoint='file:///data/checkpoints/orders'.",
            table=name,
        )
    if not df.isStreaming:
        raise UsageError("the frame is not a stream", hint="Use write for it.", table=name)
    if mode not in _MODES:
        raise UsageError(f"unknown mode of a stream: {mode!r}", hint=f"One of: {', '.join(_MODES)}.", table=name)
    with about(table=name):
        options = WriteOptions.of(mode, order_by, across_partitions)
    table = open_table(name)
    check_frame(df, table, options)
    catalogs: Mapping[str, Mapping[str, str]] = {}
    if is_remote(df.sparkSession):  # batches run in a process of the server
        ship(df.sparkSession)
        catalogs = config.known_catalogs()
    target = StreamTarget(name=name, table_uuid=table.uuid, options=options, checkpoint=checkpoint, catalogs=catalogs)
    writer = df.writeStream.foreachBatch(target.function()).option("checkpointLocation", checkpoint)
    if query_name:
        writer = writer.queryName(query_name)
    try:
        writer = writer.trigger(availableNow=True) if trigger == AVAILABLE_NOW else writer.trigger(processingTime=trigger)
    except IllegalArgumentException as cause:
        raise UsageError(
            f"the trigger is not understood: {trigger!r}", hint=f'Say "5 seconds", or "{AVAILABLE_NOW}".', table=name
        ) from cause
    return writer.start()


@dataclass(frozen=True, kw_only=True)
class StreamTarget:
    """Where the batches of a query go. It can be sent to the server of Spark Connect, which runs them."""

    name: str
    table_uuid: str
    options: WriteOptions
    checkpoint: str
    catalogs: Mapping[str, Mapping[str, str]] = field(repr=False)

    def function(self) -> Callable[[DataFrame, int], None]:
        """For `foreachBatch`."""
        known: dict[str, Any] = {}

        def write_batch(batch: DataFrame, batch_id: int) -> None:
            self.write(batch, batch_id, known)

        return write_batch

    def write(self, batch: DataFrame, batch_id: int, known: dict[str, Any]) -> None:
        """Write a batch unless it was written before. `known`: what is remembered from batch to batch."""
        if "query" not in known:
            declare(self.catalogs)
            self._check_checkpoint(batch.sparkSession)
            known["query"] = _query_id(batch.sparkSession, self.checkpoint)
        once = NumberedStep(property=f"arctic.stream.{known['query']}", number=batch_id)
        table = self._opened()
        if self._is_done(table, once):
            return
        note = CommitNote(summary={_QUERY: known["query"], _BATCH: str(batch_id)}, once=once)
        try:
            write_frame(batch, table, self.options, note)
        except Rejected as refusal:
            # Maybe by a driver that was thought dead.
            if refusal.facts.get("reason") != "done-already" or not self._is_done(self._opened(), once):
                raise

    def _is_done(self, table: Table, once: NumberedStep) -> bool:
        """Spark repeats its last batch and no other."""
        last = table.last_step(once.property)
        if last is not None and last > once.number:
            raise Rejected(
                f"batch {once.number} comes after batch {last}, which the table has already",
                hint="The checkpoint was set back, or another driver runs the same query. Use the newest state of the "
                "checkpoint, or a new one.",
                table=self.name,
            )
        return last == once.number

    def _opened(self) -> Table:
        with about(table=self.name):
            table = open_table(self.name)
            if table.uuid != self.table_uuid:
                raise _replaced()
            return table

    def _check_checkpoint(self, spark: SparkSession) -> None:
        """A checkpoint is of one table, and remembers which."""
        place = f"{self.checkpoint.rstrip('/')}/arctic-table"
        try:
            found = [row["value"] for row in spark.read.text(place).collect()]
        except Exception as error:
            if "PATH_NOT_FOUND" not in str(error):
                raise
            found = []
        if not found:
            spark.createDataFrame([(self.table_uuid,)], "value string").coalesce(1).write.mode("overwrite").text(place)
        elif found != [self.table_uuid]:
            with about(table=self.name):
                raise _replaced()


def _replaced() -> Rejected:
    return Rejected(
        "the stream was for another table, which had the name before",
        hint="The table was dropped and made anew. Start the stream again, with a new checkpoint.",
    )


def _query_id(spark: SparkSession, checkpoint: str) -> str:
    """The name that Spark gave the query when it made the checkpoint. A new checkpoint at the same place has another one."""
    lines = spark.read.text(f"{checkpoint.rstrip('/')}/metadata").collect()
    return str(json.loads(lines[0]["value"])["id"])
