"""A hash of rows that tells whether two sets of them are the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import polars as pl
import pyarrow as pa

_MODULUS = 1 << 64


class ContentHash:
    """A hash of rows in any order and any division into batches: the sum of the rows' hashes.

    It compares what one process read with what it wrote; Polars does not promise the same hash in another version.
    """

    def __init__(self) -> None:
        self._sum = 0
        self._rows = 0

    def add(self, batch: pa.RecordBatch | pa.Table) -> Self:
        """Take in some rows. Columns must come in the same order each time."""
        if batch.num_rows:
            frame = pl.DataFrame(pl.from_arrow(batch))
            hashes = frame.select(pl.struct(pl.all()).hash()).to_series()
            # Summed in halves: the sum of so many 64-bit numbers would not fit.
            low, high = (hashes & 0xFFFF_FFFF).sum(), (hashes // (1 << 32)).sum()
            self._sum = (self._sum + int(low) + (int(high) << 32)) % _MODULUS
            self._rows += batch.num_rows
        return self

    def text(self) -> str:
        return f"{self._rows}:{self._sum:016x}"

    @classmethod
    def sum_of(cls, texts: Iterable[str]) -> str:
        """The hash of all rows of which these are the hashes, each of some."""
        found = cls()
        for text in texts:
            rows, number = text.split(":")
            found._rows += int(rows)
            found._sum = (found._sum + int(number, 16)) % _MODULUS
        return found.text()
