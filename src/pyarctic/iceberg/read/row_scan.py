"""What every prepared read can do: hand its rows to Arrow, Polars, pandas, DuckDB, or anything that reads Arrow streams."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

import polars as pl
import pyarrow as pa

from pyarctic._html import html_page, html_table
from pyarctic.errors import UsageError, import_extra

if TYPE_CHECKING:
    from collections.abc import Generator

    import duckdb
    import pandas as pd


class RowScan(ABC):
    """A prepared read. It is lazy: rows are read when they are asked for, and every call reads the table again.

    scan = pyarctic.table("demo.shop.orders").scan(["id", "amount"], where="amount > 10")
    scan.to_polars()
    duckdb.sql("select sum(amount) from scan")  # any reader of Arrow streams takes a scan

    Subclasses have `schema` and `batches`.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The Arrow schema of the batches."""

    @abstractmethod
    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows; memory is bounded, whatever the size of the table."""

    @property
    def table_name(self) -> str:
        """The name of the table that is read."""
        return "a table"

    def count(self) -> int:
        """The number of rows."""
        return sum(batch.num_rows for batch in self.batches())

    def limit(self, rows: int) -> RowScan:
        """The first `rows` rows of this scan. Reading stops as soon as there are enough; which rows are the first is not
        defined, except for `changes()`."""
        is_number = type(rows) is int  # not True
        if not is_number or rows < 0:
            raise UsageError(f"a limit is a number of rows, not {rows!r}", hint="It must be 0 or more.")
        return LimitedScan(self, rows)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The same as `batches`, under PyArrow's name."""
        return self.batches()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.batches()

    def to_reader(self) -> pa.RecordBatchReader:
        """A stream of Arrow batches; memory is bounded."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The rows as an Arrow stream, for any library that speaks the Arrow PyCapsule protocol."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> pa.Table:
        """All rows in memory."""
        return pa.Table.from_batches(self.batches(), schema=self.schema)

    def to_polars(self) -> pl.DataFrame:
        """All rows as a Polars frame."""
        return cast("pl.DataFrame", pl.from_arrow(self.to_arrow()))

    def to_pandas(self, **options: Any) -> pd.DataFrame:
        """All rows as a pandas frame; options as in `pyarrow.Table.to_pandas`."""
        import_extra("pandas", "pandas")
        return self.to_arrow().to_pandas(**options)

    def to_duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """A relation of DuckDB, of this connection or the default one. Every query on it reads the table, with bounded
        memory."""
        module = import_extra("duckdb", "duckdb")
        relation: duckdb.DuckDBPyRelation = (connection or module).from_arrow(self)
        return relation

    def _repr_html_(self) -> str:
        rows = [(field.name, str(field.type), None if field.nullable else "required") for field in self.schema]
        return html_page(repr(self).strip("<>"), html_table(("column", "type", ""), rows))


class LimitedScan(RowScan):
    """The first rows of another scan."""

    __slots__ = ("_rows", "_scan")

    def __init__(self, scan: RowScan, rows: int) -> None:
        self._scan = scan
        self._rows = rows

    def __repr__(self) -> str:
        return f"<{repr(self._scan).strip('<>')} limit {self._rows}>"

    @property
    def schema(self) -> pa.Schema:
        return self._scan.schema

    @property
    def table_name(self) -> str:
        return self._scan.table_name

    def batches(self) -> Iterator[pa.RecordBatch]:
        left = self._rows
        if not left:
            return
        with closing(cast("Generator[pa.RecordBatch]", self._scan.batches())) as batches:
            for batch in batches:
                yield batch.slice(0, left)
                left -= min(batch.num_rows, left)
                if not left:
                    return

    def count(self) -> int:
        return min(self._scan.count(), self._rows) if self._rows else 0
