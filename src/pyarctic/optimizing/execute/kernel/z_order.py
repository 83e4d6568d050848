"""Z-order: rows that are near each other in several columns come near each other, in files that have no key in common.

Files are the leaves of a tree that divides a sample in turns by each column, so that every file gets its share of the rows
however they are spread. A row belongs to the leaf that the tree says, so boxes of files are apart exactly, whatever the
sample missed. Within a file rows follow the z-curve: the bits of all columns in turns, most significant first, of their
places among the quantiles of the sample, so that no column has more of a say than another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyarctic.optimizing.order.ranks import Ranks

Integers = npt.NDArray[np.int64]
_QUANTILES = 65_535
_EVEN, _EVEN_ENOUGH = 0.15, 0.25
"""How far shares of rows may be from what they should be: the columns take turns, or the best one is taken."""
_ONE_FILE = 1.5
_ROOMY = 1.25
"""Sizes of files are estimates here, and sorted rows shrink more often than they grow."""


def expected_files(expected_bytes: float, target_bytes: int) -> int:
    """Into how many files rows are divided."""
    size = expected_bytes / target_bytes
    return 1 if size < _ONE_FILE else max(round(size / _ROOMY), 2)


@dataclass(frozen=True, kw_only=True, eq=False)
class Clusters:
    """The tree, and the quantiles. A node below zero is a leaf."""

    column: Integers
    at: Ranks
    """What is less goes to `below`."""
    below: Integers
    above: Integers
    files: Integers
    """For each leaf how many files it makes; more than one where the tree found nothing to divide."""
    quantiles: tuple[Ranks, ...]

    @classmethod
    def of(cls, sample: Ranks, files: int) -> Self:
        """`sample` has a row for each sampled row of the table, and the rank of every column."""
        tree = _Tree(sample, files)
        return cls(
            column=np.array([node[0] for node in tree.nodes], np.int64),
            at=np.array([node[1] for node in tree.nodes], np.uint64),
            below=np.array([node[2] for node in tree.nodes], np.int64),
            above=np.array([node[3] for node in tree.nodes], np.int64),
            files=np.array(tree.leaves, np.int64),
            quantiles=tuple(_quantiles(column) for column in sample.T),
        )

    def leaves(self, ranks: Ranks) -> npt.NDArray[np.int32]:
        """The leaf of every row."""
        node = np.full(len(ranks), 0 if len(self.column) else -1, np.int64)
        while len(rows := np.flatnonzero(node >= 0)):
            here = node[rows]
            is_below = ranks[rows, self.column[here]] < self.at[here]
            node[rows] = np.where(is_below, self.below[here], self.above[here])
        return (-1 - node).astype(np.int32)

    def keys(self, ranks: Ranks, leaves: npt.NDArray[np.int32]) -> pa.Array:
        """By what rows of a leaf are sorted: along the curve; by one column after the other if the leaf makes several files,
        because pieces of the curve may overlap."""
        width = ranks.shape[1] * ranks.itemsize
        found = np.zeros((len(ranks), width), np.uint8)
        one = self.files[leaves] == 1
        curve = interleaved([spread(column, known) for column, known in zip(ranks[one].T, self.quantiles, strict=True)])
        found[one, : curve.shape[1]] = curve
        found[~one] = np.ascontiguousarray(ranks[~one].astype(">u8")).view(np.uint8).reshape(-1, width)
        return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(found), [None, pa.py_buffer(found)])


def spread(ranks: Ranks, quantiles: Ranks) -> npt.NDArray[np.uint16]:
    """Places among the quantiles, over all of 16 bits."""
    places = np.searchsorted(quantiles, ranks, side="right")
    return (places * _QUANTILES // max(len(quantiles), 1)).astype(np.uint16)


def interleaved(columns: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.uint8]:
    """The bits of unsigned numbers in turns, the most significant ones first: a row of bytes for each."""
    size = columns[0].dtype.itemsize
    octets = [np.ascontiguousarray(column.astype(f">u{size}")).view(np.uint8).reshape(-1, size) for column in columns]
    bits = np.stack([np.unpackbits(column, axis=1) for column in octets], axis=2)
    return np.packbits(bits.reshape(len(bits), 8 * size * len(columns)), axis=1)


def _quantiles(values: Ranks) -> Ranks:
    ordered = np.sort(values)
    return np.unique(ordered[:: max(-(-len(ordered) // _QUANTILES), 1)])


class _Tree:
    """Grown from the root, depth first: leaves are numbered as they lie side by side."""

    def __init__(self, sample: Ranks, files: int) -> None:
        self.nodes: list[tuple[int, int, int, int]] = []
        self.leaves: list[int] = []
        self._file_rows = len(sample) / files
        """Of the sample, for each file. Shares are compared with it at every node, so that errors do not add up."""
        self._grown(sample, files, 0)

    def _grown(self, sample: Ranks, files: int, turn: int) -> int:
        split = self._split(sample, files, turn) if files > 1 and len(sample) > 1 else None
        if split is None:
            self.leaves.append(files)
            return -len(self.leaves)
        column, at, part = split
        number = len(self.nodes)
        self.nodes.append((0, 0, 0, 0))
        is_below = sample[:, column] < at
        below = self._grown(sample[is_below], part, turn + 1)
        above = self._grown(sample[~is_below], files - part, turn + 1)
        self.nodes[number] = (column, int(at), below, above)
        return number

    def _split(self, sample: Ranks, files: int, turn: int) -> tuple[int, np.uint64, int] | None:
        """Column, rank, and how many files lie below it."""
        best: tuple[float, int, np.uint64, int] | None = None
        for step in range(sample.shape[1]):
            column = (turn + step) % sample.shape[1]
            values = np.sort(sample[:, column])
            near = values[len(values) * (files // 2) // files]
            for at in {near, values[min(int(np.searchsorted(values, near, side="right")), len(values) - 1)]}:
                share = int(np.searchsorted(values, at)) / self._file_rows
                part = min(max(round(share), 1), files - 1)
                rest = len(values) / self._file_rows - share
                error = max(abs(share / part - 1), abs(rest / (files - part) - 1))
                if best is None or error < best[0]:
                    best = (error, column, at, part)
            if best is not None and best[0] <= _EVEN:
                break
        if best is None or best[0] > _EVEN_ENOUGH:
            return None
        return best[1], best[2], best[3]
