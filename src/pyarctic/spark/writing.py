"""Frames into tables. Spark brings the rows of a key together and in order, executors write files, the driver commits."""

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
from pyarctic.spark.executors import reach_executors, sent, slots
from pyarctic.spark.reading import read
from pyarctic.spark.schemas import arrow_schema, quoted, spark_schema
from pyarctic.spark.shipping import is_remote
from pyarctic.tables import Table, open_table
from pyarctic.tables.write import IS_OLD, CommitNote, DistributedWriter, PreparedWrite, WriterAssignment, WriterResult

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

_WRITER = "_arctic_writer"
_BATCH_ROWS = 64 << 10
_ADAPTIVE = "spark.sql.adaptive.enabled"
_IS_AFTER = "_change_action NOT IN ('DELETE', 'UPDATE_BEFORE')"
"""Of two images of one update the later one."""


def write(
    df: DataFrame,
    name: str,
    mode: str = "insert",
    order_by: Sequence[str] = (),
    *,
    across_partitions: bool = False,
    replace: str = "table",
    where: str | None = None,
) -> int | None:
    """Write a frame by one commit; gives the snapshot, or None if there was nothing to write. Modes are those of
    `Table.write`.

    `order_by` are columns that tell which of several rows with one key comes later; those that the table does not have are
    used for that and not written. Without them a key may come once."""
    with about(table=name):
        options = WriteOptions.of(mode, order_by, across_partitions, replace, where)
        if df.isStreaming:
            raise UsageError("the frame is a stream", hint="Use write_stream for it.")
    return write_frame(df, open_table(name), options)


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """How a frame is written."""

    mode: str = "insert"
    order_by: tuple[str, ...] = ()
    across_partitions: bool = False
    replace: str = "table"
    where: str | None = None

    @classmethod
    def of(
        cls, mode: str, order_by: Sequence[str], across_partitions: bool, replace: str = "table", where: str | None = None
    ) -> WriteOptions:
        if isinstance(order_by, str):
            raise UsageError(f"order_by is a list of columns, not the text {order_by!r}", hint=f"Write [{order_by!r}].")
        return cls(mode=mode, order_by=tuple(order_by), across_partitions=across_partitions, replace=replace, where=where)


def write_frame(df: DataFrame, table: Table, options: WriteOptions, note: CommitNote | None = None) -> int | None:
    """Write a frame to an open table, with what the commit has to say beside its files."""
    with about(table=table.name):
        prepared = check_frame(df, table, options)
        return _Job(df.sparkSession, table, prepared, options).run(df, note or CommitNote())


def check_frame(df: DataFrame, table: Table, options: WriteOptions) -> PreparedWrite:
    """Prepare a write; what is wrong with options and columns is told before anything is begun."""
    with about(table=table.name):
        prepared = table.prepare_write(
            options.mode, across_partitions=options.across_partitions, replace=options.replace, where=options.where
        )
        _check_columns(df, table, prepared, options)
        return prepared


def _check_columns(df: DataFrame, table: Table, prepared: PreparedWrite, options: WriteOptions) -> None:
    if missing := [name for name in options.order_by if name not in df.columns]:
        raise UsageError(
            f"order_by names a column that the rows do not have: {missing[0]}", hint=f"They have: {', '.join(df.columns)}."
        )
    if options.order_by and table.kind != "keyed":
        raise UsageError("order_by orders the rows of a key, and the table has none", hint="Leave it out.")
    kinds = dict(df.dtypes)
    if maps := [name for name in options.order_by if "map<" in kinds[name]]:
        raise UsageError(f"column {maps[0]!r} is a map, which has no order", hint="Order by another column.", column=maps[0])
    known = {field.name: field.dataType for field in spark_schema(table.arrow_schema).fields}
    prepared.check_columns(arrow_schema(df.drop(*(name for name in options.order_by if name not in known)).schema))
    _check_types(df, known, (*table.primary_key, *options.order_by) if table.kind == "keyed" else ())


def _check_types(df: DataFrame, known: Mapping[str, DataType], compared: Sequence[str]) -> None:
    """Refuse columns that would mean something else in the table than they do in the frame: instants that gain or lose a
    zone, and, of those by which rows are compared, numbers in texts, and texts that are equal in spite of their letters."""
    from pyspark.sql.types import IntegralType, TimestampNTZType, TimestampType

    for field in df.schema.fields:
        own, wanted = field.dataType, known.get(field.name)
        if wanted is None or own == wanted:
            continue
        zones = (TimestampType, TimestampNTZType)
        is_zoned = isinstance(own, zones) and isinstance(wanted, zones)
        is_strange = field.name in compared and not (isinstance(own, IntegralType) and isinstance(wanted, IntegralType))
        if is_zoned or is_strange:
            raise UsageError(
                f"column {field.name!r} is {own.simpleString()}, which does not fit {wanted.simpleString()}",
                hint=f"Cast it before you write it: .withColumn({field.name!r}, col({field.name!r}).cast(…)).",
                column=field.name,
            )


class _Job:
    """One write on Spark."""

    def __init__(self, spark: SparkSession, table: Table, prepared: PreparedWrite, options: WriteOptions) -> None:
        self._spark = spark
        self._table = table
        self._prepared = prepared
        self._options = options

    def run(self, df: DataFrame, note: CommitNote) -> int | None:
        reach_executors(self._spark)
        looked_up = self._prepared.moved_columns if self._options.across_partitions else ()
        writer = self._prepared.file_writer(self._options.order_by, looked_up)
        with self._described(), _kept(df, bool(looked_up)) as rows:
            if looked_up:
                rows = self._with_old_rows(rows, looked_up)
            results = self._results(self._distributed(rows, bool(looked_up)), writer)
        failed = [result for result in results if result.error is not None]
        if failed:
            self._prepared.abandon(results)
            raise failures.from_document(failed[0].error or {})
        return self._prepared.commit(self._prepared.files_of(results), note)

    def _results(self, rows: DataFrame, writer: DistributedWriter) -> list[WriterResult]:
        try:
            told = rows.mapInArrow(sent(writer, write_rows), "result string").collect()
        except Exception as error:  # PySpark, Py4J and gRPC have their own
            hint = f"Nothing was committed. Files with {writer.operation} in their names may be left."
            raise failures.of_job(error, hint, operation=writer.operation) from error
        return [WriterResult.from_json(json.loads(row["result"])) for row in told]

    def _distributed(self, rows: DataFrame, has_old: bool) -> DataFrame:
        """The rows of a key together and in order; without keys those of a partition together."""
        from pyspark.sql import functions as F  # noqa: N812

        distribution = WriterAssignment.of(self._prepared.view, slots(self._spark))
        if not distribution.columns:
            return rows
        numbered = rows.withColumn(_WRITER, _number(distribution))
        if not distribution.keys:
            return numbered.hint("rebalance", _WRITER).drop(_WRITER)
        if str(self._spark.conf.get(_ADAPTIVE, "true")).lower() == "true":
            together = numbered.repartition(_WRITER)  # as few tasks as the rows need
        else:
            together = numbered.repartition(distribution.writers, _WRITER)
        order = [*distribution.keys, *(name for name in self._options.order_by if name not in distribution.keys)]
        columns = [quoted(name) for name in order]
        if self._options.mode == "cdc":
            columns.append(_IS_AFTER)
        if has_old:
            columns.insert(0, f"NOT {IS_OLD}")
        return together.sortWithinPartitions(*(F.expr(column) for column in columns)).drop(_WRITER)

    def _with_old_rows(self, rows: DataFrame, columns: Sequence[str]) -> DataFrame:
        """Before the rows those that their keys have now, as far as needed to delete them."""
        from pyspark.sql import functions as F  # noqa: N812

        keys = list(self._table.primary_key)
        asked = rows.select([quoted(name) for name in keys]).distinct()
        old = read(self._spark, self._table.name, columns).join(asked, keys, "left_semi")
        marked = old.withColumn(IS_OLD, F.lit(True))
        return rows.withColumn(IS_OLD, F.lit(False)).unionByName(marked, allowMissingColumns=True)

    @contextmanager
    def _described(self) -> Iterator[None]:
        """Named in Spark's own pages."""
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
def _kept(df: DataFrame, is_read_twice: bool) -> Iterator[DataFrame]:
    if not is_read_twice:
        yield df
        return
    kept = df.persist()
    try:
        yield kept
    finally:
        kept.unpersist()


def _number(distribution: WriterAssignment) -> Column:
    """A column with the number of the writer of every row. Python gets the columns it needs, and no others."""
    import pickle

    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.pandas.functions import arrow_udf

    from pyarctic._version import __version__

    data, version = pickle.dumps(distribution), __version__

    def numbers(*columns: pa.Array) -> pa.Array:
        from pyarctic.spark.executors import opened

        return opened(data, version).numbers(columns)

    numbers.__annotations__ = {}
    made: Any = arrow_udf(numbers, "int")  # type: ignore[call-overload]
    return made(*[F.col(quoted(name)) for name in distribution.columns])  # type: ignore[no-any-return]


def write_rows(writer: DistributedWriter, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """On an executor: write the files of a task; gives one row with the result. Wrong rows are a result, too: Spark would
    retry an exception."""
    from pyspark import TaskContext

    context = TaskContext.get()
    task, attempt = (context.partitionId(), context.taskAttemptId()) if context else (0, time.time_ns())
    try:
        result = writer.write(_joined(batches), task, attempt)
    except ArcticError as error:
        if error.retryable:
            raise
        result = WriterResult(files=(), error=failures.to_document(error))
    yield pa.RecordBatch.from_arrays([pa.array([json.dumps(result.to_json())])], ["result"])


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Spark's batches are small; every one of them has its price."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(some.num_rows for some in held) >= _BATCH_ROWS:
            yield pa.concat_batches(held)
            held = []
    if held:
        yield pa.concat_batches(held)
