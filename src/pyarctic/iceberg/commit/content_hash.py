"""A hash of rows, to check whether two sets of rows are equal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import polars as pl
import pyarrow as pa

_MODULUS = 1 << 64


class ContentHash:
    """A hash of rows that does not depend on their order or their division into batches: the sum of the rows' hashes.

    It compares what one process read with what it wrote; other versions of Polars may compute other hashes.
    """

    def __init__(self) -> None:
        self._sum = 0
        self._rows = 0

    def add(self, batch: pa.RecordBatch | pa.Table) -> Self:
        """Add rows. Columns must be in the same order in all batches."""
        if batch.num_rows:
            frame = pl.DataFrame(pl.from_arrow(batch))
            hashes = frame.select(pl.struct(pl.all()).hash()).to_series()
            # Summed in halves: the sum of so many 64-bit numbers would not fit.
            low, high = (hashes & 0xFFFF_FFFF).sum(), (hashes // (1 << 32)).sum()
            self._sum = (self._sum + int(low) + (int(high) << 32)) % _MODULUS
            self._rows += batch.num_rows
        return self

    def text(self) -> str:
        """The hash as text, with the number of rows."""
        return f"{self._rows}:{self._sum:016x}"

    @classmethod
    def sum_of(cls, texts: Iterable[str]) -> str:
        """The hash of all rows, given the hashes of disjoint parts of them."""
        total = cls()
        for text in texts:
            rows, part_sum = text.split(":")
            total._rows += int(rows)
            total._sum = (total._sum + int(part_sum, 16)) % _MODULUS
        return total.text()
