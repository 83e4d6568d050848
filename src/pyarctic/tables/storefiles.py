"""Names of the files of a keyed table's stores: they tell tree node, kind and transaction.

    4-I-0-00000-2-7301827364518273645-00001.parquet
    node, kind, transaction, writer's partition, task, operation, number of the file

A transaction 0 means the sequence number of the commit. Files that other engines put into a store, with names of their own,
belong to the root of the tree.
"""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass
from typing import Literal

import polars as pl

from pyarctic.iceberg.partitions import PartitionDecoder
from pyarctic.iceberg.writing import FileNames, Target
from pyarctic.tables.tree import ROOT

Store = Literal["base", "change"]
FileKind = Literal["B", "I", "ED", "PD"]
"""Base rows, inserted rows, deleted rows (by key), positions of deleted base rows."""

_KINDS = ("B", "I", "ED", "PD", "IED", "L")
_NAME = r"\.?(?<node>\d+)-(?<kind>\w+)-(?<transaction>\d+)-(?<part>\d+)-(?<task>\d+)-(?<rest>.*)"


def with_store_facts(files: pl.DataFrame, store: Store) -> pl.DataFrame:
    """A file list with what the names tell: `node_id`, `kind` and `transaction_id`, and `writer`, who wrote it."""
    name = pl.col("file_path").str.split("/").list.last()
    told = name.str.extract_groups(f"^{_NAME}$").struct
    is_ours = told.field("kind").is_in(_KINDS)
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


class StoreFileNames(FileNames):
    """Names of one writer's files. All of them carry its operation id, so that what a lost writer left can be found."""

    def __init__(self, task: int = 0, attempt: int = 0, operation: int | None = None) -> None:
        high, low = divmod(uuid.uuid4().int, 1 << 64)
        self.operation = (high ^ low) & 0x7FFF_FFFF_FFFF_FFFF if operation is None else operation
        super().__init__(task, attempt, str(self.operation))
        self._writer = f"{task:05d}-{attempt}-{self.operation}"
        self._count = itertools.count(1)

    def of(self, node_id: int, kind: FileKind, transaction_id: int) -> str:
        return f"{node_id}-{kind}-{transaction_id}-{self._writer}-{next(self._count):05d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTarget(Target):
    """Where files of one node of one partition go. Other engines look for them below `data/`, whatever the table says."""

    node_id: int
    kind: FileKind
    transaction_id: int = 0

    def new_path(self, suffix: str) -> str:
        assert isinstance(self.names, StoreFileNames)  # noqa: S101
        partition = PartitionDecoder(self.metadata).path_of(self.spec_id, self.partition)
        folder = f"{self.metadata.location.rstrip('/')}/data" + (f"/{partition}" if partition else "")
        return f"{folder}/{self.names.of(self.node_id, self.kind, self.transaction_id)}{suffix}"
