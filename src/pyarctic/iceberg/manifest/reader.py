"""Reading manifest lists and manifests of any writer and format version as frames.

Fields are found by their Iceberg field id, not by name, because names differ between versions and writers. Values that an
entry inherits from its manifest (snapshot id, sequence numbers, first row id) are filled in here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import polars as pl
from pyiceberg.io import FileIO
from pyiceberg.table.snapshots import Snapshot

from pyarctic.errors import Damaged, Unsupported
from pyarctic.iceberg.manifest.avro import DAMAGED_HINT, AvroContainer, AvroField, flatten, parse_container, read_columns
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
class RawManifest:
    """A manifest as stored: its bytes, the fields in them, and the fields that were decoded as columns of `frame`."""

    ref: ManifestRef
    container: AvroContainer
    fields: list[AvroField]
    names: list[str | None]
    frame: pl.DataFrame

    @property
    def partition_columns(self) -> list[str]:
        """The columns of the partition tuple in spec order; names of decimal columns start with "decimal"."""
        return [
            name
            for field, name in zip(self.fields, self.names, strict=True)
            if name is not None and _PARTITION_FIELD in field.path[:-1]
        ]


class ManifestReader:
    """Reads manifests and caches their file lists: a manifest never changes once it is written."""

    def __init__(self, io: FileIO, cached: Mapping[FrameKey, pl.DataFrame] | None = None) -> None:
        self.io = io
        self._frames: dict[FrameKey, pl.DataFrame] = dict(cached or {})
        self._lists: dict[int, list[ManifestRef]] = {}

    def manifests(self, snapshot: Snapshot | None) -> list[ManifestRef]:
        """The manifests of a snapshot; None stands for the empty table."""
        if snapshot is None:
            return []
        if snapshot.snapshot_id not in self._lists:
            self._lists[snapshot.snapshot_id] = read_manifest_list(self.io, snapshot)
        return self._lists[snapshot.snapshot_id]

    def files(self, manifest: ManifestRef) -> pl.DataFrame:
        """The live files of a manifest as FILE_SCHEMA."""
        key = (manifest.path, manifest.first_row_id)
        if key not in self._frames:
            self._frames[key] = read_manifest(self.io, manifest)
        return self._frames[key]

    def files_of(self, manifests: Iterable[ManifestRef]) -> pl.DataFrame:
        """The live files of several manifests."""
        return pl.concat([pl.DataFrame(schema=FILE_SCHEMA), *map(self.files, manifests)], rechunk=False)


def read_manifest(io: FileIO, manifest: ManifestRef) -> pl.DataFrame:
    """The live entries of a manifest as FILE_SCHEMA."""
    entries = describe_entries(read_raw_manifest(io, manifest, metrics=manifest.content == DELETES_MANIFEST))
    return entries.filter(pl.col("status") != DELETED).drop("status")


def describe_entries(raw: RawManifest) -> pl.DataFrame:
    """All entries in the order of the file, as `status` and FILE_SCHEMA, with inherited values filled in."""
    manifest = raw.ref
    frame = _inherit(raw.frame, manifest)
    if frame.filter((pl.col("status") != DELETED) & pl.col("data_sequence_number").is_null()).height:
        raise Damaged(
            f"entries without a sequence number in manifest {manifest.path}",
            hint="Only entries of status ADDED may omit it: the writer of this manifest violated the specification.",
            file=manifest.path,
        )
    if manifest.content == DELETES_MANIFEST:
        frame = _with_referenced_file(frame)
    return frame.select(
        "status",
        pl.col("content").fill_null(DATA).cast(pl.Int8),
        "file_path",
        pl.col("file_format").str.to_uppercase(),
        pl.lit(manifest.spec_id, pl.Int32).alias("spec_id"),
        _partition_key(frame, raw.partition_columns),
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
        pl.lit(manifest.path).alias("manifest_path"),
    ).cast(_ENTRY_SCHEMA)


def read_metrics(io: FileIO, manifest: ManifestRef, field_ids: list[int]) -> pl.DataFrame:
    """Column metrics of the live entries for the given fields: file_path, content_offset and, per field id,
    `lower_<id>`, `upper_<id>` (Iceberg's single-value bytes), `nulls_<id>`, `nans_<id>`, `values_<id>`, `bytes_<id>`.
    """
    frame = read_raw_manifest(io, manifest, metrics=True).frame
    columns = [
        _metric_of_field(name, field_id).alias(f"{short}_{field_id}")
        for field_id in field_ids
        for name, short in (
            ("lower_bounds", "lower"),
            ("upper_bounds", "upper"),
            ("null_counts", "nulls"),
            ("nan_counts", "nans"),
            ("value_counts", "values"),
            ("column_sizes", "bytes"),
        )
    ]
    return frame.filter(pl.col("status") != DELETED).select("file_path", "content_offset", *columns)


def read_raw_manifest(io: FileIO, manifest: ManifestRef, *, metrics: bool, everything: bool = False) -> RawManifest:
    """Read a manifest and decode the fields of file lists, with `metrics` also the column metrics, or `everything`."""
    if manifest.key_metadata is not None:
        raise Unsupported(
            f"manifest is encrypted: {manifest.path}",
            hint="PyArctic does not read encrypted tables yet.",
            file=manifest.path,
        )
    data = read_bytes(io, manifest.path)
    if len(data) < manifest.length:  # cut off between two blocks it would be valid Avro, with fewer files
        raise Damaged(
            f"manifest has {len(data)} bytes, the manifest list says {manifest.length}: {manifest.path}",
            hint=DAMAGED_HINT,
            file=manifest.path,
        )
    return decode_manifest(parse_container(data, manifest.path), manifest, metrics=metrics, everything=everything)


def decode_manifest(
    container: AvroContainer, manifest: ManifestRef, *, metrics: bool, everything: bool = False
) -> RawManifest:
    """Decode a manifest that is already in memory, like `read_raw_manifest`."""
    fields = flatten(container, inline=("data_file", _PARTITION_FIELD))
    _check_is_manifest(manifest, fields)
    wanted = {**ENTRY_FIELDS, **METRIC_FIELDS} if metrics or everything else ENTRY_FIELDS
    names: list[str | None] = []
    for index, field in enumerate(fields):
        if _PARTITION_FIELD in field.path[:-1]:
            names.append(f"{'decimal' if field.is_decimal else 'partition'}_{index}")
        elif field.field_id in wanted:
            names.append(wanted[field.field_id][0])
        else:
            names.append(f"other_{index}" if everything else None)
    frame = _add_missing_columns(read_columns(container, fields, names), wanted)
    return RawManifest(ref=manifest, container=container, fields=fields, names=names, frame=frame)


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


def _inherit(frame: pl.DataFrame, manifest: ManifestRef) -> pl.DataFrame:
    # Manifests of v1 have sequence number 0, which every entry inherits; in later versions only ADDED entries do.
    inherits = pl.lit(value=True) if manifest.sequence_number == 0 else pl.col("status") == ADDED
    frame = frame.with_columns(
        pl.col("snapshot_id").fill_null(manifest.added_snapshot_id),
        *[
            pl.when(inherits).then(pl.col(name).fill_null(manifest.sequence_number)).otherwise(pl.col(name)).alias(name)
            for name in ("data_sequence_number", "file_sequence_number")
        ],
    )
    if manifest.first_row_id is None:
        return frame.with_columns(pl.lit(None, pl.Int64).alias("first_row_id"))
    # v3: files without a first row id are numbered in file order; removed entries take no numbers.
    unnumbered = (
        pl.when(pl.col("first_row_id").is_null() & (pl.col("status") != DELETED)).then(pl.col("record_count")).otherwise(0)
    )
    inherited = manifest.first_row_id + unnumbered.cum_sum() - unnumbered
    return frame.with_columns(pl.coalesce("first_row_id", inherited))


def _with_referenced_file(frame: pl.DataFrame) -> pl.DataFrame:
    lower, upper = _metric_of_field("lower_bounds", FILE_PATH_ID), _metric_of_field("upper_bounds", FILE_PATH_ID)
    from_bounds = pl.when((pl.col("content") == POSITION_DELETES) & (lower == upper)).then(lower.cast(pl.String))
    return frame.with_columns(pl.coalesce("referenced_data_file", from_bounds))


def _metric_of_field(name: str, field_id: int) -> pl.Expr:
    """The value of one field in a column of (field id, value) pairs."""
    element = pl.element().struct.field
    return pl.col(name).list.eval(element("value").filter(element("key") == field_id)).list.first()


def _partition_key(frame: pl.DataFrame, columns: list[str]) -> pl.Expr:
    if not columns:
        return pl.lit("[]").alias("partition")
    texts: list[pl.Expr | None] = []
    for name in columns:
        value = pl.col(name)
        if frame.schema[name] == pl.Null:  # the writer no longer knew the type
            texts.append(None)
        elif frame.schema[name] == pl.Binary:
            text = value.bin.encode("hex")
            texts.append(_trim_sign_bytes(text) if name.startswith("decimal") else text)
        else:
            # A promoted column has the narrow type in old manifests and must give the same text.
            texts.append((value.cast(pl.Float64) if frame.schema[name] == pl.Float32 else value).cast(pl.String))
    # Encoded as an object by Polars, kept as an array: field names may change, positions may not.
    quoted = [
        pl.lit("false") if text is None else pl.when(text.is_null()).then(pl.lit("null")).otherwise(_quote_json(text))
        for text in texts
    ]
    return pl.concat_str(pl.lit("["), pl.concat_str(quoted, separator=","), pl.lit("]")).alias("partition")


def _quote_json(text: pl.Expr) -> pl.Expr:
    encoded = pl.struct(text.alias("v")).struct.json_encode()  # {"v":"…"}
    return encoded.str.slice(5).str.strip_suffix("}")


def _trim_sign_bytes(number: pl.Expr) -> pl.Expr:
    """Two's complement in hexadecimal without redundant sign bytes, whose number depends on the decimal's precision."""
    return number.str.replace("^(?:00)+([0-7])", "$1").str.replace("^(?:ff)+([89a-f])", "$1")
