"""What a merged read has to look at: data files, each with the changes that may concern its keys.

Pure: from the file lists of both stores, the merged sequences and key ranges, to groups of files that have no key in common
with any other group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from pyiceberg.io import FileIO
from pyiceberg.types import LongType, NestedField

from pyarctic.iceberg.manifest import FileList
from pyarctic.iceberg.predicate import decode_bound
from pyarctic.tables.format.file_names import StorePaths
from pyarctic.tables.format.tree import disjoint_roots, root_above

PARTITION = ["spec_id", "partition"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroup:
    """Files that may share keys with each other, and with no other file."""

    base: pl.DataFrame
    """Base files to read."""
    inserts: pl.DataFrame
    """Files of inserted rows to read."""
    words: pl.DataFrame
    """All files of the change store that count, whether their rows are wanted or not."""
    base_words: pl.DataFrame
    """Files of Base that count as well."""

    @property
    def data_bytes(self) -> int:
        return int(self.base["file_size_bytes"].sum()) + int(self.inserts["file_size_bytes"].sum())

    @property
    def word_rows(self) -> int:
        return int(self.words["record_count"].sum()) + int(self.base_words["record_count"].sum())

    def parts(self, target_bytes: int) -> Iterator[KeyGroup]:
        """The group in parts of about that size, to be read side by side. Every part carries all words, so that none is
        smaller than they are."""
        sizes = pl.concat([self.base["file_size_bytes"], self.inserts["file_size_bytes"]])
        numbers = (sizes.cum_sum() - 1) // max(target_bytes, int(self.words["file_size_bytes"].sum()))
        of_base, of_inserts = numbers.head(self.base.height), numbers.tail(self.inserts.height)
        for number in numbers.unique(maintain_order=True):
            yield replace(self, base=self.base.filter(of_base == number), inserts=self.inserts.filter(of_inserts == number))


def has_concurrent_inserts(words: pl.DataFrame) -> bool:
    """Whether two writers inserted rows in one transaction; only then may two last words be equal."""
    writers = words.filter(pl.col("kind") != "ED").group_by("transaction_id").agg(pl.col("writer").n_unique())
    return bool((writers["writer"] > 1).any())


def competing_base_files(base: pl.DataFrame, inserts: pl.DataFrame) -> pl.DataFrame:
    """The base files that know of later transactions than some of the inserts: a row of theirs wins over such an insert."""
    first = inserts["transaction_id"].min()
    return base.filter(pl.col("transaction_id") >= first) if first is not None else base.clear()


def select_unmerged(changes: pl.DataFrame, paths: StorePaths, merged: Mapping[str, int]) -> pl.DataFrame:
    """The files of the change store that were not merged into Base yet."""
    if not merged or changes.is_empty():
        return changes
    partitions = changes.select(PARTITION).unique()
    numbers = [merged.get(paths.path(spec_id, key), -1) for spec_id, key in partitions.iter_rows()]
    known = partitions.with_columns(pl.Series("merged", numbers, pl.Int64))
    joined = changes.join(known, on=PARTITION, how="left", maintain_order="left")
    return joined.filter(pl.col("data_sequence_number") > pl.col("merged")).drop("merged")


def group_by_keys(base: pl.DataFrame, changes: pl.DataFrame, key_fields: Sequence[NestedField]) -> list[KeyGroup]:
    """Divide files by partition, by sub-trees that are disjoint, and by ranges of the first key column.

    Both frames have the facts of their names, `wanted` (whether rows are to be read) and the bounds of the first key column,
    as `lower_<id>` and `upper_<id>`."""
    files = pl.concat(
        [base.with_columns(store=pl.lit("base")), changes.with_columns(store=pl.lit("change"))], how="diagonal"
    )
    if files.is_empty():
        return []
    # Partitions without changes need no division: their files stand for themselves.
    busy = changes.select(PARTITION).unique().with_columns(busy=pl.lit(value=True))
    files = files.join(busy, on=PARTITION, how="left", maintain_order="left")
    calm = files.filter(pl.col("busy").is_null())
    divided = _divided(files.filter(pl.col("busy")), key_fields[0])
    found = [_group(part) for part in divided.partition_by([*PARTITION, "root", "component"], maintain_order=True)]
    if calm.height:
        found.append(_group(calm))
    return found


def _divided(files: pl.DataFrame, first_key: NestedField) -> pl.DataFrame:
    nodes = files.select(*PARTITION, "node_id").unique()
    roots = []
    for part in nodes.partition_by(PARTITION):
        ids = part["node_id"].to_list()
        tops = disjoint_roots(ids)
        roots.append(part.with_columns(pl.Series("root", [root_above(tops, node_id).id for node_id in ids], pl.Int64)))
    if not roots:
        return files.with_columns(root=pl.lit(None, pl.Int64), component=pl.lit(None, pl.Int64))
    files = files.join(pl.concat(roots), on=[*PARTITION, "node_id"], how="left", maintain_order="left")
    return files.with_columns(component=pl.lit(0, pl.Int64)).pipe(split_by_key_ranges, first_key)


def with_key_ranges(data: pl.DataFrame, files: FileList, io: FileIO, key: Sequence[NestedField]) -> pl.DataFrame:
    """Data files of a list with the bounds of the first key column, as `lower_<id>` and `upper_<id>`; null if not all is
    told. Of others only that: those of longs, which tell whether they once were ints."""
    first = key[0]
    ranged = [f"lower_{first.field_id}", f"upper_{first.field_id}"]
    longs = [field.field_id for field in key[1:] if isinstance(field.field_type, LongType)]
    names = [*ranged, *(f"lower_{field_id}" for field_id in longs)]
    if data.is_empty():
        return data.with_columns(pl.lit(None, pl.Binary).alias(name) for name in names)
    found = files.with_metrics(io, data, [first.field_id, *longs])
    if first.optional:  # a key that is null lies outside of all bounds
        without = pl.col(f"nulls_{first.field_id}") == 0
        found = found.with_columns(pl.when(without).then(name).alias(name) for name in ranged)
    return found.select(*data.columns, *names)


def split_by_key_ranges(files: pl.DataFrame, field: NestedField) -> pl.DataFrame:
    """Number the runs of files of one `root` whose key ranges hang together, as `component`. A file whose range is not known
    may reach anywhere."""
    lower, upper = (decode_bound(pl.col(f"{end}_{field.field_id}"), field.field_type) for end in ("lower", "upper"))
    if lower is None or upper is None:
        return files.with_columns(component=pl.lit(0, pl.Int64))
    place = [*PARTITION, "root"]
    ranged = files.with_columns(lower=lower, upper=upper).sort(*place, "lower", nulls_last=False, maintain_order=True)
    unknown = (pl.col("lower").is_null() | pl.col("upper").is_null()).any().over(place)
    # Ascending by their beginnings: a file that begins behind all ends so far begins a new run.
    begins = pl.col("lower") > pl.col("upper").cum_max().shift(1).over(place)
    numbered = ranged.with_columns(component=begins.fill_null(value=False).cum_sum().over(place).cast(pl.Int64))
    return numbered.with_columns(component=pl.when(unknown).then(0).otherwise("component")).drop("lower", "upper")


def _group(files: pl.DataFrame) -> KeyGroup:
    of_base, of_change = pl.col("store") == "base", pl.col("store") == "change"
    inserts = of_change & (pl.col("kind") != "ED")
    return KeyGroup(
        base=files.filter(of_base & pl.col("wanted")),
        inserts=files.filter(inserts & pl.col("wanted")),
        words=files.filter(of_change),
        base_words=competing_base_files(files.filter(of_base), files.filter(inserts)),
    )


def rank_transactions(*frames: pl.DataFrame) -> list[pl.DataFrame]:
    """The frames with `rank`, the number of the file's transaction among all of them."""
    known = np.unique(np.concatenate([frame["transaction_id"].to_numpy() for frame in frames]))
    return [
        frame.with_columns(pl.Series("rank", np.searchsorted(known, frame["transaction_id"].to_numpy()), pl.Int64))
        for frame in frames
    ]
