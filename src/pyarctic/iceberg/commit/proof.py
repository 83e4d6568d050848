"""The proof that a rewrite kept every row: row counts that must add up, and optionally a hash of the content."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Counts of a rewrite: rows read, deleted rows among them, and rows written; optionally the content hashes of live and
    of written rows."""

    rows_in: int
    rows_deleted: int
    rows_out: int
    rows_from_changes: int = 0
    """Rows among `rows_in` that are not from the replaced files, such as changes of a keyed table."""
    hash_in: str | None = None
    hash_out: str | None = None

    def fault(self, rows_removed: int, rows_added: int) -> str | None:
        """Why this does not prove that no row was lost, or None. `rows_removed` and `rows_added` are the record counts of
        the removed and added files."""
        if self.rows_in - self.rows_from_changes != rows_removed:
            return f"{self.rows_in - self.rows_from_changes} rows were read, but the replaced files have {rows_removed}"
        if self.rows_out != rows_added:
            return f"{self.rows_out} rows were written, but the new files have {rows_added}"
        if self.rows_in - self.rows_deleted != self.rows_out:
            return f"{self.rows_in} rows in − {self.rows_deleted} deleted is not {self.rows_out} rows out"
        if self.hash_in != self.hash_out:
            return f"the content hash of the rows read is {self.hash_in}, that of the rows written {self.hash_out}"
        return None

    def summary(self) -> dict[str, str]:
        """Properties for the snapshot summary."""
        properties = {
            "arctic.rows-in": str(self.rows_in),
            "arctic.rows-deleted": str(self.rows_deleted),
            "arctic.rows-out": str(self.rows_out),
        }
        properties |= {"arctic.rows-brought": str(self.rows_from_changes)} if self.rows_from_changes else {}
        return properties | ({"arctic.content-hash": self.hash_out} if self.hash_out is not None else {})
