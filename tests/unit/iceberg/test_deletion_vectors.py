"""Deletion vectors: what is written comes back, and nothing that is wrong with a blob goes unseen."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from pyiceberg.io.pyarrow import PyArrowFileIO

from pyarctic.errors import Damaged
from pyarctic.iceberg.delete.deletion_vectors import decode_vector, read_vector
from tests.models.spec.table import vector_blob

LARGE = [0, 5, 2**31, 2**32 - 1, 2**32, 2**32 + 7, 3 * 2**32 + 1, 2**40]


@given(positions=st.sets(st.integers(0, 2**35) | st.integers(0, 300), max_size=50))
def test_round_trip(positions: set[int]) -> None:
    blob = vector_blob(sorted(positions))
    decoded = decode_vector(blob, len(blob), len(positions))
    assert decoded.dtype == np.int64
    assert decoded.tolist() == sorted(positions)


def test_runs_and_positions_beyond_32_bits() -> None:
    positions = sorted({*LARGE, *range(100_000, 200_000), *range(2**33, 2**33 + 5000, 3)})
    blob = vector_blob(positions)
    assert decode_vector(blob, len(blob), len(positions)).tolist() == positions


def test_located_inside_a_file(tmp_path: Path) -> None:
    blob = vector_blob(LARGE)
    path = tmp_path / "v.puffin"
    path.write_bytes(b"before" + blob + b"after")
    assert read_vector(PyArrowFileIO(), path.as_uri(), 6, len(blob), len(LARGE)).tolist() == LARGE


BLOB = vector_blob([1, 3, 2**33])


def sealed(body: bytes) -> bytes:
    """With length and checksum that fit."""
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


@pytest.mark.parametrize(
    ("blob", "size", "cardinality", "complaint"),
    [
        (BLOB[:-1], len(BLOB), 3, "bytes found"),
        (b"", len(BLOB), 3, "bytes found"),
        (BLOB[:10], 10, 3, "bytes found"),
        (struct.pack(">I", 7) + BLOB[4:], len(BLOB), 3, "length field"),
        (sealed(b"\xd1\xd3\x39\x65" + BLOB[8:-4]), len(BLOB), 3, "magic"),
        (BLOB[:-1] + bytes([BLOB[-1] ^ 1]), len(BLOB), 3, "checksum"),
        (BLOB[:20] + bytes([BLOB[20] ^ 1]) + BLOB[21:], len(BLOB), 3, "checksum"),
        (BLOB, len(BLOB), 2, "expected"),
        (BLOB, len(BLOB), 4, "expected"),
    ],
)
def test_each_corruption(tmp_path: Path, blob: bytes, size: int, cardinality: int, complaint: str) -> None:
    path = tmp_path / "v.puffin"
    path.write_bytes(b"PFA1" + blob)
    with pytest.raises(Damaged, match=complaint) as caught:
        read_vector(PyArrowFileIO(), path.as_uri(), 4, size, cardinality)
    assert caught.value.facts == {"file": path.as_uri(), "offset": 4}
    assert caught.value.hint


@given(data=st.data())
def test_any_wrong_byte_is_seen(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(BLOB) - 1))
    wrong = data.draw(st.integers(1, 255))
    with pytest.raises(ValueError, match=r"."):
        decode_vector(BLOB[:at] + bytes([BLOB[at] ^ wrong]) + BLOB[at + 1 :], len(BLOB), 3)


@given(garbage=st.binary(min_size=8, max_size=60))
def test_bitmaps_that_make_no_sense(tmp_path_factory: pytest.TempPathFactory, garbage: bytes) -> None:
    """Checksum and magic are right and the content is not: still an error of ours."""
    blob = sealed(b"\xd1\xd3\x39\x64" + garbage)
    path = tmp_path_factory.getbasetemp() / "garbage.puffin"
    path.write_bytes(blob)
    with pytest.raises(Damaged):
        read_vector(PyArrowFileIO(), path.as_uri(), 0, len(blob), 10**9)
