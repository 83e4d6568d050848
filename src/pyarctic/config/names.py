"""Names of catalogs and tables: `catalog.database.table`."""

from __future__ import annotations

from dataclasses import dataclass

from pyarctic.errors import UsageError

NAME_HINT = "Write it as catalog.database.table, for example demo.shop.orders."


@dataclass(frozen=True, slots=True, kw_only=True)
class TableName:
    """The full name of a table; `str()` returns the dotted form."""

    catalog: str
    namespace: tuple[str, ...]
    table: str

    def __str__(self) -> str:
        return ".".join((self.catalog, *self.namespace, self.table))

    @property
    def identifier(self) -> tuple[str, ...]:
        """The name inside its catalog: namespace and table."""
        return (*self.namespace, self.table)


def parse_table_name(name: str) -> TableName:
    """Parse `catalog.database.table`; the database may have several parts.

    parse_table_name("demo.shop.orders").identifier  # ("shop", "orders")
    """
    if not isinstance(name, str):
        raise UsageError(f"a table name is a string, not {name!r}", hint=NAME_HINT)
    parts = tuple(part.strip() for part in name.split("."))
    if not all(parts):
        raise UsageError(f"{name!r} is not a table name: a part is empty", hint=NAME_HINT, name=name)
    if len(parts) < 3:
        raise UsageError(f"{name!r} is not a full table name: it has {len(parts)} of the 3 parts", hint=NAME_HINT, name=name)
    return TableName(catalog=parts[0], namespace=parts[1:-1], table=parts[-1])


def catalog_name_fault(name: str) -> str | None:
    """Why `name` is not a valid catalog name, or None if it is."""
    if not name:
        return "a catalog name cannot be empty"
    if "." in name or any(letter.isspace() for letter in name):
        # The first dot of a table name ends the catalog, so such a catalog could not be addressed.
        return "a catalog name cannot contain dots or spaces"
    return None


def check_catalog_name(name: str) -> str:
    """Return the name, or raise a UsageError if it is not a valid catalog name."""
    fault = catalog_name_fault(name)
    if fault is not None:
        raise UsageError(f"{name!r}: {fault}", hint="Choose a name such as demo or my-catalog.", name=name)
    return name
