"""Keys that move to another partition. Keys are unique only within a partition, so the old row must be deleted there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl
import pyarrow as pa
from pyiceberg.schema import Schema

from pyarctic.iceberg.manifest import PartitionDecoder
from pyarctic.tables.write.arrow_rows import fit_to_schema
from pyarctic.tables.write.fanout import Fanout

_PARTITION = "\0partition"


class PartitionMoves:
    """The rows that the keys of a write have at present: those of the table, and then those of the write itself."""

    def __init__(self, schema: Schema, keys: Sequence[str], rows: pa.Table) -> None:
        """`rows`: the rows of the table with one of the keys, with the columns that are needed to delete them."""
        self._schema = schema
        self._keys = list(keys)
        self._columns = rows.schema.names
        self._rows = pl.DataFrame(rows)
        self._has_partitions = False

    def chunks(self, rows: pa.RecordBatch, out: Fanout) -> Iterator[pa.RecordBatch]:
        """Divide rows such that no key moves within a chunk; the order of the rows of a key is kept."""
        frame = self._to_frame(rows, out)
        partition = pl.col(_PARTITION)
        moves = (partition != partition.shift(1)).fill_null(value=False).cum_sum().over(self._keys)
        numbers = frame.select(moves).to_series()
        for number in range(int(numbers.max() or 0) + 1):  # type: ignore[arg-type]  # a number
            yield rows.filter(pa.array((numbers == number).to_numpy()))

    def replace(self, rows: pa.RecordBatch, out: Fanout, *, inserts: bool) -> pa.RecordBatch:
        """Replace the present rows of the keys of `rows`; gives those that must be deleted: all of them, or, if `rows` are
        inserted, those in other partitions."""
        if not self._has_partitions:
            self._rows, self._has_partitions = self._rows.with_columns(self._partitions(self._rows, out)), True
        new = self._to_frame(rows, out).unique(self._keys, keep="last", maintain_order=True)
        old = self._rows.join(new, on=self._keys, how="semi")
        kept = self._rows.join(new, on=self._keys, how="anti")
        self._rows = pl.concat([kept, new]) if inserts else kept
        if inserts:
            old = old.join(new.select(*self._keys, _PARTITION), on=[*self._keys, _PARTITION], how="anti")
        return self._to_batch(old.drop(_PARTITION))

    def _to_frame(self, rows: pa.RecordBatch, out: Fanout) -> pl.DataFrame:
        """Rows with their partitions, in the columns of the present rows."""
        frame = pl.DataFrame(pa.Table.from_batches([rows]).select(self._columns))
        frame = frame.cast({name: self._rows.schema[name] for name in self._columns})
        return frame.with_columns(self._partitions(frame, out))

    def _partitions(self, frame: pl.DataFrame, out: Fanout) -> pl.Series:
        """The partition of every row as text, because codes of different batches cannot be compared."""
        locations = out.locate(self._to_batch(frame))
        keys = [PartitionDecoder.key_of(values) for values in locations.partitions]
        return pl.Series(_PARTITION, keys, pl.String).gather(locations.codes)

    def _to_batch(self, frame: pl.DataFrame) -> pa.RecordBatch:
        table = frame.to_arrow(compat_level=pl.CompatLevel.oldest()).combine_chunks()
        batches = table.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
        return fit_to_schema(batches[0], self._schema)
