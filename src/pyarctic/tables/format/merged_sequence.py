"""How far changes are merged into Base, for each partition: the greatest merged sequence number of the change store.

It belongs to a snapshot of the base store: the map partition path → number is in the snapshot's summary, and a snapshot
without one inherits from its parent. Every Iceberg reader can load such a table.

The same map is in the table property `table.partition-properties`, for two reasons. Other engines of the format read it
there. And it outlives the snapshot, which a tool that does not know keyed tables may expire. Another property names the
snapshot that the map is of. The map holds for a snapshot without an entry only if every commit in between is known: another
engine of the format may have merged without changing the property, or Base may have been rolled back to before the merge.
Otherwise the history is taken from older metadata files.

Other engines of the format store the map as a statistics file, with an entry in the summary that says so. PyIceberg without
patches cannot load such a table. Statistics are still written where these engines would otherwise find an older map
(`_writes_statistics`).
"""

from __future__ import annotations

import base64
import contextlib
import json
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata, TableMetadataV1
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.statistics import StatisticsFile

from pyarctic.config.table_properties import MERGED_SEQUENCES_STORAGE
from pyarctic.errors import Damaged, NotFound
from pyarctic.iceberg.commit import Change
from pyarctic.iceberg.manifest import ManifestReader, ancestors, load_history_of
from pyarctic.iceberg.write import Blob, new_file_id, read_blob, write_statistics
from pyarctic.tables.format.file_names import parse_file_names

_SUMMARY = "arctic.merged-sequences"
PARTITION_PROPERTIES = "table.partition-properties"
MERGED_AT = "arctic.merged-sequences.snapshot-id"
"""The snapshot of Base that the property above is of; 0: the empty table. Engines of the format that store the map in the
property alone do not write it."""
_BEFORE = "arctic.merged-sequences.before"
"""In the summary of the first snapshot that has merged sequences: those of the snapshot before it, which an engine stored in
the property alone, or which an expired snapshot had."""
_EMPTY_TABLE = 0
_SEQUENCE, _TIME = "optimized-sequence", "base-optimized-time"
_STATISTICS_FLAGS = {f"{_SEQUENCE}.exist": "true", f"{_TIME}.exist": "true"}
"""Entries of the summary of a snapshot with statistics."""
_PROPERTY_KEYS = {_SEQUENCE: "max-txId", _TIME: "base-op-time"}
_COMPRESSED = "zlib:"
_MAX_PLAIN_CHARS = 1024
_MAX_SUMMARY_CHARS = 16 * 1024
"""Every retained snapshot has a map, and every commit writes all of them."""
_MAX_PROPERTY_CHARS = 128 * 1024
"""Hive Metastore and Glue store table properties, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedSequenceRecord:
    """What a commit stores of the merged sequences."""

    summary: Mapping[str, str]
    set_properties: Mapping[str, str] = field(default_factory=dict)
    remove_properties: tuple[str, ...] = ()
    statistics: tuple[StatisticsFile, ...] = ()

    def add_to(self, change: Change) -> Change:
        """The change with this record; its snapshot id stays."""
        return replace(
            change,
            snapshot_properties={**change.snapshot_properties, **self.summary},
            set_properties={**change.set_properties, **self.set_properties},
            remove_properties=(*change.remove_properties, *self.remove_properties),
            statistics=self.statistics,
        )


def merged_sequences(metadata: TableMetadata, io: FileIO, snapshot: Snapshot | None) -> dict[str, int]:
    """Partition path → merged sequence number, as of a snapshot of the base store; other partitions have none yet."""
    source = _find_source(metadata, snapshot)
    if source is None:
        return _inherited_sequences(metadata, io, snapshot)
    text = _summary_entry(source, _SUMMARY)
    sequences = _read_statistics(metadata, io, source, _SEQUENCE) if text is None else _decode(text, source)
    if not _is_head(metadata, snapshot) or metadata.properties.get(MERGED_AT) != str(source.snapshot_id):
        return sequences
    # The property was the same. If it is not any more, an engine that knows only the property has merged since.
    since = _read_property(metadata.properties, _SEQUENCE)
    return sequences | {path: max(number, sequences.get(path, number)) for path, number in since.items()}


def merge_times(metadata: TableMetadata, io: FileIO, snapshot: Snapshot | None) -> dict[str, int]:
    """Partition path → when it was merged last, in milliseconds. Other engines plan by it."""
    source = _find_source(metadata, snapshot)
    if source is not None and _summary_entry(source, f"{_TIME}.exist") is not None:
        return _read_statistics(metadata, io, source, _TIME)
    return _read_property(metadata.properties, _TIME)


def record_merged_sequences(
    metadata: TableMetadata,
    io: FileIO,
    snapshot_id: int,
    changed: Mapping[str, int],
    *,
    storage: str | None = None,
    names_of: int | None = None,
) -> MergedSequenceRecord:
    """What a commit to Base must store if it merges partitions up to the given sequence numbers; others keep theirs.

    `storage` overrides the table property. `names_of`: as `Change.names_of`, if that is not the snapshot itself."""
    current = metadata.current_snapshot()
    sequences = merged_sequences(metadata, io, current) | dict(changed)
    times = merge_times(metadata, io, current) | dict.fromkeys(changed, time.time_ns() // 1_000_000)
    properties = {
        PARTITION_PROPERTIES: _encode_property(metadata.properties, sequences, times),
        MERGED_AT: str(snapshot_id),
    }
    summary = {_SUMMARY: _encode(sequences)}
    if _find_source(metadata, current) is None and (before := merged_sequences(metadata, io, current)):
        summary[_BEFORE] = _encode(before)
    fits = len(properties[PARTITION_PROPERTIES]) <= _MAX_PROPERTY_CHARS
    if fits and len(summary[_SUMMARY]) <= _MAX_SUMMARY_CHARS and not _writes_statistics(metadata, storage):
        return MergedSequenceRecord(summary=summary, set_properties=properties)
    return MergedSequenceRecord(
        summary={**_STATISTICS_FLAGS, **{name: value for name, value in summary.items() if name == _BEFORE}},
        # Never an old map: it is read when the snapshots with newer ones were expired.
        set_properties=properties if fits else {},
        remove_properties=() if fits else tuple(name for name in properties if name in metadata.properties),
        statistics=(_write_statistics(metadata, io, snapshot_id, names_of, {_SEQUENCE: sequences, _TIME: times}),),
    )


def initial_properties() -> dict[str, str]:
    """The table properties of an empty base store."""
    return {PARTITION_PROPERTIES: "{}", MERGED_AT: str(_EMPTY_TABLE)}


def properties_at(metadata: TableMetadata, io: FileIO, snapshot: Snapshot) -> dict[str, str]:
    """The table properties with the merged sequences of an older snapshot, for a table that is rolled back to it."""
    if PARTITION_PROPERTIES not in metadata.properties:
        return {}
    source = _find_source(metadata, snapshot)
    if source is None and MERGED_AT not in metadata.properties:
        return {}
    sequences = merged_sequences(metadata, io, snapshot)
    times = {path: at for path, at in merge_times(metadata, io, source).items() if path in sequences}
    return {
        PARTITION_PROPERTIES: _encode_property(metadata.properties, sequences, times),
        MERGED_AT: str(snapshot.snapshot_id),
    }


def snapshots_with_statistics(metadata: TableMetadata, head: Snapshot | None) -> list[Snapshot]:
    """The snapshot and its ancestors that say they have merged sequences in statistics, newest first."""
    return [snapshot for snapshot in ancestors(metadata, head) if _has_statistics(snapshot)]


def is_in_summary(metadata: TableMetadata, snapshot: Snapshot | None) -> bool:
    """Whether the merged sequences of a snapshot are in its summary or in that of an ancestor."""
    source = _find_source(metadata, snapshot)
    return source is not None and _summary_entry(source, _SUMMARY) is not None


def statistics_with_merged_sequences(metadata: TableMetadata) -> list[StatisticsFile]:
    """Statistics files with merged sequences; PyIceberg without patches cannot load a table that has any."""
    return [file for file in metadata.statistics if any(blob.type in _PROPERTY_KEYS for blob in file.blob_metadata)]


def _writes_statistics(metadata: TableMetadata, storage: str | None) -> bool:
    """Whether the map goes into statistics. Other engines of the format take it from the latest ancestor that has
    statistics, so it has to be there once an ancestor has them."""
    chosen = storage or MERGED_SEQUENCES_STORAGE.of(metadata.properties)
    return chosen == "statistics" or (
        storage is None and bool(snapshots_with_statistics(metadata, metadata.current_snapshot()))
    )


def _find_source(metadata: TableMetadata, snapshot: Snapshot | None) -> Snapshot | None:
    """The latest of a snapshot and its ancestors that has merged sequences of its own."""
    for ancestor in ancestors(metadata, snapshot):
        if _summary_entry(ancestor, _SUMMARY) is not None or _has_statistics(ancestor):
            return ancestor
    return None


def _has_statistics(snapshot: Snapshot) -> bool:
    return _summary_entry(snapshot, f"{_SEQUENCE}.exist") is not None


def _summary_entry(snapshot: Snapshot, key: str) -> str | None:
    return snapshot.summary.additional_properties.get(key) if snapshot.summary is not None else None


def _inherited_sequences(metadata: TableMetadata, io: FileIO, snapshot: Snapshot | None) -> dict[str, int]:
    """The merged sequences of a snapshot that has none in its history, as far as that is not expired."""
    if snapshot is None:  # before Base had anything
        return {}
    history = list(ancestors(metadata, snapshot))
    if _is_property_of(metadata, history):
        return _read_property(metadata.properties, _SEQUENCE)
    before = _before_first_merge(metadata, io, snapshot, history[-1])
    if before is not None:
        return before
    if (history[-1].sequence_number or 0) <= 1:  # nothing was expired, and nothing merged
        return {}
    return _sequences_before_expiry(metadata, io, history)


def _is_property_of(metadata: TableMetadata, history: Sequence[Snapshot]) -> bool:
    """Whether the property has the map of the newest of these snapshots."""
    if PARTITION_PROPERTIES not in metadata.properties:
        return False
    known = {str(each.snapshot_id) for each in history} | {str(history[-1].parent_snapshot_id)}
    is_newest = _is_head(metadata, history[0]) and _is_of_older_engine(metadata.properties)
    return metadata.properties.get(MERGED_AT) in known or is_newest


def _before_first_merge(metadata: TableMetadata, io: FileIO, snapshot: Snapshot, oldest: Snapshot) -> dict[str, int] | None:
    """What had been merged before the first snapshot that has merged sequences: by an engine that stores it in the property
    alone, or by snapshots that were expired. None: there is no such snapshot."""
    first_merges = [each for each in metadata.snapshots if _summary_entry(each, _BEFORE) is not None]
    for first in first_merges:
        if first.parent_snapshot_id == snapshot.snapshot_id:
            return _decode(_summary_entry(first, _BEFORE) or "", first)
    older = load_history_of(metadata, io, oldest) if first_merges else None
    if older is not None and _find_source(older, known := older.snapshot_by_id(oldest.snapshot_id)) is not None:
        return merged_sequences(older, io, known)
    if first_merges and _is_head(metadata, snapshot):  # rolled back by another tool
        raise _lost(oldest)
    if first_merges or (PARTITION_PROPERTIES in metadata.properties and _is_of_older_engine(metadata.properties)):
        raise _not_known(snapshot, "An engine stored it in a property alone, which has only the newest state.")
    return None


def _sequences_before_expiry(metadata: TableMetadata, io: FileIO, history: Sequence[Snapshot]) -> dict[str, int]:
    """The merged sequences from what is left of expired snapshots."""
    oldest = history[-1]
    older = load_history_of(metadata, io, oldest)
    if older is not None:
        with contextlib.suppress(Damaged, NotFound):  # its statistics may be gone, and its history cut as well
            return merged_sequences(older, io, older.snapshot_by_id(oldest.snapshot_id))
    merged_at = int(metadata.properties.get(MERGED_AT) or _EMPTY_TABLE)
    if PARTITION_PROPERTIES in metadata.properties and _only_foreign_commits(io, merged_at, oldest):
        return _read_property(metadata.properties, _SEQUENCE)
    if not _is_head(metadata, history[0]):
        raise _not_known(history[0], "Snapshots before it were expired.")
    raise _lost(oldest)


def _lost(oldest: Snapshot) -> Damaged:
    return Damaged(
        f"what was merged is not known: the history of Base ends at snapshot {oldest.snapshot_id}",
        hint="Snapshots before it were expired by a tool that does not know keyed tables, and the metadata files of that "
        f"time are gone. Restore them. If you know that the property {PARTITION_PROPERTIES} of Base is right, set its "
        f"property {MERGED_AT} to {oldest.snapshot_id} with an Iceberg tool.",
        snapshot_id=oldest.snapshot_id,
    )


def _not_known(snapshot: Snapshot, reason: str) -> NotFound:
    return NotFound(
        f"what was merged at snapshot {snapshot.snapshot_id} is not known any more",
        hint=f"{reason} Choose a later snapshot or time.",
        snapshot_id=snapshot.snapshot_id,
    )


def _is_head(metadata: TableMetadata, snapshot: Snapshot | None) -> bool:
    return snapshot is None or snapshot.snapshot_id == metadata.current_snapshot_id


def _is_of_older_engine(properties: Mapping[str, str]) -> bool:
    """Whether the property was written by an engine of the format that stores the map there alone."""
    merged_at = properties.get(MERGED_AT)
    return merged_at is None or (merged_at == str(_EMPTY_TABLE) and bool(_read_property(properties, _SEQUENCE)))


def _only_foreign_commits(io: FileIO, since: int, until: Snapshot) -> bool:
    """Whether all commits between two snapshots have put foreign files into Base that are still there. Engines of the format
    write no such files, so none of them has merged."""
    reader = ManifestReader(io)
    files = parse_file_names(reader.files_of(reader.manifests(until)), "base")
    start = [0] if since == _EMPTY_TABLE else files.filter(pl.col("snapshot_id") == since)["file_sequence_number"]
    commits = set(files.filter("is_foreign")["file_sequence_number"])
    return len(start) > 0 and commits.issuperset(range(start[0] + 1, until.sequence_number or 0))


def last_sequence_number(metadata: TableMetadata) -> int:
    """The sequence number of the last commit to a store."""
    return 0 if isinstance(metadata, TableMetadataV1) else metadata.last_sequence_number


def _encode(sequences: Mapping[str, int]) -> str:
    """The map as JSON, compressed if it is long."""
    text = json.dumps(sequences, separators=(",", ":"), ensure_ascii=False)
    if len(text) <= _MAX_PLAIN_CHARS:
        return text
    return _COMPRESSED + base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _decode(text: str, snapshot: Snapshot) -> dict[str, int]:
    try:
        if text.startswith(_COMPRESSED):
            text = zlib.decompress(base64.b64decode(text.removeprefix(_COMPRESSED), validate=True)).decode()
        return {path: int(sequence) for path, sequence in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError, zlib.error) as cause:
        raise Damaged(
            f"entry {_SUMMARY} in the summary of snapshot {snapshot.snapshot_id} cannot be parsed",
            hint="Roll the base store back to the snapshot before it.",
            snapshot_id=snapshot.snapshot_id,
        ) from cause


def statistics_folder(metadata: TableMetadata) -> str:
    """The folder of statistics files with merged sequences."""
    return f"{metadata.location.rstrip('/')}/data/puffin"


def _write_statistics(
    metadata: TableMetadata, io: FileIO, snapshot_id: int, names_of: int | None, values: Mapping[str, Mapping[str, int]]
) -> StatisticsFile:
    blobs = [
        Blob(
            type=type_,
            data=json.dumps(numbers).encode(),
            fields=(),
            snapshot_id=snapshot_id,
            # Correct unless others commit in the meantime; no engine reads it.
            sequence_number=last_sequence_number(metadata) + 1,
        )
        for type_, numbers in values.items()
    ]
    file_id = new_file_id(snapshot_id if names_of is None else names_of)
    path = f"{statistics_folder(metadata)}/{snapshot_id}-{file_id}.puffin"
    return write_statistics(metadata, io, snapshot_id, blobs, path=path)


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


def _read_property(properties: Mapping[str, str], blob: str) -> dict[str, int]:
    key = _PROPERTY_KEYS[blob]
    return {path: int(values[key]) for path, values in _partition_properties(properties).items() if key in values}


def _encode_property(properties: Mapping[str, str], sequences: Mapping[str, int], times: Mapping[str, int]) -> str:
    """The value of the table property; entries of other features stay."""
    ours = set(_PROPERTY_KEYS.values())
    partitions = {
        path: {name: value for name, value in values.items() if name not in ours}
        for path, values in _partition_properties(properties).items()
    }
    for name, numbers in ((_SEQUENCE, sequences), (_TIME, times)):
        for path, number in numbers.items():
            partitions.setdefault(path, {})[_PROPERTY_KEYS[name]] = str(number)
    return json.dumps({path: values for path, values in partitions.items() if values}, separators=(",", ":"))


def _partition_properties(properties: Mapping[str, str]) -> dict[str, dict[str, str]]:
    text = properties.get(PARTITION_PROPERTIES, "{}")
    try:
        partitions: dict[str, dict[str, str]] = json.loads(text)
        return {path: dict(values) for path, values in partitions.items()}
    except (ValueError, AttributeError, TypeError) as cause:
        raise Damaged(
            f"table property {PARTITION_PROPERTIES} of the base store cannot be parsed",
            hint="It is written by engines of the format only. Restore it from an older metadata file.",
        ) from cause
