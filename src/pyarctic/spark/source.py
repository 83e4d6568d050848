"""The format "arctic": tables and streams of changes by Spark's own words.

Spark makes the source's objects in Python processes of its own. Its class is made in a function, so that it goes there by
value, with the catalogs it closes over.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

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
from pyarctic.spark.executors import opened
from pyarctic.spark.schemas import for_spark, spark_schema
from pyarctic.spark.sql_functions import declare
from pyarctic.tables import KeyedTable, open_table
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
_READERS = 8
"""How many tasks read at a time: a source is not told."""


def register_source(spark: SparkSession) -> None:
    """Make the format known to a session, with the catalogs that are known now."""
    spark.dataSource.register(source_class(config.known_catalogs()))


def source_class(catalogs: Mapping[str, Mapping[str, str]]) -> type[DataSource]:
    class ArcticSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "arctic"

        def _door(self) -> Any:
            from pyarctic.spark.source import Door

            return Door(catalogs, dict(self.options))

        def schema(self) -> StructType:
            return self._door().schema()  # type: ignore[no-any-return]

        def reader(self, schema: StructType) -> DataSourceReader:
            return self._door().reader(schema)  # type: ignore[no-any-return]

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
            return self._door().stream_reader(schema)  # type: ignore[no-any-return]

        def writer(self, schema: StructType, overwrite: bool) -> Any:  # noqa: ARG002
            self._door().refuse_write("write")

        def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: ARG002, N802
            self._door().refuse_write("write_stream")

    return ArcticSource


@contextmanager
def _told() -> Iterator[None]:
    """Spark shows of an error its text only: the hint becomes part of it."""
    try:
        yield
    except ArcticError as error:
        hint, error.hint = error.hint, None
        if hint:
            error.message = f"{error.message}. {hint}"
            error.args = (error.message,)
        raise


class Door:
    """What the options of a source ask for."""

    def __init__(self, catalogs: Mapping[str, Mapping[str, str]], options: Mapping[str, str]) -> None:
        declare(catalogs)
        self._options = {key.lower(): value for key, value in options.items()}
        if "path" not in self._options:
            raise UsageError("no table is named", hint='Name it: .load("catalog.database.table").')
        self._name = self._options["path"]

    @_told()
    def schema(self) -> StructType:
        # Spark does not say whether it asks for a stream.
        return spark_schema(self._stream(None).schema if "from" in self._options else self._scan(None).schema)

    @_told()
    def reader(self, schema: StructType) -> DataSourceReader:
        self._check_options(_READ_OPTIONS)
        return _Reader(self, schema.names)

    @_told()
    def stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        if "from" not in self._options:
            raise UsageError(
                "where the stream begins is not said",
                hint='Say .option("from", "earliest"), "latest", or the id of a snapshot of the change store.',
                table=self._name,
            )
        self._check_options(_STREAM_OPTIONS)
        return _StreamReader(self, schema.names, self._options["from"])

    @_told()
    def refuse_write(self, function: str) -> None:
        raise UsageError(
            'format("arctic") does not write',
            hint="Rows of a key must come together and in order before they are written, and a source cannot see to that. "
            f"Use pyarctic.spark.{function}(df, …).",
            table=self._name,
        )

    def division(self, columns: Sequence[str]) -> ReadPlan:
        return plan_splits(self._scan(columns), SplitSizes(readers=_READERS), allow_plain=False)

    def stream(self, columns: Sequence[str]) -> ChangeStream:
        """The stream of the table as it is now."""
        return self._stream(columns)

    def _scan(self, columns: Sequence[str] | None) -> Any:
        options = self._options
        if columns is None and "columns" in options:
            columns = [name.strip() for name in options["columns"].split(",")]
        return open_table(self._name).scan(
            columns,
            options.get("where"),
            _number(options, "snapshot-id"),
            options.get("ref"),
            _moment(options, "as-of-timestamp"),
            store=options.get("store", "merged"),
        )

    def _stream(self, columns: Sequence[str] | None) -> ChangeStream:
        options = self._options
        table = open_table(self._name)
        if not isinstance(table, KeyedTable):
            raise UsageError("a table without a primary key keeps no changes to stream", table=self._name)
        limits = ReadLimits(
            rows=_number(options, "max-rows-per-batch"),
            files=_number(options, "max-files-per-batch"),
            fail_on_gaps=options.get("fail-on-gaps", "true").lower() != "false",
        )
        if columns is None and "columns" in options:
            columns = [name.strip() for name in options["columns"].split(",")]
        return ChangeStream(table, columns, limits)

    def _check_options(self, known: set[str]) -> None:
        if unknown := sorted(self._options.keys() - known):
            raise UsageError(
                f"unknown option: {unknown[0]}", hint=f"There are: {', '.join(sorted(known - {'path'}))}.", table=self._name
            )


class _Portion(InputPartition):
    def __init__(self, reader: SplitReader, portion: Split) -> None:
        super().__init__(None)
        # Opened on the executor only, once it is known that it is of the driver's version.
        self.data, self.version = pickle.dumps((reader, portion)), __version__


def _rows(partition: InputPartition, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    # Spark takes columns by their places, whatever their names.
    if isinstance(partition, _Portion):
        reader, portion = opened(partition.data, partition.version)
        for batch in reader.batches(portion):
            chosen = batch.select(list(names))
            yield chosen.cast(for_spark(chosen.schema))


class _Reader(DataSourceReader):
    """It takes no filters: Spark 4.1 keeps what a reader planned for one query of a frame, and uses it for the next query of
    that frame, which may have other filters, or none."""

    def __init__(self, door: Door, columns: Sequence[str]) -> None:
        self._door, self._columns = door, list(columns)

    def partitions(self) -> Sequence[InputPartition]:
        division = self._door.division(self._columns)
        return [_Portion(division.reader, portion) for portion in division.splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(partition, self._columns)


class _StreamReader(DataSourceStreamReader):
    """Spark asks for the newest offset without saying where the query is. It does say so by `partitions`, before all else
    when a query is started again; if it has not, the query is new."""

    def __init__(self, door: Door, columns: Sequence[str], origin: str) -> None:
        self._door, self._columns, self._origin = door, list(columns), origin
        self._begun: StreamPosition | None = None
        self._at: StreamPosition | None = None

    @_told()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        if self._begun is None:
            self._begun = self._door.stream(self._columns).beginning(self._origin)
        return self._begun.to_json()

    @_told()
    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        stream = self._door.stream(self._columns)
        # What is told here is read before Spark asks again.
        if self._at is None:
            self._at = stream.first(StreamPosition.from_json(self.initialOffset()))
        else:
            self._at = stream.following(self._at)
        return self._at.to_json()

    @_told()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._at = StreamPosition.from_json(end)
        found = self._door.stream(self._columns).splits(StreamPosition.from_json(start), self._at)
        return [_Portion(reader, portion) for reader, portion in found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(partition, self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing has to be kept or removed."""


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.lstrip("-").isdigit():
        raise UsageError(f"option {name} is a number, not {text!r}", hint="Leave it out, or give digits.")
    return int(text)


def _moment(options: Mapping[str, str], name: str) -> datetime | None:
    text = options.get(name)
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError as cause:
        raise UsageError(
            f"option {name} is not an instant: {text!r}", hint="Write it like 2026-11-30T12:00:00+00:00."
        ) from cause
