"""How far changes are merged into Base, for each partition: the greatest merged sequence number of the change store.

It is stored in a statistics file of the base store's snapshot, in a blob `optimized-sequence`: JSON, partition path →
number. The summary of such a snapshot has an entry for it; a snapshot without that entry inherits from its parent.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.statistics import StatisticsFile

from pyarctic.errors import Damaged
from pyarctic.iceberg.write import Blob, read_blob, write_statistics

_SEQUENCE, _TIME = "optimized-sequence", "base-optimized-time"
_LEGACY_KEYS = {_SEQUENCE: "max-txId", _TIME: "base-op-time"}
MERGED_SUMMARY = {f"{_SEQUENCE}.exist": "true", f"{_TIME}.exist": "true"}
"""Entries of the summary of a snapshot with such statistics."""
_LEGACY_PROPERTY = "table.partition-properties"
"""Older tables store the same values in this property."""


def merged_sequences(metadata: TableMetadata, io: FileIO, snapshot: Snapshot | None) -> dict[str, int]:
    """Partition path → merged sequence number, as of a snapshot of the base store; other partitions have none yet."""
    return _read_values(metadata, io, snapshot, _SEQUENCE)


def merge_times(metadata: TableMetadata, io: FileIO, snapshot: Snapshot | None) -> dict[str, int]:
    """Partition path → when it was merged last, in milliseconds."""
    return _read_values(metadata, io, snapshot, _TIME)


def write_merged_sequences(
    metadata: TableMetadata, io: FileIO, snapshot_id: int, changed: Mapping[str, int]
) -> StatisticsFile:
    """Write the statistics of a commit that merges partitions up to the given sequence numbers; others keep theirs."""
    now = time.time_ns() // 1_000_000
    current = metadata.current_snapshot()
    sequences = merged_sequences(metadata, io, current)
    times = merge_times(metadata, io, current)
    blobs = [
        Blob(
            type=type_,
            data=json.dumps({**old, **new}).encode(),
            fields=(),
            snapshot_id=snapshot_id,
            # Correct unless others commit in the meantime; no engine reads it.
            sequence_number=max((snapshot.sequence_number or 0 for snapshot in metadata.snapshots), default=0) + 1,
        )
        for type_, old, new in ((_SEQUENCE, sequences, changed), (_TIME, times, dict.fromkeys(changed, now)))
    ]
    path = f"{metadata.location.rstrip('/')}/data/puffin/{snapshot_id}-{uuid.uuid4()}.puffin"
    return write_statistics(metadata, io, snapshot_id, blobs, path=path)


def _read_values(metadata: TableMetadata, io: FileIO, snapshot: Snapshot | None, blob: str) -> dict[str, int]:
    """Partition path → number, as of a snapshot."""
    source, oldest = _find_source(metadata, snapshot, blob)
    if source is not None:
        return _read_statistics(metadata, io, source, blob)
    if oldest is not None and blob == _SEQUENCE:
        _refuse_lost_history(metadata, oldest)
    return _read_legacy(metadata.properties, _LEGACY_KEYS[blob])


def _find_source(metadata: TableMetadata, snapshot: Snapshot | None, blob: str) -> tuple[Snapshot | None, Snapshot | None]:
    """The latest ancestor with such a blob, if any, and the oldest snapshot that was looked at."""
    oldest = snapshot
    while snapshot is not None and not _has_summary_entry(snapshot, f"{blob}.exist"):
        parent, oldest = snapshot.parent_snapshot_id, snapshot
        snapshot = None if parent is None else metadata.snapshot_by_id(parent)
    return snapshot, oldest


def _has_summary_entry(snapshot: Snapshot, key: str) -> bool:
    return snapshot.summary is not None and key in snapshot.summary.additional_properties


def _refuse_lost_history(metadata: TableMetadata, oldest: Snapshot) -> None:
    """Raise if ancestors were expired that may have had the merged sequences: merged changes would be read twice."""
    if (oldest.sequence_number or 0) > 1 and _LEGACY_PROPERTY not in metadata.properties:
        raise Damaged(
            f"what was merged is not known: the history of Base ends at snapshot {oldest.snapshot_id}",
            hint="Snapshots before it were expired by a tool that does not know keyed tables. Restore the metadata of Base. "
            f"If nothing was ever merged or overwritten, set its property {_LEGACY_PROPERTY} to {{}} with an Iceberg tool.",
            snapshot_id=oldest.snapshot_id,
        )


def _read_statistics(metadata: TableMetadata, io: FileIO, snapshot: Snapshot, blob: str) -> dict[str, int]:
    files = [
        file
        for file in metadata.statistics
        if file.snapshot_id == snapshot.snapshot_id and any(entry.type == blob for entry in file.blob_metadata)
    ]
    if len(files) != 1:
        raise Damaged(
            f"snapshot {snapshot.snapshot_id} should have one statistics file with merged sequences, and has {len(files)}",
            hint="Its statistics were removed. Roll the base store back to a snapshot that still has them.",
            snapshot_id=snapshot.snapshot_id,
        )
    path = files[0].statistics_path
    try:
        values: dict[str, Any] = json.loads(read_blob(io, path, blob))
        return {partition: int(value) for partition, value in values.items()}
    except (ValueError, AttributeError) as cause:
        raise Damaged(
            f"statistics cannot be parsed: {path}",
            hint="Roll the base store back to the snapshot before its commit.",
            file=path,
        ) from cause


def _read_legacy(properties: Mapping[str, str], key: str) -> dict[str, int]:
    partitions: dict[str, dict[str, str]] = json.loads(properties.get(_LEGACY_PROPERTY, "{}"))
    return {path: int(values[key]) for path, values in partitions.items() if key in values}
