"""Puffin files, for deletion vectors and statistics: a sequence of blobs, and a footer that describes them."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from pyiceberg.io import FileIO
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.statistics import BlobMetadata, StatisticsFile

from pyarctic._version import __version__
from pyarctic.errors import Damaged, Unsupported, UsageError
from pyarctic.iceberg.catalog.pyiceberg_patches import apply_patches
from pyarctic.iceberg.storage import read_bytes, write_bytes
from pyarctic.iceberg.write.new_file import FileNames

_MAGIC = b"PFA1"
_DAMAGED = "The file was cut off or overwritten. Roll back to a snapshot that does not need it."
INHERITED = -1
"""For the snapshot id and sequence number of a deletion vector, which are those of its manifest entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """A blob about columns of a table at a snapshot. `type` is its format, such as `apache-datasketches-theta-v1` for a
    sketch of distinct values."""

    type: str
    data: bytes
    fields: tuple[int, ...]
    snapshot_id: int
    sequence_number: int
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PuffinFile:
    """A written file: its size, the size of its footer, and the offset of each blob."""

    size: int
    footer_size: int
    offsets: tuple[int, ...]


def write_puffin(io: FileIO, path: str, blobs: Sequence[Blob]) -> PuffinFile:
    """Write blobs in this order, uncompressed."""
    offsets = tuple(accumulate((len(blob.data) for blob in blobs), initial=len(_MAGIC)))[:-1]
    blob_metadata = [
        {
            "type": blob.type,
            "fields": list(blob.fields),
            "snapshot-id": blob.snapshot_id,
            "sequence-number": blob.sequence_number,
            "offset": offset,
            "length": len(blob.data),
            "properties": dict(blob.properties),
        }
        for blob, offset in zip(blobs, offsets, strict=True)
    ]
    payload = json.dumps({"blobs": blob_metadata, "properties": {"created-by": f"PyArctic {__version__}"}}).encode()
    footer = b"".join([_MAGIC, payload, struct.pack("<I", len(payload)), bytes(4), _MAGIC])
    data = b"".join([_MAGIC, *(blob.data for blob in blobs), footer])
    write_bytes(io, path, data)
    return PuffinFile(size=len(data), footer_size=len(footer), offsets=offsets)


def read_blob(io: FileIO, path: str, type_: str) -> bytes:
    """The first blob of a type. Compressed files are not supported."""
    data = read_bytes(io, path)
    length = int.from_bytes(data[-12:-8], "little")
    if data[:4] != _MAGIC or data[-4:] != _MAGIC or data[-8:-4] != bytes(4) or len(data) < length + 20:
        raise Damaged(f"not a Puffin file, or a compressed one: {path}", hint=_DAMAGED, file=path)
    try:
        described = json.loads(data[-12 - length : -12])["blobs"]
        blob = next(blob for blob in described if blob["type"] == type_)
        if blob.get("compression-codec"):
            raise Unsupported(f"blob is compressed with {blob['compression-codec']}: {path}", file=path)
        return data[blob["offset"] : blob["offset"] + blob["length"]]
    except (ValueError, KeyError, TypeError, StopIteration) as cause:
        raise Damaged(f"Puffin file without a readable blob {type_!r}: {path}", hint=_DAMAGED, file=path) from cause


def write_statistics(
    metadata: TableMetadata, io: FileIO, snapshot_id: int, blobs: Sequence[Blob], *, path: str | None = None
) -> StatisticsFile:
    """Write a statistics file of a snapshot; committing a `Change` with it adds it to the table's metadata."""
    if not blobs:
        raise UsageError("no statistics were given")
    apply_patches()  # PyIceberg's model allows only two types of blobs
    if path is None:
        provider = load_location_provider(metadata.location, metadata.properties)
        path = provider.new_metadata_location(FileNames().next(f"-{snapshot_id}.stats"))
    file = write_puffin(io, path, blobs)
    blob_metadata = [
        BlobMetadata.model_validate(
            {
                "type": blob.type,
                "snapshot-id": blob.snapshot_id,
                "sequence-number": blob.sequence_number,
                "fields": list(blob.fields),
                "properties": dict(blob.properties),
            }
        )
        for blob in blobs
    ]
    return StatisticsFile.model_validate(
        {
            "snapshot-id": snapshot_id,
            "statistics-path": path,
            "file-size-in-bytes": file.size,
            "file-footer-size-in-bytes": file.footer_size,
            "blob-metadata": blob_metadata,
        }
    )
