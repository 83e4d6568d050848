"""Deletion vectors of format v3: Roaring bitmaps inside Puffin files, located by the manifest entry."""

from __future__ import annotations

import struct
import zlib
from array import array

import numpy as np
import numpy.typing as npt
from pyiceberg.io import FileIO
from pyroaring import BitMap64

from pyarctic.errors import Damaged
from pyarctic.iceberg.storage import read_range

MAGIC = bytes.fromhex("D1D33964")
Positions = npt.NDArray[np.int64]


def merge_positions(left: Positions, right: Positions) -> Positions:
    """The union of two ascending position arrays, ascending. NumPy's own union hashes all positions, which takes ten times
    as long as merging two sorted runs."""
    if not len(left) or not len(right):
        return right if len(right) else left
    both = np.sort(np.concatenate([left, right]), kind="stable")
    first = np.ones(len(both), dtype=bool)
    np.not_equal(both[1:], both[:-1], out=first[1:])
    return both[first]


def to_bitmap(positions: Positions) -> BitMap64:
    """Positions as a bitmap. Given a NumPy array, pyroaring would convert each number to a Python object first."""
    return BitMap64(array("Q", positions.tobytes()))


def read_vector(io: FileIO, path: str, offset: int, size: int, cardinality: int, file_size: int | None = None) -> Positions:
    """Read a deletion vector: the deleted row positions, ascending. Length, magic, checksum and cardinality must agree."""
    try:
        return decode_vector(read_range(io, path, offset, size, file_size), size, cardinality)
    except (IndexError, ValueError, struct.error) as cause:
        raise Damaged(
            f"deletion vector at byte {offset} of {path} is corrupt: {cause}",
            hint="Restore the file from a backup, or roll back to the snapshot before the commit that added it. "
            "The data file is not read without its vector, because deleted rows would come back.",
            file=path,
            offset=offset,
        ) from cause


def decode_vector(blob: bytes, size: int, cardinality: int) -> Positions:
    """Decode a `deletion-vector-v1` blob; raises ValueError that says what is wrong with it."""
    if len(blob) != size or size < 20:
        msg = f"{len(blob)} bytes found, {size} expected"
        raise ValueError(msg)
    (length,) = struct.unpack_from(">I", blob)
    body, (checksum,) = blob[4:-4], struct.unpack_from(">I", blob, len(blob) - 4)
    if length != len(body):
        msg = f"length field says {length}, the blob has {len(body)}"
        raise ValueError(msg)
    if body[:4] != MAGIC:
        msg = f"magic is {body[:4].hex()}, not {MAGIC.hex()}"
        raise ValueError(msg)
    if zlib.crc32(body) != checksum:
        msg = "checksum differs"
        raise ValueError(msg)
    positions: Positions = np.frombuffer(BitMap64.deserialize(body[4:]).to_array(), dtype=np.int64)
    if len(positions) != cardinality:
        msg = f"{len(positions)} positions found, {cardinality} expected"
        raise ValueError(msg)
    return positions
