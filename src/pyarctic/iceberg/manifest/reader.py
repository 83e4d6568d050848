"""Reading manifest lists and manifests of any writer and format version as frames.

Fields are found by their Iceberg field id, not by name, because names differ between versions and writers. Values that an
entry inherits from its manifest (snapshot id, sequence numbers, first row id) are filled in here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
import polars as pl
from pyiceberg.io import FileIO
from pyiceberg.table.snapshots import Snapshot

from pyarctic.errors import Damaged, Unsupported
from pyarctic.iceberg.manifest.avro import (
    DAMAGED_HINT,
    AvroContainer,
    AvroField,
    flatten,
    join_containers,
    parse_container,
    read_columns,
)
from pyarctic.iceberg.manifest.partition_keys import partition_key
from pyarctic.iceberg.storage import read_bytes

DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2
EXISTING, ADDED, DELETED = 0, 1, 2
DATA_MANIFEST, DELETES_MANIFEST = 0, 1
FILE_PATH_ID = 2147483546
"""Field id of `file_path` in position delete files: equal bounds mean that the file refers to one data file."""

PolarsType = pl.DataType | pl.datatypes.DataTypeClass
Columns = Mapping[int | None, tuple[str, PolarsType]]

MANIFEST_LIST_FIELDS: Columns = {
    500: ("manifest_path", pl.String),
    501: ("manifest_length", pl.Int64),
    502: ("spec_id", pl.Int32),
    517: ("content", pl.Int32),
    515: ("sequence_number", pl.Int64),
    516: ("min_sequence_number", pl.Int64),
    503: ("added_snapshot_id", pl.Int64),
    504: ("added_files", pl.Int64),
    505: ("existing_files", pl.Int64),
    506: ("deleted_files", pl.Int64),
    512: ("added_rows", pl.Int64),
    513: ("existing_rows", pl.Int64),
    514: ("deleted_rows", pl.Int64),
    507: ("partitions", pl.List(pl.Struct({}))),
    519: ("key_metadata", pl.Binary),
    520: ("first_row_id", pl.Int64),
}
ENTRY_FIELDS: Columns = {
    0: ("status", pl.Int32),
    1: ("snapshot_id", pl.Int64),
    3: ("data_sequence_number", pl.Int64),
    4: ("file_sequence_number", pl.Int64),
    134: ("content", pl.Int32),
    100: ("file_path", pl.String),
    101: ("file_format", pl.String),
    103: ("record_count", pl.Int64),
    104: ("file_size_bytes", pl.Int64),
    131: ("key_metadata", pl.Binary),
    135: ("equality_ids", pl.List(pl.Int32)),
    140: ("sort_order_id", pl.Int32),
    142: ("first_row_id", pl.Int64),
    143: ("referenced_data_file", pl.String),
    144: ("content_offset", pl.Int64),
    145: ("content_size_bytes", pl.Int64),
}
_ID_TO_LONG = pl.List(pl.Struct({"key": pl.Int32, "value": pl.Int64}))
_ID_TO_BYTES = pl.List(pl.Struct({"key": pl.Int32, "value": pl.Binary}))
METRIC_FIELDS: Columns = {
    108: ("column_sizes", _ID_TO_LONG),
    109: ("value_counts", _ID_TO_LONG),
    110: ("null_counts", _ID_TO_LONG),
    137: ("nan_counts", _ID_TO_LONG),
    125: ("lower_bounds", _ID_TO_BYTES),
    128: ("upper_bounds", _ID_TO_BYTES),
}
_PARTITION_FIELD = "partition"
_JOINED_BYTES = 4 << 20
"""Manifests are decoded together that have about this many bytes."""

_FILE_COLUMNS: dict[str, PolarsType] = {
    "content": pl.Int8,
    "file_path": pl.String,
    "file_format": pl.String,
    "spec_id": pl.Int32,
    "partition": pl.String,
    "record_count": pl.Int64,
    "file_size_bytes": pl.Int64,
    "data_sequence_number": pl.Int64,
    "file_sequence_number": pl.Int64,
    "snapshot_id": pl.Int64,
    "equality_ids": pl.List(pl.Int32),
    "sort_order_id": pl.Int32,
    "first_row_id": pl.Int64,
    "referenced_data_file": pl.String,
    "content_offset": pl.Int64,
    "content_size_bytes": pl.Int64,
    "key_metadata_bytes": pl.Int32,
    "manifest_path": pl.String,
}
_ENTRY_SCHEMA = pl.Schema({"status": pl.Int32, **_FILE_COLUMNS})
FILE_SCHEMA = pl.Schema(_FILE_COLUMNS)
"""Columns of a file list, one row per live file. `partition` is a JSON array of the partition values as text, in spec
order; together with `spec_id` it identifies the partition. A value that was lost, because its column was dropped before the
manifest was rewritten, is `false`: it may be anything. `referenced_data_file` is also derived from equal bounds of
`file_path`, by which Iceberg Java marks position delete files of a single data file."""


FrameKey = tuple[str, int | None]
"""A manifest's path and first row id. The file never changes, but the first v3 commit of an upgraded table assigns first
row ids to the old manifests in the manifest list, from which their entries inherit theirs."""


class PartitionRange(TypedDict):
    """The values of one partition field within a manifest, bounds in Iceberg's single-value serialization. A plain dict, as
    in the manifest list: a table may have thousands, and every commit reads and writes all of them."""

    contains_null: bool
    contains_nan: bool | None
    lower_bound: bytes | None
    upper_bound: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestRef:
    """One row of a manifest list: what a manifest contains, and what its entries inherit."""

    path: str
    length: int
    spec_id: int
    content: int = DATA_MANIFEST
    sequence_number: int
    min_sequence_number: int = 0
    added_snapshot_id: int
    # Old v1 writers omitted the counts.
    added_files: int | None = None
    existing_files: int | None = None
    deleted_files: int | None = None
    added_rows: int | None = None
    existing_rows: int | None = None
    deleted_rows: int | None = None
    partitions: list[PartitionRange] | None = None
    key_metadata: bytes | None = None
    first_row_id: int | None = None


def read_manifest_list(io: FileIO, snapshot: Snapshot) -> list[ManifestRef]:
    """The manifests of a snapshot."""
    if not snapshot.manifest_list:
        raise Unsupported(
            f"snapshot {snapshot.snapshot_id} lists its manifests inside the metadata file",
            hint="Only very old v1 writers did this; any commit by a current engine writes a manifest list.",
        )
    container = parse_container(read_bytes(io, snapshot.manifest_list), snapshot.manifest_list)
    fields = flatten(container, inline=())
    names = [MANIFEST_LIST_FIELDS[f.field_id][0] if f.field_id in MANIFEST_LIST_FIELDS else None for f in fields]
    frame = _add_missing_columns(read_columns(container, fields, names), MANIFEST_LIST_FIELDS)
    return [_manifest_ref(row) for row in frame.iter_rows(named=True)]


def _manifest_ref(row: dict[str, Any]) -> ManifestRef:
    return ManifestRef(
        path=row.pop("manifest_path"),
        length=row.pop("manifest_length"),
        content=row.pop("content") or DATA_MANIFEST,
        sequence_number=row.pop("sequence_number") or 0,
        min_sequence_number=row.pop("min_sequence_number") or 0,
        **row,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RawManifests:
    """Manifests as stored, joined: their bytes, the fields in them, and the fields that were decoded as columns of `frame`.
    They have the same Avro schema, partition spec and content. Decoding one costs as much as decoding a hundred small ones,
    and a stream of commits leaves thousands."""

    refs: list[ManifestRef]
    heights: list[int]
    """The number of entries in each manifest."""
    container: AvroContainer
    fields: list[AvroField]
    names: list[str | None]
    frame: pl.DataFrame

    @property
    def manifest_numbers(self) -> npt.NDArray[np.intp]:
        """For each entry the number of its manifest."""
        return np.repeat(np.arange(len(self.refs)), self.heights)

    @property
    def partition_columns(self) -> list[str]:
        """The columns of the partition tuple in spec order; names of decimal columns start with "decimal"."""
        return [
            name
            for field, name in zip(self.fields, self.names, strict=True)
            if name is not None and _PARTITION_FIELD in field.path[:-1]
        ]


def describe_entries(raw: RawManifests) -> pl.DataFrame:
    """All entries in the order of the files, as `status` and FILE_SCHEMA, with inherited values filled in."""
    frame = _inherit(raw)
    unnumbered = frame.filter((pl.col("status") != DELETED) & pl.col("data_sequence_number").is_null())
    if unnumbered.height:
        path = unnumbered["manifest_path"][0]
        raise Damaged(
            f"entries without a sequence number in manifest {path}",
            hint="Only entries of status ADDED may omit it: the writer of this manifest violated the specification.",
            file=path,
        )
    manifest = raw.refs[0]
    if manifest.content == DELETES_MANIFEST:
        frame = _with_referenced_file(frame)
    return frame.select(
        "status",
        pl.col("content").fill_null(DATA).cast(pl.Int8),
        "file_path",
        pl.col("file_format").str.to_uppercase(),
        pl.lit(manifest.spec_id, pl.Int32).alias("spec_id"),
        partition_key(frame, raw.partition_columns),
        "record_count",
        "file_size_bytes",
        "data_sequence_number",
        "file_sequence_number",
        "snapshot_id",
        "equality_ids",
        "sort_order_id",
        "first_row_id",
        "referenced_data_file",
        "content_offset",
        "content_size_bytes",
        pl.col("key_metadata").bin.size().cast(pl.Int32).alias("key_metadata_bytes"),
        "manifest_path",
    ).cast(_ENTRY_SCHEMA)


def read_raw_manifests(
    io: FileIO, manifests: Iterable[ManifestRef], *, metrics: bool = False, everything: bool = False
) -> Iterator[RawManifests]:
    """Read manifests and decode the fields of file lists, with `metrics` also the column metrics, or `everything`. They may
    come in another order: small ones are decoded together."""
    groups: dict[tuple[bytes, int, int], list[tuple[AvroContainer, ManifestRef]]] = {}
    waiting_bytes = 0
    for manifest in manifests:
        container = _read_container(io, manifest)
        # With a wrong count the entries of the next manifest could be taken for its own.
        if container.count != _entry_count(manifest):
            yield decode_manifest(container, manifest, metrics=metrics, everything=everything)
            continue
        key = (container.metadata["avro.schema"], manifest.spec_id, manifest.content)
        groups.setdefault(key, []).append((container, manifest))
        waiting_bytes += len(container.body)
        if waiting_bytes >= _JOINED_BYTES:
            for group in groups.values():
                yield from _decode_together(group, metrics=metrics, everything=everything)
            groups, waiting_bytes = {}, 0
    for group in groups.values():
        yield from _decode_together(group, metrics=metrics, everything=everything)


def _decode_together(
    group: list[tuple[AvroContainer, ManifestRef]], *, metrics: bool, everything: bool
) -> Iterator[RawManifests]:
    containers, manifests = [container for container, _ in group], [manifest for _, manifest in group]
    try:
        joined = decode_manifest(join_containers(containers), manifests[0], metrics=metrics, everything=everything)
    except Damaged:  # decoded one by one, the error has the right name
        for container, manifest in group:
            yield decode_manifest(container, manifest, metrics=metrics, everything=everything)
    else:
        yield replace(joined, refs=manifests, heights=[container.count for container in containers])


def _read_container(io: FileIO, manifest: ManifestRef) -> AvroContainer:
    refuse_encrypted(manifest)
    data = read_bytes(io, manifest.path, never_changes=True)
    if len(data) < manifest.length:  # cut off between two blocks it would be valid Avro, with fewer files
        raise Damaged(
            f"manifest has {len(data)} bytes, the manifest list says {manifest.length}: {manifest.path}",
            hint=DAMAGED_HINT,
            file=manifest.path,
        )
    return parse_container(data, manifest.path)


def _entry_count(manifest: ManifestRef) -> int:
    return (manifest.added_files or 0) + (manifest.existing_files or 0) + (manifest.deleted_files or 0)


def refuse_encrypted(manifest: ManifestRef) -> None:
    """Refuse encrypted manifests, which have key metadata."""
    if manifest.key_metadata is not None:
        raise Unsupported(
            f"manifest is encrypted: {manifest.path}",
            hint="PyArctic does not read encrypted tables yet.",
            file=manifest.path,
        )


def decode_manifest(
    container: AvroContainer, manifest: ManifestRef, *, metrics: bool, everything: bool = False
) -> RawManifests:
    """Decode a manifest that is already in memory, like `read_raw_manifests`."""
    fields = flatten(container, inline=("data_file", _PARTITION_FIELD))
    _check_is_manifest(manifest, fields)
    has_metrics = metrics or everything or manifest.content == DELETES_MANIFEST  # bounds name the data file of a delete
    wanted = {**ENTRY_FIELDS, **METRIC_FIELDS} if has_metrics else ENTRY_FIELDS
    names: list[str | None] = []
    for index, field in enumerate(fields):
        if _PARTITION_FIELD in field.path[:-1]:
            names.append(f"{'decimal' if field.is_decimal else 'partition'}_{index}")
        elif field.field_id in wanted:
            names.append(wanted[field.field_id][0])
        else:
            names.append(f"other_{index}" if everything else None)
    frame = _add_missing_columns(read_columns(container, fields, names), wanted)
    return RawManifests(
        refs=[manifest], heights=[container.count], container=container, fields=fields, names=names, frame=frame
    )


def _check_is_manifest(manifest: ManifestRef, fields: list[AvroField]) -> None:
    if not {0, 100, 103, 104} <= {field.field_id for field in fields}:
        raise Damaged(
            f"not an Iceberg manifest: {manifest.path}",
            hint="The file contains Avro data without the field ids of manifest entries.",
            file=manifest.path,
        )


def _add_missing_columns(frame: pl.DataFrame, fields: Columns) -> pl.DataFrame:
    """Add columns that the writer omitted, as nulls."""
    missing = [pl.lit(None, dtype).alias(name) for name, dtype in fields.values() if name not in frame.columns]
    return frame.with_columns(missing)


def _inherit(raw: RawManifests) -> pl.DataFrame:
    """The entries with the path of their manifest, and with the values that they inherit from it."""

    numbers = raw.manifest_numbers

    def of_manifests(name: str, dtype: PolarsType) -> pl.Series:
        values = pl.Series(f"manifest_{name}", [getattr(ref, name) for ref in raw.refs], dtype=dtype)
        return values.gather(numbers)

    frame = raw.frame.with_columns(
        pl.Series("manifest_number", numbers),
        of_manifests("path", pl.String),
        *[of_manifests(name, pl.Int64) for name in ("added_snapshot_id", "sequence_number", "first_row_id")],
    )
    # Manifests of v1 have sequence number 0, which every entry inherits; in later versions only ADDED entries do.
    sequence = pl.col("manifest_sequence_number")
    inherited_sequence = pl.when((sequence == 0) | (pl.col("status") == ADDED)).then(sequence)
    frame = frame.with_columns(
        pl.coalesce("snapshot_id", "manifest_added_snapshot_id"),
        *[pl.coalesce(name, inherited_sequence).alias(name) for name in ("data_sequence_number", "file_sequence_number")],
    )
    if frame["manifest_first_row_id"].null_count() == frame.height:
        return frame.with_columns(pl.lit(None, pl.Int64).alias("first_row_id"))
    # v3: files without a first row id are numbered in file order; removed entries take no numbers.
    first = pl.col("manifest_first_row_id")
    unnumbered = (
        pl.when(pl.col("first_row_id").is_null() & (pl.col("status") != DELETED)).then(pl.col("record_count")).otherwise(0)
    )
    inherited = first + unnumbered.cum_sum().over("manifest_number") - unnumbered
    return frame.with_columns(
        pl.when(first.is_not_null()).then(pl.coalesce("first_row_id", inherited)).alias("first_row_id")
    )


def _with_referenced_file(frame: pl.DataFrame) -> pl.DataFrame:
    lower, upper = metric_of_field("lower_bounds", FILE_PATH_ID), metric_of_field("upper_bounds", FILE_PATH_ID)
    from_bounds = pl.when((pl.col("content") == POSITION_DELETES) & (lower == upper)).then(lower.cast(pl.String))
    return frame.with_columns(pl.coalesce("referenced_data_file", from_bounds))


def metric_of_field(name: str, field_id: int) -> pl.Expr:
    """The value of one field in a column of (field id, value) pairs."""
    element = pl.element().struct.field
    return pl.col(name).list.eval(element("value").filter(element("key") == field_id)).list.first()
