"""How far changes were merged into Base, for each partition: the greatest merged sequence number of the change store.

It is kept in a statistics file of the base store's snapshot, in a blob `optimized-sequence`: JSON, partition path → number.
A snapshot that has one says so in its summary; one that says nothing inherits it from its parent.
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
MERGED_SUMMARY = {f"{_SEQUENCE}.exist": "true", f"{_TIME}.exist": "true"}
"""What the summary of a snapshot with such statistics says."""
_LEGACY = "table.partition-properties"


def merged_sequences(metadata: TableMetadata, io: FileIO, snapshot: Snapshot | None) -> dict[str, int]:
    """Partition path → merged sequence number, as of a snapshot of the base store; other partitions have none yet."""
    return _state(metadata, io, snapshot, _SEQUENCE, "max-txId")


def merge_times(metadata: TableMetadata, io: FileIO, snapshot: Snapshot | None) -> dict[str, int]:
    """Partition path → when it was merged last, in milliseconds."""
    return _state(metadata, io, snapshot, _TIME, "base-op-time")


def write_merged_sequences(
    metadata: TableMetadata, io: FileIO, snapshot_id: int, changed: Mapping[str, int]
) -> StatisticsFile:
    """The state after a commit that merges partitions up to the given sequence numbers; others stay as they are."""
    now = time.time_ns() // 1_000_000
    current = metadata.current_snapshot()
    sequences = merged_sequences(metadata, io, current)
    times = merge_times(metadata, io, current)
    blobs = [
        Blob(
            type=type_,
            data=json.dumps({**known, **new}).encode(),
            fields=(),
            snapshot_id=snapshot_id,
            # Of the snapshot, if nobody commits in the meantime; nobody reads it.
            sequence_number=max((known.sequence_number or 0 for known in metadata.snapshots), default=0) + 1,
        )
        for type_, known, new in ((_SEQUENCE, sequences, changed), (_TIME, times, dict.fromkeys(changed, now)))
    ]
    path = f"{metadata.location.rstrip('/')}/data/puffin/{snapshot_id}-{uuid.uuid4()}.puffin"
    return write_statistics(metadata, io, snapshot_id, blobs, path=path)


def _state(metadata: TableMetadata, io: FileIO, snapshot: Snapshot | None, blob: str, legacy: str) -> dict[str, int]:
    told = oldest = snapshot
    while told is not None and not _says(told, f"{blob}.exist"):
        parent, oldest = told.parent_snapshot_id, told
        told = None if parent is None else metadata.snapshot_by_id(parent)
    if told is None:
        is_cut = oldest is not None and (oldest.sequence_number or 0) > 1 and _LEGACY not in metadata.properties
        if oldest is not None and is_cut and blob == _SEQUENCE:  # what was merged before would be read twice
            raise Damaged(
                f"what was merged is not known: the history of Base ends at snapshot {oldest.snapshot_id}",
                hint="Snapshots before it were expired by a tool that does not know keyed tables. Restore the metadata of "
                f"Base. If nothing was ever merged or overwritten, set its property {_LEGACY} to {{}} with an Iceberg tool.",
                snapshot_id=oldest.snapshot_id,
            )
        return _legacy(metadata.properties, legacy)
    files = [
        file
        for file in metadata.statistics
        if file.snapshot_id == told.snapshot_id and any(known.type == blob for known in file.blob_metadata)
    ]
    if len(files) != 1:
        raise Damaged(
            f"snapshot {told.snapshot_id} says that it knows what was merged, and {len(files)} statistics files tell it",
            hint="Somebody removed its statistics. Roll the base store back to a snapshot that still has them.",
            snapshot_id=told.snapshot_id,
        )
    try:
        found: dict[str, Any] = json.loads(read_blob(io, files[0].statistics_path, blob))
        return {path: int(value) for path, value in found.items()}
    except (ValueError, AttributeError) as cause:
        raise Damaged(
            f"statistics cannot be understood: {files[0].statistics_path}",
            hint="Roll the base store back to the snapshot before its commit.",
            file=files[0].statistics_path,
        ) from cause


def _says(snapshot: Snapshot, key: str) -> bool:
    return snapshot.summary is not None and key in snapshot.summary.additional_properties


def _legacy(properties: Mapping[str, str], name: str) -> dict[str, int]:
    """Older tables keep it in a property."""
    told: dict[str, dict[str, str]] = json.loads(properties.get(_LEGACY, "{}"))
    return {path: int(known[name]) for path, known in told.items() if name in known}
