"""Which files a table's snapshots refer to: asked before any output of a commit is removed."""

from __future__ import annotations

from collections.abc import Collection

import polars as pl
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from pyarctic.iceberg.manifest.reader import ManifestReader


def referenced_files(
    metadata: TableMetadata, reader: ManifestReader, paths: Collection[str], *, since: int | None
) -> set[str]:
    """Those of `paths` that a snapshot or statistics entry of the table refers to, on any branch and in history that was
    rolled back.

    `since` is a snapshot that is older than the files: manifests that it has cannot name them and are not read. Without it,
    or if it was expired, all manifests are read."""
    if not paths:
        return set()
    start = metadata.snapshot_by_id(since) if since is not None else None
    old = {manifest.path for manifest in reader.manifests(start)}
    newer = {
        manifest.path: manifest
        for snapshot in _snapshots_since(metadata, start)
        for manifest in reader.manifests(snapshot)
        if manifest.path not in old
    }
    named = reader.files_of(newer.values()).filter(pl.col("file_path").is_in(list(paths)))["file_path"]
    statistics = {file.statistics_path for file in metadata.statistics}
    return set(named) | statistics.intersection(paths)


def _snapshots_since(metadata: TableMetadata, start: Snapshot | None) -> list[Snapshot]:
    if start is None:
        return list(metadata.snapshots)
    if start.sequence_number:  # one sequence for all branches
        return [snapshot for snapshot in metadata.snapshots if (snapshot.sequence_number or 0) > start.sequence_number]
    older = {snapshot.snapshot_id for snapshot in ancestors_of(start, metadata)}
    return [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id not in older]
