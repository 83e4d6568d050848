"""The Arctic tree: a binary tree over the hash of the primary key.

A node is the set of hashes whose low bits (`mask`) equal `index`. Its two children use one bit more. So a node may hold the
same keys as its ancestors and descendants, and no key of any other node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import polars as pl

from pyarctic.errors import UsageError
from pyarctic.iceberg.delete import PARTITION_KEY

Hashes = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, order=True)
class Node:
    """One node. Its `id` numbers the tree level by level: the root is 1, the next two are 2 and 3, then 4 to 7."""

    mask: int
    index: int

    def __post_init__(self) -> None:
        if self.mask < 0 or self.mask & (self.mask + 1) or not 0 <= self.index <= self.mask:
            raise UsageError(
                f"no node of the tree: mask {self.mask}, index {self.index}",
                hint="A mask is a power of two minus one; the index is at most the mask.",
            )

    @classmethod
    def of_id(cls, node_id: int) -> Self:
        if node_id < 1:
            raise UsageError(f"no node of the tree has the id {node_id}", hint="The root is 1.")
        mask = (1 << (node_id.bit_length() - 1)) - 1
        return cls(mask, node_id - mask - 1)

    @property
    def id(self) -> int:
        return self.mask + 1 + self.index

    @property
    def children(self) -> tuple[Self, Self]:
        mask = 2 * self.mask + 1
        return type(self)(mask, self.index), type(self)(mask, self.index + self.mask + 1)

    @property
    def parent(self) -> Self | None:
        mask = self.mask >> 1
        return type(self)(mask, self.index & mask) if self.mask else None

    @property
    def sibling(self) -> Self | None:
        half = (self.mask + 1) >> 1
        return type(self)(self.mask, self.index ^ half) if self.mask else None

    def is_within(self, other: Node) -> bool:
        """Whether it is that node or lies below it."""
        return self.mask >= other.mask and self.index & other.mask == other.index

    def is_disjoint(self, other: Node) -> bool:
        """Whether the two never hold the same key."""
        return not self.is_within(other) and not other.is_within(self)

    def at(self, mask: int) -> Iterator[Self]:
        """The nodes below it at the level of `mask`; at its own level the node itself."""
        if mask < self.mask:
            raise UsageError(f"node {self.id} lies below the level of mask {mask}")
        return (type(self)(mask, index) for index in range(self.index, mask + 1, self.mask + 1))

    def holds(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """A mask of the hashes that belong to it."""
        mask: npt.NDArray[np.bool_] = (hashes & np.int32(self.mask)) == self.index
        return mask


ROOT = Node(0, 0)


def bucket_mask(buckets: int, name: str = "the number of buckets") -> int:
    """The mask of the level with `buckets` nodes; `name` is for the error message."""
    if buckets < 1 or buckets & (buckets - 1) or buckets > 1 << 31:
        raise UsageError(f"{name} is {buckets}", hint="It must be a power of two: 1, 2, 4, 8 …")
    return buckets - 1


def node_ids(hashes: Hashes, mask: int) -> npt.NDArray[np.int64]:
    """The ids of the nodes of hashes, at the level of `mask`."""
    return (hashes & np.int32(mask)).astype(np.int64) + (mask + 1)


def node_masks(nodes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The masks of nodes, given by their ids."""
    masks = nodes >> 1
    for shift in (1, 2, 4, 8, 16, 32):  # set all bits below the highest one
        masks |= masks >> shift
    return masks


def select_nodes(files: pl.DataFrame, hashes: Hashes) -> pl.DataFrame:
    """The files whose node holds any of the hashes."""
    nodes = files["node_id"].to_numpy()
    masks = np.unique(node_masks(nodes))
    holding = (hashes.astype(np.int64)[:, None] & masks) + masks + 1
    return files.filter(np.isin(nodes, holding))


def assign_roots(files: pl.DataFrame, node_column: str = "node_id") -> pl.DataFrame:
    """Add `root`: the topmost node with files that is the node of a file or lies above it, within the file's partition.

    Files of one partition with different roots have no key in common."""
    nodes = files[node_column].to_numpy()
    masks = node_masks(nodes)
    indexes = nodes - masks - 1
    with_files = files.select(*PARTITION_KEY, pl.col(node_column).alias("root")).unique().with_columns(exists=True)
    partitions = files.select(PARTITION_KEY)
    roots = np.zeros(len(nodes), np.int64)  # 0: not found yet
    for mask in np.unique(masks):
        ancestors = np.where(masks >= mask, (indexes & mask) + mask + 1, 0)
        exists = partitions.with_columns(pl.Series("root", ancestors)).join(
            with_files, on=[*PARTITION_KEY, "root"], how="left", maintain_order="left"
        )["exists"]
        roots = np.where((roots == 0) & exists.fill_null(value=False).to_numpy(), ancestors, roots)
    return files.with_columns(pl.Series("root", roots, pl.Int64))
