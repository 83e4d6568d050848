"""Write DataFrames to tables: Spark shuffles rows by key and sorts them, executors write files, the driver commits."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyarctic.errors import ArcticError, UsageError, about
from pyarctic.spark import failures
from pyarctic.spark.executors import executor_function, prepare_executors, task_slots
from pyarctic.spark.reading import read
from pyarctic.spark.schemas import arrow_schema, quote_name, spark_schema
from pyarctic.spark.shipping import is_remote
from pyarctic.tables import ReplaceScope, Table, WriteMode, open_table
from pyarctic.tables.write import (
    IS_OLD,
    CommitNote,
    DistributedWriter,
    PreparedWrite,
    WriterAssignment,
    WriterResult,
    parse_step,
    write_once,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

_WRITER = "_arctic_writer"
_BATCH_ROWS = 64 << 10
_ADAPTIVE = "spark.sql.adaptive.enabled"
_IS_AFTER = "_change_action NOT IN ('DELETE', 'UPDATE_BEFORE')"
"""Sorts the before-image of an update before its after-image."""


def write(
    df: DataFrame,
    name: str,
    mode: WriteMode = "insert",
    order_by: Sequence[str] = (),
    *,
    across_partitions: bool = False,
    replace: ReplaceScope = "table",
    where: str | None = None,
    once: tuple[str, int] | None = None,
) -> int | None:
    """Write a DataFrame in one commit and return the snapshot id, or None if there was nothing to write.

        write(df, "demo.shop.orders", mode="upsert", order_by=["op_ts"])

    Args:
        df: the rows.
        name: the table, `catalog.database.table`.
        mode: "insert", "upsert", "delete", "cdc" or "overwrite", as in `Table.write`.
        order_by: columns that define which of several rows with the same key is the latest. Those that the table does not
            have are not written. Without `order_by` each key may occur only once.
        across_partitions: upsert and delete: also affect rows with the same keys in other partitions.
        replace: overwrite: "table" replaces all rows, "partitions" only the partitions that receive rows.
        where: overwrite: replaces the matching partitions.
        once: a job and a number; nothing is written if the table has this step of the job or a later one.
    """
    with about(table=name):
        options = WriteOptions.of(mode, order_by, across_partitions, replace, where)
        step = None if once is None else parse_step(once)
        if df.isStreaming:
            raise UsageError("the frame is a stream", hint="Use write_stream instead.")
    table = open_table(name)
    if step is None:
        return write_frame(df, table, options)
    with about(table=name):
        prepared = check_frame(df, table, options)
        job = _WriteJob(df.sparkSession, table, prepared, options)
        return write_once(table, prepared, step, lambda note: job.run(df, note))


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """How a frame is written."""

    mode: WriteMode = "insert"
    order_by: tuple[str, ...] = ()
    across_partitions: bool = False
    replace: ReplaceScope = "table"
    where: str | None = None

    @classmethod
    def of(
        cls,
        mode: WriteMode,
        order_by: Sequence[str],
        across_partitions: bool,
        replace: ReplaceScope = "table",
        where: str | None = None,
    ) -> WriteOptions:
        if isinstance(order_by, str):
            raise UsageError(f"order_by is a list of columns, not the string {order_by!r}", hint=f"Use [{order_by!r}].")
        return cls(mode=mode, order_by=tuple(order_by), across_partitions=across_partitions, replace=replace, where=where)


def write_frame(df: DataFrame, table: Table, options: WriteOptions, note: CommitNote | None = None) -> int | None:
    """Write a frame to an open table; `note` is added to the commit."""
    with about(table=table.name):
        prepared = check_frame(df, table, options)
        return _WriteJob(df.sparkSession, table, prepared, options).run(df, note or CommitNote())


def check_frame(df: DataFrame, table: Table, options: WriteOptions) -> PreparedWrite:
    """Prepare a write; wrong options and columns are reported before any work starts."""
    with about(table=table.name):
        prepared = table.prepare_write(
            options.mode, across_partitions=options.across_partitions, replace=options.replace, where=options.where
        )
        _check_columns(df, table, prepared, options)
        return prepared


def _check_columns(df: DataFrame, table: Table, prepared: PreparedWrite, options: WriteOptions) -> None:
    if missing := [name for name in options.order_by if name not in df.columns]:
        raise UsageError(
            f"order_by contains an unknown column: {missing[0]}", hint=f"Existing columns: {', '.join(df.columns)}."
        )
    if options.order_by and table.kind != "keyed":
        raise UsageError("order_by orders the rows of a key, and the table has no key", hint="Omit order_by.")
    types = dict(df.dtypes)
    if maps := [name for name in options.order_by if "map<" in types[name]]:
        raise UsageError(f"column {maps[0]!r} is a map, which has no order", hint="Order by another column.", column=maps[0])
    table_types = {field.name: field.dataType for field in spark_schema(table.arrow_schema).fields}
    prepared.check_columns(arrow_schema(df.drop(*(name for name in options.order_by if name not in table_types)).schema))
    _check_types(df, table_types, (*table.primary_key, *options.order_by) if table.kind == "keyed" else ())


def _check_types(df: DataFrame, table_types: Mapping[str, DataType], compared: Sequence[str]) -> None:
    """Refuse columns whose meaning would change: timestamps that gain or lose a time zone, and, among the columns by which
    rows are compared, numbers as strings, and strings with a case-insensitive collation."""
    from pyspark.sql.types import IntegralType, TimestampNTZType, TimestampType

    for field in df.schema.fields:
        frame_type, table_type = field.dataType, table_types.get(field.name)
        if table_type is None or frame_type == table_type:
            continue
        types = (frame_type, table_type)
        changes_zone = all(isinstance(type_, TimestampType | TimestampNTZType) for type_ in types)
        compares_differently = field.name in compared and not all(isinstance(type_, IntegralType) for type_ in types)
        if changes_zone or compares_differently:
            raise UsageError(
                f"column {field.name!r} is {frame_type.simpleString()}, which does not fit {table_type.simpleString()}",
                hint=f"Cast it first: .withColumn({field.name!r}, col({field.name!r}).cast(…)).",
                column=field.name,
            )


class _WriteJob:
    """Runs one write on Spark."""

    def __init__(self, spark: SparkSession, table: Table, prepared: PreparedWrite, options: WriteOptions) -> None:
        self._spark = spark
        self._table = table
        self._prepared = prepared
        self._options = options

    def run(self, df: DataFrame, note: CommitNote) -> int | None:
        prepare_executors(self._spark)
        looked_up = self._prepared.moved_columns if self._options.across_partitions else ()
        writer = self._prepared.file_writer(self._options.order_by, looked_up)
        with self._job_description(), _persisted(df, bool(looked_up)) as rows:
            if looked_up:
                rows = self._with_old_rows(rows, looked_up)
            results = self._results(self._distribute(rows, bool(looked_up)), writer)
        failed = [result for result in results if result.error is not None]
        if failed:
            self._prepared.abandon(results)
            raise failures.from_document(failed[0].error or {})
        return self._prepared.commit(self._prepared.files_of(results), note)

    def _results(self, rows: DataFrame, writer: DistributedWriter) -> list[WriterResult]:
        try:
            collected = rows.mapInArrow(executor_function(writer, write_rows), "result string").collect()
        except Exception as error:  # PySpark, Py4J and gRPC have different ones
            hint = f"Nothing was committed. Files with {writer.operation} in their names may remain."
            raise failures.job_error(error, hint, operation=writer.operation) from error
        return [WriterResult.from_json(json.loads(row["result"])) for row in collected]

    def _distribute(self, rows: DataFrame, has_old: bool) -> DataFrame:
        """Shuffle rows by key and sort them; without keys, shuffle them by partition."""
        from pyspark.sql import functions as F  # noqa: N812

        assignment = WriterAssignment.of(self._prepared.view, task_slots(self._spark))
        if not assignment.columns:
            return rows
        numbered = rows.withColumn(_WRITER, _writer_number(assignment, rows.columns))
        if not assignment.keys:
            return numbered.hint("rebalance", _WRITER).drop(_WRITER)
        if str(self._spark.conf.get(_ADAPTIVE, "true")).lower() == "true":
            shuffled = numbered.repartition(_WRITER)  # as few tasks as the rows need
        else:
            shuffled = numbered.repartition(assignment.writers, _WRITER)
        order = [*assignment.keys, *(name for name in self._options.order_by if name not in assignment.keys)]
        columns = [quote_name(name) for name in order]
        if self._options.mode == "cdc":
            columns.append(_IS_AFTER)
        if has_old:
            columns.insert(0, f"NOT {IS_OLD}")
        return shuffled.sortWithinPartitions(*(F.expr(column) for column in columns)).drop(_WRITER)

    def _with_old_rows(self, rows: DataFrame, columns: Sequence[str]) -> DataFrame:
        """Add the current rows of the same keys, with the columns needed to delete them."""
        from pyspark.sql import functions as F  # noqa: N812

        keys = list(self._table.primary_key)
        written_keys = rows.select([quote_name(name) for name in keys]).distinct()
        old = read(self._spark, self._table.name, columns).join(written_keys, keys, "left_semi")
        flagged = old.withColumn(IS_OLD, F.lit(True))
        return rows.withColumn(IS_OLD, F.lit(False)).unionByName(flagged, allowMissingColumns=True)

    @contextmanager
    def _job_description(self) -> Iterator[None]:
        """Set the description of the job in Spark's user interface."""
        if is_remote(self._spark):
            yield
            return
        context = self._spark.sparkContext
        before = context.getLocalProperty("spark.job.description")
        context.setJobDescription(f"arctic: {self._options.mode} into {self._table.name}")
        try:
            yield
        finally:
            context.setLocalProperty("spark.job.description", before)  # type: ignore[arg-type]  # None removes it


@contextmanager
def _persisted(df: DataFrame, is_read_twice: bool) -> Iterator[DataFrame]:
    if not is_read_twice:
        yield df
        return
    persisted = df.persist()
    try:
        yield persisted
    finally:
        persisted.unpersist()


def _writer_number(assignment: WriterAssignment, given: Sequence[str]) -> Column:
    """A column with the number of the writer of each row. Only the columns it needs are sent to Python; those that the rows
    lack are null."""
    import pickle

    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.pandas.functions import arrow_udf

    from pyarctic._version import __version__

    data, version = pickle.dumps(assignment), __version__

    def numbers(*columns: pa.Array) -> pa.Array:
        from pyarctic.spark.executors import open_payload

        return open_payload(data, version).numbers(columns)

    numbers.__annotations__ = {}
    function: Any = arrow_udf(numbers, "int")  # type: ignore[call-overload]
    columns = [F.col(quote_name(name)) if name in given else F.lit(None).cast("string") for name in assignment.columns]
    return function(*columns)  # type: ignore[no-any-return]


def write_rows(writer: DistributedWriter, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """On an executor: write the files of a task and return their names. Errors in the rows are returned too, because Spark
    would retry an exception."""
    from pyspark import TaskContext

    context = TaskContext.get()
    task, attempt = (context.partitionId(), context.taskAttemptId()) if context else (0, time.time_ns())
    try:
        result = writer.write(_concat_batches(batches), task, attempt)
    except ArcticError as error:
        if error.retryable:
            raise
        result = WriterResult(files=(), error=failures.to_document(error))
    yield pa.RecordBatch.from_arrays([pa.array([json.dumps(result.to_json())])], ["result"])


def _concat_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Concatenate Spark's small batches, because each batch has a fixed cost."""
    pending: list[pa.RecordBatch] = []
    for batch in batches:
        pending.append(batch)
        if sum(batch.num_rows for batch in pending) >= _BATCH_ROWS:
            yield pa.concat_batches(pending)
            pending = []
    if pending:
        yield pa.concat_batches(pending)
