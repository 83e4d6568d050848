"""The summary of a snapshot: what it changed, and the totals of the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from pyarctic.iceberg.manifest.file_list import IS_DATA, IS_VECTOR
from pyarctic.iceberg.manifest.partition_keys import PARTITION_KEY
from pyarctic.iceberg.manifest.reader import DELETES_MANIFEST, EQUALITY_DELETES, POSITION_DELETES, ManifestRef

_TOTALS = (
    "total-data-files",
    "total-records",
    "total-delete-files",
    "total-files-size",
    "total-position-deletes",
    "total-equality-deletes",
)
_RUNNING_TOTALS = {
    "total-files-size": ("added-files-size", "removed-files-size"),
    "total-position-deletes": ("added-position-deletes", "removed-position-deletes"),
    "total-equality-deletes": ("added-equality-deletes", "removed-equality-deletes"),
}


def count_totals(files: pl.DataFrame) -> dict[str, int]:
    """The totals of a summary, counted from all live files of a snapshot."""
    counts = _counts(files, "total", "total")
    return {name: counts[name] for name in _TOTALS}


def summarize(
    operation: Operation,
    *,
    parent: Snapshot | None,
    added: pl.DataFrame,
    removed: pl.DataFrame,
    before: Sequence[ManifestRef],
    after: Sequence[ManifestRef],
    snapshot_id: int,
    extra: Mapping[str, str],
    live: pl.DataFrame | None = None,
) -> Summary:
    """Summarize a snapshot. `added` and `removed` are frames of a file list; `before` and `after` are the manifests. With
    `live`, all files of the snapshot, totals are counted; else they follow from those of the parent."""
    counts = _counts(added, "added", "added") | _counts(removed, "deleted", "removed")
    properties = {key: str(count) for key, count in counts.items() if count}
    partitions = pl.concat([frame.select(PARTITION_KEY) for frame in (added, removed)])
    if added.height or removed.height:
        properties["changed-partition-count"] = str(partitions.n_unique())
    properties |= _manifest_counts(before, after, snapshot_id)
    properties |= _totals(parent, after, counts) if live is None else _as_texts(count_totals(live))
    return Summary(operation, **{**extra, **properties})


def _counts(files: pl.DataFrame, data_verb: str, delete_verb: str) -> dict[str, int]:
    is_equality = pl.col("content") == EQUALITY_DELETES
    is_position = pl.col("content") == POSITION_DELETES
    size = pl.when(IS_VECTOR).then("content_size_bytes").otherwise("file_size_bytes")
    rows = pl.col("record_count")
    counted = files.select(
        IS_DATA.sum().alias(f"{data_verb}-data-files"),
        rows.filter(IS_DATA).sum().alias(f"{data_verb}-records"),
        (~IS_DATA).sum().alias(f"{delete_verb}-delete-files"),
        (is_position & ~IS_VECTOR).sum().alias(f"{delete_verb}-position-delete-files"),
        IS_VECTOR.sum().alias(f"{delete_verb}-dvs"),
        is_equality.sum().alias(f"{delete_verb}-equality-delete-files"),
        rows.filter(is_position).sum().alias(f"{delete_verb}-position-deletes"),
        rows.filter(is_equality).sum().alias(f"{delete_verb}-equality-deletes"),
        size.sum().alias(f"{delete_verb}-files-size"),
    )
    return {name: int(value) for name, value in counted.row(0, named=True).items()}


def _manifest_counts(before: Sequence[ManifestRef], after: Sequence[ManifestRef], snapshot_id: int) -> dict[str, str]:
    created = sum(manifest.added_snapshot_id == snapshot_id for manifest in after)
    kept = {manifest.path for manifest in after}
    return {
        "manifests-created": str(created),
        "manifests-kept": str(len(after) - created),
        "manifests-replaced": str(sum(manifest.path not in kept for manifest in before)),
    }


def _totals(parent: Snapshot | None, after: Sequence[ManifestRef], counts: Mapping[str, int]) -> dict[str, str]:
    """Totals of files and records are those of the manifests. Sizes and deleted rows are not in manifest lists: they are
    added to those of the parent's summary, if it has them."""
    files = {True: 0, False: 0}
    records = 0
    for manifest in after:
        is_deletes = manifest.content == DELETES_MANIFEST
        files[is_deletes] += (manifest.added_files or 0) + (manifest.existing_files or 0)
        records += 0 if is_deletes else (manifest.added_rows or 0) + (manifest.existing_rows or 0)
    totals = {"total-data-files": files[False], "total-delete-files": files[True], "total-records": records}
    parent_totals = parent.summary.additional_properties if parent and parent.summary else {}
    for name, (plus, minus) in _RUNNING_TOTALS.items():
        parent_total = parent_totals.get(name) if parent else "0"
        if parent_total is not None and parent_total.isdigit():
            totals[name] = max(int(parent_total) + counts.get(plus, 0) - counts.get(minus, 0), 0)
    return _as_texts(totals)


def _as_texts(totals: Mapping[str, int]) -> dict[str, str]:
    return {name: str(total) for name, total in totals.items()}
