"""Read tables as DataFrames: files without deletes or changes by Spark's own Parquet reader, all others by PyArctic.

A frame shows the table as it was when the frame was created, even if Spark reads it later.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from pyarctic.spark.executors import executor_function, prepare_executors, task_slots
from pyarctic.spark.schemas import quote_name, schema_with_ids, spark_arrow_schema, spark_schema
from pyarctic.tables import ScanStore, open_table
from pyarctic.tables.read import ReadPlan, Split, SplitReader, SplitSizes, plan_splits

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

OWN_READER = "spark.arctic.read.own-reader"
"""A Spark setting: `false` reads all files with PyArctic, for storage that Spark itself cannot reach."""
_READER_OPTIONS = {
    # Paths are literal: no globs and no partition discovery.
    "__globPaths__": "false",
    "recursiveFileLookup": "true",
    # The rows of a table must not depend on these settings of the session.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
}
_NO_FILESYSTEM = ("No FileSystem for scheme", "FileSystem not found")
"""How Hadoop says that nothing is configured for a scheme, or that its class is missing."""
_FIELD_IDS = "spark.sql.parquet.fieldId.read.enabled"
_LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_LISTING_TASKS_PER_SLOT = 2


def read(
    spark: SparkSession,
    name: str,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    store: ScanStore = "merged",
    snapshot_id: int | None = None,
    as_of: datetime | None = None,
    ref: str | None = None,
) -> DataFrame:
    """Read a table, or one of its stores, as a DataFrame.

        read(spark, "demo.shop.orders", columns=["id", "total"], where="total > 100").show()

    Use `columns` and `where` to limit what is read: projections and filters of the frame are not pushed down to PyArctic.
    The parameters are those of `Table.scan`.
    """
    scan = open_table(name).scan(columns, where, snapshot_id, ref, as_of, store=store)
    uses_spark_reader = str(spark.conf.get(OWN_READER, "true")).lower() != "false"
    sizes = SplitSizes(readers=task_slots(spark))
    plan = plan_splits(scan, sizes, allow_plain=uses_spark_reader)  # type: ignore[arg-type]
    try:
        plain = list(_read_plain_files(spark, plan))
    except Exception as failure:  # its type depends on the kind of session
        if not any(text in str(failure) for text in _NO_FILESYSTEM):
            raise
        _warn_of_own_reader(plan.plain_files[0])
        plan, plain = plan_splits(scan, sizes, allow_plain=False), []  # type: ignore[arg-type]
    parts = [*plain, *_read_splits(spark, plan)]
    if not parts:
        return spark.createDataFrame([], spark_schema(plan.schema))
    return reduce(lambda frame, other: frame.unionByName(other), parts)


def _warn_of_own_reader(path: str) -> None:
    from pyarctic.spark.registering import SessionAdvice

    scheme = path.partition(":")[0]
    warnings.warn(
        f"Spark has no filesystem for {scheme}://, so PyArctic reads all files. To let Spark read files without deletes, "
        f"add hadoop-aws to spark.jars.packages and set spark.hadoop.fs.{scheme}.impl and the keys of the storage; "
        f"{OWN_READER}=false turns this message off.",
        SessionAdvice,
        stacklevel=3,
    )


def view(spark: SparkSession, name: str, view_name: str | None = None, **options: object) -> str:
    """Create a temporary SQL view of the current state of a table and return its name; call it again to see newer rows.

        view(spark, "demo.shop.orders")
        spark.sql("SELECT count(*) FROM orders").show()

    The default name is the last part of the table name. `options` are those of `read`.
    """
    created_name = view_name or name.rsplit(".", 1)[-1]
    read(spark, name, **options).createOrReplaceTempView(created_name)  # type: ignore[arg-type]
    return created_name


def _read_plain_files(spark: SparkSession, plan: ReadPlan) -> Iterator[DataFrame]:
    if not plan.plain_files:
        return
    from pyspark.sql import functions as F  # noqa: N812  # the conventional name

    spark.conf.set(_FIELD_IDS, "true")  # for schemas with field ids; others are still read by name
    schema, names = schema_with_ids(plan.plain_schema, own_names=plan.names_are_stable)
    with _few_listing_tasks(spark):
        frame = spark.read.schema(schema).options(**_READER_OPTIONS).parquet(*plan.plain_files)
    types = dict(frame.dtypes)
    columns = {name: _prevent_skipping(F.col(quote_name(read_as)), types[read_as]) for name, read_as in names.items()}
    frame = frame.select([column.alias(name, metadata={}) for name, column in columns.items()])
    if plan.condition is not None:
        frame = frame.where(plan.condition)
    yield frame.select([quote_name(name) for name in plan.schema.names])


@contextmanager
def _few_listing_tasks(spark: SparkSession) -> Iterator[None]:
    """Spark looks up the sizes of more than 32 files in a job with one task for each of them."""
    before = spark.conf.get(_LISTING_TASKS, None)
    spark.conf.set(_LISTING_TASKS, str(_LISTING_TASKS_PER_SLOT * task_slots(spark)))
    try:
        yield
    finally:
        spark.conf.unset(_LISTING_TASKS) if before is None else spark.conf.set(_LISTING_TASKS, before)


def _prevent_skipping(column: Column, type_: str) -> Column:
    """Keep Spark from skipping row groups by a column that may contain NaN: bounds in files do not cover NaN, which Spark
    treats as the largest number."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.nanvl(column, F.lit(float("nan")).cast(type_)) if type_ in ("float", "double") else column


def _read_splits(spark: SparkSession, plan: ReadPlan) -> Iterator[DataFrame]:
    if not plan.splits:
        return
    prepare_executors(spark)
    count = len(plan.splits)
    work = executor_function((plan.reader, plan.splits, spark_arrow_schema(plan.schema)), read_splits)
    yield spark.range(0, count, 1, count).mapInArrow(work, spark_schema(plan.schema))


def read_splits(
    payload: tuple[SplitReader, Sequence[Split], pa.Schema], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """On an executor: yield the rows of splits, which are given by number."""
    reader, splits, schema = payload
    for batch in batches:
        for number in batch.column(0).to_pylist():
            for rows in reader.batches(splits[number]):
                yield rows if rows.schema.equals(schema) else rows.cast(schema)
