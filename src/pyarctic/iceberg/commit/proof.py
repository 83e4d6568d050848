"""The proof that a rewrite kept every row: counts that must balance, and on demand a hash of the content."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Counted while rewriting: rows read, rows that were dead, rows written; and the content hashes of living and written
    rows, if they were asked for."""

    rows_in: int
    rows_deleted: int
    rows_out: int
    rows_from_changes: int = 0
    """Of the rows in: those from elsewhere than the replaced files, as the changes of a keyed table are."""
    hash_in: str | None = None
    hash_out: str | None = None

    def fault(self, rows_removed: int, rows_added: int) -> str | None:
        """Why this does not prove that nothing was lost, or None. The rows removed and added are those the table counts."""
        if self.rows_in - self.rows_from_changes != rows_removed:
            return f"{self.rows_in - self.rows_from_changes} rows were read, but the replaced files hold {rows_removed}"
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
        told |= {"arctic.rows-brought": str(self.rows_from_changes)} if self.rows_from_changes else {}
        return told | ({"arctic.content-hash": self.hash_out} if self.hash_out is not None else {})
