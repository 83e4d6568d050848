"""The Spark data source "arctic": read tables and streams of changes with `spark.read` and `spark.readStream`.

Spark creates the objects of a source in separate Python processes. The class is created in a function, so that it is
pickled by value, with the catalogs in its closure.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from pyarctic import config
from pyarctic._version import __version__
from pyarctic.errors import ArcticError, UsageError
from pyarctic.spark.executors import open_payload
from pyarctic.spark.schemas import spark_arrow_schema, spark_schema
from pyarctic.spark.sql_functions import declare_catalogs
from pyarctic.tables import KeyedTable, ScanStore, open_table
from pyarctic.tables.read import (
    ChangeStream,
    ReadLimits,
    ReadPlan,
    Split,
    SplitReader,
    SplitSizes,
    StreamPosition,
    plan_splits,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_READ_OPTIONS = {"path", "columns", "where", "store", "snapshot-id", "as-of-timestamp", "ref"}
_STREAM_OPTIONS = {"path", "columns", "from", "max-rows-per-batch", "max-files-per-batch", "fail-on-gaps"}
_CONCURRENT_READERS = 8
"""How many tasks read concurrently: Spark does not tell a data source."""


def register_source(spark: SparkSession) -> None:
    """Register the format with a session, with the catalogs that are known now."""
    spark.dataSource.register(source_class(config.known_catalogs()))


def source_class(catalogs: Mapping[str, Mapping[str, str]]) -> type[DataSource]:
    class ArcticSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "arctic"

        def _parsed_options(self) -> Any:
            from pyarctic.spark.source import SourceOptions

            return SourceOptions(catalogs, dict(self.options))

        def schema(self) -> StructType:
            return self._parsed_options().schema()  # type: ignore[no-any-return]

        def reader(self, schema: StructType) -> DataSourceReader:
            return self._parsed_options().reader(schema)  # type: ignore[no-any-return]

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
            return self._parsed_options().stream_reader(schema)  # type: ignore[no-any-return]

        def writer(self, schema: StructType, overwrite: bool) -> Any:  # noqa: ARG002
            self._parsed_options().refuse_write("write")

        def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: ARG002, N802
            self._parsed_options().refuse_write("write_stream")

    return ArcticSource


@contextmanager
def _hint_in_message() -> Iterator[None]:
    """Append the hint of an error to its message: Spark shows only the message."""
    try:
        yield
    except ArcticError as error:
        hint, error.hint = error.hint, None
        error.__notes__ = []
        if hint:
            error.message = f"{error.message}. {hint}"
            error.args = (error.message,)
        raise


class SourceOptions:
    """The options of a data source, and what they select."""

    def __init__(self, catalogs: Mapping[str, Mapping[str, str]], options: Mapping[str, str]) -> None:
        declare_catalogs(catalogs)
        self._options = {key.lower(): value for key, value in options.items()}
        if "path" not in self._options:
            raise UsageError("no table is given", hint='Use .load("catalog.database.table").')
        self._name = self._options["path"]

    @_hint_in_message()
    def schema(self) -> StructType:
        # Spark does not say whether this is for a stream.
        return spark_schema(self._stream(None).schema if "from" in self._options else self._scan(None).schema)

    @_hint_in_message()
    def reader(self, schema: StructType) -> DataSourceReader:
        self._check_options(_READ_OPTIONS)
        return _Reader(self, schema.names)

    @_hint_in_message()
    def stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        if "from" not in self._options:
            raise UsageError(
                "the start of the stream is not given",
                hint='Use .option("from", "earliest"), "latest", or a snapshot id of the change store.',
                table=self._name,
            )
        self._check_options(_STREAM_OPTIONS)
        return _StreamReader(self, schema.names, self._options["from"])

    @_hint_in_message()
    def refuse_write(self, function: str) -> None:
        raise UsageError(
            'format("arctic") does not write',
            hint="Rows must be shuffled by key and sorted before they are written, and a data source cannot do that. "
            f"Use pyarctic.spark.{function}(df, …).",
            table=self._name,
        )

    def read_plan(self, columns: Sequence[str]) -> ReadPlan:
        return plan_splits(self._scan(columns), SplitSizes(readers=_CONCURRENT_READERS), allow_plain=False)

    def stream(self, columns: Sequence[str]) -> ChangeStream:
        """The stream of the current state of the table."""
        return self._stream(columns)

    def _scan(self, columns: Sequence[str] | None) -> Any:
        options = self._options
        if columns is None and "columns" in options:
            columns = [name.strip() for name in options["columns"].split(",")]
        return open_table(self._name).scan(
            columns,
            options.get("where"),
            _integer(options, "snapshot-id"),
            options.get("ref"),
            _timestamp(options, "as-of-timestamp"),
            store=cast("ScanStore", options.get("store", "merged")),  # which refuses others
        )

    def _stream(self, columns: Sequence[str] | None) -> ChangeStream:
        options = self._options
        table = open_table(self._name)
        if not isinstance(table, KeyedTable):
            raise UsageError("a table without a primary key has no changes to stream", table=self._name)
        limits = ReadLimits(
            rows=_integer(options, "max-rows-per-batch"),
            files=_integer(options, "max-files-per-batch"),
            fail_on_gaps=options.get("fail-on-gaps", "true").lower() != "false",
        )
        if columns is None and "columns" in options:
            columns = [name.strip() for name in options["columns"].split(",")]
        return ChangeStream(table, columns, limits)

    def _check_options(self, known: set[str]) -> None:
        if unknown := sorted(self._options.keys() - known):
            raise UsageError(
                f"unknown option: {unknown[0]}",
                hint=f"Known options: {', '.join(sorted(known - {'path'}))}.",
                table=self._name,
            )


class _SplitPartition(InputPartition):
    def __init__(self, reader: SplitReader, split: Split) -> None:
        super().__init__(None)
        # Unpickled on the executor, after it has checked that it has the version of the driver.
        self.data, self.version = pickle.dumps((reader, split)), __version__


def _rows(partition: InputPartition, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    # Spark matches columns by position, not by name.
    if isinstance(partition, _SplitPartition):
        reader, split = open_payload(partition.data, partition.version)
        for batch in reader.batches(split):
            selected = batch.select(list(names))
            yield selected.cast(spark_arrow_schema(selected.schema))


class _Reader(DataSourceReader):
    """Reads a table. It does not push filters down: Spark 4.1 keeps the plan of a reader for one query of a frame and reuses
    it for the next query of that frame, which may have other filters."""

    def __init__(self, source: SourceOptions, columns: Sequence[str]) -> None:
        self._source, self._columns = source, list(columns)

    def partitions(self) -> Sequence[InputPartition]:
        read_plan = self._source.read_plan(self._columns)
        return [_SplitPartition(read_plan.reader, split) for split in read_plan.splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(partition, self._columns)


class _StreamReader(DataSourceStreamReader):
    """Reads a stream of changes. Spark calls `latestOffset` without the current position of the query. When a query is
    restarted, Spark first calls `partitions`, which has it; if that was not called, the query is new."""

    def __init__(self, source: SourceOptions, columns: Sequence[str], origin: str) -> None:
        self._source, self._columns, self._origin = source, list(columns), origin
        self._start: StreamPosition | None = None
        self._position: StreamPosition | None = None

    @_hint_in_message()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        if self._start is None:
            self._start = self._source.stream(self._columns).beginning(self._origin)
        return self._start.to_json()

    @_hint_in_message()
    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        stream = self._source.stream(self._columns)
        # Spark reads up to the returned offset before it calls this again.
        if self._position is None:
            self._position = stream.first(StreamPosition.from_json(self.initialOffset()))
        else:
            self._position = stream.following(self._position)
        return self._position.to_json()

    @_hint_in_message()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._position = StreamPosition.from_json(end)
        splits = self._source.stream(self._columns).splits(StreamPosition.from_json(start), self._position)
        return [_SplitPartition(reader, split) for reader, split in splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(partition, self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do."""


def _integer(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.lstrip("-").isdigit():
        raise UsageError(f"option {name} is a number, not {text!r}", hint="Omit it, or use digits.")
    return int(text)


def _timestamp(options: Mapping[str, str], name: str) -> datetime | None:
    text = options.get(name)
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError as cause:
        raise UsageError(
            f"option {name} is not a timestamp: {text!r}", hint="Use the form 2026-11-30T12:00:00+00:00."
        ) from cause
