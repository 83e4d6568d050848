"""Explaining the plan of a keyed table: the nodes of its tree, and what keeps changes from being merged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from pyarctic.iceberg.delete import PARTITION_KEY
from pyarctic.iceberg.manifest import PartitionDecoder
from pyarctic.optimizing.plan.keyed import waiting_partitions
from pyarctic.optimizing.plan.plan import KeyedPlan
from pyarctic.tables.format import Node
from pyarctic.tables.read import IS_FOREIGN
from pyarctic.units import format_bytes, format_count

_MAX_NODES = 200
_MAX_TARGETS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRow:
    """One node that has files, and where they are written to."""

    partition: str
    node: int
    base_files: int
    insert_files: int
    delete_files: int
    bytes: int
    root: int
    """The root of its sub-tree: no key of it is in another sub-tree."""
    groups: int
    """The number of key ranges that the sub-tree is divided into."""
    buckets: int
    """The number of nodes of the level that the partition is written at."""
    targets: tuple[int, ...]
    """The nodes that files of this one are written to; the first sixteen."""

    def to_dict(self) -> dict[str, Any]:
        """This row as a JSON document."""
        return asdict(self) | {"targets": list(self.targets)}

    def __str__(self) -> str:
        counts = {"base": self.base_files, "insert": self.insert_files, "delete": self.delete_files}
        files = ", ".join(f"{format_count(count)} {kind}" for kind, count in counts.items() if count)
        where = "itself" if self.targets == (self.node,) else f"nodes {', '.join(map(str, self.targets))}"
        ranges = f", {self.groups} key ranges" if self.groups > 1 else ""
        return f"node {self.node}: {files} files ({format_bytes(self.bytes)}) → {where}, in sub-tree {self.root}{ranges}"


def tree_rows(plan: KeyedPlan) -> Iterator[TreeRow]:
    """The nodes of the partitions that are optimized."""
    decoder = PartitionDecoder(plan.observation.metadata)
    for row in plan.tree.head(_MAX_NODES).iter_rows(named=True):
        node, mask = Node.of_id(row["node_id"]), row["mask"]
        targets = list(node.at(mask))[:_MAX_TARGETS] if node.mask <= mask else [Node(mask, node.index & mask)]
        yield TreeRow(
            partition=decoder.path(row["spec_id"], row["partition"]),
            node=node.id,
            base_files=row["base_files"],
            insert_files=row["insert_files"],
            delete_files=row["delete_files"],
            bytes=row["bytes"],
            root=row["root"],
            groups=row["groups"],
            buckets=mask + 1,
            targets=tuple(target.id for target in targets),
        )


def keyed_notes(plan: KeyedPlan) -> Iterator[str]:
    """What other engines did to the table, and what keeps changes from being merged."""
    changes = plan.changes
    foreign = plan.evaluation.files.filter(IS_FOREIGN)
    if foreign.height:
        yield (
            f"{format_count(foreign.height)} files of Base ({format_count(int(foreign['record_count'].sum()))} rows) were "
            "written by another engine: if they hold a key that Base has already, the row of the later commit counts, and "
            "changes that are not merged come after both"
        )
    if changes.may_hide_open:
        yield (
            "snapshots of the change store were expired so soon that transactions begun in them may still be open, and are "
            "not waited for: keep them for as long as self-optimizing.transaction-timeout says"
        )
    if plan.waiting_changes is not None:
        yield f"{plan.waiting_changes}; the time is self-optimizing.transaction-timeout"
    waiting = plan.partitions.filter(pl.col("kind").is_not_null()).join(
        waiting_partitions(plan.evaluation, changes), on=PARTITION_KEY, how="semi"
    )
    if waiting.height:
        yield (
            f"{format_count(waiting.height)} partitions wait as a whole for transaction {changes.oldest_open}: Base has "
            "later rows there"
        )
    ambiguous = changes.partitions.join(plan.partitions, on=PARTITION_KEY, how="semi").filter(pl.col("is_ambiguous"))
    for path in ambiguous["path"].unique(maintain_order=True):
        yield (
            f"partition {path!r} stands for null and for the text 'null': the format cannot tell what was merged into "
            "which, so neither is optimized"
        )
