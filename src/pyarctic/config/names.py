"""Names of catalogs and tables: `catalog.database.table`, everywhere."""

from __future__ import annotations

from dataclasses import dataclass

from pyarctic.errors import UsageError

NAME_HINT = "write it as catalog.database.table, for example demo.shop.orders"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableName:
    """A table by its full name; `str()` gives back what was parsed."""

    catalog: str
    namespace: tuple[str, ...]
    table: str

    def __str__(self) -> str:
        return ".".join((self.catalog, *self.namespace, self.table))

    @property
    def identifier(self) -> tuple[str, ...]:
        """The name as the catalog itself knows it."""
        return (*self.namespace, self.table)


def parse_table_name(name: str) -> TableName:
    """Take `catalog.database.table` apart; the database may have several parts."""
    if not isinstance(name, str):
        raise UsageError(f"a table name is a text, not {name!r}", hint=NAME_HINT)
    parts = tuple(part.strip() for part in name.split("."))
    if not all(parts):
        raise UsageError(f"{name!r} is not a table name: a part is empty", hint=NAME_HINT, name=name)
    if len(parts) < 3:
        raise UsageError(f"{name!r} is not a full table name: it has {len(parts)} of the 3 parts", hint=NAME_HINT, name=name)
    return TableName(catalog=parts[0], namespace=parts[1:-1], table=parts[-1])


def catalog_name_fault(name: str) -> str | None:
    """Why `name` cannot name a catalog, or None when it can."""
    if not name:
        return "a catalog name cannot be empty"
    if "." in name or any(letter.isspace() for letter in name):
        # The first dot ends the catalog in a table name, so such a catalog could never be addressed.
        return "a catalog name cannot contain dots or spaces"
    return None


def check_catalog_name(name: str) -> str:
    """Return the name, or raise when no table name could ever refer to such a catalog."""
    fault = catalog_name_fault(name)
    if fault is not None:
        raise UsageError(f"{name!r}: {fault}", name=name)
    return name
