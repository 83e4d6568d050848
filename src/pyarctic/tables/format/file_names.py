"""Names of the files of a keyed table's stores. They contain the tree node, the kind and the transaction:

    4-I-0-00000-2-7301827364518273645-00001.parquet
    node, kind, transaction, writer's partition, task, operation, number of the file

Transaction 0 means the sequence number of the commit. Files of other engines with other names belong to the root of the
tree.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from urllib.parse import quote_plus
from uuid import UUID

import polars as pl
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.types import BooleanType, TimestampType, TimestamptzType, TimeType, UUIDType

from pyarctic.iceberg.manifest import PartitionDecoder
from pyarctic.iceberg.write import FileNames, FileTarget, random_id
from pyarctic.tables.format.tree import ROOT

Store = Literal["base", "change"]
STORES: tuple[Store, ...] = ("base", "change")
FileKind = Literal["B", "I", "ED", "PD"]
"""Base rows, inserted rows, deleted rows (by key), positions of deleted base rows."""

PartitionId = tuple[str, tuple[bool, ...]]
"""A partition: its path, and which of its values are null."""
_KINDS = ("B", "I", "ED", "PD", "IED", "L")
_CHANGE_KINDS = ("I", "ED", "B")
"""Files of a change store that are named as base files contain inserted rows."""
_NAME = r"\.?(?<node>\d+)-(?<kind>\w+)-(?<transaction>\d+)-(?<part>\d+)-(?<task>\d+)-(?<rest>.*)"


def parse_file_names(files: pl.DataFrame, store: Store) -> pl.DataFrame:
    """Add the facts of the file names: `node_id`, `kind`, `transaction_id`, and `writer`, which identifies the writer. For a
    base store also `is_foreign`: whether no engine of the format wrote the file."""
    name = pl.col("file_path").str.split("/").list.last()
    groups = name.str.extract_groups(f"^{_NAME}$").struct
    is_ours = groups.field("kind").is_in(_KINDS) & (groups.field("node").cast(pl.Int64, strict=False) >= ROOT.id)
    kind = pl.when(is_ours).then(groups.field("kind"))
    # The groups of other names are null, and so is everything made of them.
    numbers = {
        part: pl.when(is_ours).then(groups.field(part)).cast(pl.Int64, strict=False) for part in ("node", "transaction")
    }
    operation = groups.field("rest").str.split("-").list.first()
    writer = pl.concat_str(groups.field("part"), groups.field("task"), operation, separator="-")
    facts = files.with_columns(
        node_id=numbers["node"].fill_null(ROOT.id),
        kind=kind.fill_null("B" if store == "base" else "I"),
        transaction_id=numbers["transaction"].fill_null(0),
        writer=pl.when(is_ours).then(writer).otherwise(pl.col("file_path")),
    )
    if store == "base":
        return facts.with_columns(kind=pl.col("kind").replace("I", "B"), is_foreign=kind.is_null())
    transaction_id = pl.when(pl.col("transaction_id") > 0).then("transaction_id").otherwise("data_sequence_number")
    return facts.with_columns(transaction_id=transaction_id)


def parse_change_file_names(files: pl.DataFrame) -> pl.DataFrame:
    """The same for a change store; files without changes are left out."""
    return parse_file_names(files, "change").filter(pl.col("kind").is_in(_CHANGE_KINDS))


class StorePaths(PartitionDecoder):
    """Partition paths as the format writes them, in folder names and in merged sequences. Other engines compare these texts,
    so they are exactly those of Iceberg Java; null and the text 'null' have the same path."""

    def path_of(self, spec_id: int, values: tuple[Any, ...]) -> str:
        fields = zip(self._specs[spec_id].fields, values, strict=True)
        return "/".join(
            f"{_url_encode(field.name)}={_url_encode(self._format_value(field, value))}" for field, value in fields
        )

    def partition_id(self, spec_id: int, values: tuple[Any, ...]) -> PartitionId:
        """Identifies a partition, also if another one has the same path."""
        return self.path_of(spec_id, values), tuple(value is None for value in values)

    def _format_value(self, field: PartitionField, value: Any) -> str:
        match self.result_type(field):
            case _ if value is None:
                return "null"
            case BooleanType():
                return str(value).lower()
            case UUIDType():
                return str(value if isinstance(value, UUID) else UUID(bytes=value))
            case TimeType():
                return _format_time(value)
            case TimestampType() | TimestamptzType() as type_:
                text = (datetime(1970, 1, 1) + timedelta(microseconds=value)).isoformat()  # noqa: DTZ001  # zone follows
                text = text.rstrip("0") if "." in text else text
                return f"{text}+00:00" if isinstance(type_, TimestamptzType) else text
        source = self._source_type(field)
        return str(value) if source is None else str(field.transform.to_human_string(source, value))


def field_names_of(spec: PartitionSpec) -> list[str]:
    """The names of a spec's fields as they are in partition paths."""
    return [_url_encode(field.name) for field in spec.fields]


def _format_time(micros: int) -> str:
    """The time of day as Java formats it: without seconds if they are zero, and with three or six digits of fraction."""
    seconds, fraction = divmod(micros, 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}"
    if seconds % 60 or fraction:
        text += f":{seconds % 60:02d}"
    if fraction:
        text += f".{fraction // 1000:03d}" if fraction % 1000 == 0 else f".{fraction:06d}"
    return text


def _url_encode(text: str) -> str:
    """As Java's URLEncoder does it; Python differs in two characters."""
    return quote_plus(text, safe="*").replace("~", "%7E")


class StoreFileNames(FileNames):
    """Names of one writer's files. They contain its operation id, so that files of a lost writer can be found."""

    def __init__(self, task: int = 0, attempt: int = 0, operation: int | str | None = None, first: int = 1) -> None:
        self.operation = random_id() if operation is None else operation
        super().__init__(task, attempt, str(self.operation), first)
        self._writer = f"{task:05d}-{attempt}-{self.operation}"
        self._count = itertools.count(first)

    def of(self, node_id: int, kind: FileKind, transaction_id: int) -> str:
        return f"{node_id}-{kind}-{transaction_id}-{self._writer}-{next(self._count):05d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTarget(FileTarget):
    """Where files of one node of a partition are written. Other engines expect them below `data/`, whatever the table
    properties say."""

    node_id: int
    kind: FileKind
    transaction_id: int = 0

    def new_path(self, suffix: str) -> str:
        assert isinstance(self.names, StoreFileNames)  # noqa: S101
        partition = StorePaths(self.metadata).path_of(self.spec_id, self.partition)
        folder = f"{self.metadata.location.rstrip('/')}/data" + (f"/{partition}" if partition else "")
        extension = suffix.removeprefix("-deletes")  # the kind is in the name already
        return f"{folder}/{self.names.of(self.node_id, self.kind, self.transaction_id)}{extension}"
