"""Keys that change their partition: they are unique within a partition only, so the old row must be deleted where it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl
import pyarrow as pa
from pyiceberg.schema import Schema

from pyarctic.iceberg.manifest import PartitionDecoder
from pyarctic.tables.write.arrow_rows import fit_to_schema
from pyarctic.tables.write.fanout import Fanout

_PARTITION, _ROUND = "\0partition", "\0round"


class Moves:
    """Where the keys of a write are now: in the table, and then where its own rows have brought them."""

    def __init__(self, schema: Schema, keys: Sequence[str], found: pa.Table) -> None:
        """`found`: the rows of the table that have one of the keys, as far as needed to delete them."""
        self._schema = schema
        self._keys = list(keys)
        self._columns = found.schema.names
        self._rows = pl.DataFrame(found)
        self._located: pl.DataFrame | None = None

    def chunks(self, rows: pa.RecordBatch, out: Fanout) -> Iterator[pa.RecordBatch]:
        """The rows in parts in which no key moves; the order of one key's rows is kept."""
        frame = self._frame(rows)
        partition = pl.col(_PARTITION)
        moves = (partition != partition.shift(1)).fill_null(value=False).cum_sum().over(self._keys)
        rounds = frame.with_columns(self._partitions(frame, out)).select(moves.alias(_ROUND)).to_series()
        for number in range(int(rounds.max() or 0) + 1):  # type: ignore[arg-type]  # a number
            yield rows.filter(pa.array((rounds == number).to_numpy()))

    def leave(self, rows: pa.RecordBatch, out: Fanout, *, arrives: bool) -> pa.RecordBatch:
        """The old rows of these keys that must be deleted: all of them, or, if the new rows arrive somewhere, those in other
        partitions."""
        located = self._rows if self._located is None else self._located
        if self._located is None:
            located = located.with_columns(self._partitions(located, out))
        new = self._frame(rows)
        new = new.with_columns(self._partitions(new, out)).unique(self._keys, keep="last", maintain_order=True)
        old = located.join(new, on=self._keys, how="semi")
        stay = located.join(new, on=self._keys, how="anti")
        self._located = pl.concat([stay, new]) if arrives else stay
        if arrives:
            old = old.join(new.select(*self._keys, _PARTITION), on=[*self._keys, _PARTITION], how="anti")
        return self._batch(old.drop(_PARTITION))

    def _frame(self, rows: pa.RecordBatch) -> pl.DataFrame:
        return pl.DataFrame(pa.Table.from_batches([rows]).select(self._columns)).cast(self._rows.schema)

    def _partitions(self, frame: pl.DataFrame, out: Fanout) -> pl.Series:
        """The partition of every row, as text: two equal numbers may be different partitions."""
        places = out.places(self._batch(frame))
        keys = [PartitionDecoder.key_of(values) for values in places.tuples]
        return pl.Series(_PARTITION, keys, pl.String).gather(places.codes)

    def _batch(self, frame: pl.DataFrame) -> pa.RecordBatch:
        table = frame.to_arrow(compat_level=pl.CompatLevel.oldest()).combine_chunks()
        batches = table.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
        return fit_to_schema(batches[0], self._schema, fill=True)
