"""Files that other Iceberg engines have written into the base store.

They know nothing of keys: an append may hold a key that Base has already. The row of the later commit counts, so rows of
foreign files supersede those of other base files. Like all rows without a transaction, they come before every change.

Files that a compaction, or an UPDATE or DELETE with copy-on-write, has put in the place of others hold rows that are older
than its commit: they are as old as the files that were replaced. If these are of different ages, or not known because
snapshots were expired, the age of the new files lies between two bounds, and files whose bounds overlap have no order. That
does no harm unless they share a key, so their keys are read; nothing else is read here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from pyiceberg.table.snapshots import Operation, Snapshot

from pyarctic.errors import Damaged
from pyarctic.iceberg.delete import EqualityDeletes, PositionDeletes, match_deletes
from pyarctic.iceberg.manifest import (
    IS_DATA,
    PARTITION_KEY,
    ManifestReader,
    PartitionDecoder,
    SnapshotHistory,
    changed_files,
)
from pyarctic.iceberg.read import TableReader, TableView
from pyarctic.tables.format.file_names import parse_file_names
from pyarctic.tables.format.primary_key import PrimaryKey
from pyarctic.tables.read.latest_versions import KeyVersions
from pyarctic.tables.read.merged_file import MergedBaseFile

IS_FOREIGN = pl.col("foreign_order") > 0
"""Whether a base file is foreign. `foreign_order` tells which of two foreign files came later; it is 0 for other files."""
UNKNOWN_ORDER = "unknown-order"
"""The reason of `Damaged` if rows of one key have no order."""
_PLACE = ["snapshot_id", *PARTITION_KEY]
_AGES = pl.Schema(
    {"snapshot_id": pl.Int64, "spec_id": pl.Int32, "partition": pl.String, "oldest": pl.Int64, "latest": pl.Int64}
)
"""The bounds of the ages of rows that a snapshot has taken over from other files of a partition. A greater age is later."""
_MEMORY_BYTES = 64 << 20


def order_foreign_files(base: pl.DataFrame, files: pl.DataFrame, view: TableView, reader: ManifestReader) -> pl.DataFrame:
    """Add `foreign_order` to base files with the facts of their names; `files` are all files of their snapshot.

    Raises Damaged if the latest row of a key is not known."""
    foreign = base.filter(pl.col("is_foreign") & IS_DATA)
    if foreign.is_empty():
        return base.with_columns(foreign_order=pl.lit(0, pl.Int64))
    aged = _with_ages_of_all(foreign, SnapshotHistory(view.metadata, view.io), reader)
    for _, unordered in aged.filter("is_unordered").group_by(*PARTITION_KEY, "group", maintain_order=True):
        _refuse_repeated_keys(unordered, files, view)
    ordered = aged.sort("latest", "data_sequence_number", "file_path")
    return restore_foreign_order(base, ordered["file_path"].to_list())


def restore_foreign_order(base: pl.DataFrame, paths: Sequence[str]) -> pl.DataFrame:
    """Add `foreign_order` to base files; `paths` are those of foreign files, the oldest first."""
    order = pl.DataFrame({"file_path": paths}, schema={"file_path": pl.String}).with_row_index("foreign_order", 1)
    ordered = base.join(order, on="file_path", how="left", maintain_order="left")
    return ordered.with_columns(pl.col("foreign_order").cast(pl.Int64).fill_null(0))


def _with_ages_of_all(foreign: pl.DataFrame, history: SnapshotHistory, reader: ManifestReader) -> pl.DataFrame:
    """Add `oldest` and `latest`, the bounds of the ages of rows; and `group` and `is_unordered`: whether some files of a
    group have no order."""
    replaced = _replaced_files(foreign, history, reader)
    known = list(replaced)
    ages = pl.DataFrame(schema=_AGES)
    for snapshot_id in sorted(replaced, key=history.sequence_number):
        aged = _with_ages(replaced[snapshot_id], ages, known).with_columns(snapshot_id=pl.lit(snapshot_id, pl.Int64))
        bounds = aged.group_by(_PLACE).agg(pl.col("oldest").min(), pl.col("latest").max())
        ages = pl.concat([ages, bounds.select(_AGES.names())])
    ordered = _with_ages(foreign, ages, known).sort(*PARTITION_KEY, "oldest", "latest")
    begins = pl.col("oldest") > pl.col("latest").cum_max().shift(1).over(PARTITION_KEY)
    grouped = ordered.with_columns(group=begins.fill_null(value=False).cum_sum().over(PARTITION_KEY))
    is_unordered = (pl.col("oldest") < pl.col("latest")).any().over(*PARTITION_KEY, "group")
    return grouped.with_columns(is_unordered=is_unordered)


def _replaced_files(foreign: pl.DataFrame, history: SnapshotHistory, reader: ManifestReader) -> dict[int, pl.DataFrame]:
    """The data files that were replaced by the snapshots which added some foreign files, and by those that added the
    replaced ones. Snapshots of which that is not known are left out."""
    replaced: dict[int, pl.DataFrame] = {}
    waiting = set(foreign["snapshot_id"])
    while waiting:
        snapshot = history.find(waiting.pop())
        if snapshot is None or snapshot.snapshot_id in replaced:
            continue
        removed = _removed_by(snapshot, history, reader)
        if removed is not None:
            files = parse_file_names(removed, "base")
            replaced[snapshot.snapshot_id] = files
            waiting |= set(files.filter("is_foreign")["snapshot_id"])
    return replaced


def _removed_by(snapshot: Snapshot, history: SnapshotHistory, reader: ManifestReader) -> pl.DataFrame | None:
    """The data files that a snapshot has removed; None: not known."""
    if snapshot.summary is not None and snapshot.summary.operation == Operation.APPEND:
        return changed_files(reader, None, None).drop("change")
    parent = history.parent_of(snapshot)
    if parent is None and not history.is_first(snapshot):
        return None
    try:
        changed = changed_files(reader, parent, snapshot)
    except Damaged:  # an expiry has removed the manifests
        return None
    return changed.filter((pl.col("change") == "removed") & IS_DATA).drop("change")


def _with_ages(files: pl.DataFrame, ages: pl.DataFrame, known: Sequence[int]) -> pl.DataFrame:
    """Add `oldest` and `latest`. `ages`: of rows that snapshots have taken over; `known`: the snapshots of which it is known
    what they replaced. Rows of the others may be of any age."""
    own_age = pl.col("data_sequence_number")
    oldest = pl.when(pl.col("snapshot_id").is_in(known)).then(own_age).otherwise(0)
    aged = files.join(ages, on=_PLACE, how="left", maintain_order="left")
    return aged.with_columns(
        oldest=pl.when("is_foreign").then(pl.coalesce("oldest", oldest)).otherwise(0),
        latest=pl.when("is_foreign").then(pl.coalesce("latest", own_age)).otherwise(0),
    )


def _refuse_repeated_keys(unordered: pl.DataFrame, files: pl.DataFrame, view: TableView) -> None:
    key = PrimaryKey.of(view.metadata, view.name)
    matches = match_deletes(files, PartitionDecoder(view.metadata).unpartitioned_specs())
    reading = TableReader(
        view.metadata, view.io, matches, PositionDeletes(view.io, _MEMORY_BYTES // 4), EqualityDeletes(view.io, [], 0)
    )
    rows = reading.numbered_files().join(unordered.select("file_path"), on="file_path", how="semi")
    with KeyVersions(_MEMORY_BYTES, int(unordered["record_count"].sum()), check_ties=True) as versions:
        for row in rows.with_columns(rank=pl.lit(0), foreign_order=pl.lit(0)).iter_rows(named=True):
            for _, live, keys in MergedBaseFile(reading, row, key).key_batches():
                live_keys = keys if live is None else keys.filter(live)
                versions.add(live_keys, np.ones(live_keys.height, np.int64))
        try:
            versions.check_ties()
        except Damaged as tie:
            path = unordered.sort("latest", "file_path")["file_path"][-1]
            raise _unknown_order(tie, path) from None


def _unknown_order(tie: Damaged, path: str) -> Damaged:
    return Damaged(
        f"key {tie.facts['key']} has several rows in Base, and which of them is the latest is not known: another engine has "
        "rewritten its files",
        hint="Read [[store='base']] to see them. Delete the key with an Iceberg engine that sees Base, and write it once "
        "more (upsert); or roll Base back to before the rewrite, optimize the table, and repeat it.",
        key=tie.facts["key"],
        keys=tie.facts["keys"],
        file=path,
        reason=UNKNOWN_ORDER,
    )
