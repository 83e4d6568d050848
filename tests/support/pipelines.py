"""Tables read through Spark and through Arrow, side by side."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import pyarctic
import pyarctic.spark as arctic_spark
from pyarctic.tables.read.splits import ReadPlan, SplitSizes, plan_splits
from tests.oracle.compare import share_catalog
from tests.oracle.session import Oracle
from tests.support.integrity import local

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def multiset(rows: pa.Table) -> Counter[str]:
    """Rows as Python values; timestamps are compared as instants, independent of their time zones."""
    return Counter(repr([(name, _plain(value)) for name, value in row.items()]) for row in rows.to_pylist())


def frame_rows(frame: DataFrame) -> Counter[str]:
    return multiset(frame.toArrow())


def assert_read_alike(oracle: Oracle, table: str, **options: Any) -> DataFrame:
    """`arctic_spark.read` returns the rows of `Table.scan`; returns the frame."""
    share_catalog(oracle)
    name = f"{oracle.name}.{table}"
    scanned = pyarctic.table(name).scan(**options).to_arrow()
    frame = arctic_spark.read(oracle.spark, name, **options)
    read = frame.toArrow()
    assert read.schema.names == scanned.schema.names
    spark, arrow = multiset(read), multiset(scanned)
    assert spark == arrow, f"{options} only Spark's: {[*(spark - arrow)][:3]}, only Arrow's: {[*(arrow - spark)][:3]}"
    return frame


def files_read_by_spark(frame: DataFrame) -> set[str]:
    """The files that Spark reads with its own reader."""
    return {local(path) for path in frame.inputFiles()}


def read_plan_of(oracle: Oracle, table: str, **options: Any) -> ReadPlan:
    scan: Any = pyarctic.table(f"{oracle.name}.{table}").scan(**options)
    return plan_splits(scan, SplitSizes(readers=2))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return [(name, _plain(inner)) for name, inner in value.items()]
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat()
    return value
