"""Key groups: data files together with the changes that may concern their keys.

Input are the file lists of both stores with the facts of their names and their key ranges; nothing is read here. No two key
groups have a key in common, so each of them can be read on its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from pyiceberg.io import FileIO
from pyiceberg.types import LongType, NestedField

from pyarctic.iceberg.delete import PARTITION_KEY
from pyarctic.iceberg.manifest import FileList
from pyarctic.iceberg.predicate import decode_bound
from pyarctic.tables.format.file_names import StorePaths
from pyarctic.tables.format.tree import assign_roots
from pyarctic.tables.read.foreign_files import IS_FOREIGN

_SUB_TREE = [*PARTITION_KEY, "root"]
_KEY_GROUP = "key_group"
_IS_BASE, _IS_CHANGE = pl.col("store") == "base", pl.col("store") == "change"
_IS_INSERT = _IS_CHANGE & (pl.col("kind") != "ED")
_HAS_VERSIONS = _IS_CHANGE | (_IS_BASE & IS_FOREIGN)
"""Files whose rows supersede those of others."""
_IS_READ = pl.col("wanted") & (_IS_BASE | _IS_INSERT)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroup:
    """Files that may share keys with each other, and with no other file. If rows may be superseded, all files are of one
    partition."""

    base: pl.DataFrame
    """Base files to read."""
    inserts: pl.DataFrame
    """Files of inserted rows to read."""
    changes: pl.DataFrame
    """All files of the change store whose versions count, whether their rows are wanted or not."""
    competing_base: pl.DataFrame
    """Base files whose versions count as well: they may supersede inserted rows."""
    foreign: pl.DataFrame
    """Foreign base files, which supersede rows of other base files."""

    @property
    def data_bytes(self) -> int:
        """The size of the files to read."""
        return int(self.base["file_size_bytes"].sum()) + int(self.inserts["file_size_bytes"].sum())

    @property
    def version_rows(self) -> int:
        """The number of versions: rows of changes and of competing base files."""
        return int(self.changes["record_count"].sum()) + int(self.competing_base["record_count"].sum())

    def split(self, target_bytes: int, open_bytes: int = 0) -> Iterator[KeyGroup]:
        """Divide the files to read into parts of about `target_bytes`, to be read in parallel.

        Every part needs all changes and foreign files, so no part is made smaller than they are. `open_bytes`: what a file
        costs at least, however small it is."""
        sizes = [
            files["file_size_bytes"].clip(open_bytes) for files in (self.base, self.inserts, self.changes, self.foreign)
        ]
        needed_bytes = int(sizes[2].sum()) + int(sizes[3].sum())
        numbers = (pl.concat(sizes[:2]).cum_sum() - 1) // max(target_bytes, needed_bytes)
        of_base, of_inserts = numbers.head(self.base.height), numbers.tail(self.inserts.height)
        for number in numbers.unique(maintain_order=True):
            yield replace(self, base=self.base.filter(of_base == number), inserts=self.inserts.filter(of_inserts == number))


class KeyGroups:
    """The key groups of a read, in one frame.

    A `KeyGroup` is built when the iteration reaches it: a table may have tens of thousands of them, and the first row must
    not wait for the last one."""

    def __init__(self, files: pl.DataFrame, by: str = _KEY_GROUP) -> None:
        """`files`: the files of both stores, sorted by their group, which is column `by`."""
        self._files = files
        self._by = by
        self._lengths: list[int] = files[by].rle().struct.field("len").to_list()

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[KeyGroup]:
        start = 0
        for length in self._lengths:
            yield _build_group(self._files.slice(start, length))
            start += length

    def data_bytes(self, open_bytes: int = 0) -> int:
        """The size of the files to read, each with at least `open_bytes`."""
        return int(self._files.filter(_IS_READ)["file_size_bytes"].clip(open_bytes).sum())

    def partition_unchanged(self, condition: pl.Expr) -> tuple[pl.DataFrame, KeyGroups]:
        """The base files to read that meet a condition and that nothing can supersede; and all other files."""
        has_versions = _HAS_VERSIONS.any().over(self._by)
        is_chosen = (_IS_BASE & _IS_READ & ~has_versions & condition).fill_null(value=False)
        marked = self._files.with_columns(is_chosen=is_chosen)
        chosen, rest = (marked.filter(mask).drop("is_chosen") for mask in (pl.col("is_chosen"), ~pl.col("is_chosen")))
        return chosen, KeyGroups(rest, self._by)

    def pack(self, target_bytes: int, open_bytes: int = 0) -> KeyGroups:
        """Join neighbouring key groups of a partition as long as their files have at most `target_bytes` together.

        Keys are unique within a partition only, so groups of different partitions must not be joined: rows are compared by
        their keys. Groups with nothing to read are left out; those without versions are not joined with others."""
        sizes = self._sizes(open_bytes).filter("is_read")
        # A bin ends when it reaches half of the target. Groups of that size are bins of their own, so none gets larger than
        # the target.
        half = max(target_bytes // 2, 1)
        is_large = pl.col("bytes") >= half
        window = (pl.when(is_large).then(0).otherwise("bytes").cum_sum() - 1) // half
        large = pl.when(is_large).then(pl.int_range(pl.len()))
        bins = sizes.select(self._by, bin=pl.struct("partition", "is_changed", large=large, window=window).rle_id())
        return KeyGroups(self._files.join(bins, on=self._by, maintain_order="left"), by="bin")

    def partition_small(self, target_bytes: int, open_bytes: int = 0) -> tuple[list[pl.DataFrame], KeyGroups]:
        """The groups that are smaller than `target_bytes`, as frames of several groups of about this size together; and all
        other groups. The frames have the columns `group`, `is_read` and `has_versions`."""
        sizes = self._sizes(open_bytes)
        small = sizes.filter(pl.col("bytes") < target_bytes)
        numbered = small.select(self._by, split=(pl.col("bytes").cum_sum() - 1) // target_bytes)
        joined = self._files.join(numbered, on=self._by, maintain_order="left").with_columns(
            pl.col(self._by).cast(pl.Int64).alias("group"), is_read=_IS_READ, has_versions=_HAS_VERSIONS | pl.col("competes")
        )
        rest = self._files.join(small, on=self._by, how="anti", maintain_order="left")
        return joined.partition_by("split", maintain_order=True, include_key=False), KeyGroups(rest, self._by)

    def _sizes(self, open_bytes: int) -> pl.DataFrame:
        """One row per group: its size, and whether it has files to read and versions."""
        size = pl.col("file_size_bytes").clip(open_bytes)
        return self._files.group_by(self._by, maintain_order=True).agg(
            bytes=size.filter(_IS_READ | _HAS_VERSIONS).sum(),
            is_read=_IS_READ.any(),
            is_changed=_HAS_VERSIONS.any(),
            partition=pl.struct(PARTITION_KEY).first(),
        )


def _build_group(files: pl.DataFrame) -> KeyGroup:
    return KeyGroup(
        base=files.filter(_IS_BASE & pl.col("wanted")),
        inserts=files.filter(_IS_INSERT & pl.col("wanted")),
        changes=files.filter(_IS_CHANGE),
        competing_base=files.filter("competes"),
        foreign=files.filter(_IS_BASE & IS_FOREIGN),
    )


def group_by_keys(base: pl.DataFrame, changes: pl.DataFrame, key_fields: Sequence[NestedField]) -> KeyGroups:
    """Divide files by partition, by disjoint sub-trees, and by ranges of the first key column.

    Both frames have the facts of the file names, `wanted` (whether rows are to be read) and the bounds of the first key
    column, as `lower_<id>` and `upper_<id>`. Base files have `foreign_order`."""
    changes = changes.with_columns(store=pl.lit("change"), foreign_order=pl.lit(0, pl.Int64))
    files = pl.concat([base.with_columns(store=pl.lit("base")), changes], how="diagonal")
    changed_partitions = files.filter(_HAS_VERSIONS).select(PARTITION_KEY).unique()
    changed = files.join(changed_partitions, on=PARTITION_KEY, how="semi", maintain_order="left")
    # All files of partitions without versions are one group: each of them is read by itself anyway.
    unchanged = files.join(changed_partitions, on=PARTITION_KEY, how="anti", maintain_order="left")
    numbered = pl.concat(
        [
            _number_groups(changed, key_fields[0]),
            unchanged.with_columns(pl.lit(changed.height, pl.Int64).alias(_KEY_GROUP)),  # greater than all numbers
        ]
    )
    first_insert = pl.col("transaction_id").filter(_IS_INSERT).min().over(_KEY_GROUP)
    competes = _IS_BASE & (pl.col("transaction_id") >= first_insert)
    return KeyGroups(numbered.with_columns(competes=competes.fill_null(value=False)))


def _number_groups(files: pl.DataFrame, first_key: NestedField) -> pl.DataFrame:
    """The files of changed partitions, sorted by `key_group`."""
    if files.is_empty():
        return files.with_columns(pl.lit(0, pl.Int64).alias(_KEY_GROUP))
    ranged = split_by_key_ranges(assign_roots(files), first_key).sort(*_SUB_TREE, "component", maintain_order=True)
    number = pl.struct(*_SUB_TREE, "component").rle_id().cast(pl.Int64)
    return ranged.with_columns(number.alias(_KEY_GROUP)).drop("root", "component")


def has_concurrent_inserts(changes: pl.DataFrame) -> bool:
    """Whether two writers inserted rows in one transaction: only then may a key have two equal latest versions.

    Files of different key groups, if there is a column `key_group`, never have a key in common."""
    keys = ["transaction_id", _KEY_GROUP] if _KEY_GROUP in changes.columns else ["transaction_id"]
    writers = changes.filter(pl.col("kind") != "ED").group_by(keys).agg(pl.col("writer").n_unique())
    return bool((writers["writer"] > 1).any())


def competing_base_files(base: pl.DataFrame, inserts: pl.DataFrame) -> pl.DataFrame:
    """The base files of a later transaction than some of the inserts: their rows supersede such inserts."""
    first = inserts["transaction_id"].min()
    return base.filter(pl.col("transaction_id") >= first) if first is not None else base.clear()


def select_unmerged(changes: pl.DataFrame, paths: StorePaths, merged: Mapping[str, int]) -> pl.DataFrame:
    """The files of the change store that are not merged into Base yet."""
    if not merged or changes.is_empty():
        return changes
    partitions = changes.select(PARTITION_KEY).unique()
    sequences = [merged.get(paths.path(spec_id, key), -1) for spec_id, key in partitions.iter_rows()]
    with_merged = changes.join(
        partitions.with_columns(pl.Series("merged", sequences, pl.Int64)),
        on=PARTITION_KEY,
        how="left",
        maintain_order="left",
    )
    return with_merged.filter(pl.col("data_sequence_number") > pl.col("merged")).drop("merged")


def with_key_ranges(data: pl.DataFrame, files: FileList, io: FileIO, key: Sequence[NestedField]) -> pl.DataFrame:
    """Add the bounds of the first key column, as `lower_<id>` and `upper_<id>`; null if they do not hold for all rows.

    Of other key columns only the lower bounds of longs are added: their width tells whether the column once was an int."""
    first = key[0]
    bounds = [f"lower_{first.field_id}", f"upper_{first.field_id}"]
    longs = [field.field_id for field in key[1:] if isinstance(field.field_type, LongType)]
    names = [*bounds, *(f"lower_{field_id}" for field_id in longs)]
    if data.is_empty():
        return data.with_columns(pl.lit(None, pl.Binary).alias(name) for name in names)
    measured = files.with_metrics(io, data, [first.field_id, *longs])
    if first.optional:  # a null key is outside of all bounds
        has_no_nulls = pl.col(f"nulls_{first.field_id}") == 0
        measured = measured.with_columns(pl.when(has_no_nulls).then(name).alias(name) for name in bounds)
    return measured.select(*data.columns, *names)


def split_by_key_ranges(files: pl.DataFrame, field: NestedField) -> pl.DataFrame:
    """Number the runs of files of one `root` whose key ranges overlap, as `component`.

    A file with an unknown range may hold any key: its sub-tree is one component."""
    lower, upper = (decode_bound(pl.col(f"{end}_{field.field_id}"), field.field_type) for end in ("lower", "upper"))
    if lower is None or upper is None:
        return files.with_columns(component=pl.lit(0, pl.Int64))
    ranged = files.with_columns(lower=lower, upper=upper).sort(*_SUB_TREE, "lower", nulls_last=False, maintain_order=True)
    is_unknown = (pl.col("lower").is_null() | pl.col("upper").is_null()).any().over(_SUB_TREE)
    # Ascending by lower bounds: a file that begins beyond all upper bounds so far begins a new run.
    begins = pl.col("lower") > pl.col("upper").cum_max().shift(1).over(_SUB_TREE)
    numbered = ranged.with_columns(component=begins.fill_null(value=False).cum_sum().over(_SUB_TREE).cast(pl.Int64))
    return numbered.with_columns(component=pl.when(is_unknown).then(0).otherwise("component")).drop("lower", "upper")


def rank_transactions(*frames: pl.DataFrame) -> list[pl.DataFrame]:
    """Add `rank`, the position of a file's transaction among those of all frames."""
    transactions = np.unique(np.concatenate([frame["transaction_id"].to_numpy() for frame in frames]))
    return [
        frame.with_columns(pl.Series("rank", np.searchsorted(transactions, frame["transaction_id"].to_numpy()), pl.Int64))
        for frame in frames
    ]
