"""Writing manifests and manifest lists: manifests are split by size and count, with partition ranges for pruning."""

from __future__ import annotations

import io
import itertools
import json
import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import fastavro
import polars as pl
from pyiceberg.io import FileIO
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata

from pyarctic.errors import UsageError
from pyarctic.iceberg.manifest.avro import AvroField, container_header
from pyarctic.iceberg.manifest.reader import ADDED, DELETED, DELETES_MANIFEST, EXISTING, ManifestRef, PartitionRange
from pyarctic.iceberg.storage import remove_quietly, write_bytes
from pyarctic.iceberg.write.commit_names import new_file_id
from pyarctic.iceberg.write.manifest.avro_bytes import CODECS, container_block
from pyarctic.iceberg.write.manifest.avro_schemas import manifest_list_schema
from pyarctic.iceberg.write.manifest.entries import EntryBatch, concat_entries, partition_columns_of
from pyarctic.iceberg.write.properties import positive_property

MANIFEST_TARGET_BYTES = 8 << 20
MAX_ENTRIES = 10_000
"""Limit of entries per manifest: removing one file rewrites the complete manifest it is in."""
_BLOCK_ENTRIES = 1_000
UNASSIGNED = -1
"""A sequence number that the commit assigns when the manifest list is written."""


class MetadataFiles:
    """Writes the manifests and manifest lists of one commit under unique names, and records them, so that unused ones can be
    removed."""

    def __init__(self, metadata: TableMetadata, file_io: FileIO, names_of: int) -> None:
        """`names_of`: the snapshot that the names tell."""
        self.written: list[str] = []
        self._metadata = metadata
        self._io = file_io
        self._id = new_file_id(names_of)
        self._numbers = itertools.count()
        self._locations = load_location_provider(metadata.location, metadata.properties)
        self._codec = _codec(metadata.properties)
        self._target_bytes = positive_property(
            metadata.properties, "commit.manifest.target-size-bytes", MANIFEST_TARGET_BYTES
        )

    def for_table(self, metadata: TableMetadata, file_io: FileIO) -> None:
        """Continue with a newer state of the table, which may have another format version or new credentials."""
        self._metadata = metadata
        self._io = file_io

    def write_manifests(self, batch: EntryBatch, snapshot_id: int) -> list[ManifestRef]:
        """Write the entries in order, into as many manifests as their size requires."""
        total = len(batch.encoded)
        manifests = []
        start = 0
        while start < total:
            sync = os.urandom(16)
            parts = [container_header(self._manifest_metadata(batch), sync)]
            end = start
            while end < min(total, start + MAX_ENTRIES) and sum(map(len, parts)) < self._target_bytes:
                entries = batch.encoded[end : min(end + _BLOCK_ENTRIES, start + MAX_ENTRIES)]
                parts.append(container_block(len(entries), concat_entries(entries), self._codec, sync))
                end += len(entries)
            path = self._locations.new_metadata_location(f"{self._id}-m{next(self._numbers)}.avro")
            length = self._write(path, b"".join(parts))
            part = batch.take(pl.int_range(start, end, eager=True)) if end - start < total else batch
            manifests.append(_manifest_ref(part, path, length, snapshot_id))
            start = end
        return manifests

    def write_list(self, manifests: Sequence[ManifestRef], header: Mapping[str, str], name: str) -> str:
        """Write a manifest list; returns its path."""
        version = self._metadata.format_version
        schema = manifest_list_schema(version)
        stream = io.BytesIO()
        fastavro.writer(
            stream,
            fastavro.parse_schema(schema),
            [_list_record(manifest) for manifest in manifests],
            codec="null" if self._codec == "null" else "deflate",
            codec_compression_level=1,
            metadata={**header, "format-version": str(version)},
        )
        path = self._locations.new_metadata_location(f"snap-{name}-{self._id}.avro")
        self._write(path, stream.getvalue())
        return path

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files; failures are ignored."""
        remove_quietly(self._io, paths)
        removed = set(paths)
        self.written = [path for path in self.written if path not in removed]

    def _manifest_metadata(self, batch: EntryBatch) -> dict[str, bytes]:
        spec = self._metadata.specs()[batch.spec_id]
        return {
            "avro.schema": json.dumps(batch.schema).encode(),
            "avro.codec": self._codec.encode(),
            "schema": self._metadata.schema().model_dump_json().encode(),
            "partition-spec": f"[{','.join(field.model_dump_json() for field in spec.fields)}]".encode(),
            "partition-spec-id": str(batch.spec_id).encode(),
            "format-version": str(self._metadata.format_version).encode(),
            "content": b"deletes" if batch.content == DELETES_MANIFEST else b"data",
        }

    def _write(self, path: str, data: bytes) -> int:
        self.written.append(path)
        write_bytes(self._io, path, data)
        return len(data)


def _manifest_ref(batch: EntryBatch, path: str, length: int, snapshot_id: int) -> ManifestRef:
    counted = batch.facts.group_by("status").agg(pl.len(), pl.col("record_count").sum())
    files = {status: number for status, number, _ in counted.iter_rows()}
    rows = {status: number for status, _, number in counted.iter_rows()}
    live = batch.facts.filter(pl.col("status") != DELETED)["data_sequence_number"]
    # Inherited sequence numbers do not count: that of the commit is larger than any given one.
    smallest = live.min() if live.null_count() < len(live) else UNASSIGNED
    return ManifestRef(
        path=path,
        length=length,
        spec_id=batch.spec_id,
        content=batch.content,
        sequence_number=UNASSIGNED,
        min_sequence_number=int(smallest),  # type: ignore[arg-type]
        added_snapshot_id=snapshot_id,
        added_files=files.get(ADDED, 0),
        existing_files=files.get(EXISTING, 0),
        deleted_files=files.get(DELETED, 0),
        added_rows=rows.get(ADDED, 0),
        existing_rows=rows.get(EXISTING, 0),
        deleted_rows=rows.get(DELETED, 0),
        partitions=[_partition_range(field, values) for field, values in partition_columns_of(batch)],
    )


def _partition_range(field: AvroField, values: pl.Series) -> PartitionRange:
    contains_null = values.null_count() > 0
    if values.dtype == pl.Null:
        return PartitionRange(contains_null=True, contains_nan=False, lower_bound=None, upper_bound=None)
    kind = next(option for option in field.type if option != "null") if isinstance(field.type, list) else field.type
    contains_nan = False
    if values.dtype.is_float():
        contains_nan = bool(values.is_nan().any())
        values = values.filter(values.is_not_nan())
    non_null = values.drop_nulls()
    if non_null.is_empty():
        return PartitionRange(contains_null=contains_null, contains_nan=contains_nan, lower_bound=None, upper_bound=None)
    if field.is_decimal:  # two's complement does not sort as bytes
        numbers = [int.from_bytes(value, "big", signed=True) for value in non_null.unique()]
        lower, upper = (_decimal_bytes(number) for number in (min(numbers), max(numbers)))
    else:
        ordered = non_null.sort()
        lower, upper = (_single_value(ordered[index], kind) for index in (0, -1))
    return PartitionRange(contains_null=contains_null, contains_nan=contains_nan, lower_bound=lower, upper_bound=upper)


def _single_value(value: Any, kind: Any) -> bytes:
    """Iceberg's single-value serialization of a physical Avro value."""
    match kind:
        case "boolean":
            return struct.pack("?", value)
        case "int":
            return struct.pack("<i", value)
        case "long":
            return struct.pack("<q", value)
        case "float":
            return struct.pack("<f", value)
        case "double":
            return struct.pack("<d", value)
        case "string":
            return str(value).encode()
    return bytes(value)


def _decimal_bytes(number: int) -> bytes:
    return number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)


def _list_record(manifest: ManifestRef) -> dict[str, Any]:
    return {
        "manifest_path": manifest.path,
        "manifest_length": manifest.length,
        "partition_spec_id": manifest.spec_id,
        "content": manifest.content,
        "sequence_number": manifest.sequence_number,
        "min_sequence_number": manifest.min_sequence_number,
        "added_snapshot_id": manifest.added_snapshot_id,
        "added_files_count": manifest.added_files,
        "existing_files_count": manifest.existing_files,
        "deleted_files_count": manifest.deleted_files,
        "added_rows_count": manifest.added_rows,
        "existing_rows_count": manifest.existing_rows,
        "deleted_rows_count": manifest.deleted_rows,
        "partitions": manifest.partitions,
        "key_metadata": manifest.key_metadata,
        "first_row_id": manifest.first_row_id,
    }


def _codec(properties: Mapping[str, str]) -> str:
    name = properties.get("write.avro.compression-codec", "gzip").lower()
    if name not in CODECS:
        raise UsageError(
            f"table property write.avro.compression-codec = {name!r} is not a codec", hint=f"One of: {', '.join(CODECS)}."
        )
    return CODECS[name]
