"""Names of the files of a keyed table's stores: they tell tree node, kind and transaction.

    4-I-0-00000-2-7301827364518273645-00001.parquet
    node, kind, transaction, writer's partition, task, operation, number of the file

A transaction 0 means the sequence number of the commit. Files that other engines put into a store, with names of their own,
belong to the root of the tree.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from urllib.parse import quote_plus
from uuid import UUID

import polars as pl
from pyiceberg.partitioning import PartitionField
from pyiceberg.types import BooleanType, TimestampType, TimestamptzType, TimeType, UUIDType

from pyarctic.iceberg.manifest import PartitionDecoder
from pyarctic.iceberg.write import FileNames, FileTarget, random_id
from pyarctic.tables.format.tree import ROOT

Store = Literal["base", "change"]
STORES: tuple[Store, ...] = ("base", "change")
FileKind = Literal["B", "I", "ED", "PD"]
"""Base rows, inserted rows, deleted rows (by key), positions of deleted base rows."""

Place = tuple[str, tuple[bool, ...]]
"""A partition: its path, and which of its values are null."""
_KINDS = ("B", "I", "ED", "PD", "IED", "L")
_CHANGE_KINDS = ("I", "ED", "B")
"""Base rows in a change store are inserted ones under a wrong name."""
_NAME = r"\.?(?<node>\d+)-(?<kind>\w+)-(?<transaction>\d+)-(?<part>\d+)-(?<task>\d+)-(?<rest>.*)"


def parse_file_names(files: pl.DataFrame, store: Store) -> pl.DataFrame:
    """A file list with what the names tell: `node_id`, `kind` and `transaction_id`, and `writer`, who wrote it."""
    name = pl.col("file_path").str.split("/").list.last()
    told = name.str.extract_groups(f"^{_NAME}$").struct
    is_ours = told.field("kind").is_in(_KINDS) & (told.field("node").cast(pl.Int64, strict=False) >= ROOT.id)
    kind = pl.when(is_ours).then(told.field("kind"))
    # A sub-expression of a name that is not ours is null; so is everything made of it.
    number = {part: pl.when(is_ours).then(told.field(part)).cast(pl.Int64, strict=False) for part in ("node", "transaction")}
    operation = told.field("rest").str.split("-").list.first()
    writer = pl.concat_str(told.field("part"), told.field("task"), operation, separator="-")
    facts = files.with_columns(
        node_id=number["node"].fill_null(ROOT.id),
        kind=kind.fill_null("B" if store == "base" else "I"),
        transaction_id=number["transaction"].fill_null(0),
        writer=pl.when(is_ours).then(writer).otherwise(pl.col("file_path")),
    )
    if store == "base":
        return facts.with_columns(kind=pl.col("kind").replace("I", "B"))
    own = pl.when(pl.col("transaction_id") > 0).then("transaction_id").otherwise("data_sequence_number")
    return facts.with_columns(transaction_id=own)


def parse_change_file_names(files: pl.DataFrame) -> pl.DataFrame:
    """The same of a change store, without what holds no changes."""
    return parse_file_names(files, "change").filter(pl.col("kind").is_in(_CHANGE_KINDS))


class StorePaths(PartitionDecoder):
    """Partitions as the format writes them: as folders, and in the list of what was merged. Other engines compare these
    texts, so they are those of Iceberg Java, letter by letter; null and the text 'null' are one."""

    def path_of(self, spec_id: int, values: tuple[Any, ...]) -> str:
        fields = zip(self._specs[spec_id].fields, values, strict=True)
        return "/".join(f"{_encoded(field.name)}={_encoded(self._told(field, value))}" for field, value in fields)

    def place_of(self, spec_id: int, values: tuple[Any, ...]) -> Place:
        return self.path_of(spec_id, values), tuple(value is None for value in values)

    def _told(self, field: PartitionField, value: Any) -> str:
        match self.result_type(field):
            case _ if value is None:
                return "null"
            case BooleanType():
                return str(value).lower()
            case UUIDType():
                return str(value if isinstance(value, UUID) else UUID(bytes=value))
            case TimeType():
                return _clock(value)
            case TimestampType() | TimestamptzType() as type_:
                text = (datetime(1970, 1, 1) + timedelta(microseconds=value)).isoformat()  # noqa: DTZ001  # zone follows
                text = text.rstrip("0") if "." in text else text
                return f"{text}+00:00" if isinstance(type_, TimestamptzType) else text
        source = self._source_type(field)
        return str(value) if source is None else str(field.transform.to_human_string(source, value))


def _clock(micros: int) -> str:
    """The time of day as Java tells it: no seconds if there are none, and fractions of three or six digits."""
    seconds, fraction = divmod(micros, 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}"
    if seconds % 60 or fraction:
        text += f":{seconds % 60:02d}"
    if fraction:
        text += f".{fraction // 1000:03d}" if fraction % 1000 == 0 else f".{fraction:06d}"
    return text


def _encoded(text: str) -> str:
    """As Java encodes texts for an URL; Python's own way differs in two letters."""
    return quote_plus(text, safe="*").replace("~", "%7E")


class StoreFileNames(FileNames):
    """Names of one writer's files. All of them carry its operation id, so that what a lost writer left can be found."""

    def __init__(self, task: int = 0, attempt: int = 0, operation: int | str | None = None) -> None:
        self.operation = random_id() if operation is None else operation
        super().__init__(task, attempt, str(self.operation))
        self._writer = f"{task:05d}-{attempt}-{self.operation}"
        self._count = itertools.count(1)

    def of(self, node_id: int, kind: FileKind, transaction_id: int) -> str:
        return f"{node_id}-{kind}-{transaction_id}-{self._writer}-{next(self._count):05d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTarget(FileTarget):
    """Where files of one node of one partition go. Other engines look for them below `data/`, whatever the table says."""

    node_id: int
    kind: FileKind
    transaction_id: int = 0

    def new_path(self, suffix: str) -> str:
        assert isinstance(self.names, StoreFileNames)  # noqa: S101
        partition = StorePaths(self.metadata).path_of(self.spec_id, self.partition)
        folder = f"{self.metadata.location.rstrip('/')}/data" + (f"/{partition}" if partition else "")
        extension = suffix.removeprefix("-deletes")  # the kind says it
        return f"{folder}/{self.names.of(self.node_id, self.kind, self.transaction_id)}{extension}"
