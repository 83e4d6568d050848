"""The proof that a rewrite kept every row: counts that must balance, and on demand a hash of the content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import polars as pl
import pyarrow as pa

_MODULUS = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Counted while rewriting: rows read, rows that were dead, rows written; and the content hashes of living and written
    rows, if they were asked for."""

    rows_in: int
    rows_deleted: int
    rows_out: int
    hash_in: str | None = None
    hash_out: str | None = None

    def fault(self, rows_removed: int, rows_added: int) -> str | None:
        """Why this does not prove that nothing was lost, or None. The rows removed and added are those the table counts."""
        if self.rows_in != rows_removed:
            return f"{self.rows_in} rows were read, but the replaced files hold {rows_removed}"
        if self.rows_out != rows_added:
            return f"{self.rows_out} rows were written, but the new files hold {rows_added}"
        if self.rows_in - self.rows_deleted != self.rows_out:
            return f"{self.rows_in} rows in − {self.rows_deleted} deleted is not {self.rows_out} rows out"
        if self.hash_in != self.hash_out:
            return f"the content hash of the rows read is {self.hash_in}, that of the rows written {self.hash_out}"
        return None

    def summary(self) -> dict[str, str]:
        """For the snapshot's summary."""
        told = {
            "arctic.rows-in": str(self.rows_in),
            "arctic.rows-deleted": str(self.rows_deleted),
            "arctic.rows-out": str(self.rows_out),
        }
        return told | ({"arctic.content-hash": self.hash_out} if self.hash_out is not None else {})


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
