"""Changes of tables that every kind of database understands, and that may be made twice: MariaDB keeps those of a revision
that was interrupted."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

_LENGTHS = {"table": 500}
_LENGTH = 255
"""Of texts in keys and indexes, in MariaDB: an index takes 3,072 bytes there, which are 768 characters."""
_OPTIONS: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_nopad_bin"}
_OPTIONS |= {name.replace("mysql", "mariadb"): value for name, value in _OPTIONS.items()}


def is_mariadb() -> bool:
    """Whether the database is one of MariaDB."""
    return op.get_bind().dialect.name in ("mariadb", "mysql")


def create_table(
    name: str, columns: Sequence[str], *, indexed: Collection[tuple[str, str]] = (), hashed: Collection[tuple[str, str]] = ()
) -> None:
    """Create a table, unless it is there. A column is written as `name type`; the types are text, int, float, bool, time and
    bytes. A question mark: it may be null. An asterisk: it belongs to the key. `mariadb` and an expression: it is only
    there, and computed.

    `indexed`: tables and columns that an index needs. `hashed`: texts of any length in a key."""
    if sa.inspect(op.get_bind()).has_table(name):
        return
    parsed = [_Column.parse(text, name, indexed, hashed) for text in columns]
    made = [part for column in parsed if not column.computed or is_mariadb() for part in column.parts()]
    keys = [column.key for column in parsed if column.is_key]
    guards: list[sa.Constraint] = []
    if is_mariadb() and keys:  # a computed column cannot be part of a primary key there
        has_hash = any(column.is_hashed for column in parsed)
        guards = [sa.UniqueConstraint(*keys, name=f"{name}_key") if has_hash else sa.PrimaryKeyConstraint(*keys)]
    op.create_table(name, *made, *guards, **_OPTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """A column as it is written."""

    name: str
    kind: str
    is_key: bool
    is_optional: bool
    computed: str | None
    is_hashed: bool
    is_short: bool

    @classmethod
    def parse(cls, text: str, table: str, indexed: Collection[tuple[str, str]], hashed: Collection[tuple[str, str]]) -> Self:
        name, kind, *computed = text.split(maxsplit=3)
        is_key = "*" in kind
        is_hashed = is_key and (table, name) in hashed and is_mariadb()
        return cls(
            name=name,
            kind=kind.rstrip("*?"),
            is_key=is_key,
            is_optional="?" in kind,
            computed=computed[1] if computed else None,
            is_hashed=is_hashed,
            is_short=not is_hashed and (is_key or bool(computed) or (table, name) in indexed),
        )

    @property
    def key(self) -> str:
        return f"{self.name}_hash" if self.is_hashed else self.name

    def parts(self) -> Iterator[sa.Column[Any]]:
        length = _LENGTHS.get(self.name, _LENGTH) if self.is_short else None
        computed = [] if self.computed is None else [sa.Computed(self.computed, persisted=True)]
        yield sa.Column(
            self.name,
            _type(self.kind, length),
            *computed,
            primary_key=self.is_key and not is_mariadb(),
            nullable=self.is_optional,
            autoincrement=False,
        )
        if self.is_hashed:
            yield sa.Column(self.key, mysql.BINARY(32), sa.Computed(f"UNHEX(SHA2(`{self.name}`, 256))", persisted=True))


def create_index(name: str, table: str, columns: Sequence[str], **options: Any) -> None:
    """Create an index, unless it is there."""
    if name not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}:
        op.create_index(name, table, list(columns), **options)


def _type(kind: str, length: int | None) -> sa.types.TypeEngine[Any]:
    """`length`: of texts that an index needs."""
    if kind == "text":
        # PostgreSQL orders texts by language unless it is told otherwise.
        binary = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
        return binary.with_variant(mysql.VARCHAR(length) if length else mysql.LONGTEXT(), "mysql", "mariadb")
    if kind == "time":
        return sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    if kind == "bytes":
        return sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
    plain: dict[str, type[sa.types.TypeEngine[Any]]] = {"int": sa.BigInteger, "float": sa.Double, "bool": sa.Boolean}
    return plain[kind]()
