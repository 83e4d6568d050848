"""Which files the snapshots of a table refer to, to check before files of a commit are removed."""

from __future__ import annotations

from collections.abc import Collection

import polars as pl
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from pyarctic.iceberg.manifest.file_list import ManifestReader, ancestors


def referenced_files(
    metadata: TableMetadata, reader: ManifestReader, paths: Collection[str], *, since: int | None
) -> set[str]:
    """Those of `paths` that a snapshot or statistics file of the table refers to, on any branch and in history that was
    rolled back.

    `since` is a snapshot older than the files: its manifests cannot refer to them and are not read. Without it, or if it was
    expired, all manifests are read."""
    if not paths:
        return set()
    start = metadata.snapshot_by_id(since) if since is not None else None
    old_manifests = {manifest.path for manifest in reader.manifests(start)}
    newer_manifests = {
        manifest.path: manifest
        for snapshot in _snapshots_since(metadata, start)
        for manifest in reader.manifests(snapshot)
        if manifest.path not in old_manifests
    }
    referenced = reader.files_of(newer_manifests.values()).filter(pl.col("file_path").is_in(list(paths)))["file_path"]
    statistics = {file.statistics_path for file in metadata.statistics}
    return set(referenced) | statistics.intersection(paths)


def _snapshots_since(metadata: TableMetadata, start: Snapshot | None) -> list[Snapshot]:
    if start is None:
        return list(metadata.snapshots)
    if start.sequence_number:  # one sequence for all branches
        return [snapshot for snapshot in metadata.snapshots if (snapshot.sequence_number or 0) > start.sequence_number]
    older = {snapshot.snapshot_id for snapshot in ancestors(metadata, start)}
    return [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id not in older]
