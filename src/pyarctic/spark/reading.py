"""Tables as DataFrames: rows of files that nothing was done to come through Spark's own reader, all others through ours.

A frame shows the table as it was when it was made, whenever Spark gets to read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from pyarctic.spark.executors import reach_executors, sent, slots
from pyarctic.spark.schemas import for_spark, quoted, schema_with_ids, spark_schema
from pyarctic.tables import open_table
from pyarctic.tables.read import ReadPlan, Split, SplitReader, SplitSizes, plan_splits

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

OWN_READER = "spark.arctic.read.own-reader"
"""A setting of the session: `false` reads all files with PyArctic, for storage that Spark itself cannot reach."""
_READER = {
    # Paths are taken as they are: neither patterns nor partitions are looked for in them.
    "__globPaths__": "false",
    "recursiveFileLookup": "true",
    # A session may have other settings; a table's rows do not depend on them.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
}
_FIELD_IDS = "spark.sql.parquet.fieldId.read.enabled"


def read(
    spark: SparkSession,
    name: str,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    store: str = "merged",
    snapshot_id: int | None = None,
    as_of: datetime | None = None,
    ref: str | None = None,
) -> DataFrame:
    """A table, or one of its stores, as a frame. Say here what to read, by `columns` and `where`: what Spark needs later it
    does not tell PyArctic. The rest is as in `Table.scan`."""
    scan = open_table(name).scan(columns, where, snapshot_id, ref, as_of, store=store)
    uses_own = str(spark.conf.get(OWN_READER, "true")).lower() != "false"
    division = plan_splits(scan, SplitSizes(readers=slots(spark)), allow_plain=uses_own)  # type: ignore[arg-type]
    parts = [*_plain(spark, division), *_merged(spark, division)]
    if not parts:
        return spark.createDataFrame([], spark_schema(division.schema))
    return reduce(lambda some, more: some.unionByName(more), parts)


def view(spark: SparkSession, name: str, view_name: str | None = None, **options: object) -> str:
    """Make a table known to SQL as it is now, under its last name or another; gives that name. Options are those of `read`.
    Call it again to see newer rows."""
    known = view_name or name.rsplit(".", 1)[-1]
    read(spark, name, **options).createOrReplaceTempView(known)  # type: ignore[arg-type]
    return known


def _plain(spark: SparkSession, division: ReadPlan) -> Iterator[DataFrame]:
    if not division.plain_files:
        return
    from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

    spark.conf.set(_FIELD_IDS, "true")  # for frames that carry ids; others are read by name as ever
    schema, names = schema_with_ids(division.plain_schema, own_names=division.names_are_stable)
    frame = spark.read.schema(schema).options(**_READER).parquet(*division.plain_files)
    kinds = dict(frame.dtypes)
    columns = {name: _unskipped(F.col(quoted(own)), kinds[own]) for name, own in names.items()}
    frame = frame.select([column.alias(name, metadata={}) for name, column in columns.items()])
    if division.condition is not None:
        frame = frame.where(division.condition)
    yield frame.select([quoted(name) for name in division.schema.names])


def _unskipped(column: Column, kind: str) -> Column:
    """A column by which Spark skips no row group if it may have NaN: the bounds in files say nothing of NaN, and Spark takes
    it for the largest number."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.nanvl(column, F.lit(float("nan")).cast(kind)) if kind in ("float", "double") else column


def _merged(spark: SparkSession, division: ReadPlan) -> Iterator[DataFrame]:
    if not division.splits:
        return
    reach_executors(spark)
    count = len(division.splits)
    work = sent((division.reader, division.splits, for_spark(division.schema)), read_portions)
    yield spark.range(0, count, 1, count).mapInArrow(work, spark_schema(division.schema))


def read_portions(
    thing: tuple[SplitReader, Sequence[Split], pa.Schema], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """On an executor: the rows of some portions, named by their numbers."""
    reader, portions, schema = thing
    for batch in batches:
        for number in batch.column(0).to_pylist():
            for rows in reader.batches(portions[number]):
                yield rows if rows.schema.equals(schema) else rows.cast(schema)
