"""Which files the metadata of a table refers to, to check before files of a commit are removed.

Files are known by their names, which are unique: the same file has several paths (`s3:` and `s3a:`, `file:/` and `file:///`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

import polars as pl
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from pyarctic.iceberg.manifest.file_list import ManifestReader, ancestors

_FILE_NAME = pl.col("file_path").str.extract(r"([^/]+)$")
_METADATA_FILE = re.compile(r"(\d+)-.+\.metadata\.json$")


def referenced_files(
    metadata: TableMetadata, reader: ManifestReader, paths: Collection[str], *, since: int | None
) -> set[str]:
    """Those of `paths` that a snapshot or statistics file of the table refers to, on any branch and in history that was
    rolled back: data files, deletes, manifests, manifest lists, statistics.

    `since` is a snapshot older than the files: its manifests cannot refer to them and are not read. Without it, or if it was
    expired, all manifests are read."""
    if not paths:
        return set()
    start = metadata.snapshot_by_id(since) if since is not None else None
    newer = _snapshots_since(metadata, start)
    old_manifests = {manifest.path for manifest in reader.manifests(start)}
    newer_manifests = {
        manifest.path: manifest
        for snapshot in newer
        for manifest in reader.manifests(snapshot)
        if manifest.path not in old_manifests
    }
    names = {_name(path) for path in paths}
    files = reader.files_of(newer_manifests.values()).select(_FILE_NAME.alias("name"))
    referenced = set(files.filter(pl.col("name").is_in(list(names)))["name"])
    others = (file.statistics_path for file in (*metadata.statistics, *metadata.partition_statistics))
    referenced |= _names([*others, *newer_manifests, *(snapshot.manifest_list for snapshot in newer)])
    return {path for path in paths if _name(path) in referenced}


def kept_metadata_files(metadata: TableMetadata, location: str | None, paths: Iterable[str]) -> set[str]:
    """Those of `paths` that are metadata files and are, or may have been, those of the table, which is at `location`. Proof
    that one never was: the log has another one of its number."""
    logged = [entry.metadata_file for entry in metadata.metadata_log]
    used = _names([*logged, *([location] if location else [])])
    numbers = {_metadata_number(name) for name in used} - {None}
    candidates = {path: name for path in paths if (name := _name(path)).endswith(".metadata.json")}
    refused = {path for path, name in candidates.items() if name not in used and _metadata_number(name) in numbers}
    return candidates.keys() - refused if location else set(candidates)


def _metadata_number(name: str) -> int | None:
    found = _METADATA_FILE.match(name)
    return int(found[1]) if found else None


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _names(paths: Iterable[str]) -> set[str]:
    return {_name(path) for path in paths}


def _snapshots_since(metadata: TableMetadata, start: Snapshot | None) -> list[Snapshot]:
    if start is None:
        return list(metadata.snapshots)
    if start.sequence_number:  # one sequence for all branches
        return [snapshot for snapshot in metadata.snapshots if (snapshot.sequence_number or 0) > start.sequence_number]
    older = {snapshot.snapshot_id for snapshot in ancestors(metadata, start)}
    return [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id not in older]
